//! Proposals of a draft model: a small model with the same words guesses what a large one will say.
//!
//! Every text has a sequence of the draft's own. It holds what the draft has read of the text, goes back where a guess was wrong, and
//! reads a long prompt in chunks, one per pass of the large model, so that neighbours in a batch do not wait for it. What the text
//! repeats is proposed first ([`SuffixProposer`]): that costs nothing.
//!
//! A guess has to be worth two things: its row in the large model's pass, and the pass of the draft that makes it. For classes of the
//! draft's own confidence it is counted how often the large model agreed. Where even the first guess is not worth it, the draft rests,
//! and is asked again after a while.
//!
//! **Invariant:** nothing that goes wrong with a draft concerns the text. A draft without room or positions for a text guesses nothing.

use super::{PastAnswers, ProposalLimits, Proposer, SuffixProposer};
use crate::engine::Engine;
use crate::session::{PREFILL_CHUNK, Session};
use kvant_cache::{Policy, Store};
use kvant_model::LoadError;
use kvant_text::tokenizer::{TokenKind, Tokenizer};
use std::sync::Arc;
use std::time::Instant;

/// From which probability on, in the draft's view, a guess is of another class, and how often it is right at first.
const CONFIDENCES: [(f32, f64); 6] =
    [(0.0, 0.15), (0.3, 0.4), (0.5, 0.55), (0.7, 0.7), (0.85, 0.8), (0.95, 0.9)];

/// Guesses that the first belief counts for.
const PRIOR: f64 = 4.0;

/// How much of a count is left after the next guess of its class.
const DECAY: f64 = 0.95;

/// How much better than its cost a guess has to look.
const MARGIN: f64 = 1.2;

/// Tokens after which a draft that rests is asked again.
const REST: usize = 32;

/// A small model with the words of a large one.
pub struct DraftModel {
    engine: Arc<Engine>,
    policy: Policy,
    context: usize,
    /// Pages of all its sequences.
    store: Store,
    /// Tokens that the large model knows.
    vocabulary: usize,
}

impl DraftModel {
    /// A draft for texts of a model with this tokenizer and vocabulary. Its sequences hold at most `context` tokens, kept as `policy`
    /// says on pages of `store`.
    ///
    /// # Errors
    /// If the two have different words; the first that differs is named.
    pub fn new(
        engine: Arc<Engine>,
        (policy, context, store): (Policy, usize, Store),
        target: (&Tokenizer, usize),
    ) -> Result<Self, LoadError> {
        let (tokenizer, vocabulary) = target;
        compare(engine.tokenizer(), tokenizer).map_err(LoadError::unsupported)?;
        let context = context.min(engine.model().position_limit().unwrap_or(usize::MAX));
        Ok(Self { engine, policy, context, store, vocabulary })
    }
}

/// Whether two tokenizers have the same words, as far as both have any.
fn compare(draft: &Tokenizer, target: &Tokenizer) -> Result<(), String> {
    let is_word =
        |tokenizer: &Tokenizer, id: u32| !matches!(tokenizer.kind(id), None | Some(TokenKind::Unused));
    let name = |tokenizer: &Tokenizer, id: u32| tokenizer.token_name(id).unwrap_or_default();
    for id in 0..draft.vocab_len().min(target.vocab_len()) as u32 {
        let both = is_word(draft, id) && is_word(target, id);
        if both && draft.token_bytes(id).ok() != target.token_bytes(id).ok() {
            return Err(format!(
                "a draft model with another tokenizer: its token {id} is `{}`, the model's is `{}`; take a smaller model of the same \
                 family",
                name(draft, id),
                name(target, id)
            ));
        }
    }
    Ok(())
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

/// Proposes what a draft model would say, where the text does not repeat itself.
pub struct DraftProposer {
    draft: Arc<DraftModel>,
    suffix: SuffixProposer,
    /// What it has read of the text; none before the first pass, and after something went wrong.
    session: Option<Session>,
    has_failed: bool,
    /// The last guess: the tokens before it, and its tokens by class.
    guessed: (usize, Vec<(u32, usize)>),
    /// By class.
    rates: [Rate; CONFIDENCES.len()],
    /// Of first guesses.
    first: Rate,
    /// Seconds of a pass of the draft.
    pass: Option<f64>,
    /// Tokens of the text before which the draft is not asked.
    rests_until: usize,
}

impl DraftProposer {
    /// For one text.
    pub fn new(draft: Arc<DraftModel>) -> Self {
        Self {
            draft,
            suffix: SuffixProposer::default(),
            session: None,
            has_failed: false,
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

    /// Reads what is new of the text. False where there is more of it than one pass takes.
    fn catch_up(&mut self, tokens: &[u32]) -> Option<bool> {
        let DraftModel { engine, policy, context, store, .. } = &*self.draft;
        if self.session.is_none() {
            self.session = engine.session_in(store.clone(), policy, *context).ok();
        }
        let session = self.session.as_mut()?;
        let held = session.tokens().iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let end = tokens.len().min(held + PREFILL_CHUNK);
        session.prefill(&tokens[..end]).ok()?;
        Some(end == tokens.len())
    }

    /// Adds guesses of the draft; none if it cannot go on.
    fn draft(&mut self, tokens: &[u32], limits: ProposalLimits, proposal: &mut Vec<u32>) -> Option<()> {
        // Without knowing what a pass takes nothing is known to be worth it; the next one will tell.
        let a_token = limits.seconds_per_token.filter(|seconds| *seconds > 0.0);
        if !self.catch_up(tokens)? || a_token.is_none() {
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
            let session = self.session.as_mut()?;
            let (token, confidence) = likeliest(session.logits())?;
            let class = CONFIDENCES.partition_point(|(from, _)| *from <= confidence).saturating_sub(1);
            chance *= self.rates[class].chance(CONFIDENCES[class].1);
            self.guessed.1.push((token, class));
            // It is there, so it has only its row to be worth.
            if chance < limits.least_chance || token as usize >= self.draft.vocabulary {
                return Some(());
            }
            proposal.push(token);
            if proposal.len() >= limits.most
                || chance < cost(self.pass)
                || session.tokens().len() >= session.context()
            {
                return Some(());
            }
            let start = Instant::now();
            session.step(token).ok()?;
            let took = start.elapsed().as_secs_f64();
            self.pass = Some(self.pass.map_or(took, |known| known + 0.2 * (took.min(2.0 * known) - known)));
        }
    }
}

impl Proposer for DraftProposer {
    fn propose(&mut self, tokens: &[u32], limits: ProposalLimits, proposal: &mut Vec<u32>) {
        self.learn(tokens);
        let before = proposal.len();
        self.suffix.propose(tokens, limits, proposal);
        // More than one token may have come since it was last asked, and its sequence may be full.
        let is_asked =
            !self.has_failed && tokens.len() >= self.rests_until && tokens.len() < self.draft.context;
        if proposal.len() == before && is_asked && self.draft(tokens, limits, proposal).is_none() {
            (self.has_failed, self.session) = (true, None);
        }
    }

    fn recall(&mut self, answers: Arc<PastAnswers>) {
        self.suffix.recall(answers);
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
