//! Prefixes on disk, and the thread that reads and writes them: passes do not wait for files.
//!
//! What is remembered is written soon after, one prefix at a time. A job whose prompt goes on in files longer than in memory stays
//! in the queue until they are read; others start meanwhile. Whoever needs memory comes first: a prefix that is being written
//! is broken off between two files, so that its pages can be forgotten. What memory forgets before its turn comes is not written.

use super::Scheduler;
use super::handle::Shared;
use super::job::Task;
use super::signals::Signals;
use crate::speculation::{Answers, MOST_ANSWER_BYTES};
use kvant_cache::disk::Loaded;
use kvant_cache::{DiskTier, DiskUsage, Prefix, PrefixTree, Sequence, SnapshotError, Tenant};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracing::dispatcher::{Dispatch, get_default, with_default};
use tracing::warn;

/// Prefixes that wait to be written, at most; then the oldest is given up.
const MOST_UNWRITTEN: usize = 256;

/// Answers that are kept before all are written again.
const ANSWERS_AT_ONCE: usize = 16;

/// What their file is called by.
const ANSWERS: &str = "answers";

/// For what is unwritten when the scheduler ends.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Something to be done with files.
enum DiskJob {
    Save {
        prefix: OwnPrefix,
        sequence: Sequence,
    },
    Load {
        prefix: OwnPrefix,
        base: Sequence,
    },
    /// Writes answers for proposals of the next run.
    Answers(Arc<Answers>),
}

/// A [`Prefix`] to keep.
pub(super) struct OwnPrefix {
    tenant: Tenant,
    tokens: Vec<u32>,
}

impl OwnPrefix {
    fn of(prefix: Prefix<'_>) -> Self {
        Self { tenant: prefix.tenant, tokens: prefix.tokens.to_vec() }
    }

    fn get(&self) -> Prefix<'_> {
        self.tenant.prefix(&self.tokens)
    }
}

/// What came of it.
pub(super) enum DiskResult {
    /// A prefix was written, unless it was broken off.
    Saved { prefix: OwnPrefix, broken_off: bool },
    /// A prefix was read, as far as there was one.
    Loaded { prefix: OwnPrefix, sequence: Option<Sequence> },
    /// The thread is gone.
    Ended,
}

/// The scheduler's side.
pub(super) struct Disk {
    tier: Arc<DiskTier>,
    jobs: Sender<DiskJob>,
    worker: JoinHandle<()>,
    signals: Arc<Signals>,
    /// Prefixes that are to be written.
    unwritten: VecDeque<OwnPrefix>,
    is_saving: bool,
    /// The job that something is being loaded for.
    loading: Option<u64>,
    /// Answers that were kept since all were written.
    new_answers: usize,
}

impl Disk {
    pub fn new(tier: DiskTier, shared: Arc<Shared>) -> io::Result<Self> {
        let (tier, signals) = (Arc::new(tier), Arc::new(Signals::default()));
        let (jobs, receiver) = channel();
        let (own, heeded) = (Arc::clone(&tier), Arc::clone(&signals));
        let worker = Worker { tier: own, shared, signals: heeded, has_warned: false };
        // Who hears this thread hears that one.
        let log = get_default(Dispatch::clone);
        let builder = std::thread::Builder::new().name("kvant-disk".into());
        let worker = builder.spawn(move || with_default(&log, || worker.run(&receiver)))?;
        let (unwritten, is_saving, loading, new_answers) = (VecDeque::new(), false, None, 0);
        Ok(Self { tier, jobs, worker, signals, unwritten, is_saving, loading, new_answers })
    }

    pub fn usage(&self) -> DiskUsage {
        self.tier.usage()
    }

    pub fn is_loading(&self) -> bool {
        self.loading.is_some()
    }

    /// Whether files are being read for this job.
    pub fn is_loading_for(&self, job: u64) -> bool {
        self.loading == Some(job)
    }

    /// Counts as a use of what was found in memory.
    pub fn touch(&self, prefix: Prefix<'_>) {
        self.tier.touch(prefix);
    }

    /// Has a prefix written in a while, unless it is there.
    pub fn note(&mut self, prefix: Prefix<'_>) {
        if self.tier.longest(prefix) == prefix.tokens.len() {
            return;
        }
        // A conversation is remembered twice in a row, with its answer and without.
        let continues =
            |last: &OwnPrefix| last.tenant == prefix.tenant && prefix.tokens.starts_with(&last.tokens);
        if self.unwritten.back().is_some_and(continues) {
            self.unwritten.pop_back();
        }
        if self.unwritten.len() == MOST_UNWRITTEN {
            self.unwritten.pop_front();
        }
        self.unwritten.push_back(OwnPrefix::of(prefix));
    }

    /// Counts an answer that was kept, and has all written when there are enough new ones.
    pub fn note_answer(&mut self, answers: &Arc<Answers>) {
        self.new_answers += 1;
        if self.new_answers >= ANSWERS_AT_ONCE {
            self.write_answers(answers);
        }
    }

    fn write_answers(&mut self, answers: &Arc<Answers>) {
        self.new_answers = 0;
        // A thread that is gone has said so.
        let _ = self.jobs.send(DiskJob::Answers(Arc::clone(answers)));
    }

