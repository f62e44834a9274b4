//! Proposals of the model's own head for further tokens (multi-token prediction, MTP).
//!
//! The head sees what the model left at a position and the token after it, and guesses the one after that; from what it left itself it
//! guesses on. It has keys and values of its own, in a sequence beside the text's:
//!
//! ```text
//! positions      0  1  2  3  4  5
//! text           a  b  c  d  e  ·      e is chosen and unread
//! model left     A  B  C  D
//! rows          Ab Bc Cd De            the last one guesses what follows e
//! ```
//!
//! The rows of guesses after guesses stand on what the head left and are taken back when the model has read on. A text that begins with
//! what a cache held already has rows for the rest alone: the head then sees less, and guesses less well.
//!
//! **Invariant:** as with draft models, nothing that goes wrong with the head concerns the text.

use super::MOST_PROPOSED;
use super::drafter::Drafter;
use crate::session::PREFILL_CHUNK;
use kvant_attention::{KvCache, KvUnsupported};
use kvant_cache::{Policy, Store};
use kvant_model::{Chunk, Guesses, LoadError, Model, Rows};
use kvant_threads::Pool;
use std::sync::Arc;

/// A model's head for further tokens, with room for what it keeps of texts.
pub struct MtpHead {
    model: Arc<Model>,
    pool: Pool,
    policy: Policy,
    context: usize,
    /// Pages of all its sequences.
    store: Store,
}

impl MtpHead {
    /// The head of a model, whose sequences hold at most `context` tokens, kept as `policy` says on pages of `store`.
    ///
    /// # Errors
    /// If the model has none, or keys and values cannot be kept like that.
    pub fn new(
        model: Arc<Model>,
        pool: Pool,
        (policy, context, store): (Policy, usize, Store),
    ) -> Result<Self, LoadError> {
        let head = Self { model, pool, policy, context, store };
        head.cache().map_err(|error| LoadError::unsupported(error.to_string()))?;
        Ok(head)
    }

    fn cache(&self) -> Result<KvCache, KvUnsupported> {
        let Some(mtp) = self.model.mtp() else {
            let why = LoadError::unsupported("the model has no head that guesses further tokens (MTP)");
            return Err(KvUnsupported::new(&self.policy, &why));
        };
        KvCache::in_arena(self.policy.clone(), &mtp.slots, self.context, self.store.clone())
    }
}

/// What the head has read of one text.
pub struct MtpSequence {
    head: Arc<MtpHead>,
    /// A row for each position from `first` on: those that the model has read, then those of guesses.
    cache: Option<KvCache>,
    /// The position of the first row.
    first: usize,
    /// The tokens from there on that the model has read.
    text: Vec<u32>,
    /// What the model left of the last of them: of those that have no row yet, and of the last that has one.
    left: Vec<f32>, // (…, hidden)
    /// Rows that stand on what the model left.
    read: usize,
    /// How many guesses may be read now and taken back without loss.
    room: usize,
    /// (vocabulary): after the last row.
    logits: Vec<f32>,
    /// What the next guess gets, (hidden).
    handed_on: Vec<f32>,
}

impl MtpSequence {
    /// For one text.
    pub fn new(head: Arc<MtpHead>) -> Self {
        let cache = head.cache().ok();
        Self {
            head,
            cache,
            first: 0,
            text: Vec::new(),
            left: Vec::new(),
            read: 0,
            room: 0,
            logits: Vec::new(),
            handed_on: Vec::new(),
        }
    }

    fn hidden(&self) -> usize {
        self.head.model.description().hidden
    }

    /// Begins anew at a position of the text.
    fn restart(&mut self, first: usize) {
        if let Some(cache) = &mut self.cache {
            cache.truncate(0);
        }
        (self.first, self.read) = (first, 0);
        self.text.clear();
        self.left.clear();
    }

    /// Keeps the first `count` tokens, and rows that stand on no others.
    fn cut(&mut self, count: usize) {
        if count >= self.text.len() {
            return;
        }
        let known = self.left.len() / self.hidden();
        let gone = self.text.len() - count;
        self.text.truncate(count);
        // A row stands on the token after its own.
        self.read = self.read.min(count.saturating_sub(1));
        let kept = known.saturating_sub(gone);
        self.left.truncate(kept * self.hidden());
        if count - self.read > kept {
            self.restart(self.first + count);
        }
    }

