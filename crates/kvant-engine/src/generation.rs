//! One token after another until something ends it: what sessions and the scheduler have in common.

use crate::constraint::Constraint;
use crate::sampler::{SampleError, Sampler};
use crate::session::{Finish, GenerateError, Request};
use crate::text::TextStream;
use kvant_model::{Output, TopK, TopTokens};
use kvant_text::tokenizer::Tokenizer;
use std::task::Waker;

/// A text that is being generated.
pub(crate) struct Generation {
    sampler: Sampler,
    stream: TextStream,
    stop: Vec<String>,
    max_tokens: Option<usize>,
    /// Control tokens that are written by their names.
    markers: Vec<u32>,
    /// Those chosen, the ending one included.
    tokens: Vec<u32>,
    constraint: Option<Box<dyn Constraint>>,
    /// (vocabulary): the logits of what the constraint allows.
    allowed: Vec<f32>,
}

/// A token, and what came of it.
pub(crate) struct Choice {
    pub token: u32,
    /// More text that may be shown.
    pub text: String,
    /// Set when the token ended the text.
    pub finish: Option<Finish>,
}

impl Generation {
    /// The beginning of what is asked for.
    pub fn new(request: &Request) -> Result<Self, SampleError> {
        let mut sampler = Sampler::new(request.sampling.clone())?;
        request.prompt.iter().for_each(|&token| sampler.accept(token));
        Ok(Self {
            sampler,
            stream: TextStream::new(&request.stop, request.trim_start),
            stop: request.stop.clone(),
            max_tokens: request.max_tokens,
            markers: request.markers.clone(),
            tokens: Vec::new(),
            constraint: None,
            allowed: Vec::new(),
        })
    }

    /// The same with a rule for what may be said.
    pub fn within(self, constraint: Option<Box<dyn Constraint>>) -> Self {
        Self { constraint, ..self }
    }

    /// The seed that repeats it.
    pub fn seed(&self) -> u64 {
        self.sampler.seed()
    }

    /// The tokens chosen.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens chosen, when it is over.
    pub fn into_tokens(self) -> Vec<u32> {
        self.tokens
    }

    /// True once there are as many tokens as asked for.
    pub fn is_full(&self) -> bool {
        self.max_tokens.is_some_and(|most| self.tokens.len() >= most)
    }

    /// What it needs of the next row; `None` for all logits, as a constraint does.
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

    /// Chooses the next token from what a pass gave.
    pub fn choose(&mut self, output: Output<'_>, tokenizer: &Tokenizer) -> Result<Choice, GenerateError> {
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
        self.tokens.push(token);
        if tokenizer.is_end_of_generation(token) {
            return Ok(Choice { token, text: String::new(), finish: Some(Finish::EndOfText(token)) });
        }
        let bytes = match self.markers.contains(&token) {
            true => tokenizer.token_bytes(token),
            false => tokenizer.text_bytes(token),
        };
        // Logits may be padded beyond the vocabulary; such an id stands for no text.
        let step = self.stream.push(bytes.unwrap_or_default());
        let finish = step.stopped_by.map(|index| Finish::Stop(self.stop[index].clone()));
        Ok(Choice { token, text: step.text, finish })
    }

    /// Ends the text as `finish` says: what was held back and belongs to it after all.
    pub fn rest(&mut self, finish: &Finish) -> String {
        match finish {
            Finish::Stop(_) | Finish::Cancelled => String::new(),
            Finish::EndOfText(_) | Finish::MaxTokens | Finish::ContextFull => self.stream.finish(),
        }
    }
}
