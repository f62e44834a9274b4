//! The passes of a generation, after the prompt's.

use super::{Event, Finish, GenerateError, Needs, Reply, Session};
use crate::logprobs::Logprobs;
use crate::pass_times::PassRows;
use crate::speculation::MOST_PROPOSED;
use crate::stepper::Stepper;
use kvant_model::Outputs;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

impl Session {
    /// Goes on from the rows of a pass until something ends the text.
    pub(super) fn decode(
        &mut self,
        mut outputs: Outputs,
        stepper: &mut Stepper,
        reply: &mut Reply,
        sink: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<(), GenerateError> {
        reply.finish = loop {
            if let Some(finish) = self.choose(outputs, stepper, reply, sink)? {
                break finish;
            }
            outputs = self.advance(stepper)?;
            reply.stats.passes += 1;
        };
        if !matches!(reply.finish, Finish::Stop(_) | Finish::Cancelled) {
            let rest = stepper.rest(&reply.finish);
            reply.text.push_str(&rest);
            // The generation is over either way.
            let _ = sink(Event::Text(&rest));
        }
        Ok(())
    }

    /// Chooses tokens from the rows of a pass, and goes back to what they leave of it; says why the text ends, if it does.
    fn choose(
        &mut self,
        outputs: Outputs,
        stepper: &mut Stepper,
        reply: &mut Reply,
        sink: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Finish>, GenerateError> {
        if stepper.is_full() {
            self.keep_row(outputs, 0);
            return Ok(Some(Finish::MaxTokens));
        }
        let (engine, context) = (Arc::clone(&self.engine), self.context());
        let is_first = stepper.chosen().is_empty();
        let mut row = 0;
        let outcome = loop {
            let step = match stepper.choose(outputs.row(row), engine.tokenizer(), context) {
                Ok(step) => step,
                Err(error) => break Err(error),
            };
            if let Some(count) = self.logprobs {
                reply.logprobs.push(Logprobs::of(outputs.row(row).logits(), step.token, count));
            }
            reply.stats.decoded += usize::from(!(is_first && row == 0));
            if let Some(Finish::EndOfText(_)) = step.finish {
                break Ok(step.finish);
            }
            reply.text.push_str(&step.text);
            let flow = sink(Event::Text(&step.text));
            match step.finish {
                Some(Finish::Stop(_)) => break Ok(step.finish),
                _ if flow.is_break() => {
                    stepper.break_off();
                    break Ok(Some(Finish::Cancelled));
                }
                finish if !step.has_row => break Ok(finish),
                _ => row += 1,
            }
        };
        self.rollback(stepper.settled());
        if self.tokens.len() == stepper.settled() {
            self.keep_row(outputs, row);
        }
        outcome
    }

    /// The next pass of a generation: what is unread of its tokens, and a proposal.
    fn advance(&mut self, stepper: &mut Stepper) -> Result<Outputs, GenerateError> {
        let context = self.context().min(self.engine.model().position_limit().unwrap_or(usize::MAX));
        let most = self.engine.prefill_chunk(self.kv.sequence(), context);
        // More than one where the cache had to go back further than was asked of it.
        while stepper.known().len() - self.tokens.len() > most {
            let at = self.tokens.len();
            let needs = Needs::Nothing { watches: stepper.watches() };
            self.read(&stepper.known()[at..at + most], needs)?;
            self.show(stepper);
        }
        let at = self.tokens.len();
        let unread = stepper.known().len() - at;
        if unread == 1 {
            let room = context.saturating_sub(stepper.known().len()).min(MOST_PROPOSED);
            let most = self.kv.sequence().revocable(1 + room) - 1;
            stepper.propose(self.times.limits(1, most));
        }
        let start = Instant::now();
        let outputs = match self.read(&stepper.tokens()[at..], Needs::Choice(stepper)) {
            Err(_) if stepper.proposed() > 0 => {
                // What a proposal has no room for, or fails at, does not concern the text.
                stepper.forget_proposal();
                self.read(&stepper.known()[at..], Needs::Choice(stepper))?
            }
            outputs => outputs?,
        };
        self.show(stepper);
        stepper.count_proposal();
        let proposed = stepper.proposed();
        if unread == 1 {
            self.times.learn(PassRows { read: 0, answering: 1, proposed }, start.elapsed());
        }
        Ok(outputs)
    }
}
