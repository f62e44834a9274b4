//! Many sequences at once: continuous batching on one arena of pages.
//!
//! A [`Scheduler`] makes passes. Each holds one token of every sequence that is being answered, a few more where they are likely to
//! come ([`speculation`](crate::speculation)), and chunks of the prompts that are being read; the weights are read once for all of them. Between passes jobs join and leave. Whoever wants an
//! answer has a [`Handle`] and a [`Listener`].
//!
//! *Who is next?* Jobs wait in a queue of bounded length. Owners take turns, and each owner's jobs keep their order. An owner who has
//! more than a fair share of the sequences in work gives way to one who waits with less.
//!
//! *What if a long prompt comes?* It is read in chunks that make a pass at most a few times longer than one without, by what
//! passes took lately; several prompts share that in equal parts.
//!
//! *What was read before?* Prompts and answers stay in a tree of prefixes, and a job whose prompt begins like one of them
//! starts there. If the beginning is just being read for another job, it waits for that. Neither crosses from one
//! [`Tenant`](kvant_cache::Tenant) to another.
//!
//! *What was answered before?* Proposals are looked up in it, for the same tenant.
//!
//! *And before the program was started?* [`Scheduler::with_disk`] keeps prefixes in files too.
//!
//! *What if memory is full?* Prefixes that nobody uses are forgotten first. Then the youngest sequences are preempted: their pages
//! are given back, and their tokens are read again when there is room. They go on where they were, with the same bits.
//!
//! *What if a grammar is slow?* What may come next is found out on other threads while the network computes. A sequence for which that
//! takes longer keeps its logits and is left out of passes meanwhile: its neighbours go on.
//!
//! **Invariant:** the tokens of a job depend on its request alone: not on what else is in the passes, on hits in the tree, or on
//! being preempted. Times decide only when things happen.

mod counters;
mod disk;
mod door;
mod encoded;
mod handle;
mod job;
mod pass;
mod pool;
mod prefill_budget;
mod queue;
mod share;
mod signals;
mod view;

pub use crate::logprobs::Logprobs;
pub use counters::{BUCKETS, Counters, Histogram};
pub use handle::Handle;
pub use job::{Job, JobError, JobEvent, JobUsage, Listener, Refused, Score};
pub use pool::Pooling;
pub use view::{SequenceView, View, Viewer};

use crate::engine::Engine;
use crate::kv;
use crate::pass_times::PassTimes;
use crate::session::PREFILL_CHUNK;
use crate::speculation::Answers;
use disk::Disk;
use handle::Shared;
use job::Task;
use kvant_attention::KvCache;
use kvant_cache::{PrefixTree, Sequence, WhenFull};
use pool::Pool;
use queue::Verdict;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

/// Room that a sequence is given to grow when it is decided whether another one fits beside it.
const HEADROOM: usize = 256;

/// Tokens that a prompt must share with one that is being read, beyond what is in the cache, for waiting to be worth it.
const WORTH_WAITING: usize = 128;

/// How much a scheduler takes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Sequences in a pass, at most; there is always room for one.
    pub most_running: usize,
    /// Jobs in the queue, at most.
    pub most_waiting: usize,
    /// Keeps prompts and answers for prompts to come, as long as there is memory.
    pub remember: bool,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        Self { most_running: 16, most_waiting: 64, remember: true }
    }
}

/// A sequence in work.
struct Active {
    task: Task,
    kv: KvCache,
    /// (vocabulary) each: the logits after its last token, and after those proposed, while it is not known yet what may come next.
    /// Passes are made without it.
    held: Option<Vec<Vec<f32>>>,
}

