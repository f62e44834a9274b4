//! The tree itself.

use crate::arena::{Arena, ArenaError};
use crate::page::{Page, PageMut};
use crate::sequence::Sequence;
use crate::steps::Steps;
use std::collections::HashMap;

/// A place where sequences end or part.
#[derive(Default)]
pub(super) struct Node {
    /// Tokens from the parent to here: whole steps.
    label: Vec<u32>,
    /// A sequence that ends here. At a parting there may be none: a window can have dropped what it would need.
    held: Option<Sequence>,
    /// By the first step of their labels.
    children: HashMap<Box<[u32]>, Node>,
    /// When it was last on the way to something wanted.
    used: u64,
}

impl Node {
    pub(super) fn label(&self) -> &[u32] {
        &self.label
    }

    /// Whether nothing begins here.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_none() && self.children.is_empty()
    }

    pub(super) fn held(&self) -> Option<&Sequence> {
        self.held.as_ref()
    }

    /// Calls `look` with this node and all below it.
    pub(super) fn visit<'a>(&'a self, look: &mut impl FnMut(&'a Node)) {
        let mut waiting = vec![self];
        while let Some(node) = waiting.pop() {
            look(node);
            waiting.extend(node.children.values());
        }
    }

    /// Adds a sequence of these tokens, whole steps from the root on.
    pub(super) fn insert(
        &mut self,
        steps: Steps,
        tokens: &[u32],
        held: Sequence,
        now: u64,
    ) -> Result<(), ArenaError> {
        let (mut node, mut at) = (self, 0);
        loop {
            node.used = now;
            let rest = &tokens[at..];
            if rest.is_empty() {
                node.held.get_or_insert(held);
                return Ok(());
            }
            let key = &rest[..steps.size(at)];
            if !node.children.contains_key(key) {
                let child = Node { label: rest.to_vec(), held: Some(held), used: now, ..Node::default() };
                node.children.insert(key.into(), child);
                return Ok(());
            }
            let Some(child) = node.children.get_mut(key) else { return Ok(()) };
            let common = steps.common(at, &child.label, rest);
            if common < child.label.len() {
                child.split(steps, at, common, &held)?;
            }
            at += common;
            node = child;
        }
    }

    /// Puts a node in the middle of the label, which begins at `at`; `other` also passes through there.
    fn split(&mut self, steps: Steps, at: usize, common: usize, other: &Sequence) -> Result<(), ArenaError> {
        let end = at + common;
        let source = [self.any(), Some(other)].into_iter().flatten().find(|s| s.restorable(end) == end);
        let held = source.map(|source| source.prefix(end)).transpose()?;
        let upper = Node { label: self.label[..common].to_vec(), held, used: self.used, ..Node::default() };
        let mut lower = std::mem::replace(self, upper);
        lower.label.drain(..common);
        let key = lower.label[..steps.size(end)].into();
        self.children.insert(key, lower);
        Ok(())
    }

    /// Some sequence that passes through here.
    fn any(&self) -> Option<&Sequence> {
        let mut node = self;
        loop {
            if let Some(held) = &node.held {
                return Some(held);
            }
            node = node.children.values().next()?;
        }
    }

    /// The sequence that passes through here and can be cut nearest to `at`, and where that is.
    fn nearest(&self, steps: Steps, at: usize) -> Option<(&Sequence, usize)> {
        let first = self.any()?;
        let mut best = (first, reach(first, steps, at));
        if best.1 < at && first.has_states() {
            // Other sequences may have other checkpoints.
            self.visit(&mut |node| {
                if let Some(held) = &node.held {
                    let len = reach(held, steps, at);
                    best = if len > best.1 { (held, len) } else { best };
                }
            });
        }
        Some(best)
    }

    /// The sequence that has most of `tokens` from the beginning, and how many of them it can be cut to.
    pub(super) fn find(&self, steps: Steps, tokens: &[u32]) -> (Option<&Sequence>, usize) {
        let (mut node, mut at) = (self, 0);
        let mut best = (None, 0);
        loop {
            if let Some((held, len)) = node.nearest(steps, at).filter(|(_, len)| *len > best.1) {
                best = (Some(held), len);
            }
            let rest = &tokens[at..];
            let Some(child) = rest.get(..steps.size(at)).and_then(|key| node.children.get(key)) else {
                return best;
            };
            let common = steps.common(at, &child.label, rest);
            at += common;
            if common < child.label.len() {
                let longer = child.nearest(steps, at).filter(|(_, len)| *len > best.1);
                return longer.map_or(best, |(longer, len)| (Some(longer), len));
            }
            node = child;
        }
    }

    /// Marks everything on the way along `tokens` as used.
    pub(super) fn touch(&mut self, steps: Steps, tokens: &[u32], now: u64) {
        let (mut node, mut at) = (self, 0);
        loop {
            node.used = now;
            let rest = &tokens[at..];
            let Some(child) = rest.get(..steps.size(at)).and_then(|key| node.children.get_mut(key)) else {
                return;
            };
            at += steps.common(at, &child.label, rest);
            node = child;
        }
    }

    /// The least recently used end whose pages nobody else has: when it was used, and the bytes it frees.
    pub(super) fn oldest(&self) -> Option<(u64, usize)> {
        let mut oldest: Option<(u64, usize)> = None;
        self.visit(&mut |node| {
            let older = oldest.is_none_or(|(used, _)| node.used < used);
            if older && node.children.is_empty() {
                let frees = node.frees();
                oldest = if frees > 0 { Some((node.used, frees)) } else { oldest };
            }
        });
        oldest
    }

    /// Bytes that are free once this sequence is gone.
    fn frees(&self) -> usize {
        let pages = self.held.iter().flat_map(Sequence::pages).filter(|page| !page.is_mapped());
        let (own, others): (Vec<&Page>, Vec<&Page>) = pages.partition(|page| page.references() == 1);
        // A page that it has twice is its own all the same.
        let mut twice: HashMap<usize, (usize, &Page)> = HashMap::new();
        for page in others {
            twice.entry(page.key()).or_insert((0, page)).0 += 1;
        }
        let twice = twice.into_values().filter(|(count, page)| page.references() == *count);
        let shared = own.into_iter().chain(twice.map(|(_, page)| page)).map(Page::size);
        let own = self.held.iter().flat_map(Sequence::own_pages).map(PageMut::size);
        shared.chain(own).map(Arena::slot_bytes).sum()
    }

    /// Removes the end that was last used at `used`, and what leads nowhere then. No two ends are used at once.
    pub(super) fn remove(&mut self, used: u64) {
        self.children.retain(|_, child| {
            if child.children.is_empty() {
                return child.used != used;
            }
            child.remove(used);
            child.held.is_some() || !child.children.is_empty()
        });
    }
}

/// The last step up to `at` that a sequence can be cut to; 0 if there is none.
fn reach(sequence: &Sequence, steps: Steps, at: usize) -> usize {
    let mut len = at;
    loop {
        let cut = sequence.restorable(len);
        len = steps.whole(cut);
        if len == cut || len == 0 {
            return len;
        }
    }
}
