//! A sequence that is brought to the same depth again and again.

use super::{Plan, Test};
use crate::error::EvalError;
use kvant_engine::{KvCache, PREFILL_CHUNK, Policy};
use kvant_model::{Chunk, Model, Pass};
use std::time::{Duration, Instant};

/// Tokens that are really read where the rest of a depth is filled with copies of them.
pub const FILL_FROM: usize = 512;
/// Tokens of an untimed prompt.
const WARM_UP: usize = 32;

pub struct Sequence<'m> {
    model: &'m Model,
    kv: KvCache,
    depth: usize,
    fill: bool,
    /// What is read, from the beginning: any ids do, as long as they differ as those of a text do.
    tokens: Vec<u32>, // (capacity)
}

impl<'m> Sequence<'m> {
    /// A sequence that holds `depth` tokens.
    pub fn new(model: &'m Model, kv: &Policy, depth: usize, plan: &Plan) -> Result<Self, EvalError> {
        let capacity = plan.capacity(depth);
        let kv = KvCache::in_arena(kv, model.slots(), capacity, model.store())?;
        let tokens = scattered_ids(capacity, model.vocabulary());
        let mut sequence = Self { model, kv, depth, fill: plan.fill, tokens };
        sequence.reach()?;
        Ok(sequence)
    }

    pub fn depth(&self) -> usize {
        self.depth
    }

    pub fn kv(&self) -> &Policy {
        self.kv.policy()
    }

    /// Touches weights and buffers for the first time, which is no part of a measurement.
    pub fn warm_up(&mut self) -> Result<(), EvalError> {
        let room = self.tokens.len() - self.depth;
        self.time(Test::Prefill, room.min(WARM_UP))?;
        self.time(Test::Decode, room.min(1))?;
        Ok(())
    }

    /// The time that `tokens` more take; afterwards they are forgotten.
    pub fn time(&mut self, test: Test, tokens: usize) -> Result<Duration, EvalError> {
        let end = self.depth + tokens;
        let start = Instant::now();
        match test {
            Test::Prefill => self.read_to(end)?,
            Test::Decode => {
                for at in self.depth..end {
                    self.pass(at + 1, true)?;
                }
            }
        }
        let time = start.elapsed();
        self.reach()?;
        Ok(time)
    }

    /// Holds exactly `depth` tokens. A cache may have to forget more than it is asked to, when the cut lies inside
    /// something it has encoded; what is missing then is read again.
    fn reach(&mut self) -> Result<(), EvalError> {
        self.kv.truncate(self.depth);
        if self.fill {
            self.read_to(self.depth.min(FILL_FROM))?;
            Ok(self.kv.fill(self.depth)?)
        } else {
            self.read_to(self.depth)
        }
    }

    /// Reads up to position `end` as a session reads a prompt: logits for the last position alone.
    fn read_to(&mut self, end: usize) -> Result<(), EvalError> {
        while self.kv.len() < end {
            let next = end.min(self.kv.len() + PREFILL_CHUNK);
            self.pass(next, next == end)?;
        }
        Ok(())
    }

    /// One pass up to position `end`, with logits for the last position if wanted.
    fn pass(&mut self, end: usize, wanted: bool) -> Result<(), EvalError> {
        let tokens = &self.tokens[self.kv.len()..end];
        let wanted = if wanted { tokens.len() - 1..tokens.len() } else { 0..0 };
        self.model.forward(Pass::new(&[Chunk::new(tokens, wanted)]), &mut [self.kv.sequence_mut()])?;
        Ok(())
    }
}

/// The same ids every time, spread over the vocabulary.
fn scattered_ids(count: usize, vocabulary: usize) -> Vec<u32> {
    let mut state = 0x9e37_79b9_u32;
    let next = |_| {
        // Xorshift of Marsaglia, 32 bits.
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        ((u64::from(state) * vocabulary as u64) >> 32) as u32
    };
    (0..count).map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_scattered_and_within_the_vocabulary() {
        let ids = scattered_ids(1000, 37);
        assert!(ids.iter().all(|&id| id < 37));
        let each = |id: u32| ids.iter().filter(|&&other| other == id).count();
        assert!((0..37).all(|id| (5..70).contains(&each(id))));
        assert_eq!(scattered_ids(3, 37), ids[..3]);
    }
}
