//! Proposals of a draft model: a small model with the same words guesses what a large one will say.
//!
//! Every text has a sequence of the draft's own. It holds what the draft has read of the text, goes back where a guess was wrong, and
//! reads a long prompt in chunks, one per pass of the large model, so that neighbours in a batch do not wait for it. When it is asked is
//! the [`DraftProposer`]'s business.
//!
//! **Invariant:** nothing that goes wrong with a draft concerns the text. A draft without room or positions for a text guesses nothing.

use super::drafter::{DraftProposer, Drafter};
use crate::engine::Engine;
use crate::session::{PREFILL_CHUNK, Session};
use kvant_cache::{Policy, Store};
use kvant_model::LoadError;
use kvant_text::tokenizer::{TokenKind, Tokenizer};
use std::sync::Arc;

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

/// What a draft has read of one text.
pub struct DraftSequence {
    draft: Arc<DraftModel>,
    /// None before the first pass.
    session: Option<Session>,
}

impl DraftProposer {
    /// For one text.
    pub fn new(draft: Arc<DraftModel>) -> Self {
        Self::with(DraftSequence { draft, session: None })
    }
}

impl Drafter for DraftSequence {
    fn catch_up(&mut self, tokens: &[u32]) -> Option<bool> {
        let DraftModel { engine, policy, context, store, .. } = &*self.draft;
        if self.session.is_none() {
            self.session = engine.session_in(store.clone(), policy, *context).ok();
        }
        let session = self.session.as_mut()?;
        let held = session.tokens().iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let end = tokens.len().min(held + PREFILL_CHUNK);
        session.prefill(&tokens[..end]).ok()?;
        // There is more of it than one pass takes.
        Some(end == tokens.len())
    }

    fn logits(&self) -> &[f32] {
        self.session.as_ref().map_or(&[], Session::logits)
    }

    fn step(&mut self, token: u32) -> Option<()> {
        self.session.as_mut()?.step(token).ok().map(drop)
    }

    fn has_room(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.tokens().len() < session.context())
    }

    fn context(&self) -> usize {
        self.draft.context
    }

    fn vocabulary(&self) -> usize {
        self.draft.vocabulary
    }
}
