//! Fair shares: no owner keeps another from being answered.
//!
//! Where several owners have work, each has the same share of the sequences in work. An owner may have more than that while nobody else
//! wants it. As soon as another who has less waits, the youngest sequence of whoever has most is preempted, and goes on later with the
//! same bits. What it has read stays in the tree of prefixes as long as there is memory, so it is not read again.

use super::job::Task;
use super::queue::Queue;
use super::{Active, Scheduler};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Who has how much at a moment.
pub(super) struct Shares {
    /// Sequences in work, by owner.
    running: BTreeMap<u64, usize>,
    /// Sequences that each owner may have in work while others wait.
    share: usize,
    /// Owners who have less than that, and wait for more.
    needy: BTreeSet<u64>,
}

impl Shares {
    fn of(most_running: usize, active: &[Active], preempted: &[Task], queue: &Queue) -> Self {
        let mut running: BTreeMap<u64, usize> = BTreeMap::new();
        active.iter().for_each(|active| *running.entry(active.task.owner).or_default() += 1);
        let waiting: BTreeSet<u64> = preempted.iter().map(|task| task.owner).chain(queue.owners()).collect();
        let idle = waiting.iter().filter(|owner| !running.contains_key(owner)).count();
        let share = (most_running / (running.len() + idle).max(1)).max(1);
        let has_less = |owner: &u64| running.get(owner).copied().unwrap_or(0) < share;
        let needy = waiting.into_iter().filter(has_less).collect();
        Self { running, share, needy }
    }

    /// Whether a task of this owner may start before those of others.
    pub fn may_start(&self, owner: u64) -> bool {
        self.needy.is_empty() || self.needy.contains(&owner)
    }

    /// The owner who has most beyond its share.
    fn greediest(&self) -> Option<u64> {
        let beyond = self.running.iter().filter(|(_, count)| **count > self.share);
        beyond.max_by_key(|(_, count)| **count).map(|(owner, _)| *owner)
    }
}

impl Scheduler {
    pub(super) fn fair_shares(&self, queue: &Queue) -> Shares {
        Shares::of(self.options.most_running.max(1), &self.active, &self.preempted, queue)
    }

    /// Preempts a sequence of an owner who has more than its share, for one who has less and waits for nothing else; false if there is
    /// none.
    pub(super) fn give_way(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let state = shared.lock();
        let shares = self.fair_shares(&state.queue);
        let Some(owner) = shares.greediest() else { return false };
        let is_full = self.active.len() >= self.options.most_running.max(1);
        let waits = |task: &Task| {
            shares.needy.contains(&task.owner)
                && !self.is_being_read(task)
                && !self.disk.as_ref().is_some_and(|disk| disk.is_loading_for(task.id))
                && (is_full || !self.has_room(task))
        };
        if !self.preempted.iter().chain(state.queue.iter()).any(waits) {
            return false;
        }
        drop(state);
        let Some(index) = self.active.iter().rposition(|active| active.task.owner == owner) else {
            return false;
        };
        let active = self.active.remove(index);
        self.remember(&active);
        self.preempt(active);
        true
    }

    /// Gives back the pages of a sequence, which goes on when there is room.
    pub(super) fn preempt(&mut self, active: Active) {
        let Active { mut task, kv, .. } = active;
        drop(kv);
        self.counters.preemptions += 1;
        task.stepper.forget_proposal();
        task.remembered = false;
        let place = self.preempted.partition_point(|other| other.id < task.id);
        self.preempted.insert(place, task);
    }
}
