//! What is to be done, and what is done.

use super::{Block, Blocks};
use crate::entry::Name;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// A number by which the engine knows a job.
pub type JobId = u64;

/// A block that a job is about.
pub struct Wanted {
    pub group: usize,
    pub name: Name,
    pub key: Vec<u8>,
    pub block: Block,
}

/// One entry's worth of a job.
pub enum Task {
    Store(Vec<Wanted>),
    Load(Vec<Wanted>),
}

/// Blocks that could not be stored or loaded, and why.
pub struct Failed {
    pub keys: Vec<Vec<u8>>,
    pub error: String,
}

/// What a thread takes.
pub enum Next {
    Task(JobId, Task),
    Look(Name),
}

/// A job that is done.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Its number.
    pub job: JobId,
    /// Keys of blocks that could not be stored or loaded.
    pub failed: Vec<Vec<u8>>,
    /// The first reason.
    pub error: Option<String>,
    /// Since it was submitted.
    pub seconds: f64,
    /// Bytes of its blocks, as the engine has them.
    pub bytes: u64,
}

struct Job {
    left: usize,
    done: Finished,
    begun: Instant,
    /// Keeps the engine's memory until the job is done.
    _blocks: Arc<Blocks>,
}

/// All of it. Loads go first, then look-ups, then stores.
#[derive(Default)]
pub struct Queue {
    loads: VecDeque<(JobId, Task)>,
    looks: VecDeque<Name>,
    stores: VecDeque<(JobId, Task)>,
    jobs: HashMap<JobId, Job>,
    finished: Vec<Finished>,
    storing: HashSet<Name>,
    looking: HashSet<Name>,
    is_closing: bool,
}

impl Queue {
    pub fn begin(&mut self, job: JobId, blocks: Arc<Blocks>, tasks: Vec<Task>) {
        let done = Finished { job, failed: Vec::new(), error: None, seconds: 0.0, bytes: 0 };
        let begun = Instant::now();
        if tasks.is_empty() {
            self.finished.push(done);
            return;
        }
        self.jobs.insert(job, Job { left: tasks.len(), done, begun, _blocks: blocks });
        for task in tasks {
            match &task {
                Task::Store(list) => {
                    self.storing.extend(list.iter().map(|one| one.name));
                    self.stores.push_back((job, task));
                }
                Task::Load(_) => self.loads.push_back((job, task)),
            }
        }
    }

    pub fn look(&mut self, name: Name) {
        if self.looking.insert(name) {
            self.looks.push_back(name);
        }
    }

    pub fn looked(&mut self, name: &Name) {
        self.looking.remove(name);
    }

    pub fn next(&mut self) -> Option<Next> {
        if let Some((job, task)) = self.loads.pop_front() {
            return Some(Next::Task(job, task));
        }
        if let Some(name) = self.looks.pop_front() {
            return Some(Next::Look(name));
        }
        self.stores.pop_front().map(|(job, task)| Next::Task(job, task))
    }

    pub fn is_storing(&self, name: &Name) -> bool {
        self.storing.contains(name)
    }

    /// A task is done; its names, if it stored them.
    pub fn end(&mut self, job: JobId, stored: &[Name], bytes: u64, failure: Option<Failed>) {
        for name in stored {
            self.storing.remove(name);
        }
        let Some(found) = self.jobs.get_mut(&job) else { return };
        found.done.bytes += bytes;
        if let Some(Failed { keys, error }) = failure {
            found.done.failed.extend(keys);
            found.done.error.get_or_insert(error);
        }
        found.left -= 1;
        if found.left == 0
            && let Some(mut job) = self.jobs.remove(&job)
        {
            job.done.seconds = job.begun.elapsed().as_secs_f64();
            self.finished.push(job.done);
        }
    }

    pub fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    pub fn has(&self, job: JobId) -> bool {
        self.jobs.contains_key(&job)
    }

    pub fn take(&mut self, job: JobId) -> Option<Finished> {
        let at = self.finished.iter().position(|done| done.job == job)?;
        Some(self.finished.remove(at))
    }

    pub fn is_busy(&self) -> bool {
        !self.jobs.is_empty()
    }

    pub fn close(&mut self) {
        self.is_closing = true;
    }

    pub fn is_closing(&self) -> bool {
        self.is_closing
    }
}
