//! One pass: room for its tokens, the network, and what comes of every sequence.

use super::job::{JobError, JobEvent, Task};
use super::logprobs::Logprobs;
use super::{Active, Scheduler, prefill_budget};
use crate::generation::Generation;
use crate::session::{Finish, GenerateError};
use kvant_cache::{CacheError, Sequence, StateError};
use kvant_model::{Chunk, Form, ForwardError, Output, Outputs, Pass, TopK, TopTokens};
use kvant_text::tokenizer::Tokenizer;
use std::ops::Range;
use std::task::Waker;
use std::time::Instant;

/// What a pass came to for one sequence.
struct Outcome {
    /// None where no token was to be chosen any more.
    token: Option<JobEvent>,
    finish: Option<Finish>,
}

impl Active {
    /// Tokens that are known and not yet read: at least one between passes, unless it waits for what may come next.
    fn pending(&self) -> usize {
        self.task.tokens.len() - self.kv.len()
    }

    /// Which of the next `share` tokens something is wanted of: all of a text that becomes a vector, those of a prompt that is scored,
    /// or the last where that is all.
    fn wanted(&self, share: usize) -> Range<usize> {
        match share == self.pending() {
            _ if share == 0 => 0..0,
            _ if self.task.pool.is_some() => 0..share,
            _ if self.task.prompt_logprobs.is_some() && self.kv.len() < self.task.prompt => 0..share,
            true => share - 1..share,
            false => 0..0,
        }
    }

    /// What is needed of these rows: all logits where any of them are shown to anybody.
    fn needs(&self) -> Option<TopK> {
        let Task { generation, logprobs, prompt_logprobs, .. } = &self.task;
        let is_shown = logprobs.is_some() || prompt_logprobs.is_some() || generation.is_full();
        generation.wants().filter(|_| !is_shown)
    }

    /// The next `share` tokens, the sequence that takes them, and what will choose the next one. Every wanted row comes as `top` says.
    fn part<'a>(
        &'a mut self,
        share: usize,
        top: &'a [Option<TopK>],
    ) -> ((Chunk<'a>, &'a mut Sequence), &'a Generation) {
        let (at, wanted) = (self.kv.len(), self.wanted(share));
        let form = if self.task.pool.is_some() { Form::Hidden } else { Form::Top(top) };
        let chunk = Chunk::new(&self.task.tokens[at..at + share], wanted).form(form);
        ((chunk, self.kv.sequence_mut()), &self.task.generation)
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
        let Task { logprobs, tokens, prompt, .. } = &self.task;
        let first = self.kv.len() - rows.len();
        for (position, row) in (first..).zip(rows) {
            if position + 1 < *prompt {
                scored.push(Logprobs::of(
                    outputs.row(row).logits(),
                    tokens[position + 1],
                    logprobs.unwrap_or(0),
                ));
            }
        }
        match self.kv.len() < *prompt {
            true => self.task.prompt_logprobs = Some(scored),
            false => self.task.listener.take(JobEvent::Prompt(scored)),
        }
    }

    /// Chooses a token from what came after the last one read; none as long as it is not known what may come.
    fn choose(
        &mut self,
        output: Output<'_>,
        tokenizer: &Tokenizer,
        context: usize,
        waker: &Waker,
    ) -> Result<Option<Outcome>, GenerateError> {
        let Task { generation, tokens, logprobs, .. } = &mut self.task;
        if generation.is_full() {
            return Ok(Some(Outcome { token: None, finish: Some(Finish::MaxTokens) }));
        }
        if !generation.poll_ready(waker) {
            self.held = Some(output.logits().to_vec());
            return Ok(None);
        }
        let choice = generation.choose(output, tokenizer)?;
        tokens.push(choice.token);
        let no_more = || match self.kv.len() == context {
            _ if generation.is_full() => Some(Finish::MaxTokens),
            true => Some(Finish::ContextFull),
            false => None,
        };
        let finish = choice.finish.or_else(no_more);
        let ends_text = matches!(finish, Some(Finish::EndOfText(_)));
        let logprobs = logprobs.map(|count| Logprobs::of(output.logits(), choice.token, count));
        let token = JobEvent::Token { token: choice.token, text: choice.text, logprobs };
        Ok(Some(Outcome { token: (!ends_text).then_some(token), finish }))
    }
}

/// A sequence that is read to its end.
struct Pick<'a> {
    active: &'a mut Active,
    output: Output<'a>,
    outcome: Option<Result<Option<Outcome>, GenerateError>>,
}

