//! Jobs of encoders: whole texts at once, nothing kept. They take turns as others do, and never have a sequence.

use super::Scheduler;
use super::job::{JobEvent, Score, Task};
use super::queue::Verdict;
use crate::session::{Finish, GenerateError};
use kvant_model::{EncoderText, ForwardError, Rows};
use std::sync::Arc;
use std::time::Instant;

/// Tokens that are read together: enough for the products, and not much to wait for.
const MOST_TOKENS: usize = 2048;

impl Scheduler {
    /// Reads the texts whose turn it is. False when there were none.
    pub(super) fn encode_texts(&mut self) -> bool {
        self.show();
        let tasks = self.next_texts();
        let worked = !tasks.is_empty();
        let (scored, embedded): (Vec<Task>, Vec<Task>) =
            tasks.into_iter().partition(|task| task.score.is_some());
        for tasks in [scored, embedded] {
            self.encode(tasks);
        }
        self.publish();
        worked
    }

    /// Texts of owners in turn, as many as are read together; one of any length.
    fn next_texts(&mut self) -> Vec<Task> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let (mut tasks, mut tokens) = (Vec::new(), 0);
        let most = self.options.most_running.max(1);
        while tasks.len() < most {
            let fits = |task: &mut Task| match tasks.is_empty() || tokens + task.prompt() <= MOST_TOKENS {
                true => Verdict::Start,
                false => Verdict::Wait,
            };
            let Some(task) = state.queue.next(fits) else { break };
            tokens += task.prompt();
            tasks.push(task);
        }
        // Their places are taken until they are done.
        state.counters.running += tasks.len();
        tasks
    }

    /// Reads texts of which all are scored, or none.
    fn encode(&mut self, mut tasks: Vec<Task>) {
        if tasks.is_empty() {
            return;
        }
        let start = Instant::now();
        for task in &mut tasks {
            task.started = Some((start, 0));
            self.counters.prompt_tokens += task.prompt() as u64;
            task.listener.take(JobEvent::Started { cached: 0, seed: task.stepper.seed() });
        }
        match self.rows(&tasks) {
            Ok(rows) => {
                self.counters.finished += tasks.len() as u64;
                self.tell(tasks, &rows);
            }
            Err(error) => {
                // Texts were checked before, so this concerns them all.
                self.counters.failed += tasks.len() as u64;
                tasks.into_iter().for_each(|task| task.fail(GenerateError::from(error.clone())));
            }
        }
        self.counters.passes += 1;
        self.counters.pass_seconds += start.elapsed().as_secs_f64();
    }

    /// A row for each text that is scored, and else for each token.
    fn rows(&mut self, tasks: &[Task]) -> Result<Rows, ForwardError> {
        fn text(task: &Task) -> EncoderText<'_> {
            let ids = &task.tokens()[..task.prompt()];
            match task.score {
                Some(Score::Classes { second }) => EncoderText { ids, second },
                Some(Score::Tokens(_)) | None => EncoderText::alone(ids),
            }
        }
        let texts: Vec<EncoderText<'_>> = tasks.iter().map(text).collect();
        self.counters.rows += texts.iter().map(|text| text.ids.len() as u64).sum::<u64>();
        let are_scored = tasks.iter().any(|task| task.score.is_some());
        let model = self.engine.model();
        self.engine.pool().install(|| if are_scored { model.classify(&texts) } else { model.encode(&texts) })
    }

    fn tell(&self, tasks: Vec<Task>, rows: &Rows) {
        let mut row = 0;
        for mut task in tasks {
            match &mut task.pool {
                Some(pool) => {
                    let (width, tokens) = (rows.width(), task.stepper.prompt());
                    pool.add(&rows.data()[row * width..(row + tokens) * width], width);
                    row += tokens;
                }
                None => {
                    task.listener.take(JobEvent::Scored(rows.row(row).to_vec()));
                    row += 1;
                }
            }
            task.finish(Finish::MaxTokens);
        }
    }
}
