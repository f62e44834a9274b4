//! How likely a model finds given tokens.

use crate::error::{bad_value, failed};
use kvant_attention::KvCache;
use kvant_engine::{Engine, LoadedModel, PREFILL_CHUNK};
use kvant_model::{Chunk, Pass};
use pyo3::prelude::*;

/// Bytes of logits that are there at a time, at most; one row is always allowed.
const LOGIT_BYTES: usize = 64 << 20;

/// Scores texts one after another. What a text shares with the one before it, from the beginning, is not read again.
pub struct Scorer {
    kv: KvCache,
    /// What the cache holds.
    tokens: Vec<u32>,
}

impl Scorer {
    /// With the cache that sessions of this model have.
    pub fn new(opened: &LoadedModel) -> PyResult<Self> {
        Ok(Self { kv: opened.session().map_err(failed)?.into_kv(), tokens: Vec::new() })
    }

    /// ln p of each id from place `start` on given those before it, and whether it was the likeliest.
    pub fn score(&mut self, engine: &Engine, ids: &[u32], start: usize) -> PyResult<(Vec<f64>, Vec<bool>)> {
        if start == 0 || start > ids.len() {
            let len = ids.len();
            return Err(bad_value(format!(
                "scores begin at place {start} of {len} tokens; it must be 1 to {len}"
            )));
        }
        // The last token is predicted and not read.
        if ids.len() - 1 > self.kv.capacity() {
            let (len, context) = (ids.len(), self.kv.capacity());
            return Err(bad_value(format!("the text has {len} tokens, but the context holds {context}")));
        }
        // The logits at a position are about the token after it.
        let (first, end) = (start - 1, ids.len() - 1);
        let shared = self.tokens.iter().zip(&ids[..first]).take_while(|(a, b)| a == b).count();
        let mut at = if shared < self.tokens.len() { self.kv.truncate(shared) } else { shared };
        self.tokens.truncate(at);
        let rows = (LOGIT_BYTES / (4 * engine.model().vocabulary())).clamp(1, PREFILL_CHUNK);
        let (mut found, mut likeliest) = (Vec::new(), Vec::new());
        while at < end {
            let to = if at < first { first.min(at + PREFILL_CHUNK) } else { end.min(at + rows) };
            let tokens = &ids[at..to];
            let wanted = if at < first { 0..0 } else { 0..tokens.len() };
            let logits = engine
                .forward(Pass::new(&[Chunk::new(tokens, wanted)]), &mut [self.kv.sequence_mut()])
                .map_err(failed)?
                .into_logits();
            self.tokens.extend_from_slice(tokens);
            let width = logits.width();
            if at >= first {
                for (row, &next) in logits.data().chunks_exact(width).zip(&ids[at + 1..]) {
                    let (logprob, is_likeliest) = of_row(row, next)?;
                    found.push(logprob);
                    likeliest.push(is_likeliest);
                }
            }
            at = to;
        }
        Ok((found, likeliest))
    }
}

/// ln softmax(row)\[token\], and whether no token is likelier; of equals the lowest id counts.
fn of_row(row: &[f32], token: u32) -> PyResult<(f64, bool)> {
    let logit = *row
        .get(token as usize)
        .ok_or_else(|| bad_value(format!("token id {token} is outside the vocabulary of {}", row.len())))?;
    let highest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&x| f64::from(x - highest).exp()).sum();
    if !sum.is_finite() || !logit.is_finite() {
        return Err(failed("the logits are not finite numbers: the model file is damaged"));
    }
    let best = row.iter().position(|&x| x == highest);
    Ok((f64::from(logit - highest) - sum.ln(), best == Some(token as usize)))
}