    /// Begins to write the next prefix that is still in memory.
    fn save_next(&mut self, tree: &PrefixTree) {
        while !self.is_saving && self.loading.is_none() {
            let Some(prefix) = self.unwritten.pop_front() else { return };
            let Ok(sequence) = tree.peek(prefix.get()) else { continue };
            if !sequence.is_empty() {
                self.signals.begin();
                self.is_saving = self.jobs.send(DiskJob::Save { prefix, sequence }).is_ok();
            }
        }
    }

    fn load(&mut self, job: u64, prefix: OwnPrefix, base: Sequence) {
        self.signals.request_yield();
        let sent = self.jobs.send(DiskJob::Load { prefix, base });
        self.loading = sent.is_ok().then_some(job);
    }

    /// Writes what is left, as far as there is time, and ends the thread.
    fn close(mut self, tree: &PrefixTree, answers: Option<&Arc<Answers>>) {
        if let Some(answers) = answers.filter(|_| self.new_answers > 0) {
            self.write_answers(answers);
        }
        let Self { jobs, worker, signals, unwritten, .. } = self;
        signals.end_by(Instant::now() + SHUTDOWN_GRACE);
        for prefix in unwritten {
            if let Ok(sequence) = tree.peek(prefix.get()) {
                // A thread that is gone has said so.
                let _ = jobs.send(DiskJob::Save { prefix, sequence });
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
    has_warned: bool,
}

impl Worker {
    fn run(mut self, jobs: &Receiver<DiskJob>) {
        while let Ok(job) = jobs.recv() {
            let report = match job {
                DiskJob::Save { prefix, sequence } => self.save(prefix, &sequence),
                DiskJob::Load { prefix, base } => {
                    let Loaded { sequence, refused } = self.tier.load(prefix.get(), base);
                    refused.iter().for_each(|refused| warn!("{refused}"));
                    DiskResult::Loaded { prefix, sequence }
                }
                DiskJob::Answers(answers) => {
                    if let Err(error) = self.tier.put_beside(ANSWERS, &answers.to_bytes()) {
                        self.warn_once(&error);
                    }
                    continue;
                }
            };
            self.shared.report(report);
        }
        self.tier.flush();
    }

    fn save(&mut self, prefix: OwnPrefix, sequence: &Sequence) -> DiskResult {
        let mut broken_off = false;
        let saved = self.tier.save(prefix.get(), sequence, || {
            broken_off = !self.signals.go_on();
            !broken_off
        });
        if let Err(error) = saved {
            self.warn_once(&error);
        }
        DiskResult::Saved { prefix, broken_off }
    }

    fn warn_once(&mut self, error: &SnapshotError) {
        if !std::mem::replace(&mut self.has_warned, true) {
            warn!("prefixes are not written to disk: {error}");
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Whatever has ended it, nobody waits for it.
        self.shared.report(DiskResult::Ended);
    }
}

impl Scheduler {
    /// Keeps prefixes in files too, and the answers that proposals are looked up in. What goes wrong with them is a warning in the log, and
    /// nothing fails for it.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub fn with_disk(mut self, tier: DiskTier) -> io::Result<Self> {
        if self.options.remember {
            if let Some(answers) = &self.answers
                && let Some(bytes) = tier.beside(ANSWERS, MOST_ANSWER_BYTES)
            {
                answers.restore(&bytes, self.engine.model().vocabulary());
            }
            self.disk = Some(Disk::new(tier, Arc::clone(&self.shared))?);
        }
        Ok(self)
    }

    /// Hears what has come of jobs.
    pub(super) fn take_reports(&mut self) {
        let reports = self.shared.take_reports();
        let Some(disk) = &mut self.disk else { return };
        for report in reports {
            match report {
                DiskResult::Saved { prefix, broken_off } => {
                    disk.is_saving = false;
                    if broken_off {
                        disk.unwritten.push_front(prefix);
                    }
                }
                DiskResult::Loaded { prefix, sequence } => {
                    disk.loading = None;
                    if let Some(sequence) = sequence {
                        // Without room for another reference to unfinished sinks there is nothing to keep.
                        let _ = self.tree.insert(prefix.get(), &sequence);
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
        if disk.is_loading_for(task.id) {
            return true;
        }
        if !may_reuse {
            return false;
        }
        let on_disk = task.on_disk.unwrap_or_else(|| disk.tier.longest(task.findable()));
        task.on_disk = Some(on_disk);
        if on_disk <= self.tree.longest(task.findable()) {
            return false;
        }
        if disk.is_loading() {
            // What is being loaded for another may be the same.
            return true;
        }
        // It is asked for once. What is forgotten before its turn comes is read as if it had never been there.
        task.on_disk = Some(0);
        let Ok(base) = self.tree.find(task.prefix(on_disk)) else { return false };
        let layout = base.layout();
        let bytes = layout.arena_bytes(on_disk, 0).saturating_sub(layout.arena_bytes(base.len(), 0));
        if !self.tree.make_room(bytes) {
            return false;
        }
        disk.load(task.id, OwnPrefix::of(task.prefix(on_disk)), base);
        disk.is_loading()
    }

    /// Gets back pages that files are being made of, or that are being filled from files; false if there are none.
    pub(super) fn reclaim(&mut self) -> bool {
        let Some(disk) = self.disk.as_ref().filter(|disk| disk.is_saving || disk.is_loading()) else {
            return false;
        };
        disk.signals.request_yield();
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
            disk.close(&self.tree, self.answers.as_ref());
        }
    }
}
