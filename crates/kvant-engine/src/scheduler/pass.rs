//! One pass: room for its tokens, the network, and what comes of every sequence.

use super::job::{JobError, JobEvent, Score, Task};
use super::{Active, Scheduler, prefill_budget};
use crate::logprobs::Logprobs;
use crate::pass_times::PassRows;
use crate::session::{Finish, GenerateError};
use crate::speculation::{MOST_PROPOSED, ProposalLimits, forward_watched};
use crate::stepper::Stepper;
use kvant_cache::{CacheError, Sequence, StateError};
use kvant_model::{Chunk, Form, ForwardError, Output, Outputs, Rows, TopK, TopTokens};
use kvant_text::tokenizer::Tokenizer;
use std::ops::Range;
use std::task::Waker;
use std::time::Instant;
use tracing::{debug, debug_span};

/// What a pass came to for one sequence.
#[derive(Default)]
struct Outcome {
    /// Tokens that were chosen, but for the one that ends the text.
    tokens: Vec<JobEvent>,
    /// How many of them were proposed.
    accepted: usize,
    /// How it ended, if it did.
    end: Option<Result<Finish, GenerateError>>,
}

impl Active {
    /// Tokens that are known and not yet read: at least one between passes, unless it waits for what may come next.
    fn pending(&self) -> usize {
        self.task.tokens().len().saturating_sub(self.kv.len())
    }

    /// Which of the next `share` tokens something is wanted of: all of a text that becomes a vector, those of a prompt that is scored,
    /// or where that is all, the last known one and those proposed after it.
    fn wanted(&self, share: usize) -> Range<usize> {
        let proposed = self.task.stepper.proposed();
        match share == self.pending() + proposed {
            _ if share == 0 => 0..0,
            _ if self.task.pool.is_some() => 0..share,
            _ if self.task.prompt_logprobs.is_some() && self.kv.len() < self.task.prompt() => 0..share,
            true => share - 1 - proposed..share,
            false => 0..0,
        }
    }

    /// What is needed of these rows: all logits where any of them are shown to anybody.
    fn needs(&self) -> Option<TopK> {
        let Task { stepper, logprobs, prompt_logprobs, .. } = &self.task;
        let is_shown = logprobs.is_some() || prompt_logprobs.is_some() || stepper.is_full();
        stepper.wants().filter(|_| !is_shown)
    }

    /// The next `share` tokens, the sequence that takes them, and what will choose the next one. Every wanted row comes as `top` says.
    fn part<'a>(
        &'a mut self,
        share: usize,
        top: &'a [Option<TopK>],
    ) -> ((Chunk<'a>, &'a mut Sequence), &'a Stepper) {
        let (at, wanted) = (self.kv.len(), self.wanted(share));
        let form = if self.task.pool.is_some() { Form::Hidden } else { Form::Top(top) };
        let tokens = &self.task.stepper.tokens()[at..at + share];
        let chunk = Chunk::new(tokens, wanted).form(form).with(&self.task.adapters);
        ((chunk, self.kv.sequence_mut()), &self.task.stepper)
    }

    /// Proposes tokens for the next pass, where that is worth it; says how many.
    fn propose(&mut self, context: usize, limits: ProposalLimits) -> usize {
        let stepper = &mut self.task.stepper;
        let room = context.saturating_sub(stepper.known().len()).min(limits.most);
        let most = self.kv.sequence().revocable(1 + room) - 1;
        stepper.propose(ProposalLimits { most, ..limits });
        stepper.proposed()
    }

    /// Adds what came of the tokens of a text that becomes a vector.
    fn pool(&mut self, outputs: &Outputs, rows: Range<usize>) {
        let Some(pool) = &mut self.task.pool else { return };
        for hidden in rows.map(|row| outputs.row(row).hidden()) {
            pool.add(hidden, hidden.len());
        }
    }

    /// Scores the prompt tokens after those of the last `rows`, and tells of them once all are read.
    fn score_prompt(&mut self, outputs: &Outputs, rows: Range<usize>) {
        let Some(mut scored) = self.task.prompt_logprobs.take() else { return };
        let (logprobs, tokens, prompt) = (self.task.logprobs, self.task.tokens(), self.task.prompt());
        let first = self.kv.len() - rows.len();
        for (position, row) in (first..).zip(rows) {
            if position + 1 < prompt {
                scored.push(Logprobs::of(
                    outputs.row(row).logits(),
                    tokens[position + 1],
                    logprobs.unwrap_or(0),
                ));
            }
        }
        match self.kv.len() < prompt {
            true => self.task.prompt_logprobs = Some(scored),
            false => self.task.listener.take(JobEvent::Prompt(scored)),
        }
    }

    /// Chooses tokens from what came after the last known one and those proposed, as far as it is known what may come, and goes back to
    /// what they leave of the pass.
    fn choose(
        &mut self,
        rows: &[Output<'_>],
        tokenizer: &Tokenizer,
        context: usize,
        waker: &Waker,
    ) -> Outcome {
        let Task { stepper, logprobs, score, listener, .. } = &mut self.task;
        let mut outcome = Outcome::default();
        if stepper.is_full() {
            if let (Some(Score::Tokens(wanted)), Some(row)) = (score, rows.first()) {
                let logits = row.logits();
                listener.take(JobEvent::Scored(wanted.iter().map(|&id| logits[id as usize]).collect()));
            }
            outcome.end = Some(Ok(Finish::MaxTokens));
            return outcome;
        }
        for (index, &output) in rows.iter().enumerate() {
            let is_ready =
                if index == 0 { stepper.poll_ready(waker) } else { stepper.poll_soon_ready(waker) };
            if !is_ready {
                self.held = Some(rows[index..].iter().map(|row| row.logits().to_vec()).collect());
                return outcome;
            }
            let step = match stepper.choose(output, tokenizer, context) {
                Ok(step) => step,
                Err(error) => {
                    outcome.end = Some(Err(error));
                    break;
                }
            };
            outcome.accepted += usize::from(step.was_proposed);
            if !matches!(step.finish, Some(Finish::EndOfText(_))) {
                let logprobs = logprobs.map(|count| Logprobs::of(output.logits(), step.token, count));
                outcome.tokens.push(JobEvent::Token { token: step.token, text: step.text, logprobs });
            }
            outcome.end = step.finish.map(Ok);
            if !step.has_row {
                break;
            }
        }
        if self.kv.len() > self.task.stepper.settled() {
            self.kv.truncate(self.task.stepper.settled());
        }
        outcome
    }
}

