//! Prefixes that sequences share: a radix tree over token ids, in steps of whole pages.
//!
//! A prompt that begins as an earlier one did needs not be read again: [`PrefixTree::find`] gives a sequence that holds
//! what they have in common, on the same pages. What is kept are ends of sequences and the places where they part. Every
//! [`Tenant`] has a tree of its own; memory is one, and the least recently used prefix of all goes first.
//!
//! ```
//! use kvant_cache::{Arena, CacheLayout, KvShape, Policy, PrefixTree, Sequence, Slots, WhenFull};
//! use std::sync::Arc;
//!
//! let policy: Policy = "int4".parse()?;
//! let shape = KvShape { kv_heads: 1, key_dim: 64, value_dim: 64, window: None };
//! let slots = Slots::uniform(1, shape);
//! let layout = Arc::new(CacheLayout::new(&policy, &slots)?);
//! let mut tree = PrefixTree::new(layout.clone(), Arena::with_cap(1 << 20), WhenFull::Evict);
//!
//! // A prompt of 200 tokens is read and remembered: 4 sinks and 3 pages of 64.
//! let prompt: Vec<u32> = (0..200).collect();
//! let mut sequence = tree.find(&prompt)?;
//! assert!(sequence.is_empty());
//! tree.reserve(&mut sequence, 200)?;
//! for slot in slots.kv_slots() {
//!     sequence.append(slot, &[0.5; 200 * 64], &[0.5; 200 * 64])?;
//! }
//! sequence.advance(200)?;
//! assert_eq!(tree.insert(&prompt, &sequence)?, 196);
//!
//! // Another one that begins with the same 150 tokens goes on from the last whole page.
//! let other: Vec<u32> = (0..150).chain(1000..1100).collect();
//! assert_eq!(tree.find(&other)?.len(), 132);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Invariant:** a found sequence is, bit for bit, the one that a fresh reading of its tokens would give. Where that
//! cannot be had (pages that a window has dropped, recent rows that are encoded by now), less is found, or nothing. With
//! recurrent state, a sequence is found up to the nearest checkpoint.

mod node;

use crate::arena::{Arena, ArenaError};
use crate::layout::CacheLayout;
use crate::sequence::Sequence;
use crate::steps::Steps;
use crate::store::Store;
use crate::tenant::{Prefix, Tenant};
use node::Node;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What to do when a sequence needs memory and the store's cap is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// Refuse.
    Refuse,
    /// Forget prefixes that no sequence uses, the least recently used first; refuse when none is left.
    Evict,
}

/// What a tree holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixUsage {
    /// Ends and partings that can be gone on from without cutting.
    pub prefixes: usize,
    /// Tokens, those of shared pages once.
    pub tokens: usize,
    /// Pages of the store, each once.
    pub pages: usize,
    /// Bytes of their slots.
    pub bytes: usize,
}

/// Prefixes of the sequences of one layout.
pub struct PrefixTree {
    layout: Arc<CacheLayout>,
    memory: Store,
    when_full: WhenFull,
    steps: Steps,
    clock: u64,
    /// By tenant; none is empty.
    roots: HashMap<Tenant, Node>,
}

impl PrefixTree {
    /// An empty tree for sequences of this layout and store.
    pub fn new(layout: Arc<CacheLayout>, store: impl Into<Store>, when_full: WhenFull) -> PrefixTree {
        let steps = Steps::of(&layout);
        PrefixTree { layout, memory: store.into(), when_full, steps, clock: 0, roots: HashMap::new() }
    }

