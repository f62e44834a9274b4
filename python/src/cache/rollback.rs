//! The last passes, kept so that they can be taken back exactly.
//!
//! A page's exact rows are gone once it is encoded, so a sequence that goes back into one has to read tokens again. Models
//! that run elsewhere cannot be asked for that. While passes are recorded, each leaves a fork of the sequences from before
//! it, which shares all pages, and its own rows: going back is taking up a fork and appending the first rows once more.

use super::refused;
use kvant_cache::{ArenaError, CacheError, KvSlot, Sequence};
use pyo3::prelude::*;
use std::collections::VecDeque;

/// Tokens that can be taken back, at least, once so many have come.
pub(super) const RECORDED: usize = 128;

/// Passes longer than this are prompts, which nobody takes back in part: their rows are not kept.
pub(super) const LONGEST: usize = 1024;

/// The last passes.
#[derive(Default)]
pub struct Recorded {
    is_on: bool,
    passes: VecDeque<RecordedPass>,
}

/// One pass.
struct RecordedPass {
    /// The sequences before it.
    before: Vec<Sequence>,
    /// What it brought to every row.
    rows: Vec<Rows>,
}

/// Keys and values of one row, (tokens, kv heads, channels).
#[derive(Clone)]
pub struct Rows {
    pub tokens: usize,
    pub keys: Vec<f32>,
    pub values: Vec<f32>,
}

impl Rows {
    /// Appends the first tokens.
    fn append_to(&self, sequence: &mut Sequence, slot: KvSlot, tokens: usize) -> Result<(), CacheError> {
        let part = |rows: &[f32]| rows.len().checked_div(self.tokens).unwrap_or(0) * tokens;
        sequence.append(slot, &self.keys[..part(&self.keys)], &self.values[..part(&self.values)])?;
        sequence.advance(tokens)
    }
}

impl RecordedPass {
    /// Whether no sequence was longer than these lengths before it.
    fn starts_within(&self, lens: &[usize]) -> bool {
        self.before.iter().zip(lens).all(|(before, len)| before.len() <= *len)
    }

    /// Whether a token of it is left when sequences are cut to these lengths.
    fn reaches_into(&self, lens: &[usize]) -> bool {
        self.starts_within(lens) && self.before.iter().zip(lens).any(|(before, len)| before.len() < *len)
    }

    /// The sequences as they were when they had these lengths.
    fn replay(&self, slot: KvSlot, lens: &[usize]) -> Result<Vec<Sequence>, CacheError> {
        let mut sequences = Vec::with_capacity(lens.len());
        for ((before, rows), len) in self.before.iter().zip(&self.rows).zip(lens) {
            let mut sequence = before.fork()?;
            rows.append_to(&mut sequence, slot, len - before.len())?;
            sequences.push(sequence);
        }
        Ok(sequences)
    }
}

impl Recorded {
    pub fn turn(&mut self, on: bool) {
        self.is_on = on;
        if !on {
            self.clear();
        }
    }

    /// Forgets the passes.
    pub fn clear(&mut self) {
        self.passes.clear();
    }

    /// Forks of the sequences before a pass of so many tokens, if it is to be recorded.
    pub fn fork(
        &mut self,
        sequences: &[Sequence],
        tokens: usize,
    ) -> Result<Option<Vec<Sequence>>, ArenaError> {
        if !self.is_on {
            return Ok(None);
        }
        if tokens > LONGEST {
            self.passes.clear();
            return Ok(None);
        }
        sequences.iter().map(Sequence::fork).collect::<Result<_, _>>().map(Some)
    }

    /// Adds a pass, and forgets what lies further back than anyone goes.
    pub fn push(&mut self, before: Vec<Sequence>, rows: Vec<Rows>) {
        self.passes.push_back(RecordedPass { before, rows });
        let later = |passes: &VecDeque<RecordedPass>| -> usize {
            let tokens = |pass: &RecordedPass| pass.rows.iter().map(|rows| rows.tokens).max().unwrap_or(0);
            passes.iter().skip(1).map(tokens).sum()
        };
        while later(&self.passes) >= RECORDED {
            self.passes.pop_front();
        }
    }

    /// Keeps the rows at these places, in this order.
    pub fn select(&mut self, indices: &[usize]) -> Result<(), ArenaError> {
        for pass in &mut self.passes {
            pass.before = indices.iter().map(|index| pass.before[*index].fork()).collect::<Result<_, _>>()?;
            pass.rows = indices.iter().map(|index| pass.rows[*index].clone()).collect();
        }
        Ok(())
    }

    /// Takes every sequence back to its length.
    pub fn crop(&mut self, sequences: &mut Vec<Sequence>, slot: KvSlot, lens: &[usize]) -> PyResult<()> {
        let Some(row) = (0..lens.len()).find(|row| sequences[*row].restorable(lens[*row]) < lens[*row])
        else {
            for (sequence, len) in sequences.iter_mut().zip(lens) {
                sequence.truncate(*len).map_err(refused)?;
            }
            while self.passes.back().is_some_and(|pass| !pass.reaches_into(lens)) {
                self.passes.pop_back();
            }
            return Ok(());
        };
        let Some(pass) = self.passes.iter().rposition(|pass| pass.starts_within(lens)) else {
            let (len, nearest) = (lens[row], sequences[row].restorable(lens[row]));
            return Err(refused(format!(
                "row {row} cannot be cropped to {len} tokens: the page they end in is encoded and its exact rows are gone \
                 (the nearest length is {nearest}). Call activate_past_recording() before the tokens come, or fork the \
                 cache at that point"
            )));
        };
        *sequences = self.passes[pass].replay(slot, lens).map_err(refused)?;
        self.passes.truncate(pass + 1);
        Ok(())
    }
}
