//! A sequence that grows: a prompt is read, and text comes out token by token.
//!
//! A session keeps what it has read. The next prompt only costs what is new in it: the tokens it shares with the
//! ones held, from the beginning, are not read again. So a conversation is generated turn by turn by giving the
//! whole conversation as the prompt each time.

mod decode;
mod request;

pub use request::{Event, Finish, GenerateError, Reply, Request, ResumeError, Stats};

use crate::constraint::Constraint;
use crate::engine::Engine;
use crate::pass_times::PassTimes;
use crate::signature::{adapted, first_numerics};
use crate::speculation::forward_watched;
use crate::stepper::Stepper;
use kvant_attention::KvCache;
use kvant_cache::snapshot::{Numerics, Record, Signature};
use kvant_cache::{Snapshot, SnapshotError};
use kvant_model::{AdapterMix, Chunk, Form, ForwardError, Output, Outputs, Rows, TopTokens};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Prompt tokens read in one pass: enough to use the weights well, few enough to be stopped between passes.
pub const PREFILL_CHUNK: usize = 256;

/// The same on a card whose matrix units 256 tokens leave idle, where there is room for the exact rows of so many.
pub(crate) const CARD_PREFILL_CHUNK: usize = 1024;

/// A sequence of one model. It shares its engine and owns everything else, so it can move to another thread.
pub struct Session {
    engine: Arc<Engine>,
    kv: KvCache,
    /// What the cache holds.
    tokens: Vec<u32>,
    /// (vocabulary): the logits after the last token held; empty where that token was read without them.
    logits: Vec<f32>,
    /// What a device gave in their place, where that settles the choice of the next token.
    top: Option<TopTokens>,
    /// The rounding that what is held was computed with; that of a file stays with what came from it.
    numerics: Numerics,
    /// What passes take.
    times: PassTimes,
    /// Reads tokens on trial, where its engine does.
    speculates: bool,
    /// What it runs with, and what all that is held was read with.
    adapters: AdapterMix,
    /// For every token its probability, and those of this many likeliest ones.
    logprobs: Option<usize>,
    /// What the model left of the last pass, from this position on, where that is to be shown.
    left: Option<(usize, Rows)>,
}

impl Session {
    pub(crate) fn new(engine: Arc<Engine>, kv: KvCache) -> Self {
        let (numerics, adapters) = (engine.numerics(), engine.adapters().clone());
        Self {
            engine,
            kv,
            tokens: Vec::new(),
            logits: Vec::new(),
            top: None,
            numerics,
            times: PassTimes::default(),
            speculates: true,
            adapters,
            logprobs: None,
            left: None,
        }
    }

    /// The engine it is a sequence of.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Tokens held.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The most tokens it can hold.
    pub fn context(&self) -> usize {
        self.kv.capacity()
    }

    /// Lets it hold this many tokens at most from now on; see [`KvCache::set_capacity`].
    pub(crate) fn set_context(&mut self, context: usize) {
        self.kv.set_capacity(context);
    }

    /// The logits after the last token held, `(vocabulary)`; empty for an empty session, after going back, after resuming, and
    /// after text was generated on a device that gave less than all of them.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// The same, given away: there are none then until the next pass.
    pub fn take_logits(&mut self) -> Vec<f32> {
        std::mem::take(&mut self.logits)
    }

    /// Whether it goes on from a file that was computed with other rounding, by another version or instruction set: what it says
    /// may then differ in a last bit from what it would have said.
    pub fn has_other_numerics(&self) -> bool {
        self.numerics != self.engine.numerics()
    }

    /// Whether texts are generated with speculative decoding from now on, where the [engine](Engine::speculates) does that. They are the
    /// same either way.
    pub fn set_speculating(&mut self, speculates: bool) {
        self.speculates = speculates;
    }

    /// The LoRA adapters it runs with.
    pub fn adapters(&self) -> &AdapterMix {
        &self.adapters
    }

    /// Runs with these adapters from now on. What was read with others is forgotten.
    ///
    /// # Errors
    /// If the device applies none, or one was opened for another model; nothing has changed then.
    pub fn set_adapters(&mut self, adapters: AdapterMix) -> Result<(), GenerateError> {
        self.engine.model().check_adapters(&adapters)?;
        if adapters != self.adapters {
            self.clear();
            self.adapters = adapters;
        }
        Ok(())
    }

    /// Whether replies say from now on how likely the model found each token, and which tokens (so many) it found likeliest. The text is
    /// the same either way.
    pub fn set_logprobs(&mut self, count: Option<usize>) {
        self.logprobs = count;
    }

    /// Its cache.
    pub fn kv(&self) -> &KvCache {
        &self.kv
    }

    /// Its cache, which may outlive it.
    pub fn into_kv(self) -> KvCache {
        self.kv
    }

