//! Masks on threads of their own, while the network computes.
//!
//! What may come next follows from the tokens so far, and is known to be wanted as soon as a token is chosen. So its computation begins
//! then, beside the next pass, and whoever needs it waits for what is left of it. Most masks take microseconds. Those of an ambiguous
//! grammar can take seconds: a mask has a [budget](BUDGET) of time, and what exceeds it fails alone.
//!
//! There are two lanes. A grammar whose last mask was slow is served by the thread of the slow lane, and does not keep the others waiting.
//!
//! **Invariant:** times decide only when a mask is there, or that it fails; never what is in it.

use super::compiler::STACK;
use crate::constraint::ConstraintError;
use llguidance::toktrie::SimpleVob;
use llguidance::{CancellationHandle, Matcher};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

/// How long the computation of one mask may take.
pub(super) const BUDGET: Duration = Duration::from_secs(3);

/// A mask that takes longer is slow.
const SLOW: Duration = Duration::from_millis(50);

/// Threads of the fast lane, at most; at least one, and no more than half of what the machine has.
const MOST_THREADS: usize = 4;

/// A grammar after one more step, with the mask for the next token.
pub(super) struct Computed {
    pub matcher: Matcher,
    pub mask: Result<SimpleVob, ConstraintError>,
    pub was_slow: bool,
}

/// A mask that is being computed. Dropping it breaks off the computation.
pub(super) struct Pending {
    place: Arc<Place>,
    stop: Option<CancellationHandle>,
}

/// Where a computed mask is put.
#[derive(Default)]
struct Place {
    inner: Mutex<Inner>,
    filled: Condvar,
}

