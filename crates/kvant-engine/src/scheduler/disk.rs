//! Prefixes on disk, and the thread that reads and writes them: passes do not wait for files.
//!
//! What is remembered is written soon after, one prefix at a time. A job whose prompt goes on in files longer than in memory stays
//! in the queue until they are read; others start meanwhile. Whoever needs memory comes first: a prefix that is being written
//! is broken off between two files, so that its pages can be forgotten. What memory forgets before its turn comes is not written.

use super::Scheduler;
use super::handle::Shared;
use super::job::Task;
use kvant_cache::disk::Loaded;
use kvant_cache::{DiskTier, DiskUsage, PrefixTree, Sequence};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Prefixes that wait to be written, at most; then the oldest is given up.
const MOST_UNWRITTEN: usize = 256;

/// For what is unwritten when the scheduler ends.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Something to be done with files.
enum DiskJob {
    Save { tokens: Vec<u32>, sequence: Sequence },
    Load { tokens: Vec<u32>, base: Sequence },
}

/// What came of it.
pub(super) enum DiskResult {
    /// A prefix was written, unless it was broken off.
    Saved { tokens: Vec<u32>, broken_off: bool },
    /// A prefix was read, as far as there was one.
    Loaded { tokens: Vec<u32>, sequence: Option<Sequence> },
    /// The thread is gone.
    Ended,
}

/// What the thread looks at between two files.
#[derive(Default)]
struct Signals {
    /// Pages are wanted back.
    yield_requested: AtomicBool,
    /// Set once the scheduler ends.
    deadline: OnceLock<Instant>,
}

impl Signals {
    fn go_on(&self) -> bool {
        !self.yield_requested.load(Ordering::Relaxed)
            && self.deadline.get().is_none_or(|deadline| Instant::now() < *deadline)
    }
}

/// The scheduler's side.
pub(super) struct Disk {
    tier: Arc<DiskTier>,
    jobs: Sender<DiskJob>,
    worker: JoinHandle<()>,
    signals: Arc<Signals>,
    /// Tokens of prefixes that are to be written.
    unwritten: VecDeque<Vec<u32>>,
    is_saving: bool,
    /// The job that something is being loaded for.
    loading: Option<u64>,
}

impl Disk {
    pub fn new(tier: DiskTier, shared: Arc<Shared>, on_error: Box<dyn Fn(&str) + Send>) -> io::Result<Self> {
        let (tier, signals) = (Arc::new(tier), Arc::new(Signals::default()));
        let (jobs, receiver) = channel();
        let (own, heeded) = (Arc::clone(&tier), Arc::clone(&signals));
        let worker = Worker { tier: own, shared, signals: heeded, on_error, has_complained: false };
        let builder = std::thread::Builder::new().name("kvant-disk".into());
        let worker = builder.spawn(move || worker.run(&receiver))?;
        Ok(Self { tier, jobs, worker, signals, unwritten: VecDeque::new(), is_saving: false, loading: None })
    }

    pub fn usage(&self) -> DiskUsage {
        self.tier.usage()
    }

    pub fn is_loading(&self) -> bool {
        self.loading.is_some()
    }

    /// Counts as a use of what was found in memory.
    pub fn touch(&self, tokens: &[u32]) {
        self.tier.touch(tokens);
    }

    /// Has a prefix written in a while, unless it is there.
    pub fn note(&mut self, tokens: &[u32]) {
        if self.tier.longest(tokens) == tokens.len() {
            return;
        }
        // A conversation is remembered twice in a row, with its answer and without.
        if self.unwritten.back().is_some_and(|last| tokens.starts_with(last)) {
            self.unwritten.pop_back();
        }
        if self.unwritten.len() == MOST_UNWRITTEN {
            self.unwritten.pop_front();
        }
        self.unwritten.push_back(tokens.to_vec());
    }

    /// Begins to write the next prefix that is still in memory.
    fn save_next(&mut self, tree: &PrefixTree) {
        while !self.is_saving && self.loading.is_none() {
            let Some(tokens) = self.unwritten.pop_front() else { return };
            let Ok(sequence) = tree.peek(&tokens) else { continue };
            if !sequence.is_empty() {
                self.signals.yield_requested.store(false, Ordering::Relaxed);
                self.is_saving = self.jobs.send(DiskJob::Save { tokens, sequence }).is_ok();
            }
        }
    }

    fn load(&mut self, job: u64, tokens: Vec<u32>, base: Sequence) {
        self.signals.yield_requested.store(true, Ordering::Relaxed);
        let sent = self.jobs.send(DiskJob::Load { tokens, base });
        self.loading = sent.is_ok().then_some(job);
    }