/// A sequence that is read to its end.
struct Pick<'a> {
    active: &'a mut Active,
    rows: Vec<Output<'a>>,
    outcome: Outcome,
}

impl Scheduler {
    /// Makes a pass over the active sequences and tells their listeners.
    pub(super) fn pass(&mut self) {
        let mut shares = self.tokens_to_read();
        self.make_room(&mut shares);
        let number = self.counters.passes;
        let _step = debug_span!("step", number).entered();
        for (Active { task, .. }, tokens) in self.active.iter().zip(&shares) {
            debug!(parent: &task.span, step = number, tokens, "scheduled");
        }
        let start = Instant::now();
        // A sequence whose state cannot go on is parted with; the others make the pass without it, and nothing of theirs is lost.
        let (outputs, wanted, rows) = loop {
            if shares.iter().all(|&share| share == 0) {
                return;
            }
            let taking = || self.active.iter().zip(&shares);
            let wanted: Vec<usize> = taking().map(|(active, &share)| active.wanted(share).len()).collect();
            let rows = pass_rows(taking());
            match self.forward(&shares) {
                Ok(outputs) => break (outputs, wanted, rows),
                Err(_) if self.forget_proposals(&mut shares) => {}
                Err(ForwardError::State(error)) if sequence(&shares, error.sequence).is_some() => {
                    let index = sequence(&shares, error.sequence).unwrap_or_default();
                    self.counters.failed += 1;
                    shares.remove(index);
                    self.active.remove(index).task.fail(GenerateError::from(ForwardError::from(error)));
                }
                Err(error) => {
                    // Tokens were checked before, so this concerns them all.
                    for active in std::mem::take(&mut self.active) {
                        self.counters.failed += 1;
                        active.task.fail(GenerateError::from(error.clone()));
                    }
                    return;
                }
            }
        };
        // The rows that a sequence which is read to its end goes on from.
        let mut last_rows = Vec::with_capacity(wanted.len());
        let mut row = 0;
        for (active, rows) in self.active.iter_mut().zip(wanted) {
            active.pool(&outputs, row..row + rows);
            active.score_prompt(&outputs, row..row + rows);
            row += rows;
            let is_read = rows > 0 && active.pending() == 0;
            let stepper = &mut active.task.stepper;
            last_rows.push(if is_read { row - 1 - stepper.proposed()..row } else { 0..0 });
            if is_read {
                stepper.count_proposal();
            }
        }
        self.times.learn(rows, start.elapsed());
        self.counters.passes += 1;
        self.counters.rows += shares.iter().sum::<usize>() as u64;
        self.counters.proposed_tokens += rows.proposed as u64;
        self.sample_tokens(&last_rows, &outputs);
        self.counters.pass_seconds += start.elapsed().as_secs_f64();
    }

