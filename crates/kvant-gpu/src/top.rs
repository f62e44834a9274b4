//! The beginning of the ranking of rows of logits, so that the rows themselves stay on the device.
//!
//! The order is that of [`kvant_model::top`], exactly: logits are compared as they are. A mass is not computed here, because it is
//! defined in 64-bit floats, which devices do not have; rows that want one come as logits.

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::recorder::{Grid, Recorder};
use crate::weights::Place;
use kvant_model::top::TopTokens;

/// Candidates of a workgroup.
const CANDIDATES: usize = 2048;

/// What no token has for an id.
const NONE: u32 = u32::MAX;

/// Lists of rows under way.
pub(crate) struct Ranking {
    rows: usize,
    count: usize,
    kept: [Buffer; 2],
    /// `(rows, count)` of ids and logits.
    pub lists: Buffer,
}

impl Ranking {
    /// Room for the lists of so many rows.
    pub(crate) fn new(gpu: &Gpu, rows: usize, vocabulary: usize, count: usize) -> Ranking {
        let words = rows * vocabulary.div_ceil(CANDIDATES) * count;
        Ranking {
            rows,
            count,
            kept: [0, 1].map(|_| Buffer::new(gpu, "kept", 4 * words)),
            lists: Buffer::new(gpu, "lists", 8 * rows * count),
        }
    }

    /// Whether it has room.
    pub(crate) fn fits(&self, rows: usize, count: usize) -> bool {
        self.rows >= rows && self.count == count
    }

    /// Bytes of the lists of so many rows.
    pub(crate) fn bytes(&self, rows: usize) -> usize {
        8 * rows * self.count
    }

    /// Ranks the first `rows` of `logits`, each `(vocabulary)`.
    pub(crate) fn run(&self, recorder: &mut Recorder<'_>, logits: Place<'_>, rows: usize, vocabulary: usize) {
        let (mut candidates, mut from_stride, mut round) = (vocabulary, 0, 0);
        loop {
            let groups = candidates.div_ceil(CANDIDATES);
            let is_last = groups == 1;
            let constants = format!(
                "const COUNT = {}u;\nconst FIRST = {};\nconst LAST = {is_last};\n",
                self.count,
                round == 0
            );
            let kernel = recorder
                .gpu()
                .kernel_of("top", format!("top {constants}"), || constants + include_str!("wgsl/top.wgsl"));
            let from = &self.kept[(round + 1) % 2];
            let (to, to_stride) = match is_last {
                true => (&self.lists, 2 * self.count),
                false => (&self.kept[round % 2], groups * self.count),
            };
            let arguments = [logits.stride, candidates, from_stride, to_stride].map(|n| n as u32);
            let grid = Grid(groups as u32, rows as u32, 1);
            recorder.dispatch(&kernel, &[logits.buffer, from, to], &arguments, grid);
            if is_last {
                return;
            }
            (candidates, from_stride, round) = (groups * self.count, to_stride, round + 1);
        }
    }

    /// The lists as they came back, by row; `None` for rows with a logit that is NaN or +∞.
    pub(crate) fn read(&self, bytes: &[u8]) -> Vec<Option<TopTokens>> {
        let word = |eight: &[u8], at: usize| {
            u32::from_le_bytes([eight[at], eight[at + 1], eight[at + 2], eight[at + 3]])
        };
        let list = |row: &[u8]| {
            let pairs = row.chunks_exact(8).map(|eight| (word(eight, 0), f32::from_bits(word(eight, 4))));
            let tokens: Vec<(u32, f32)> = pairs.take_while(|(id, _)| *id != NONE).collect();
            let is_fine = tokens.first().is_some_and(|(_, logit)| *logit < f32::INFINITY);
            is_fine.then_some(TopTokens { tokens, mass: None })
        };
        bytes.chunks_exact(8 * self.count).map(list).collect()
    }
}
