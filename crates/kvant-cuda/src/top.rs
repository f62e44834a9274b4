//! The beginnings of rankings in place of logits: which rows want them, the launches that make them, and what comes back.

use crate::buffer::Buffer;
use crate::device::{CudaGpu, OpenError};
use crate::params::{Address, MassParams, TopParams};
use crate::pass::{PassParams, SLICE};
use crate::run::{PassBuffers, Run, fit};
use kvant_model::top::{MOST, TopK, TopTokens};
use std::ops::Range;
use std::sync::Arc;

/// Keys that are sorted at once, and the kernel and threads that sort them: `RUN` of `kernels/top.cu`.
struct RunForm {
    keys: usize,
    kernel: &'static str,
    threads: u32,
}

/// Where lists are short, and where they are not.
const SHORT: RunForm = RunForm { keys: 512, kernel: "top_run_short", threads: 256 };
const LONG: RunForm = RunForm { keys: 2048, kernel: "top_run", threads: 512 };

impl RunForm {
    fn of(count: usize) -> &'static RunForm {
        match count {
            2..=64 => &SHORT,
            _ => &LONG,
        }
    }
}

/// Bytes of a row's header: its mass, and whether a logit is broken.
const HEADER: usize = 16;

/// The places of what goes to the host: keys of rankings, which end where the marks begin; marks of numbers that cannot be stored; headers of
/// rankings; logits. So marks and headers lie beside the keys of any number of rows, and beside logits.
#[derive(Clone, Copy)]
pub(crate) struct OutLayout {
    pub marks: usize,
    pub headers: usize,
    pub logits: usize,
}

impl OutLayout {
    /// Of a model with so many slots.
    pub(crate) fn new(slots: usize) -> OutLayout {
        let marks = 8 * MOST * SLICE;
        let headers = marks + (8 * slots).next_multiple_of(256);
        OutLayout { marks, headers, logits: headers + (HEADER * SLICE).next_multiple_of(256) }
    }

    fn keys(&self, rows: usize, count: usize) -> usize {
        self.marks - 8 * rows * count
    }
}

/// The rankings that a pass makes.
pub(crate) struct TopPlan {
    /// By wanted row; `None` for logits.
    wanted: Vec<Option<TopK>>,
    /// Of every list on the card: the longest that is wanted.
    count: usize,
    /// (wanted rows) f32, 0 where no mass is wanted.
    temperatures_at: u64,
    masses: bool,
}

impl TopPlan {
    /// None where every row is wanted as logits.
    pub(crate) fn new(words: &mut PassParams, wanted: &[Option<TopK>]) -> Option<TopPlan> {
        let count = wanted.iter().flatten().map(|top| top.count.clamp(1, MOST)).max()?;
        let temperature = |top: &Option<TopK>| top.as_ref().and_then(|top| top.temperature);
        let temperatures_at = words.add(wanted.iter().map(|top| temperature(top).unwrap_or(0.0).to_bits()));
        let masses = wanted.iter().any(|top| temperature(top).is_some());
        Some(TopPlan { wanted: wanted.to_vec(), count, temperatures_at, masses })
    }

    /// What its launches are told.
    pub(crate) fn key(&self) -> (usize, u64, bool) {
        (self.count, self.temperatures_at, self.masses)
    }

    /// Sees to it that there is room for the rounds of a pass.
    pub(crate) fn fit(
        &self,
        card: &Arc<CudaGpu>,
        ranks: &mut [Buffer; 2],
        vocabulary: usize,
    ) -> Result<(), OpenError> {
        let rows = self.wanted.len().min(SLICE);
        let mut keys = vocabulary;
        for buffer in ranks {
            keys = keys.div_ceil(RunForm::of(self.count).keys) * self.count;
            fit(card, buffer, 8 * rows * keys)?;
        }
        Ok(())
    }

    /// What is read of a slice of rows: their keys, the marks, their headers.
    pub(crate) fn range(&self, layout: &OutLayout, rows: usize) -> Range<usize> {
        layout.keys(rows, self.count)..layout.logits
    }