    /// One forward pass over the next tokens of every active sequence.
    fn forward(&mut self, shares: &[usize]) -> Result<Outputs, ForwardError> {
        // By sequence of the pass and wanted row: what is needed of it.
        let taking = self.active.iter().zip(shares).filter(|(_, share)| **share > 0);
        let top: Vec<Vec<Option<TopK>>> =
            taking.map(|(active, &share)| vec![active.needs(); active.wanted(share).len()]).collect();
        let owners: Vec<usize> =
            (0..).zip(&top).flat_map(|(index, top)| std::iter::repeat_n(index, top.len())).collect();
        let parts = self.active.iter_mut().zip(shares).filter(|(_, share)| **share > 0).zip(&top);
        let parts = parts.map(|((active, &share), top)| active.part(share, top));
        let (parts, steppers): (Vec<_>, Vec<_>) = parts.unzip();
        let (chunks, mut sequences): (Vec<Chunk<'_>>, Vec<_>) = parts.into_iter().unzip();
        let accept = |row: usize, top: &TopTokens| steppers[owners[row]].accepts_top_k(top);
        let watches = steppers.iter().any(|stepper| stepper.watches());
        let (outputs, left) = forward_watched(&self.engine, &chunks, &accept, &mut sequences, watches)?;
        if let Some(left) = left {
            self.show_left(shares, &left);
        }
        Ok(outputs)
    }

    /// Shows those who propose what the model left of the tokens of a pass, `(tokens, hidden)`.
    fn show_left(&mut self, shares: &[usize], left: &Rows) {
        let mut row = 0;
        for (active, &share) in self.active.iter_mut().zip(shares).filter(|(_, share)| **share > 0) {
            let stepper = &mut active.task.stepper;
            if stepper.watches() {
                let (at, width) = (active.kv.len() - share, left.width());
                stepper.watch(at, share, &left.data()[row * width..(row + share) * width]);
            }
            row += share;
        }
    }

    /// How many tokens each sequence brings: one where it is being answered, with those that are likely to follow, its part of the
    /// budget where it is read, none where it waits for what may come next.
    fn tokens_to_read(&mut self) -> Vec<usize> {
        let pending: Vec<usize> = self.active.iter().map(Active::pending).collect();
        let reading: Vec<usize> = pending.iter().copied().filter(|&count| count > 1).collect();
        let answering = pending.iter().filter(|&&count| count == 1).count();
        let budget = prefill_budget::budget(&self.times, answering, self.chunk);
        let mut dealt = prefill_budget::split_budget(budget, &reading).into_iter();
        let (context, limits) = (self.context, self.times.limits(answering, MOST_PROPOSED));
        let share = |(count, active): (usize, &mut Active)| match count {
            0 => 0,
            // The last token of a prompt is not what proposals follow.
            1 if active.task.stepper.chosen().is_empty() => 1,
            1 => 1 + active.propose(context, limits),
            _ => dealt.next().unwrap_or(1),
        };
        pending.into_iter().zip(&mut self.active).map(share).collect()
    }

    /// Makes the pass without proposals; false where there are none.
    fn forget_proposals(&mut self, shares: &mut [usize]) -> bool {
        let mut any = false;
        for (active, share) in self.active.iter_mut().zip(shares) {
            // Those of sequences that wait for what may come are read already.
            let proposed = active.task.stepper.proposed();
            if *share > 0 && proposed > 0 {
                active.task.stepper.forget_proposal();
                (*share, any) = (*share - proposed, true);
            }
        }
        any
    }

    /// Takes memory for the shares, the oldest first. Where it does not suffice the youngest are preempted.
    fn make_room(&mut self, shares: &mut Vec<usize>) {
        let mut index = 0;
        while index < self.active.len() {
            let Err(full) = self.tree.reserve(self.active[index].kv.sequence_mut(), shares[index]) else {
                index += 1;
                continue;
            };
            if self.forget_proposals(shares) || self.reclaim() {
                continue;
            }
            let Some(youngest) = self.active.pop() else { return };
            if self.active.is_empty() {
                // It had everything, and that was not enough.
                self.counters.failed += 1;
                let failure = ForwardError::from(StateError::new(0, CacheError::from(full)));
                youngest.task.fail(JobError::from(GenerateError::from(failure)));
            } else {
                self.preempt(youngest);
            }
        }
        shares.truncate(self.active.len());
    }

    /// Chooses tokens for the sequences that are read to their end, and parts with those that are done.
    fn sample_tokens(&mut self, last_rows: &[Range<usize>], outputs: &Outputs) {
        let mut active = std::mem::take(&mut self.active);
        let picks = active.iter_mut().zip(last_rows).filter(|(_, rows)| !rows.is_empty());
        let picks = picks.map(|(active, rows)| Pick {
            active,
            rows: rows.clone().map(|row| outputs.row(row)).collect(),
            outcome: Outcome::default(),
        });
        let outcomes = self.choose(picks.collect());
        self.settle(active, last_rows.iter().map(|rows| !rows.is_empty()), outcomes);
    }

    /// The same for those that have waited for what may come next, and know it now. False where there is none.
    pub(super) fn choose_held(&mut self) -> bool {
        if self.active.iter().all(|active| active.held.is_none()) {
            return false;
        }
        let mut active = std::mem::take(&mut self.active);
        let ready =
            |active: &mut Active| active.held.is_some() && active.task.stepper.poll_ready(&self.waker);
        let held: Vec<Option<Vec<Vec<f32>>>> =
            active.iter_mut().map(|active| if ready(active) { active.held.take() } else { None }).collect();
        let mut picks = Vec::new();
        for (active, held) in active.iter_mut().zip(&held) {
            picks.extend(held.as_ref().map(|rows| Pick {
                active,
                rows: rows.iter().map(|logits| Output::Logits(logits)).collect(),
                outcome: Outcome::default(),
            }));
        }
        let outcomes = self.choose(picks);
        let any = !outcomes.is_empty();
        self.settle(active, held.iter().map(Option::is_some), outcomes);
        any
    }

    /// Tokens for each, or why there are none.
    fn choose(&self, mut picks: Vec<Pick<'_>>) -> Vec<Outcome> {
        let (tokenizer, context, waker) = (self.engine.tokenizer(), self.context, &self.waker);
        if picks.is_empty() {
            return Vec::new();
        }
        self.engine.pool().install(|| {
            kvant_threads::for_each_chunk(&mut picks, 1, |_, picks| {
                for pick in picks {
                    pick.outcome = pick.active.choose(&pick.rows, tokenizer, context, waker);
                }
            });
        });
        picks.into_iter().map(|pick| pick.outcome).collect()
    }

    /// Tells the listeners of those that were chosen for, and keeps the sequences that go on.
    fn settle(&mut self, all: Vec<Active>, were_chosen: impl Iterator<Item = bool>, outcomes: Vec<Outcome>) {
        let mut outcomes = outcomes.into_iter();
        let now = Instant::now();
        for (mut active, was_chosen) in all.into_iter().zip(were_chosen) {
            let outcome = if was_chosen { outcomes.next() } else { None };
            if was_chosen && !active.task.remembered {
                active.task.remembered = true;
                self.remember(&active);
            }
            self.deliver(active, outcome.unwrap_or_default(), now);
        }
    }

    /// Tells a listener what came, and keeps the sequence if it goes on.
    fn deliver(&mut self, mut active: Active, outcome: Outcome, now: Instant) {
        self.counters.accepted_tokens += outcome.accepted as u64;
        for event in outcome.tokens {
            self.counters.generated_tokens += 1;
            *self.generated.entry(active.task.owner).or_default() += 1;
            match active.task.spoke.replace(now) {
                Some(before) => self.counters.between_tokens.add(now - before),
                None => {
                    active.task.first_token = Some(now);
                    self.counters.first_token.add(now - active.task.arrived);
                }
            }
            active.task.listener.take(event);
        }
        match outcome.end {
            None => self.active.push(active),
            Some(Err(error)) => {
                self.counters.failed += 1;
                active.task.fail(error);
            }
            Some(Ok(finish)) => {
                self.counters.finished += 1;
                self.remember(&active);
                self.keep_answer(&active.task);
                active.task.finish(finish);
            }
        }
    }
}

/// What a pass has in it: a sequence with one token is being answered, and so is one that brings proposals.
fn pass_rows<'a>(taking: impl Iterator<Item = (&'a Active, &'a usize)>) -> PassRows {
    let mut rows = PassRows::default();
    for (active, &share) in taking.filter(|(_, share)| **share > 0) {
        let proposed = active.task.stepper.proposed();
        match share - proposed {
            1 => rows.answering += 1,
            read => rows.read += read,
        }
        rows.proposed += proposed;
    }
    rows
}

/// Which sequence a pass names by its number among those that bring tokens.
fn sequence(shares: &[usize], number: usize) -> Option<usize> {
    let bringing = shares.iter().enumerate().filter(|(_, share)| **share > 0);
    bringing.map(|(index, _)| index).nth(number)
}