    /// Takes the rows of guesses back. Where the cache has to go back further it begins anew, and the answer is no.
    fn takes_back(&mut self) -> bool {
        let read = self.read;
        let is_there = self.cache.as_mut().is_none_or(|cache| cache.truncate(read) == read);
        if !is_there {
            self.restart(self.first + self.text.len());
        }
        is_there
    }

    /// Makes rows for the positions before these tokens, at most as many as a pass of a prompt has.
    fn extend(&mut self, next: &[u32], is_wanted: bool) -> Option<()> {
        let (hidden, count) = (self.hidden(), next.len());
        let cache = self.cache.as_mut()?;
        let known = self.left.len() / hidden;
        let from = known - (self.text.len() - self.read);
        let rows = Rows::from_vec(self.left[from * hidden..(from + count) * hidden].to_vec(), hidden);
        let found = guess(&self.head, cache, next, rows, is_wanted)?;
        self.room = cache.sequence().revocable(1 + MOST_PROPOSED) - 1;
        self.read += count;
        self.left.drain(..(from + count - 1) * hidden);
        if is_wanted {
            (self.logits, self.handed_on) = (found.logits.into_vec(), found.hidden.into_vec());
        }
        Some(())
    }
}

/// One pass of the head over a sequence.
fn guess(head: &MtpHead, cache: &mut KvCache, ids: &[u32], left: Rows, is_wanted: bool) -> Option<Guesses> {
    let wanted = if is_wanted { ids.len() - 1..ids.len() } else { 0..0 };
    let chunks = [Chunk::new(ids, wanted)];
    head.pool.install(|| head.model.guess(&chunks, &left, &mut [cache.sequence_mut()])).ok()
}

impl Drafter for MtpSequence {
    fn catch_up(&mut self, tokens: &[u32]) -> Option<bool> {
        let Some(own) = tokens.get(self.first..).filter(|own| own.len() > 1) else { return Some(false) };
        let unread = own.len() - 1;
        let same = self.text.iter().zip(&own[..unread]).take_while(|(a, b)| a == b).count();
        self.cut(same);
        if self.text.len() != unread {
            return Some(false);
        }
        // Asked for the same place once more: the last row gives its logits again.
        self.read = self.read.min(unread - 1);
        if !self.takes_back() {
            return Some(false);
        }
        let next = &tokens[self.first + self.read + 1..];
        if next.len() > PREFILL_CHUNK {
            self.extend(&next[..PREFILL_CHUNK], false)?;
            return Some(false);
        }
        self.extend(next, true)?;
        Some(true)
    }

    fn logits(&self) -> &[f32] {
        &self.logits
    }

    fn step(&mut self, token: u32) -> Option<()> {
        let left = Rows::from_vec(std::mem::take(&mut self.handed_on), self.hidden());
        let found = guess(&self.head, self.cache.as_mut()?, &[token], left, true)?;
        (self.logits, self.handed_on) = (found.logits.into_vec(), found.hidden.into_vec());
        self.room = self.room.saturating_sub(1);
        Some(())
    }

    fn has_room(&self) -> bool {
        self.room > 0
    }

    fn context(&self) -> usize {
        self.head.context
    }

    fn vocabulary(&self) -> usize {
        self.head.model.vocabulary()
    }

    fn watches(&self) -> bool {
        self.cache.is_some()
    }

    fn watch(&mut self, at: usize, tokens: &[u32], left: &[f32]) {
        if self.text.is_empty() || at < self.first || at > self.first + self.text.len() {
            self.restart(at);
        }
        let own = &self.text[at - self.first..];
        let same = own.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        self.cut(at - self.first + same);
        if self.text.is_empty() {
            // Nothing was kept, perhaps from another place on.
            self.restart(at);
        }
        let same = self.first + self.text.len() - at;
        self.text.extend_from_slice(&tokens[same..]);
        self.left.extend_from_slice(&left[same * self.hidden()..]);
        // What was read before is certain to stay: a prompt gets its rows while it is read.
        while at.saturating_sub(self.first + self.read) >= PREFILL_CHUNK {
            if !self.takes_back() {
                return;
            }
            let next: Vec<u32> = self.text[self.read + 1..][..PREFILL_CHUNK].to_vec();
            if self.extend(&next, false).is_none() {
                return self.cache = None;
            }
        }
    }
}
