//! What is measured: every combination of a few lists.

use crate::error::EvalError;
use kvant_engine::kv::bytes_per_token;
use kvant_engine::memory::Memory;
use kvant_engine::{KvCache, Policy};
use kvant_model::Model;
use serde::Serialize;
use std::fmt;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Tokens of a prompt; none for no prompts.
    pub prefill: usize,
    /// Tokens to generate; none for no generation.
    pub decode: usize,
    /// Tokens of context before either.
    pub depths: Vec<usize>,
    /// How keys and values are kept.
    pub kv: Vec<Policy>,
    /// Threads that compute.
    pub threads: Vec<usize>,
    /// Runs of every case.
    pub repetitions: usize,
    /// Reaches depths by copies of a short context, not by reading a long one. The speed of generation is the same;
    /// prompts are then not measured.
    pub fill: bool,
}

/// What a run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Test {
    /// Reads a prompt in passes of many tokens.
    #[serde(rename = "pp")]
    Prefill,
    /// Generates, one token per pass.
    #[serde(rename = "tg")]
    Decode,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prefill => "pp",
            Self::Decode => "tg",
        })
    }
}

/// One combination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// What a run does.
    pub test: Test,
    /// Its tokens.
    pub tokens: usize,
    /// Tokens of context before it.
    pub depth: usize,
    /// How keys and values are kept.
    pub kv: Policy,
    /// Threads that compute.
    pub threads: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { test, tokens, depth, kv, threads } = self;
        write!(f, "{test}{tokens} at {depth}, {kv}, threads: {threads}")
    }
}

impl Plan {
    /// The combinations. Those that differ in the cache or the threads alone stand side by side.
    pub fn cases(&self) -> Vec<Case> {
        let prefill = if self.fill { 0 } else { self.prefill };
        let mut cases = Vec::new();
        for (test, tokens) in [(Test::Prefill, prefill), (Test::Decode, self.decode)] {
            for &depth in self.depths.iter().filter(|_| tokens > 0) {
                for &threads in &self.threads {
                    for kv in &self.kv {
                        cases.push(Case { test, tokens, depth, kv: kv.clone(), threads });
                    }
                }
            }
        }
        cases
    }

    /// Contexts held at a time: one for each depth and cache.
    pub fn contexts(&self) -> usize {
        self.depths.len() * self.kv.len()
    }

    /// The most tokens the sequence at a depth comes to hold.
    pub fn capacity(&self, depth: usize) -> usize {
        depth.saturating_add(self.prefill.max(self.decode))
    }

    /// Refuses what would fail after a long wait, or measure nothing.
    pub(super) fn check(&self, model: &Model) -> Result<(), EvalError> {
        if self.cases().is_empty() || self.repetitions == 0 {
            return Err(EvalError::NothingToTime);
        }
        let deepest = self.depths.iter().copied().max().unwrap_or(0);
        let needed = self.capacity(deepest);
        if let Some(limit) = model.position_limit().filter(|&limit| needed > limit) {
            return Err(EvalError::TooDeep { depth: deepest, needed, limit });
        }
        let mut bytes = 0.0;
        for kv in &self.kv {
            KvCache::new(kv, model.slots(), 1)?;
            let per_token = bytes_per_token(kv, model.slots())?;
            bytes += self.depths.iter().map(|&depth| self.capacity(depth) as f64 * per_token).sum::<f64>();
        }
        // A device's store says itself when it is full.
        let memory = if model.device_store().is_none() { Memory::read() } else { None };
        match memory {
            Some(Memory { available, .. }) if bytes > available as f64 => {
                Err(EvalError::TooLarge { contexts: self.contexts(), needed: bytes as u64, available })
            }
            _ => Ok(()),
        }
    }
}