/// Makes passes for the jobs that come through its [`Handle`]. See the [module](self).
pub struct Scheduler {
    engine: Arc<Engine>,
    /// What every sequence begins as.
    empty: KvCache,
    context: usize,
    tree: PrefixTree,
    /// What proposals are looked up in; none where nothing is proposed or remembered.
    answers: Option<Arc<Answers>>,
    /// Reads tokens on trial, where its engine does.
    speculates: bool,
    disk: Option<Disk>,
    options: SchedulerOptions,
    shared: Arc<Shared>,
    /// Wakes it.
    waker: Waker,
    /// The oldest first.
    active: Vec<Active>,
    /// Preempted to make room, the oldest first.
    preempted: Vec<Task>,
    times: PassTimes,
    /// The most prompt tokens of a pass.
    chunk: usize,
    counters: Counters,
    /// Tokens chosen, by owner.
    generated: BTreeMap<u64, u64>,
}

impl Scheduler {
    /// A scheduler whose sequences are caches like `empty`: of its kind and context, with pages from its arena.
    pub fn new(engine: Arc<Engine>, empty: KvCache, options: SchedulerOptions) -> Self {
        let layout = Arc::clone(empty.sequence().layout());
        let tree = PrefixTree::new(layout, empty.sequence().store().clone(), WhenFull::Evict);
        let limit = engine.model().position_limit().unwrap_or(usize::MAX);
        let context = empty.capacity().min(limit);
        let shared: Arc<Shared> = Arc::default();
        let chunk = engine.prefill_chunk(empty.sequence(), context);
        let answers = (options.remember && engine.speculates()).then(Arc::default);
        Self {
            engine,
            empty,
            context,
            tree,
            answers,
            speculates: true,
            disk: None,
            options,
            waker: Waker::from(Arc::clone(&shared)),
            shared,
            active: Vec::new(),
            preempted: Vec::new(),
            times: PassTimes::default(),
            chunk,
            counters: Counters::default(),
            generated: BTreeMap::new(),
        }
    }

    /// Whether texts are generated with speculative decoding, where the [engine](Engine::speculates) does that; handles that were made
    /// before do not change. The texts are the same either way.
    #[must_use]
    pub fn speculating(mut self, speculates: bool) -> Self {
        self.speculates = speculates;
        self
    }

    /// The door to it.
    pub fn handle(&self) -> Handle {
        Handle {
            shared: Arc::clone(&self.shared),
            engine: Arc::clone(&self.engine),
            answers: self.answers.clone(),
            speculates: self.speculates,
            context: self.context,
            most_running: self.options.most_running.max(1),
            most_waiting: self.options.most_waiting,
        }
    }

    /// Works until it is told to [stop](Handle::stop), and sleeps while there is nothing to do.
    pub fn run(mut self) {
        // What was accepted just before the stop is news: it is done first.
        while self.step() || self.shared.wait_unless(|state| state.stopping.is_some()) {}
    }

    /// Lets jobs join and leave, and makes one pass. False when there was nothing to do. Where jobs wait for nothing but files, or for
    /// what a constraint allows, it waits for them.
    pub fn step(&mut self) -> bool {
        self.take_reports();
        self.sweep();
        if self.engine.model().is_encoder() {
            return self.encode_texts();
        }
        self.admit();
        self.show();
        let chose = self.choose_held();
        let passed = self.active.iter().any(|active| active.held.is_none());
        if passed {
            self.pass();
        }
        let worked = chose || passed;
        self.save_next();
        self.publish();
        let is_held = !self.active.is_empty();
        let waits = !worked && (is_held || self.disk.as_ref().is_some_and(Disk::is_loading));
        if waits {
            self.shared.wait();
        }
        worked || waits
    }

    /// Ends what nobody waits for, what is late, and when it is time to stop everything.
    fn sweep(&mut self) {
        let now = Instant::now();
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let stop = state.stopping.is_some_and(|deadline| now >= deadline);
        let goes = |task: &Task| stop || task.is_late(now) || task.listener.is_gone();
        let mut gone = state.queue.remove(goes);
        drop(state);
        gone.extend(self.preempted.extract_if(.., |task| goes(task)));
        let left: Vec<Active> = self.active.extract_if(.., |active| goes(&active.task)).collect();
        for active in left {
            self.remember(&active);
            gone.push(active.task);
        }
        for task in gone {
            if task.listener.is_gone() {
                self.counters.cancelled += 1;
                continue;
            }
            self.counters.failed += 1;
            task.fail(if stop { JobError::Stopped } else { JobError::Deadline });
        }
    }

