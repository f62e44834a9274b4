//! One sequence's way through passes: what it reads next, which rows it wants, and what comes of them. Sessions and the scheduler
//! both step with it.
//!
//! ```text
//! tokens   p p p p p p  c c c │ g g g g
//!          prompt       chosen│ proposed: read on trial in this pass
//!                           └─ known
//! ```
//!
//! Between passes the last known token is unread. A pass reads it and the proposal, and wants a row after each of them. The sampler
//! goes through the rows in order ([`Stepper::choose`]): where it chooses what was proposed, the next row counts; where it does not, the
//! rest of the proposal is forgotten, and the cache goes back to [`Stepper::settled`] tokens.

use crate::constraint::Constraint;
use crate::sampler::{SampleError, Sampler, SamplingParams};
use crate::session::{Finish, GenerateError, Request};
use crate::speculation::{MOST_PROPOSED, ProposalLimits, Proposer, SpeculationCounts};
use crate::text::TextStream;
use kvant_model::{Output, TopK, TopTokens};
use kvant_text::tokenizer::Tokenizer;
use std::task::Waker;

/// A text that is being generated.
pub(crate) struct Stepper {
    /// Those of the prompt, those chosen since, the ending one included, and those proposed.
    tokens: Vec<u32>,
    prompt: usize,
    /// Tokens that are not merely proposed.
    known: usize,
    /// The last known token was chosen, and does not count as read.
    is_unread: bool,
    sampler: Sampler,
    stream: TextStream,
    stop: Vec<String>,
    max_tokens: Option<usize>,
    /// Control tokens that are written by their names.
    markers: Vec<u32>,
    constraint: Option<Box<dyn Constraint>>,
    /// (vocabulary): the logits of what the constraint allows.
    allowed: Vec<f32>,
    proposer: Option<Box<dyn Proposer>>,
    counts: SpeculationCounts,
}

/// A token, and what came of it.
pub(crate) struct Step {
    pub token: u32,
    /// More text that may be shown.
    pub text: String,
    /// Set when the text ends with it.
    pub finish: Option<Finish>,
    /// It was proposed.
    pub was_proposed: bool,
    /// The next row is the one after it, and wanted.
    pub has_row: bool,
}

