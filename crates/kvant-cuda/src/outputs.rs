//! What comes back of a pass: logits, or the beginnings of their rankings, a slice of wanted rows at a time.

use crate::buffer::Pinned;
use crate::device::{CudaGpu, OpenError};
use crate::run::PassBuffers;
use crate::top::TopPlan;
use kvant_model::{AcceptTopK, Outputs, Rows, TopTokens};
use std::sync::Arc;

/// Wanted rows that are made at once.
#[derive(Clone, Copy)]
pub(crate) struct Slice<'a> {
    pub buffers: &'a PassBuffers,
    pub first: usize,
    pub rows: usize,
    /// Tokens of the vocabulary.
    pub width: usize,
    /// None where all rows are wanted as logits.
    pub top: Option<&'a TopPlan>,
}

/// What is done to logits on the host.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub scale: f32,
    pub cap: Option<f32>,
}

/// What has come of a pass so far.
#[derive(Default)]
pub(crate) struct Found {
    /// Of rows that came as logits, one after another.
    logits: Vec<f32>,
    /// By wanted row; `None` for logits.
    lists: Vec<Option<TopTokens>>,
}

impl Found {
    /// Reads what a slice gave; returns the marks of what could not be stored.
    pub(crate) fn read(
        &mut self,
        out: &mut Option<Pinned>,
        card: &Arc<CudaGpu>,
        slice: &Slice<'_>,
        head: &Head,
        accept: &AcceptTopK<'_>,
    ) -> Result<Vec<u8>, OpenError> {
        let Slice { buffers, first, rows, width, top } = *slice;
        let (layout, row_bytes) = (&buffers.layout, 4 * width);
        let range = match top {
            Some(top) => top.range(layout, rows),
            None => layout.marks..layout.logits + rows * row_bytes,
        };
        let bytes = range.len().max(row_bytes);
        let out = match out {
            Some(out) if out.bytes() >= bytes => out,
            small => small.insert(Pinned::new(card, bytes)?),
        };
        let read = out.read(&buffers.out, range.clone())?;
        let marks = read[layout.marks - range.start..layout.headers - range.start].to_vec();
        let Some(top) = top else {
            self.add_logits(&read[layout.logits - range.start..], head);
            self.lists.extend((0..rows).map(|_| None));
            return Ok(marks);
        };
        for (row, list) in top.lists(layout, (first, rows), read).into_iter().enumerate() {
            let list = list.filter(|list| accept(first + row, list));
            if list.is_none() {
                let at = layout.logits + row * row_bytes;
                self.add_logits(out.read(&buffers.out, at..at + row_bytes)?, head);
            }
            self.lists.push(list);
        }
        Ok(marks)
    }

    fn add_logits(&mut self, bytes: &[u8], head: &Head) {
        let numbers = bytes.as_chunks().0.iter().map(|four| head.scale * f32::from_le_bytes(*four));
        match head.cap {
            Some(cap) => self.logits.extend(numbers.map(|z| cap * (z / cap).tanh())),
            None => self.logits.extend(numbers),
        }
    }

    pub(crate) fn into_outputs(self, width: usize) -> Outputs {
        Outputs::new(Rows::from_vec(self.logits, width), self.lists)
    }
}