    /// Writes what is left, as far as there is time, and ends the thread.
    fn close(self, tree: &PrefixTree) {
        let Self { jobs, worker, signals, unwritten, .. } = self;
        // Nobody sets it but this.
        let _ = signals.deadline.set(Instant::now() + SHUTDOWN_GRACE);
        signals.yield_requested.store(false, Ordering::Relaxed);
        for tokens in unwritten {
            if let Ok(sequence) = tree.peek(&tokens) {
                // A thread that is gone has said so.
                let _ = jobs.send(DiskJob::Save { tokens, sequence });
            }
        }
        drop(jobs);
        // Nor is there anybody left who could be told that it has failed.
        let _ = worker.join();
    }
}

/// The thread.
struct Worker {
    tier: Arc<DiskTier>,
    shared: Arc<Shared>,
    signals: Arc<Signals>,
    on_error: Box<dyn Fn(&str) + Send>,
    has_complained: bool,
}

impl Worker {
    fn run(mut self, jobs: &Receiver<DiskJob>) {
        while let Ok(job) = jobs.recv() {
            let report = match job {
                DiskJob::Save { tokens, sequence } => self.save(tokens, sequence),
                DiskJob::Load { tokens, base } => {
                    let Loaded { sequence, refused } = self.tier.load(&tokens, base);
                    refused.iter().for_each(|refused| (self.on_error)(refused));
                    DiskResult::Loaded { tokens, sequence }
                }
            };
            self.shared.report(report);
        }
        self.tier.flush();
    }

    fn save(&mut self, tokens: Vec<u32>, sequence: Sequence) -> DiskResult {
        let mut broken_off = false;
        let saved = self.tier.save(&tokens, &sequence, || {
            broken_off = !self.signals.go_on();
            !broken_off
        });
        if let Err(error) = saved
            && !std::mem::replace(&mut self.has_complained, true)
        {
            (self.on_error)(&format!("prefixes are not written to disk: {error}"));
        }
        DiskResult::Saved { tokens, broken_off }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Whatever has ended it, nobody waits for it.
        self.shared.report(DiskResult::Ended);
    }
}

impl Scheduler {
    /// Keeps prefixes in files too. What goes wrong with them is told to `on_error`, and nothing fails for it.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub fn with_disk(mut self, tier: DiskTier, on_error: impl Fn(&str) + Send + 'static) -> io::Result<Self> {
        if self.options.remember {
            self.disk = Some(Disk::new(tier, Arc::clone(&self.shared), Box::new(on_error))?);
        }
        Ok(self)
    }

    /// Hears what has come of jobs.
    pub(super) fn take_reports(&mut self) {
        let reports = self.shared.take_reports();
        let Some(disk) = &mut self.disk else { return };
        for report in reports {
            match report {
                DiskResult::Saved { tokens, broken_off } => {
                    disk.is_saving = false;
                    if broken_off {
                        disk.unwritten.push_front(tokens);
                    }
                }
                DiskResult::Loaded { tokens, sequence } => {
                    disk.loading = None;
                    if let Some(sequence) = sequence {
                        // Without room for another reference to unfinished sinks there is nothing to keep.
                        let _ = self.tree.insert(&tokens, &sequence);
                    }
                }
                DiskResult::Ended => {
                    self.disk = None;
                    return;
                }
            }
        }
    }

    /// Whether a job waits for files with more of its prompt than memory has.
    pub(super) fn is_on_its_way(&mut self, task: &mut Task) -> bool {
        let may_reuse = self.may_reuse(task);
        let Some(disk) = &mut self.disk else { return false };
        if disk.loading == Some(task.id) {
            return true;
        }
        if !may_reuse {
            return false;
        }
        let known = &task.stepper.known()[..task.tokens().len() - 1];
        let on_disk = *task.on_disk.get_or_insert_with(|| disk.tier.longest(known));
        if on_disk <= self.tree.longest(known) {
            return false;
        }
        if disk.is_loading() {
            // What is being loaded for another may be the same.
            return true;
        }
        // It is asked for once. What is forgotten before its turn comes is read as if it had never been there.
        task.on_disk = Some(0);
        let Ok(base) = self.tree.find(&known[..on_disk]) else { return false };
        let layout = base.layout();
        let bytes = layout.arena_bytes(on_disk, 0).saturating_sub(layout.arena_bytes(base.len(), 0));
        if !self.tree.make_room(bytes) {
            return false;
        }
        disk.load(task.id, known[..on_disk].to_vec(), base);
        disk.is_loading()
    }

    /// Gets back pages that files are being made of, or that are being filled from files; false if there are none.
    pub(super) fn reclaim(&mut self) -> bool {
        let Some(disk) = self.disk.as_ref().filter(|disk| disk.is_saving || disk.is_loading()) else {
            return false;
        };
        disk.signals.yield_requested.store(true, Ordering::Relaxed);
        self.shared.wait_for_report();
        self.take_reports();
        true
    }

    /// Begins to write what is remembered and not on disk.
    pub(super) fn save_next(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.save_next(&self.tree);
        }
    }

    /// Writes what is left and parts with the files.
    pub(super) fn close_disk(&mut self) {
        if let Some(disk) = self.disk.take().filter(|_| !std::thread::panicking()) {
            disk.close(&self.tree);
        }
    }
}
