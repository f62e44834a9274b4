//! The door to a scheduler that runs elsewhere.

use super::counters::Counters;
use super::disk::DiskResult;
use super::door::Door;
use super::job::{Job, Refused, Score, Task};
use super::queue::Queue;
use super::view::{View, Viewer};
use crate::engine::Engine;
use crate::sampler::SampleError;
use crate::speculation::{Answers, Proposer};
use std::sync::Arc;
use std::task::Wake;
use std::time::Instant;

/// What the scheduler and those who ask it share.
pub(super) type Shared = Door<HandleState>;

/// Somebody who wants to see the cache.
type Look = (Option<Viewer>, Box<dyn FnOnce(View) + Send>);

#[derive(Default)]
pub(super) struct HandleState {
    pub queue: Queue,
    pub looks: Vec<Look>,
    /// From the thread that reads and writes files.
    reports: Vec<DiskResult>,
    pub counters: Counters,
    /// Set once no more jobs are taken: when those at work are ended.
    pub stopping: Option<Instant>,
    /// The scheduler is gone.
    pub ended: bool,
    next_id: u64,
}

impl Shared {
    /// Waits for a report.
    pub fn wait_for_report(&self) {
        self.wait_for(|state| !state.reports.is_empty());
    }

    /// Takes what was reported. Whatever else has come is looked at after this.
    pub fn take_reports(&self) -> Vec<DiskResult> {
        self.look(|state| std::mem::take(&mut state.reports))
    }

    pub fn report(&self, report: DiskResult) {
        let mut state = self.lock();
        state.reports.push(report);
        self.tell(state);
    }
}

/// Tells it that something is ready which a sequence waits for.
impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.tell(self.lock());
    }
}

/// Gives jobs to a scheduler and looks at it. Handles can be cloned and sent anywhere.
#[derive(Clone)]
pub struct Handle {
    pub(super) shared: Arc<Shared>,
    pub(super) engine: Arc<Engine>,
    pub(super) answers: Option<Arc<Answers>>,
    pub(super) speculates: bool,
    pub(super) context: usize,
    pub(super) most_running: usize,
    pub(super) most_waiting: usize,
}

impl Handle {
    /// The model and its words.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The most tokens a sequence can hold.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The most sequences that are answered at a time.
    pub fn most_running(&self) -> usize {
        self.most_running
    }

    /// Puts jobs into the queue: all of them or none.
    ///
    /// # Errors
    /// If there is no room, or one of them can never be done.
    pub fn submit(&self, jobs: Vec<Job>) -> Result<(), Refused> {
        jobs.iter().try_for_each(|job| self.check(job))?;
        // Made outside the lock: penalties look at the whole prompt.
        let (count, owner) = (jobs.len(), jobs.first().map(|job| job.owner));
        let task = |mut job: Job| {
            job.request.sampling = self.engine.complete(job.request.sampling);
            job.request.adapters.get_or_insert_with(|| self.engine.adapters().clone());
            let task = Task::new(job, 0)?;
            let proposer = self.proposer(&task);
            Ok(task.speculating(proposer))
        };
        let tasks: Vec<Task> = jobs.into_iter().map(task).collect::<Result<_, SampleError>>()?;
        let mut state = self.shared.lock();
        if state.stopping.is_some() || state.ended {
            return Err(Refused::Stopping);
        }
        let waiting = state.queue.len();
        // A request has one owner. Whoever has nothing in the queue finds a place: others cannot fill it for everybody.
        let own = owner.map_or(0, |owner| state.queue.waiting(owner));
        // Free slots are filled before the next pass, so what waits for them does not count as queued.
        let free = self.most_running.saturating_sub(state.counters.running);
        // What is alone may be larger than the queue is long: a request for many answers.
        if own > 0 && waiting + count > self.most_waiting + free {
            state.counters.refused += count as u64;
            return Err(Refused::Busy { waiting });
        }
        state.counters.accepted += count as u64;
        for mut task in tasks {
            task.id = state.next_id;
            state.next_id += 1;
            state.queue.push(task);
        }
        self.shared.tell(state);
        Ok(())
    }

