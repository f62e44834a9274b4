//! Jobs that wait for their turn.

use super::job::Task;
use std::collections::{BTreeMap, VecDeque};

/// Whether a waiting task may start.
pub(super) enum Verdict {
    Start,
    /// Not yet, but others may.
    Later,
    /// Not yet, and nobody may overtake it.
    Wait,
}

/// A queue in which owners take turns, and each owner's tasks keep their order.
#[derive(Default)]
pub(super) struct Queue {
    /// By owner; no lane is empty.
    lanes: BTreeMap<u64, VecDeque<Task>>,
    /// Whose turn it was last.
    last: Option<u64>,
}

impl Queue {
    pub fn len(&self) -> usize {
        self.lanes.values().map(VecDeque::len).sum()
    }

    /// Tasks of one owner.
    pub fn waiting(&self, owner: u64) -> usize {
        self.lanes.get(&owner).map_or(0, VecDeque::len)
    }

    /// Those who have tasks here.
    pub fn owners(&self) -> impl Iterator<Item = u64> {
        self.lanes.keys().copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Task> {
        self.lanes.values().flatten()
    }

    pub fn push(&mut self, task: Task) {
        self.lanes.entry(task.owner).or_default().push_back(task);
    }

    /// Takes the first task that may start: of every owner in turn the first.
    pub fn next(&mut self, mut judge: impl FnMut(&mut Task) -> Verdict) -> Option<Task> {
        let after = |owner: &u64| self.last.is_none_or(|last| *owner > last);
        let (later, sooner): (Vec<u64>, Vec<u64>) = self.lanes.keys().partition(|owner| after(owner));
        for owner in later.into_iter().chain(sooner) {
            let Some(lane) = self.lanes.get_mut(&owner) else { continue };
            for index in 0..lane.len() {
                match judge(&mut lane[index]) {
                    Verdict::Later => {}
                    Verdict::Wait => return None,
                    Verdict::Start => {
                        let task = lane.remove(index);
                        if lane.is_empty() {
                            self.lanes.remove(&owner);
                        }
                        self.last = Some(owner);
                        return task;
                    }
                }
            }
        }
        None
    }

    /// Takes out all tasks that are to go.
    pub fn remove(&mut self, mut goes: impl FnMut(&Task) -> bool) -> Vec<Task> {
        let mut gone = Vec::new();
        for lane in self.lanes.values_mut() {
            let (out, stay): (Vec<Task>, Vec<Task>) = lane.drain(..).partition(|task| goes(task));
            lane.extend(stay);
            gone.extend(out);
        }
        self.lanes.retain(|_, lane| !lane.is_empty());
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::{Job, JobEvent, Listener};
    use crate::session::Request;

    struct Nobody;

    impl Listener for Nobody {
        fn take(&mut self, _: JobEvent) {}

        fn is_gone(&self) -> bool {
            false
        }
    }

    fn queue(owners: &[u64]) -> Queue {
        let mut queue = Queue::default();
        for (id, &owner) in (0..).zip(owners) {
            let request = Request { prompt: vec![1], ..Request::default() };
            let job = Job { owner, ..Job::new(request, Box::new(Nobody)) };
            queue.push(Task::new(job, id).unwrap());
        }
        queue
    }

    fn ids(queue: &mut Queue, mut judge: impl FnMut(&mut Task) -> Verdict) -> Vec<u64> {
        std::iter::from_fn(|| queue.next(&mut judge).map(|task| task.id)).collect()
    }

    #[test]
    fn owners_take_turns_and_keep_their_own_order() {
        let mut queue = queue(&[5, 5, 5, 5, 1, 9, 1]);
        assert_eq!(queue.len(), 7);
        assert_eq!(ids(&mut queue, |_| Verdict::Start), [4, 0, 5, 6, 1, 2, 3]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn who_may_not_start_yet_is_overtaken_only_where_allowed() {
        let mut queue = queue(&[1, 1, 2]);
        let later = |task: &mut Task| if task.id == 0 { Verdict::Later } else { Verdict::Start };
        assert_eq!(ids(&mut queue, later), [1, 2]);
        assert_eq!(queue.remove(|task| task.id == 0).len(), 1);
        let mut queue = self::queue(&[1, 1, 2]);
        assert!(queue.next(|_| Verdict::Wait).is_none());
        assert_eq!(queue.remove(|task| task.owner == 1).len(), 2);
        assert_eq!(ids(&mut queue, |_| Verdict::Start), [2]);
    }
}