    /// Lets jobs join, as far as there is room.
    fn admit(&mut self) {
        loop {
            let has_slot = self.active.len() < self.options.most_running.max(1);
            if let Some(task) = has_slot.then(|| self.next()).flatten() {
                self.join(task);
            } else if !self.give_way() {
                return;
            }
        }
    }

    /// The next job that may join. Preempted ones come first.
    fn next(&mut self) -> Option<Task> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let shares = self.fair_shares(&state.queue);
        if let Some(first) = self.preempted.iter().position(|task| shares.may_start(task.owner)) {
            return self.has_room(&self.preempted[first]).then(|| self.preempted.remove(first));
        }
        let task = state.queue.next(|task| match () {
            () if !shares.may_start(task.owner) => Verdict::Later,
            () if !self.has_room(task) => Verdict::Wait,
            () if self.is_being_read(task) || self.is_on_its_way(task) => Verdict::Later,
            () => Verdict::Start,
        });
        // Its slot is taken from now on, and not only when this step is over.
        state.counters.running += usize::from(task.is_some());
        task
    }

    /// Whether a sequence fits beside the others. Pages they share are counted for each. Prompts share a pass, so not all
    /// have the exact rows of a whole chunk at a time. Where this is wrong, the youngest is preempted.
    fn has_room(&self, task: &Task) -> bool {
        let Some(cap) = self.empty.sequence().store().cap() else { return true };
        let layout = self.empty.sequence().layout();
        let need =
            |tokens: usize| layout.arena_bytes((tokens + HEADROOM).min(self.context), PREFILL_CHUNK / 4);
        let taken: usize = self.active.iter().map(|active| need(active.task.tokens().len())).sum();
        self.active.is_empty() || taken + need(task.tokens().len()) <= cap
    }

    /// Whether a sequence may begin with what others have read. A mean, a first token's vector, and the probabilities of a prompt want
    /// all tokens read.
    fn may_reuse(&self, task: &Task) -> bool {
        let reads_all = task.pool.as_ref().is_some_and(|pool| pool.pooling != Pooling::Last);
        self.options.remember && task.cache_prompt && !reads_all && task.prompt_logprobs.is_none()
    }

    /// Whether another sequence is just reading what this one begins with.
    fn is_being_read(&self, task: &Task) -> bool {
        if !self.may_reuse(task) || task.prompt() < WORTH_WAITING {
            return false;
        }
        let known = self.tree.longest(task.prefix(task.tokens().len()));
        self.active.iter().filter(|active| active.task.tenant == task.tenant).any(|active| {
            let prompt = &active.task.tokens()[..active.task.prompt()];
            let common = prompt.iter().zip(task.tokens()).take_while(|(a, b)| a == b).count();
            active.kv.len() < prompt.len() && common >= known + WORTH_WAITING
        })
    }

    fn join(&mut self, mut task: Task) {
        task.pool.iter_mut().for_each(Pool::reset);
        task.prompt_logprobs.iter_mut().for_each(Vec::clear);
        let found = if self.may_reuse(&task) { self.tree.find(task.findable()).ok() } else { None };
        // Where there is not even room for a copy of what was found, reading starts over.
        let sequence = found.unwrap_or_else(|| {
            let empty = self.empty.sequence();
            Sequence::new(Arc::clone(empty.layout()), empty.store().clone())
        });
        let mut kv = self.empty.over(sequence);
        if task.started.is_none() {
            let cached = kv.len();
            self.disk.iter().for_each(|disk| disk.touch(task.prefix(cached)));
            task.started = Some((Instant::now(), cached));
            self.counters.prompt_tokens += task.prompt() as u64;
            self.counters.cached_tokens += cached as u64;
            task.listener.take(JobEvent::Started { cached, seed: task.stepper.seed() });
        }
        // Where the next request of a conversation is likely to go on from.
        kv.sequence_mut().mark(task.prompt());
        let place = self.active.partition_point(|active| active.task.id < task.id);
        // Found out while the prompt is read.
        task.stepper.poll_ready(&self.waker);
        self.active.insert(place, Active { task, kv, held: None });
    }

    /// Keeps what a sequence holds for prompts to come.
    fn remember(&mut self, active: &Active) {
        if self.options.remember {
            let prefix = active.task.prefix(active.kv.len());
            // Without room for another reference to unfinished sinks there is nothing to keep.
            let kept = self.tree.insert(prefix, active.kv.sequence()).unwrap_or(0);
            self.disk.iter_mut().for_each(|disk| disk.note(active.task.prefix(kept)));
        }
    }

    /// Keeps an answer for proposals to come.
    fn keep_answer(&mut self, task: &Task) {
        if task.cache_prompt
            && let Some(answers) = &self.answers
        {
            answers.of(task.tenant).keep(&task.tokens()[..task.prompt()], task.stepper.chosen());
            self.disk.iter_mut().for_each(|disk| disk.note_answer(answers));
        }
    }

    /// Shows the cache to those who asked.
    fn show(&mut self) {
        let looks = std::mem::take(&mut self.shared.lock().looks);
        looks.into_iter().for_each(|(viewer, look)| look(self.view(viewer)));
    }

    /// What is held, as far as it is the viewer's business.
    fn view(&self, viewer: Option<Viewer>) -> View {
        let sees = |owner: u64| viewer.is_none_or(|viewer| viewer.owner == owner);
        let sequence = self.empty.sequence();
        let f16 = kv::f16_bytes_per_token(self.engine.model().slots());
        let seen = self.active.iter().filter(|active| sees(active.task.owner));
        let sequences = seen.map(|Active { task, kv, .. }| SequenceView {
            id: task.id,
            owner: task.owner,
            prompt: task.prompt(),
            cached: task.started.map_or(0, |started| started.1),
            held: kv.len(),
            generated: task.stepper.chosen().len(),
            footprint: kv.footprint(),
            f16: kv.len() as u64 * f16,
        });
        View {
            sequences: sequences.collect(),
            arena: sequence.store().usage(),
            cap: sequence.store().cap(),
            prefixes: viewer.map_or_else(|| self.tree.usage(), |viewer| self.tree.usage_of(viewer.tenant)),
            disk: self.disk.as_ref().filter(|_| viewer.is_none()).map(Disk::usage),
            waiting: self
                .preempted
                .iter()
                .chain(self.shared.lock().queue.iter())
                .filter(|task| sees(task.owner))
                .count(),
            generated_tokens: self
                .generated
                .iter()
                .filter(|(owner, _)| sees(**owner))
                .map(|(_, count)| count)
                .sum(),
            sinks: sequence.layout().exact_window().sinks,
            page: sequence.layout().sides().map(|(.., side)| side.page_tokens()).max().unwrap_or(0),
            // The policy is one that there is a cache of.
            costs: kv::context_costs(self.empty.policy().clone(), self.engine.model().slots(), self.context)
                .unwrap_or_default(),
        }
    }

    /// Lets everybody know the counters. What handles count, they count themselves.
    fn publish(&mut self) {
        let mut state = self.shared.lock();
        let Counters { accepted, refused, .. } = state.counters;
        let (running, waiting) = (self.active.len(), state.queue.len() + self.preempted.len());
        let disk = self.disk.as_ref().map(Disk::usage);
        state.counters = Counters { accepted, refused, running, waiting, disk, ..self.counters };
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ended = true;
        // Those who wait are told by the end of their listeners.
        let waiting = (state.queue.remove(|_| true), std::mem::take(&mut state.looks));
        drop(state);
        drop(waiting);
        self.close_disk();
    }
}