    /// Remembers what a sequence holds of `prefix`, up to its last whole page, and returns how many tokens that are.
    /// The sequence must be of this tree's layout and hold these tokens; otherwise nothing is remembered.
    ///
    /// # Errors
    /// When the store has no room for a copy of unfinished sinks.
    pub fn insert<'a>(
        &mut self,
        prefix: impl Into<Prefix<'a>>,
        sequence: &Sequence,
    ) -> Result<usize, ArenaError> {
        let Prefix { tenant, tokens } = prefix.into();
        if !Arc::ptr_eq(sequence.layout(), &self.layout) || tokens.len() < sequence.len() {
            return Ok(0);
        }
        let held = sequence.prefix(self.steps.whole(sequence.len()))?;
        let len = held.len();
        if len == 0 || self.steps.whole(len) != len {
            return Ok(0);
        }
        self.clock += 1;
        self.roots.entry(tenant).or_default().insert(self.steps, &tokens[..len], held, self.clock)?;
        Ok(len)
    }

    /// A sequence that holds the longest known beginning of `prompt`; an empty one if none is known.
    ///
    /// # Errors
    /// When the store has no room for a copy of unfinished sinks.
    pub fn find<'a>(&mut self, prompt: impl Into<Prefix<'a>>) -> Result<Sequence, ArenaError> {
        let prompt = prompt.into();
        self.clock += 1;
        if let Some(root) = self.roots.get_mut(&prompt.tenant) {
            root.touch(self.steps, prompt.tokens, self.clock);
        }
        self.peek(prompt)
    }

    /// The same, but this does not count as a use.
    ///
    /// # Errors
    /// As [`find`](PrefixTree::find).
    pub fn peek<'a>(&self, prompt: impl Into<Prefix<'a>>) -> Result<Sequence, ArenaError> {
        match self.lookup(prompt.into()) {
            (Some(source), len) => source.prefix(len),
            (None, _) => Ok(Sequence::new(Arc::clone(&self.layout), self.memory.clone())),
        }
    }

    /// How many tokens [`find`](PrefixTree::find) would give. This does not count as a use.
    pub fn longest<'a>(&self, prompt: impl Into<Prefix<'a>>) -> usize {
        self.lookup(prompt.into()).1
    }

    /// The sequence that has most of a prompt, and how many of its tokens it can be cut to.
    fn lookup(&self, prompt: Prefix<'_>) -> (Option<&Sequence>, usize) {
        self.roots.get(&prompt.tenant).map_or((None, 0), |root| root.find(self.steps, prompt.tokens))
    }

    /// [`Sequence::reserve`], with room made as [`WhenFull`] says.
    ///
    /// # Errors
    /// When the cap is reached and nothing may or can be forgotten.
    pub fn reserve(&mut self, sequence: &mut Sequence, tokens: usize) -> Result<(), ArenaError> {
        loop {
            match sequence.reserve(tokens) {
                Err(_) if self.when_full == WhenFull::Evict && self.evict() > 0 => {}
                result => return result,
            }
        }
    }

    /// Forgets prefixes until `bytes` more fit below the cap; false if they do not even then.
    pub fn make_room(&mut self, bytes: usize) -> bool {
        let Some(cap) = self.memory.cap() else { return true };
        loop {
            if bytes <= cap.saturating_sub(self.memory.usage().used) {
                return true;
            }
            if self.when_full == WhenFull::Refuse || self.evict() == 0 {
                return false;
            }
        }
    }

    /// Forgets the least recently used prefix that frees memory, and returns how many bytes that are; 0 if there is
    /// none. What other prefixes share with it stays, and so does what sequences use.
    pub fn evict(&mut self) -> usize {
        let oldest = self.roots.iter().filter_map(|(tenant, root)| Some((root.oldest()?, *tenant)));
        let Some(((used, freed), tenant)) = oldest.min() else { return 0 };
        if let Some(root) = self.roots.get_mut(&tenant) {
            root.remove(used);
            if root.is_empty() {
                self.roots.remove(&tenant);
            }
        }
        freed
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.roots.clear();
    }

    /// What it holds.
    pub fn usage(&self) -> PrefixUsage {
        usage_of(self.roots.values())
    }

    /// What it holds of one tenant.
    pub fn usage_of(&self, tenant: Tenant) -> PrefixUsage {
        usage_of(self.roots.get(&tenant))
    }
}

fn usage_of<'a>(roots: impl IntoIterator<Item = &'a Node>) -> PrefixUsage {
    let mut usage = PrefixUsage::default();
    let mut seen = HashSet::new();
    for root in roots {
        root.visit(&mut |node| {
            usage.tokens += node.label().len();
            let Some(held) = node.held() else { return };
            usage.prefixes += 1;
            for page in held.own_pages() {
                usage.pages += 1;
                usage.bytes += Arena::slot_bytes(page.size());
            }
            for page in held.pages().filter(|page| !page.is_mapped() && seen.insert(page.key())) {
                usage.pages += 1;
                usage.bytes += Arena::slot_bytes(page.size());
            }
        });
    }
    usage
}