    /// Somebody who guesses how a text goes on, with the answers that its tenant had before.
    fn proposer(&self, task: &Task) -> Option<Box<dyn Proposer>> {
        let mut proposer = self.engine.proposer().filter(|_| self.speculates)?;
        if task.cache_prompt
            && let Some(answers) = &self.answers
        {
            proposer.recall(answers.of(task.tenant));
        }
        Some(proposer)
    }

    fn check(&self, job: &Job) -> Result<(), Refused> {
        let prompt = &job.request.prompt;
        let vocabulary = self.engine.model().vocabulary();
        if prompt.is_empty() {
            return Err(Refused::EmptyPrompt);
        }
        if prompt.len() > self.context {
            return Err(Refused::PromptTooLong { prompt: prompt.len(), context: self.context });
        }
        if let Some(&id) = prompt.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(Refused::UnknownToken { id, vocabulary });
        }
        if let Some(Score::Tokens(ids)) = &job.score
            && let Some(&id) = ids.iter().find(|&&id| id as usize >= vocabulary)
        {
            return Err(Refused::UnknownToken { id, vocabulary });
        }
        self.check_kind(job)?;
        if let Some(adapters) = &job.request.adapters {
            self.engine.model().check_adapters(adapters).map_err(Refused::Adapters)?;
        }
        let biases = &job.request.sampling.logit_bias;
        if let Some(&(token, _)) = biases.iter().find(|(id, _)| *id as usize >= vocabulary) {
            return Err(SampleError::BiasOutside { token, len: vocabulary }.into());
        }
        Ok(())
    }

    /// Whether models of this kind give what the job wants.
    fn check_kind(&self, job: &Job) -> Result<(), Refused> {
        let encoder = self.engine.model().encoder();
        let classes =
            encoder.map(|encoder| encoder.classifier.as_ref().map(|classifier| classifier.classes()));
        let what = match (classes, &job.score, job.embed) {
            (None, Some(Score::Classes { .. }), _) => "is no cross-encoder: it scores no pairs of texts",
            (None, ..) => return Ok(()),
            (Some(Some(1)), Some(Score::Classes { .. }), _) | (Some(None), None, Some(_)) => return Ok(()),
            (Some(Some(1)), ..) => {
                "is a cross-encoder: it scores pairs of texts (/v1/rerank), and gives neither vectors nor text"
            }
            (Some(Some(_)), ..) => {
                "sorts texts into several classes, and neither ranks them nor makes vectors"
            }
            (Some(None), ..) => {
                "is an encoder: it gives vectors of texts (/v1/embeddings, and /v1/rerank by their cosines), and no text"
            }
        };
        Err(Refused::OtherKind(what))
    }

    /// Shows the cache to `look`, between two passes. It is dropped unseen when the scheduler has ended.
    pub fn look(&self, look: impl FnOnce(View) + Send + 'static) {
        self.push_look(None, Box::new(look));
    }

    /// The same, but only what this viewer may see.
    pub fn look_as(&self, viewer: Viewer, look: impl FnOnce(View) + Send + 'static) {
        self.push_look(Some(viewer), Box::new(look));
    }

    fn push_look(&self, viewer: Option<Viewer>, look: Box<dyn FnOnce(View) + Send>) {
        let mut state = self.shared.lock();
        if !state.ended {
            state.looks.push((viewer, look));
        }
        self.shared.tell(state);
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        self.shared.lock().counters
    }

    /// True while the scheduler is at work, or ready to be.
    pub fn is_alive(&self) -> bool {
        !self.shared.lock().ended
    }

    /// Takes no more jobs. Those accepted are finished until `deadline`, and ended then.
    pub fn stop(&self, deadline: Instant) {
        let mut state = self.shared.lock();
        state.stopping = Some(state.stopping.map_or(deadline, |earlier| earlier.min(deadline)));
        self.shared.tell(state);
    }
}