#[derive(Default)]
struct Inner {
    computed: Option<Box<Computed>>,
    /// It was put there, and may have been taken since.
    is_done: bool,
    waker: Option<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is whole between statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pending {
    /// What has been computed; otherwise `waker` is told when it is.
    pub fn poll(&self, waker: &Waker) -> Option<Box<Computed>> {
        let mut inner = lock(&self.place.inner);
        if !inner.is_done {
            inner.waker = Some(waker.clone());
        }
        inner.computed.take()
    }

    /// Waits for it.
    pub fn wait(&self) -> Box<Computed> {
        let mut inner = lock(&self.place.inner);
        loop {
            match inner.computed.take() {
                Some(computed) => return computed,
                None => inner = self.place.filled.wait(inner).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Waits for it, but not longer than this.
    pub fn wait_for(&self, time: Duration) -> Option<Box<Computed>> {
        let inner = lock(&self.place.inner);
        let waits = |inner: &mut Inner| !inner.is_done;
        let (mut inner, _) =
            self.place.filled.wait_timeout_while(inner, time, waits).unwrap_or_else(PoisonError::into_inner);
        inner.computed.take()
    }

    /// Waits for it, and leaves it there.
    pub fn wait_and_copy(&self) -> (Matcher, Result<SimpleVob, ConstraintError>) {
        let mut inner = lock(&self.place.inner);
        loop {
            match &inner.computed {
                Some(computed) => return (computed.matcher.deep_clone(), computed.mask.clone()),
                None => inner = self.place.filled.wait(inner).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // What is done goes on with the same handle.
        if !lock(&self.place.inner).is_done
            && let Some(stop) = &self.stop
        {
            stop.cancel();
        }
    }
}

/// One mask to compute.
struct MaskTask {
    matcher: Matcher,
    /// The token that comes first.
    token: Option<u32>,
    place: Arc<Place>,
}

impl MaskTask {
    fn run(mut self, lane: &Lane) {
        let start = Instant::now();
        let watched =
            self.matcher.cancellation_handle().map(|stop| lane.watch.begin(start + lane.budget, stop));
        let found = self.compute();
        let is_late = watched.is_some_and(|number| !lane.watch.end(number));
        let took = start.elapsed();
        let mask = found.map_err(|error| match is_late {
            true => ConstraintError(format!(
                "what may come next was not found within {:.1} s; the grammar is too ambiguous, simplify it",
                lane.budget.as_secs_f64()
            )),
            false => ConstraintError(error),
        });
        let computed = Computed { matcher: self.matcher, mask, was_slow: took > SLOW };
        let waker = {
            let mut inner = lock(&self.place.inner);
            (inner.computed, inner.is_done) = (Some(Box::new(computed)), true);
            inner.waker.take()
        };
        self.place.filled.notify_all();
        waker.into_iter().for_each(Waker::wake);
    }

    fn compute(&mut self) -> Result<SimpleVob, String> {
        if let Some(token) = self.token {
            self.matcher.consume_token(token).map_err(|error| error.to_string())?;
        }
        self.matcher.compute_mask_or_eos().map_err(|error| error.to_string())
    }
}

/// Tasks that wait for a thread.
struct Lane {
    queue: Mutex<MaskQueue>,
    arrived: Condvar,
    watch: Arc<Watch>,
    budget: Duration,
}

#[derive(Default)]
struct MaskQueue {
    tasks: VecDeque<MaskTask>,
    is_closed: bool,
}

impl Lane {
    fn work(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let task = loop {
                match queue.tasks.pop_front() {
                    Some(task) => break task,
                    None if queue.is_closed => return,
                    None => queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(queue);
            task.run(self);
        }
    }

    fn close(&self) {
        lock(&self.queue).is_closed = true;
        self.arrived.notify_all();
    }
}

/// Ends computations that are late.
#[derive(Default)]
struct Watch {
    watched: Mutex<Watched>,
    news: Condvar,
}

#[derive(Default)]
struct Watched {
    /// By number: when each is late, and what ends it.
    all: Vec<(u64, Instant, CancellationHandle)>,
    next: u64,
    /// The thread sleeps until there is something.
    is_idle: bool,
    is_closed: bool,
}

impl Watch {
    fn begin(&self, deadline: Instant, stop: CancellationHandle) -> u64 {
        let mut watched = lock(&self.watched);
        let number = watched.next;
        watched.next += 1;
        watched.all.push((number, deadline, stop));
        // All have the same budget: who sleeps until an earlier one is late wakes in time for this one.
        if watched.is_idle {
            self.news.notify_all();
        }
        number
    }

    /// False where it was ended.
    fn end(&self, number: u64) -> bool {
        let mut watched = lock(&self.watched);
        let before = watched.all.len();
        watched.all.retain(|(other, ..)| *other != number);
        watched.all.len() < before
    }

    fn work(&self) {
        let mut watched = lock(&self.watched);
        while !watched.is_closed {
            let now = Instant::now();
            watched
                .all
                .extract_if(.., |(_, deadline, _)| *deadline <= now)
                .for_each(|(.., stop)| stop.cancel());
            let next = watched.all.iter().map(|(_, deadline, _)| *deadline).min();
            watched.is_idle = next.is_none();
            watched = match next {
                None => self.news.wait(watched).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let waited = self.news.wait_timeout(watched, deadline - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn close(&self) {
        lock(&self.watched).is_closed = true;
        self.news.notify_all();
    }
}

/// The threads of one compiler. They end with it and the last of its constraints.
pub(super) struct MaskThreads {
    fast: Arc<Lane>,
    slow: Arc<Lane>,
    watch: Arc<Watch>,
}

impl MaskThreads {
    /// Starts them.
    pub fn new(budget: Duration) -> std::io::Result<Self> {
        let watch = Arc::new(Watch::default());
        let lane = || {
            let (queue, arrived) = (Mutex::default(), Condvar::new());
            Arc::new(Lane { queue, arrived, watch: Arc::clone(&watch), budget })
        };
        // Whatever has started ends when this is dropped.
        let threads = Self { fast: lane(), slow: lane(), watch };
        let all = thread::available_parallelism().map_or(1, usize::from);
        for lane in
            std::iter::repeat_n(&threads.fast, (all / 2).clamp(1, MOST_THREADS)).chain([&threads.slow])
        {
            let lane = Arc::clone(lane);
            let thread = thread::Builder::new().name("kvant-masks".into()).stack_size(STACK);
            thread.spawn(move || lane.work())?;
        }
        let watch = Arc::clone(&threads.watch);
        thread::Builder::new().name("kvant-mask-time".into()).spawn(move || watch.work())?;
        Ok(threads)
    }

    /// Begins to compute what may come after `token`, or at the beginning.
    pub fn begin(&self, matcher: Matcher, token: Option<u32>, is_slow: bool) -> Pending {
        let place = Arc::new(Place::default());
        let stop = matcher.cancellation_handle();
        let lane = if is_slow { &self.slow } else { &self.fast };
        lock(&lane.queue).tasks.push_back(MaskTask { matcher, token, place: Arc::clone(&place) });
        lane.arrived.notify_one();
        Pending { place, stop }
    }
}

impl Drop for MaskThreads {
    fn drop(&mut self) {
        self.fast.close();
        self.slow.close();
        self.watch.close();
    }
}
