//! What a model thinks of an answer, given what comes before it.

use crate::divergence::Grid;
use crate::error::EvalError;
use crate::token_nll::{PassLimits, nll};
use kvant_cache::Mode;
use kvant_engine::{KvCache, Policy};
use kvant_model::{Chunk, Model, Pass};

/// What a model thinks of an answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// −ln p of every token, each given all before it.
    pub token_nlls: Vec<f64>,
    /// The most likely token at every place.
    pub likeliest: Vec<u32>,
    /// Whether these are the answer: greedy generation would have given it.
    pub is_likeliest: bool,
}

impl Answer {
    /// −ln p of the whole.
    pub fn nll(&self) -> f64 {
        self.token_nlls.iter().sum()
    }
}

/// Asks a model with one cache, again and again.
pub struct Asker<'m> {
    model: &'m Model,
    cache: KvCache,
    grid: Grid,
    strict: bool,
    held: Vec<u32>,
}

impl<'m> Asker<'m> {
    /// For prompts with answers of at most `tokens`.
    pub fn new(model: &'m Model, policy: &Policy, mode: Mode, tokens: usize) -> Result<Self, EvalError> {
        let mut policy = policy.clone();
        policy.rule.mode = mode;
        let cache = KvCache::in_arena(policy, model.slots(), tokens, model.store())?;
        let grid = Grid::of(cache.sequence().layout(), false);
        Ok(Self { model, cache, grid, strict: mode == Mode::Strict, held: Vec::new() })
    }

    /// What the model thinks of `answer` after `prompt`. What the prompt has in common with the one before it is not read
    /// again, unless the mode is strict: there the last page depends on what follows it.
    pub fn ask(&mut self, prompt: &[u32], answer: &[u32]) -> Result<Answer, EvalError> {
        let tokens: Vec<u32> = prompt.iter().chain(answer).copied().collect();
        let Some((_, run)) = tokens.split_last().filter(|_| !prompt.is_empty() && !answer.is_empty()) else {
            return Err(EvalError::EmptyQuestion);
        };
        let shared = self.held.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(prompt.len() - 1);
        let start = self.cache.truncate(if self.strict { 0 } else { shared });
        let limits = PassLimits::default();
        let mut found = Answer { is_likeliest: true, ..Answer::default() };
        for block in self.grid.blocks(run.len() - start, limits, self.model.vocabulary()) {
            let block = block.start + start..block.end + start;
            // The logits at a position are about the token after it.
            let wanted = (prompt.len() - 1).clamp(block.start, block.end);
            let chunk = Chunk::new(
                &run[block.clone()],
                if wanted < block.end { wanted - block.start..block.len() } else { 0..0 },
            );
            let logits =
                self.model.forward(Pass::new(&[chunk]), &mut [self.cache.sequence_mut()])?.into_logits();
            for (row, position) in (wanted..block.end).enumerate() {
                let (logits, next) = (logits.row(row), tokens[position + 1]);
                let token = nll(logits, next as usize);
                if !token.is_finite() {
                    return Err(EvalError::NotFinite { window: 0, position });
                }
                let top = crate::divergence::top(logits) as u32;
                found.token_nlls.push(token);
                found.likeliest.push(top);
                found.is_likeliest &= top == next;
            }
        }
        self.held = run.to_vec();
        Ok(found)
    }

    /// The tokens that follow a prompt, always the most likely, up to and including the one after which `ends` says so, and at
    /// most `count`. As in [`Asker::ask`], what prompts have in common is read once.
    ///
    /// # Errors
    /// If the prompt is empty, the cache too short for both, or the model refuses it.
    pub fn continuation(
        &mut self,
        prompt: &[u32],
        count: usize,
        ends: &mut dyn FnMut(&[u32]) -> bool,
    ) -> Result<Vec<u32>, EvalError> {
        let shared = self.held.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let start = self.cache.truncate(shared.min(prompt.len().saturating_sub(1)));
        let (mut found, mut next) = (Vec::new(), prompt[start..].to_vec());
        self.held = prompt[..start].to_vec();
        while found.len() < count {
            let mut last = None;
            for tokens in next.chunks(PassLimits::default().tokens) {
                let wanted = tokens.len() - 1..tokens.len();
                last = Some(
                    self.model
                        .forward(Pass::new(&[Chunk::new(tokens, wanted)]), &mut [self.cache.sequence_mut()])?
                        .into_logits(),
                );
            }
            let Some(logits) = last else { return Err(EvalError::EmptyQuestion) };
            self.held.append(&mut next);
            let top = crate::divergence::top(logits.row(0)) as u32;
            found.push(top);
            if ends(&found) {
                break;
            }
            next.push(top);
        }
        Ok(found)
    }
}