impl Stepper {
    /// The beginning of what is asked for, with complete settings ([`Engine::complete`](crate::Engine)).
    pub fn new(
        request: &Request,
        sampling: SamplingParams,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<Self, SampleError> {
        let mut sampler = Sampler::new(sampling)?;
        request.prompt.iter().for_each(|&token| sampler.accept(token));
        Ok(Self {
            tokens: request.prompt.clone(),
            prompt: request.prompt.len(),
            known: request.prompt.len(),
            is_unread: false,
            sampler,
            stream: TextStream::new(&request.stop, request.trim_start),
            stop: request.stop.clone(),
            max_tokens: request.max_tokens,
            markers: request.markers.clone(),
            constraint,
            allowed: Vec::new(),
            proposer: None,
            counts: SpeculationCounts::default(),
        })
    }

    /// The same with somebody who guesses how it goes on.
    pub fn speculating(self, proposer: Option<Box<dyn Proposer>>) -> Self {
        Self { proposer, ..self }
    }

    /// The seed that repeats it.
    pub fn seed(&self) -> u64 {
        self.sampler.seed()
    }

    /// Tokens of the prompt.
    pub fn prompt(&self) -> usize {
        self.prompt
    }

    /// The tokens of prompt and answer.
    pub fn known(&self) -> &[u32] {
        &self.tokens[..self.known]
    }

    /// The tokens chosen.
    pub fn chosen(&self) -> &[u32] {
        &self.tokens[self.prompt..self.known]
    }

    /// The tokens known, and those proposed after them.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many are proposed.
    pub fn proposed(&self) -> usize {
        self.tokens.len() - self.known
    }

    /// Tokens that the cache may hold once the rows of a pass are gone through: all that are known, but the one just chosen.
    pub fn settled(&self) -> usize {
        self.known - usize::from(self.is_unread)
    }

    /// What came of proposals so far.
    pub fn counts(&self) -> SpeculationCounts {
        self.counts
    }

    /// True once there are as many tokens as asked for.
    pub fn is_full(&self) -> bool {
        self.max_tokens.is_some_and(|most| self.known - self.prompt >= most)
    }

    /// What it needs of a row; `None` for all logits, as a constraint does.
    pub fn wants(&self) -> Option<TopK> {
        self.sampler.wants().filter(|_| self.constraint.is_none())
    }

    /// Whether that is all it needs.
    pub fn accepts_top_k(&self, top: &TopTokens) -> bool {
        self.sampler.accepts_top_k(top)
    }

    /// Whether the next token can be chosen without waiting for what may come; where not, the waker is told when it can.
    pub fn poll_ready(&mut self, waker: &Waker) -> bool {
        self.constraint.as_mut().is_none_or(|constraint| constraint.poll_ready(waker))
    }

    /// The same, where what is nearly there is waited for.
    pub fn poll_soon_ready(&mut self, waker: &Waker) -> bool {
        self.constraint.as_mut().is_none_or(|constraint| {
            constraint.wait_briefly();
            constraint.poll_ready(waker)
        })
    }

    /// Proposes tokens for the next pass, in which `most` beside the last known one can be taken back. A constraint's own come first, and
    /// what it forbids is left out.
    pub fn propose(&mut self, limits: ProposalLimits) {
        self.forget_proposal();
        let Some(proposer) = &mut self.proposer else { return };
        // The last token that may be chosen needs no row after it.
        let chosen = self.known - self.prompt;
        let wanted = self.max_tokens.map_or(usize::MAX, |most| most.saturating_sub(chosen + 1));
        let limits = ProposalLimits { most: limits.most.min(wanted).min(MOST_PROPOSED), ..limits };
        if limits.most == 0 {
            return;
        }
        let mut guess = Vec::new();
        proposer.propose(&self.tokens, limits, &mut guess);
        if let Some(constraint) = &mut self.constraint {
            constraint.foresee(&mut guess);
        }
        guess.truncate(limits.most);
        self.tokens.append(&mut guess);
    }

    /// Whether whoever proposes wants to be shown what the model leaves of what it reads.
    pub fn watches(&self) -> bool {
        self.proposer.as_ref().is_some_and(|proposer| proposer.watches())
    }

    /// Shows it what the model left of `count` of its tokens from `at` on, those proposed included: `(count, hidden)`.
    pub fn watch(&mut self, at: usize, count: usize, left: &[f32]) {
        if let Some(proposer) = &mut self.proposer {
            proposer.watch(at, &self.tokens[at..at + count], left);
        }
    }

    /// Forgets what was proposed.
    pub fn forget_proposal(&mut self) {
        self.tokens.truncate(self.known);
    }

    /// The proposal goes into a pass.
    pub fn count_proposal(&mut self) {
        self.counts.proposed += self.proposed();
    }

    /// Ends the text here, whatever rows are left.
    pub fn break_off(&mut self) {
        self.forget_proposal();
        self.is_unread = self.known > self.prompt;
    }

    /// Chooses the next token from the row after the last one, in a cache of so many tokens.
    pub fn choose(
        &mut self,
        output: Output<'_>,
        tokenizer: &Tokenizer,
        context: usize,
    ) -> Result<Step, GenerateError> {
        self.is_unread = false;
        let token = match &mut self.constraint {
            None => self.sampler.choose(output)?,
            Some(constraint) => {
                self.allowed.clear();
                self.allowed.extend_from_slice(output.logits());
                constraint.allow(&mut self.allowed)?;
                let token = self.sampler.sample(&self.allowed)?;
                constraint.accept(token)?;
                token
            }
        };
        self.sampler.accept(token);
        let was_proposed = self.tokens.get(self.known) == Some(&token);
        if was_proposed {
            self.counts.accepted += 1;
        } else {
            self.forget_proposal();
            self.tokens.push(token);
        }
        (self.known, self.is_unread) = (self.known + 1, !was_proposed);
        let (text, finish) = self.written(token, tokenizer);
        let finish = finish.or_else(|| match self.known > context {
            _ if self.is_full() => Some(Finish::MaxTokens),
            true => Some(Finish::ContextFull),
            false => None,
        });
        if finish.is_some() {
            self.break_off();
        }
        Ok(Step { token, text, was_proposed, has_row: was_proposed && finish.is_none(), finish })
    }

    /// What a token adds to the text, and whether that ends it.
    fn written(&mut self, token: u32, tokenizer: &Tokenizer) -> (String, Option<Finish>) {
        if tokenizer.is_end_of_generation(token) {
            return (String::new(), Some(Finish::EndOfText(token)));
        }
        let bytes = match self.markers.contains(&token) {
            true => tokenizer.token_bytes(token),
            false => tokenizer.text_bytes(token),
        };
        // Logits may be padded beyond the vocabulary; such an id stands for no text.
        let step = self.stream.push(bytes.unwrap_or_default());
        (step.text, step.stopped_by.map(|index| Finish::Stop(self.stop[index].clone())))
    }

    /// Ends the text as `finish` says: what was held back and belongs to it after all.
    pub fn rest(&mut self, finish: &Finish) -> String {
        match finish {
            Finish::Stop(_) | Finish::Cancelled => String::new(),
            Finish::EndOfText(_) | Finish::MaxTokens | Finish::ContextFull => self.stream.finish(),
        }
    }
}