    /// The lists of wanted rows `first .. first + rows`, from the bytes of [`TopPlan::range`]; none of rows that are wanted as logits, or
    /// whose logits are broken.
    pub(crate) fn lists(
        &self,
        layout: &OutLayout,
        (first, rows): (usize, usize),
        read: &[u8],
    ) -> Vec<Option<TopTokens>> {
        let start = layout.keys(rows, self.count);
        let word = |at: usize| read[at - start..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let list = |row: usize| {
            let wanted = self.wanted[first + row]?;
            let header = layout.headers + HEADER * row;
            if word(header + 8) as u32 != 0 {
                return None;
            }
            let keys = (0..wanted.count.min(self.count)).map(|i| word(start + 8 * (row * self.count + i)));
            let tokens = keys.take_while(|key| *key != 0).map(token).collect();
            Some(TopTokens { tokens, mass: wanted.temperature.map(|_| word(header)) })
        };
        (0..rows).map(list).collect()
    }
}

/// The token of a key, and its logit, which may have lost the sign of a zero.
fn token(key: u64) -> (u32, f32) {
    let bits = (key >> 32) as u32;
    let bits = if bits >> 31 == 1 { bits & 0x7fff_ffff } else { !bits };
    (!(key as u32), f32::from_bits(bits))
}

impl Run<'_> {
    /// Ranks the logits of wanted rows `first .. first + rows`, which were made before.
    pub(crate) fn top(&mut self, plan: &TopPlan, first: usize, rows: usize) {
        let b: &PassBuffers = self.buffers;
        let vocabulary = self.program.widths.vocabulary;
        let place = |at: usize| -> Address { b.out.address() + at as u64 };
        let (logits, headers) = (place(b.layout.logits), place(b.layout.headers));
        let (keys, scale) = (place(b.layout.keys(rows, plan.count)), self.program.head_scale);
        let (form, mut from, mut n) = (RunForm::of(plan.count), 0, vocabulary);
        for round in 0.. {
            let runs = n.div_ceil(form.keys);
            let out = if runs == 1 { keys } else { b.ranks[round % 2].address() };
            let params = TopParams {
                logits: if round == 0 { logits } else { 0 },
                keys: from,
                out,
                headers,
                n: n as i32,
                count: plan.count as i32,
                scale,
            };
            self.launch(form.kernel, (runs, rows), form.threads, params);
            if runs == 1 {
                break;
            }
            (from, n) = (out, runs * plan.count);
        }
        if plan.masses {
            let params = MassParams {
                logits,
                top: keys,
                temperatures: self.at(plan.temperatures_at) + 4 * first as u64,
                headers,
                n: vocabulary as i32,
                count: plan.count as i32,
                scale,
                unused: 0,
            };
            self.launch("top_mass", (vocabulary.div_ceil(LONG.keys), rows), 256, params);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_marks_and_headers_lie_side_by_side() {
        let layout = OutLayout::new(33);
        assert_eq!(
            (layout.marks, layout.headers, layout.logits),
            (131072, 131072 + 512, 131072 + 512 + 1024)
        );
        assert_eq!((layout.keys(1, 1), layout.keys(SLICE, MOST)), (131064, 0));
    }

    #[test]
    fn keys_stand_for_tokens() {
        for (id, logit) in [(0u32, 1.5f32), (7, -2.25), (128_255, f32::NEG_INFINITY), (9, 0.0)] {
            let bits = logit.to_bits();
            let ordered = if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 };
            assert_eq!(token(u64::from(ordered) << 32 | u64::from(!id)), (id, logit));
        }
    }

    #[test]
    fn lists_are_those_of_their_rows() {
        let wanted = [
            Some(TopK { count: 1, temperature: None }),
            None,
            Some(TopK { count: 2, temperature: Some(0.5) }),
            Some(TopK { count: 2, temperature: None }),
        ];
        let plan = TopPlan::new(&mut PassParams::default(), &wanted).unwrap();
        let layout = OutLayout::new(2);
        let range = plan.range(&layout, 4);
        let mut read = vec![0u8; range.len()];
        let mut put =
            |at: usize, word: u64| read[at - range.start..][..8].copy_from_slice(&word.to_le_bytes());
        for (i, id) in [3u32, 4, 5, 6, 7].into_iter().enumerate() {
            put(range.start + 8 * i, u64::from(!(-1.0f32).to_bits()) << 32 | u64::from(!id));
        }
        put(layout.headers + 2 * HEADER, 99);
        let of =
            |ids: &[u32], mass| Some(TopTokens { tokens: ids.iter().map(|id| (*id, -1.0)).collect(), mass });
        let want = [of(&[3], None), None, of(&[7], Some(99)), of(&[], None)];
        assert_eq!(plan.lists(&layout, (0, 4), &read), want);
        read[layout.headers + 2 * HEADER + 8 - range.start] = 1; // a broken logit
        assert_eq!(plan.lists(&layout, (0, 4), &read)[2], None);
        assert!(TopPlan::new(&mut PassParams::default(), &[None]).is_none());
    }
}
