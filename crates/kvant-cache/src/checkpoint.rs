//! Recurrent state at earlier positions, kept for prefix hits and for going back far.
//!
//! Keys and values can be cut at every page; a recurrent state is only what it is now. So copies of it are kept at page steps,
//! where prefixes end, and a prefix hit starts at the nearest one. Such a state can be large, so checkpoints have a budget: by
//! default as many bytes as the sequence's keys and values, or as [`WITHOUT_PAGES`] of them take where there are none. Worth one are the last two page steps, one step in
//! [`SPACING`] tokens, and the step before every position that was [marked](crate::Sequence::mark); the least recently used
//! goes first.

use crate::page::Page;
use crate::recurrent::StateAt;
use crate::steps::Steps;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tokens between checkpoints that are kept without being asked for.
pub(crate) const SPACING: usize = 2048;

/// Checkpoints that a sequence without keys and values may have when nothing is said.
pub(crate) const WITHOUT_PAGES: usize = 4;

/// Of the newest page steps, so many have a checkpoint.
const NEWEST: usize = 2;

/// The states of all recurrent slots at one position.
#[derive(Clone)]
pub(crate) struct Checkpoint {
    pub position: usize,
    /// Kept when it is no longer among the newest.
    pub is_kept: bool,
    /// When it was taken or last gone on from; the same for all sequences that share it.
    used: Arc<AtomicU64>,
    /// In the order of the layout's recurrent slots.
    pub states: Vec<StateAt>,
}

impl Checkpoint {
    /// One that is new; `None` of no states.
    pub(crate) fn new(is_kept: bool, states: Vec<StateAt>) -> Option<Checkpoint> {
        let position = states.first()?.position;
        Some(Checkpoint { position, is_kept, used: Arc::new(AtomicU64::new(now())), states })
    }

    fn bytes(&self) -> usize {
        self.states.iter().map(StateAt::bytes).sum()
    }

    /// Counts as a use.
    pub(crate) fn touch(&self) {
        self.used.store(now(), Ordering::Relaxed);
    }
}

/// Later than ever before.
fn now() -> u64 {
    static CLOCK: AtomicU64 = AtomicU64::new(1);
    CLOCK.fetch_add(1, Ordering::Relaxed)
}

/// The checkpoints of one sequence.
#[derive(Clone, Default)]
pub(crate) struct Checkpoints {
    /// By position.
    list: Vec<Checkpoint>,
    /// Steps ahead that are worth one.
    marks: BTreeSet<usize>,
    /// The most bytes they may take; as many as keys and values if none.
    pub budget: Option<usize>,
}

impl Checkpoints {
    /// The last one up to `len`.
    pub(crate) fn last(&self, len: usize) -> Option<&Checkpoint> {
        self.list.iter().rfind(|checkpoint| checkpoint.position <= len)
    }

    /// The one at a position.
    pub(crate) fn at(&self, position: usize) -> Option<&Checkpoint> {
        self.last(position).filter(|checkpoint| checkpoint.position == position)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Checkpoint> {
        self.list.iter()
    }

    /// Those up to `len`.
    pub(crate) fn prefix(&self, len: usize) -> Checkpoints {
        let list = self.list.iter().filter(|checkpoint| checkpoint.position <= len).cloned().collect();
        Checkpoints { list, marks: BTreeSet::new(), budget: self.budget }
    }

    /// Forgets those after `len`.
    pub(crate) fn cut(&mut self, len: usize) {
        self.list.retain(|checkpoint| checkpoint.position <= len);
    }

    /// A step ahead is worth one.
    pub(crate) fn mark(&mut self, step: usize) {
        self.marks.insert(step);
    }

    /// The one at a position is kept; false if there is none.
    pub(crate) fn keep(&mut self, position: usize) -> bool {
        let kept = self.list.iter_mut().find(|checkpoint| checkpoint.position == position);
        kept.map(|checkpoint| checkpoint.is_kept = true).is_some()
    }

    /// As many of the last of these positions as fit in `budget` at `bytes` each. Makes room for them.
    pub(crate) fn make_room(&mut self, mut wanted: Vec<usize>, bytes: usize, budget: usize) -> Vec<usize> {
        let fitting = budget.checked_div(bytes).unwrap_or(wanted.len()).min(wanted.len());
        wanted.drain(..wanted.len() - fitting);
        self.shrink(budget - wanted.len() * bytes);
        wanted
    }

    /// Steps within a pass that are worth a checkpoint, in order.
    pub(crate) fn worth(&self, steps: Steps, pass: &Range<usize>) -> Vec<usize> {
        let last = steps.whole(pass.end);
        let newest = (0..NEWEST).map(|back| last.saturating_sub(back * steps.page));
        let spaced = ((pass.start / SPACING).max(1)..=pass.end / SPACING).map(|n| steps.next(n * SPACING));
        let marked = self.marks.range(pass.start..=pass.end).copied();
        let inside = |step: &usize| pass.start < *step && *step <= pass.end && steps.whole(*step) == *step;
        newest.chain(spaced).chain(marked).filter(inside).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Adds one, unless its position has one.
    pub(crate) fn add(&mut self, steps: Steps, states: Vec<StateAt>) {
        let Some(position) = states.first().map(|state| state.position) else { return };
        let is_spaced = steps.next(position / SPACING * SPACING) == position && position >= SPACING;
        let is_kept = self.marks.remove(&position) || is_spaced;
        if self.at(position).is_none() {
            let at = self.list.partition_point(|checkpoint| checkpoint.position < position);
            self.list.splice(at..at, Checkpoint::new(is_kept, states));
        }
    }

    /// Forgets what is no longer among the newest and not kept, marks that were passed, and what is beyond the budget.
    pub(crate) fn settle(&mut self, steps: Steps, len: usize, budget: usize) {
        self.marks = self.marks.split_off(&len);
        let newest = steps.whole(len).saturating_sub((NEWEST - 1) * steps.page);
        self.list.retain(|checkpoint| checkpoint.is_kept || checkpoint.position >= newest);
        self.shrink(budget);
    }

    /// Forgets the least recently used until the others fit.
    fn shrink(&mut self, budget: usize) {
        let mut bytes = self.bytes();
        while bytes > budget {
            let used = |checkpoint: &Checkpoint| checkpoint.used.load(Ordering::Relaxed);
            let oldest = self.list.iter().enumerate().min_by_key(|(_, checkpoint)| used(checkpoint));
            let Some((index, _)) = oldest else { return };
            bytes -= self.list.remove(index).bytes();
        }
    }

    pub(crate) fn pages(&self) -> impl Iterator<Item = &Page> {
        self.list.iter().flat_map(|checkpoint| checkpoint.states.iter().flat_map(StateAt::pages))
    }

    /// Bytes of their slots; a page that several have counts for each.
    pub(crate) fn bytes(&self) -> usize {
        self.list.iter().map(Checkpoint::bytes).sum()
    }

    /// Those that a file held, in order.
    pub(crate) fn load(&mut self, list: Vec<Checkpoint>) {
        self.list = list;
    }
}