    /// Another session that holds the same; pages are shared.
    ///
    /// # Errors
    /// If there is no memory for a copy of the newest tokens.
    pub fn fork(&self) -> Result<Self, GenerateError> {
        let sequence = self.kv.sequence().fork().map_err(|e| {
            let full = kvant_cache::StateError::new(0, kvant_cache::CacheError::from(e));
            ForwardError::from(full)
        })?;
        Ok(Self {
            engine: Arc::clone(&self.engine),
            kv: self.kv.over(sequence),
            tokens: self.tokens.clone(),
            logits: self.logits.clone(),
            top: self.top.clone(),
            numerics: self.numerics,
            times: self.times,
            speculates: self.speculates,
            adapters: self.adapters.clone(),
            logprobs: self.logprobs,
            left: None,
        })
    }

    /// Saves what is held in a file, with a note of the caller's own; the file is replaced as a whole or not at all.
    /// Returns its bytes.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: &Path, signature: Signature, note: &[u8]) -> Result<u64, SnapshotError> {
        let mut policy = self.kv.policy().to_string();
        if !self.adapters.is_empty() {
            // For people: the signature is what decides.
            policy.push_str(&format!(", read with LoRA {}", self.adapters));
        }
        let signature = adapted(signature, &self.adapters);
        let record =
            Record { signature, numerics: self.numerics, policy: &policy, tokens: &self.tokens, note };
        self.kv.sequence().save(path, &record)
    }

    /// Goes on where a saved session was left: what it held is held again, and nothing needs to be read. On an error
    /// nothing has changed.
    ///
    /// # Errors
    /// If it was saved under another signature or with other adapters, or does not fit in the context or the memory.
    pub fn resume(&mut self, saved: &Snapshot, signature: &Signature) -> Result<(), ResumeError> {
        let (held, context) = (saved.tokens().len(), self.context());
        if held > context {
            return Err(ResumeError::TooLong { held, context });
        }
        self.kv.restore(saved, &adapted(*signature, &self.adapters))?;
        self.tokens = saved.tokens().to_vec();
        self.forget_outputs();
        // Files from before there were numerics are of the first.
        self.numerics = saved.numerics().copied().unwrap_or_else(first_numerics);
        Ok(())
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.rollback(0);
    }

    /// Goes back to at most `len` tokens and returns how many are left: fewer where the cut lies inside an encoded page, whose
    /// tokens must be read again.
    pub fn rollback(&mut self, len: usize) -> usize {
        if len >= self.tokens.len() {
            return self.tokens.len();
        }
        let left = self.kv.truncate(len);
        self.tokens.truncate(left);
        self.forget_outputs();
        left
    }

    /// Reads the prompt and generates until something ends it. `sink` is told of every step and may break off.
    ///
    /// # Errors
    /// If the prompt is empty or longer than the context, a setting is out of range, or the model's output is
    /// broken. What was read up to then is kept.
    pub fn generate(
        &mut self,
        request: &Request,
        sink: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Reply, GenerateError> {
        self.generate_within(request, None, sink)
    }

    /// The same, with a rule for what may be said.
    ///
    /// # Errors
    /// As [`Session::generate`], and if the rule cannot be kept.
    pub fn generate_within(
        &mut self,
        request: &Request,
        constraint: Option<Box<dyn Constraint>>,
        sink: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Reply, GenerateError> {
        if let Some(adapters) = &request.adapters {
            self.set_adapters(adapters.clone())?;
        }
        let proposer = self.engine.proposer().filter(|_| self.speculates);
        let sampling = self.engine.complete(request.sampling.clone());
        let mut stepper = Stepper::new(request, sampling, constraint)?.speculating(proposer);
        let mut reply = Reply {
            text: String::new(),
            tokens: Vec::new(),
            finish: Finish::Cancelled,
            seed: stepper.seed(),
            logprobs: Vec::new(),
            stats: Stats::default(),
        };
        let start = Instant::now();
        let read = self.read_prompt(&request.prompt, Some(&mut stepper), &mut reply.stats, sink)?;
        reply.stats.prefill = start.elapsed();
        let Some(outputs) = read else { return Ok(reply) };

        let start = Instant::now();
        let outcome = self.decode(outputs, &mut stepper, &mut reply, sink);
        reply.stats.decode = start.elapsed();
        reply.stats.speculation = stepper.counts();
        self.kv.sequence_mut().mark(self.tokens.len());
        reply.tokens = stepper.chosen().to_vec();
        outcome?;
        Ok(reply)
    }

    /// Brings the session to hold exactly `prompt`, reading what it does not hold yet in chunks (chunked prefill), and returns
    /// the logits after its last token, `(vocabulary)`.
    ///
    /// # Errors
    /// If the prompt is empty or longer than the context, or a pass fails. What was read up to then is kept.
    pub fn prefill(&mut self, prompt: &[u32]) -> Result<&[f32], GenerateError> {
        let go_on = &mut |_: Event<'_>| ControlFlow::Continue(());
        if let Some(outputs) = self.read_prompt(prompt, None, &mut Stats::default(), go_on)? {
            self.keep_row(outputs, 0);
        }
        Ok(&self.logits)
    }

    /// Reads one more token and returns the logits after it, `(vocabulary)`.
    ///
    /// # Errors
    /// If the context is full, the token unknown, or the pass fails; the session then holds what it held.
    pub fn step(&mut self, token: u32) -> Result<&[f32], GenerateError> {
        let outputs = self.read(&[token], Needs::Logits)?;
        self.keep_row(outputs, 0);
        Ok(&self.logits)
    }

    /// Brings the cache to hold exactly `prompt`, and gives the logits after its last token, or what a generation needs of them; none
    /// if the sink broke off.
    fn read_prompt(
        &mut self,
        prompt: &[u32],
        mut stepper: Option<&mut Stepper>,
        stats: &mut Stats,
        sink: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Outputs>, GenerateError> {
        if prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        let (total, context) = (prompt.len(), self.context());
        if total > context {
            return Err(GenerateError::PromptTooLong { prompt: total, context });
        }
        // The last token is always read: its logits are what the first new one is chosen from.
        let shared = self.tokens.iter().zip(&prompt[..total - 1]).take_while(|(a, b)| a == b).count();
        // The cache may have to go back further than that: to the start of a page.
        self.rollback(shared);
        stats.reused = self.tokens.len();
        // The end of a prompt is where the next request is likely to go on from.
        self.kv.sequence_mut().mark(total);
        let most = self.engine.prefill_chunk(self.kv.sequence(), context);
        let mut outputs = None;
        while self.tokens.len() < total {
            let done = self.tokens.len();
            if sink(Event::Prefill { done, total }).is_break() {
                return Ok(None);
            }
            let chunk = &prompt[done..total.min(done + most)];
            let needs = match &stepper {
                Some(stepper) if done + chunk.len() < total => Needs::Nothing { watches: stepper.watches() },
                Some(stepper) => Needs::Choice(stepper),
                None if done + chunk.len() < total => Needs::Nothing { watches: false },
                None => Needs::Logits,
            };
            outputs = Some(self.read(chunk, needs)?);
            if let Some(stepper) = &mut stepper {
                self.show(stepper);
            }
            stats.prefilled += chunk.len();
        }
        let broke_off = sink(Event::Prefill { done: total, total }).is_break();
        match outputs {
            Some(outputs) if broke_off => {
                self.keep_row(outputs, 0);
                Ok(None)
            }
            outputs => Ok(outputs),
        }
    }

    fn forget_outputs(&mut self) {
        self.logits.clear();
        self.top = None;
    }

    /// Keeps a row of a pass as what comes after the last token held.
    fn keep_row(&mut self, mut outputs: Outputs, row: usize) {
        self.forget_outputs();
        if outputs.rows() > 1 {
            match outputs.row(row) {
                Output::Logits(logits) => self.logits.extend_from_slice(logits),
                Output::Top(top) => self.top = Some(top.clone()),
                Output::Hidden(_) => {}
            }
        } else if outputs.rows() > 0 {
            self.top = outputs.take_top(0);
            self.logits = outputs.into_logits().into_vec();
        }
    }

    /// One pass over tokens that fit, and what is needed of the logits after the last of them, and after those proposed.
    fn read(&mut self, tokens: &[u32], needs: Needs<'_>) -> Result<Outputs, GenerateError> {
        let end = tokens.len();
        let (wanted, top) = match needs {
            Needs::Nothing { .. } => (0..0, None),
            Needs::Logits => (end.saturating_sub(1)..end, None),
            Needs::Choice(stepper) => {
                let top = stepper.wants().filter(|_| self.logprobs.is_none());
                (end.saturating_sub(1 + stepper.proposed())..end, top)
            }
        };
        let top = vec![top; wanted.len()];
        let form = if wanted.is_empty() { Form::Logits } else { Form::Top(&top) };
        let accept = |_: usize, top: &TopTokens| match needs {
            Needs::Choice(stepper) => stepper.accepts_top_k(top),
            Needs::Nothing { .. } | Needs::Logits => false,
        };
        let chunks = [Chunk::new(tokens, wanted).form(form).with(&self.adapters)];
        let watches = match needs {
            Needs::Nothing { watches } => watches,
            Needs::Logits => false,
            Needs::Choice(stepper) => stepper.watches(),
        };
        let sequences = &mut [self.kv.sequence_mut()];
        let (outputs, left) = forward_watched(&self.engine, &chunks, &accept, sequences, watches)?;
        self.left = left.map(|left| (self.tokens.len(), left));
        self.tokens.extend_from_slice(tokens);
        self.forget_outputs();
        Ok(outputs)
    }

    /// Shows whoever proposes what the model left of the last pass.
    fn show(&mut self, stepper: &mut Stepper) {
        if let Some((at, left)) = self.left.take() {
            stepper.watch(at, left.tokens(), left.data());
        }
    }
}

/// What is needed of the logits after a chunk.
#[derive(Clone, Copy)]
enum Needs<'g> {
    /// None of them; perhaps what the model left of the tokens.
    Nothing {
        watches: bool,
    },
    Logits,
    /// What settles the choice of the next token, and of those after a proposal.
    Choice(&'g Stepper),
}
