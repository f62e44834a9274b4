//! Proposals of what guesses one token after another: a draft model, or the model's own head for further tokens.
//!
//! What the text repeats is proposed first ([`SuffixProposer`]): that costs nothing. A guess of a drafter has to be worth two things: its
//! row in the model's pass, and the drafter's own pass that makes it. For classes of the drafter's own confidence it is counted how often
//! the model agreed. Where even the first guess is not worth it, the drafter rests, and is asked again after a while.

use super::draft::DraftSequence;
use super::{PastAnswers, ProposalLimits, Proposer, SuffixProposer};
use std::sync::Arc;
use std::time::Instant;

/// From which probability on, in the drafter's view, a guess is of another class, and how often it is right at first.
const CONFIDENCES: [(f32, f64); 6] =
    [(0.0, 0.15), (0.3, 0.4), (0.5, 0.55), (0.7, 0.7), (0.85, 0.8), (0.95, 0.9)];

/// Guesses that the first belief counts for.
const PRIOR: f64 = 4.0;

/// How much of a count is left after the next guess of its class.
const DECAY: f64 = 0.95;

/// How much better than its cost a guess has to look.
const MARGIN: f64 = 1.2;

/// Tokens after which a drafter that rests is asked again.
const REST: usize = 32;

/// Guesses one token after another.
pub trait Drafter: Send {
    /// Takes in what is new of a text. False where it cannot guess yet, none where it cannot go on.
    fn catch_up(&mut self, tokens: &[u32]) -> Option<bool>;

    /// (vocabulary): the logits of what follows.
    fn logits(&self) -> &[f32];

    /// Goes on as if this token followed; none where it cannot.
    fn step(&mut self, token: u32) -> Option<()>;

    /// Whether there is room for another step.
    fn has_room(&self) -> bool;

    /// The most tokens of a text that it holds.
    fn context(&self) -> usize;

    /// Tokens that the large model knows.
    fn vocabulary(&self) -> usize;

    /// As [`Proposer::watches`].
    fn watches(&self) -> bool {
        false
    }

    /// As [`Proposer::watch`].
    fn watch(&mut self, at: usize, tokens: &[u32], left: &[f32]) {
        let _ = (at, tokens, left);
    }
}

/// How often something was right lately.
#[derive(Clone, Copy, Default)]
struct Rate {
    right: f64,
    all: f64,
}

impl Rate {
    fn learn(&mut self, was_right: bool) {
        self.right = DECAY * self.right + f64::from(u8::from(was_right));
        self.all = DECAY * self.all + 1.0;
    }

    fn chance(self, at_first: f64) -> f64 {
        (self.right + PRIOR * at_first) / (self.all + PRIOR)
    }
}

/// Proposes what a drafter would say, where the text does not repeat itself.
pub struct DraftProposer<D: Drafter = DraftSequence> {
    /// None after something went wrong.
    drafter: Option<D>,
    suffix: SuffixProposer,
    /// The last guess: the tokens before it, and its tokens by class.
    guessed: (usize, Vec<(u32, usize)>),
    /// By class.
    rates: [Rate; CONFIDENCES.len()],
    /// Of first guesses.
    first: Rate,
    /// Seconds of a pass of the drafter.
    pass: Option<f64>,
    /// Tokens of the text before which the drafter is not asked.
    rests_until: usize,
}

impl<D: Drafter> DraftProposer<D> {
    /// For one text, of which the drafter has read nothing yet.
    pub fn with(drafter: D) -> Self {
        Self {
            drafter: Some(drafter),
            suffix: SuffixProposer::default(),
            guessed: (0, Vec::new()),
            rates: Default::default(),
            first: Rate::default(),
            pass: None,
            rests_until: 0,
        }
    }

    /// Sees what came of the last guess.
    fn learn(&mut self, tokens: &[u32]) {
        let (before, guess) = std::mem::take(&mut self.guessed);
        let came = tokens.get(before..).unwrap_or_default();
        for (index, (&token, &(guessed, class))) in came.iter().zip(&guess).enumerate() {
            self.rates[class].learn(token == guessed);
            if index == 0 {
                self.first.learn(token == guessed);
            }
            if token != guessed {
                return;
            }
        }
    }

    /// Adds guesses of the drafter; none if it cannot go on.
    fn draft(&mut self, tokens: &[u32], limits: ProposalLimits, proposal: &mut Vec<u32>) -> Option<()> {
        // Without knowing what a pass takes nothing is known to be worth it; the next one will tell.
        let a_token = limits.seconds_per_token.filter(|seconds| *seconds > 0.0);
        let drafter = self.drafter.as_mut()?;
        if !drafter.catch_up(tokens)? || a_token.is_none() {
            return Some(());
        }
        let cost = |pass: Option<f64>| {
            let own = pass.zip(a_token).map_or(0.0, |(pass, a_token)| MARGIN * pass / a_token);
            limits.least_chance + own
        };
        if self.first.chance(0.7) < cost(self.pass) {
            self.rests_until = tokens.len() + REST;
        }
        self.guessed.0 = tokens.len();
        let mut chance = 1.0;
        loop {
            let (token, confidence) = likeliest(drafter.logits())?;
            let class = CONFIDENCES.partition_point(|(from, _)| *from <= confidence).saturating_sub(1);
            chance *= self.rates[class].chance(CONFIDENCES[class].1);
            self.guessed.1.push((token, class));
            // It is there, so it has only its row to be worth.
            if chance < limits.least_chance || token as usize >= drafter.vocabulary() {
                return Some(());
            }
            proposal.push(token);
            if proposal.len() >= limits.most || chance < cost(self.pass) || !drafter.has_room() {
                return Some(());
            }
            let start = Instant::now();
            drafter.step(token)?;
            let took = start.elapsed().as_secs_f64();
            self.pass = Some(self.pass.map_or(took, |known| known + 0.2 * (took.min(2.0 * known) - known)));
        }
    }
}

impl<D: Drafter> Proposer for DraftProposer<D> {
    fn propose(&mut self, tokens: &[u32], limits: ProposalLimits, proposal: &mut Vec<u32>) {
        self.learn(tokens);
        let before = proposal.len();
        self.suffix.propose(tokens, limits, proposal);
        // More than one token may have come since it was last asked, and its sequence may be full.
        let may_hold = self.drafter.as_ref().is_some_and(|drafter| tokens.len() < drafter.context());
        let is_asked = may_hold && tokens.len() >= self.rests_until;
        if proposal.len() == before && is_asked && self.draft(tokens, limits, proposal).is_none() {
            self.drafter = None;
        }
    }

    fn recall(&mut self, answers: Arc<PastAnswers>) {
        self.suffix.recall(answers);
    }

    fn watches(&self) -> bool {
        self.drafter.as_ref().is_some_and(Drafter::watches)
    }

    fn watch(&mut self, at: usize, tokens: &[u32], left: &[f32]) {
        self.drafter.iter_mut().for_each(|drafter| drafter.watch(at, tokens, left));
    }
}

/// The likeliest token, and its probability.
fn likeliest(logits: &[f32]) -> Option<(u32, f32)> {
    let (token, &most) = logits.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let sum: f32 = logits.iter().map(|logit| (logit - most).exp()).sum();
    Some((token as u32, 1.0 / sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_token_comes_with_its_probability() {
        let (token, chance) = likeliest(&[0.0, 3.0f32.ln(), f32::NEG_INFINITY]).unwrap();
        assert_eq!(token, 1);
        assert!((chance - 0.75).abs() < 1e-6, "{chance}");
        assert_eq!(likeliest(&[]), None);
    }
}