impl Scheduler {
    /// Makes a pass over the active sequences and tells their listeners.
    pub(super) fn pass(&mut self) {
        let mut shares = self.shares();
        self.make_room(&mut shares);
        let start = Instant::now();
        // A sequence whose state cannot go on is parted with; the others make the pass without it, and nothing of theirs is lost.
        let (outputs, wanted) = loop {
            if shares.iter().all(|&share| share == 0) {
                return;
            }
            let wanted: Vec<usize> =
                self.active.iter().zip(&shares).map(|(active, &share)| active.wanted(share).len()).collect();
            match self.forward(&shares) {
                Ok(outputs) => break (outputs, wanted),
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
        // The row that a sequence which is read to its end goes on from.
        let mut last_rows = Vec::with_capacity(wanted.len());
        let mut row = 0;
        for (active, rows) in self.active.iter_mut().zip(wanted) {
            active.pool(&outputs, row..row + rows);
            active.score_prompt(&outputs, row..row + rows);
            row += rows;
            last_rows.push((rows > 0 && active.pending() == 0).then(|| row - 1));
        }
        let (rows, answering): (usize, usize) =
            (shares.iter().sum(), shares.iter().filter(|&&share| share == 1).count());
        self.prefill_budget.learn(rows - answering, answering, start.elapsed());
        self.counters.passes += 1;
        self.counters.rows += rows as u64;
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
        let (parts, generations): (Vec<_>, Vec<_>) = parts.unzip();
        let (chunks, mut sequences): (Vec<Chunk<'_>>, Vec<_>) = parts.into_iter().unzip();
        let accept = |row: usize, top: &TopTokens| generations[owners[row]].accepts_top_k(top);
        self.engine.forward(Pass::new(&chunks).accept(&accept), &mut sequences)
    }

    /// How many tokens each sequence brings: one where it is being answered, its part of the budget where it is read, none where it
    /// waits for what may come next.
    fn shares(&self) -> Vec<usize> {
        let pending: Vec<usize> = self.active.iter().map(Active::pending).collect();
        let reading: Vec<usize> = pending.iter().copied().filter(|&count| count > 1).collect();
        let answering = pending.iter().filter(|&&count| count == 1).count();
        let budget = self.prefill_budget.budget(answering, self.chunk);
        let mut dealt = prefill_budget::split_budget(budget, &reading).into_iter();
        let share = |count: usize| if count > 1 { dealt.next().unwrap_or(1) } else { count };
        pending.into_iter().map(share).collect()
    }

    /// Takes memory for the shares, the oldest first. Where it does not suffice the youngest are preempted.
    fn make_room(&mut self, shares: &mut Vec<usize>) {
        let mut index = 0;
        while index < self.active.len() {
            let Err(full) = self.tree.reserve(self.active[index].kv.sequence_mut(), shares[index]) else {
                index += 1;
                continue;
            };
            if self.reclaim() {
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
    fn sample_tokens(&mut self, last_rows: &[Option<usize>], outputs: &Outputs) {
        let pick = |(active, row): (_, &Option<usize>)| {
            Some(Pick { active, output: outputs.row((*row)?), outcome: None })
        };
        let mut active = std::mem::take(&mut self.active);
        let outcomes = self.choose(active.iter_mut().zip(last_rows).filter_map(pick).collect());
        self.settle(active, last_rows.iter().map(Option::is_some), outcomes);
    }

    /// The same for those that have waited for what may come next, and know it now. False where there is none.
    pub(super) fn choose_held(&mut self) -> bool {
        if self.active.iter().all(|active| active.held.is_none()) {
            return false;
        }
        let mut active = std::mem::take(&mut self.active);
        let ready =
            |active: &mut Active| active.held.is_some() && active.task.generation.poll_ready(&self.waker);
        let held: Vec<Option<Vec<f32>>> =
            active.iter_mut().map(|active| if ready(active) { active.held.take() } else { None }).collect();
        let mut picks = Vec::new();
        for (active, held) in active.iter_mut().zip(&held) {
            picks.extend(held.as_deref().map(|logits| Pick {
                active,
                output: Output::Logits(logits),
                outcome: None,
            }));
        }
        let outcomes = self.choose(picks);
        let any = !outcomes.is_empty();
        self.settle(active, held.iter().map(Option::is_some), outcomes);
        any
    }

    /// A token for each, or why there is none.
    fn choose(&self, mut picks: Vec<Pick<'_>>) -> Vec<Result<Option<Outcome>, GenerateError>> {
        let (tokenizer, context, waker) = (self.engine.tokenizer(), self.context, &self.waker);
        if picks.is_empty() {
            return Vec::new();
        }
        self.engine.pool().install(|| {
            kvant_threads::for_each_chunk(&mut picks, 1, |_, picks| {
                for pick in picks {
                    pick.outcome = Some(pick.active.choose(pick.output, tokenizer, context, waker));
                }
            });
        });
        picks.into_iter().filter_map(|pick| pick.outcome).collect()
    }

    /// Tells the listeners of those that were chosen for, and keeps the sequences that go on.
    fn settle(
        &mut self,
        all: Vec<Active>,
        were_chosen: impl Iterator<Item = bool>,
        outcomes: Vec<Result<Option<Outcome>, GenerateError>>,
    ) {
        let mut outcomes = outcomes.into_iter();
        let now = Instant::now();
        for (mut active, was_chosen) in all.into_iter().zip(were_chosen) {
            let outcome = if was_chosen { outcomes.next() } else { None };
            if was_chosen && !active.task.remembered {
                active.task.remembered = true;
                self.remember(&active);
            }
            match outcome {
                None | Some(Ok(None)) => self.active.push(active),
                Some(Err(error)) => {
                    self.counters.failed += 1;
                    active.task.fail(error);
                }
                Some(Ok(Some(outcome))) => self.deliver(active, outcome, now),
            }
        }
    }

    /// Tells a listener what came, and keeps the sequence if it goes on.
    fn deliver(&mut self, mut active: Active, outcome: Outcome, now: Instant) {
        if let Some(event) = outcome.token {
            self.counters.generated_tokens += 1;
            *self.generated.entry(active.task.owner).or_default() += 1;
            match active.task.spoke.replace(now) {
                Some(before) => self.counters.between_tokens.add(now - before),
                None => self.counters.first_token.add(now - active.task.arrived),
            }
            active.task.listener.take(event);
        }
        let Some(finish) = outcome.finish else {
            self.active.push(active);
            return;
        };
        self.counters.finished += 1;
        self.remember(&active);
        active.task.finish(finish);
    }
}

/// Which sequence a pass names by its number among those that bring tokens.
fn sequence(shares: &[usize], number: usize) -> Option<usize> {
    let bringing = shares.iter().enumerate().filter(|(_, share)| **share > 0);
    bringing.map(|(index, _)| index).nth(number)
}
