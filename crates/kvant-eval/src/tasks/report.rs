//! What came of a task, for machines.

use crate::report::Setting;
use serde::Serialize;

/// Cases counted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Score {
    /// Cases.
    pub cases: usize,
    /// Those that were right; parts of one where a case can be partly right.
    pub right: f64,
    /// Those that came out as with the exact cache.
    pub same: usize,
    /// Sum of surprises, and how many tokens they are of.
    pub surprise: (f64, usize),
}

impl Score {
    /// Takes in a case.
    pub fn take(&mut self, right: f64, same: bool) {
        self.cases += 1;
        self.right += right;
        self.same += usize::from(same);
    }

    /// Takes in the cases of another.
    pub fn add(&mut self, other: &Self) {
        self.cases += other.cases;
        self.right += other.right;
        self.same += other.same;
        self.surprise = (self.surprise.0 + other.surprise.0, self.surprise.1 + other.surprise.1);
    }

    fn share(&self, count: f64) -> f64 {
        count / self.cases.max(1) as f64
    }
}

/// One cache in one task. Its JSON is a line of `kvant eval --task … --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskRow {
    /// The task.
    pub task: &'static str,
    /// The cache.
    pub spec: String,
    /// `strict` or `deployed`.
    pub mode: &'static str,
    /// Tokens of context, about; none where cases have each their own.
    pub context: Option<usize>,
    /// Cases.
    pub cases: usize,
    /// Share of the cases that were right.
    pub right: f64,
    /// Its standard error.
    pub right_stderr: f64,
    /// Share of the cases that came out as with the exact cache.
    pub same: f64,
    /// Mean surprise at a token of the right answer, in nats, where there is one.
    pub surprise: Option<f64>,
    /// What was measured.
    #[serde(flatten)]
    pub setting: Setting,
}

impl TaskRow {
    /// The row of a cache.
    pub fn new(
        task: &'static str,
        (spec, mode): (String, &'static str),
        context: Option<usize>,
        score: &Score,
        setting: Setting,
    ) -> Self {
        let right = score.share(score.right);
        let (surprise, tokens) = score.surprise;
        Self {
            task,
            spec,
            mode,
            context,
            cases: score.cases,
            right,
            right_stderr: (right * (1.0 - right) / score.cases.max(1) as f64).max(0.0).sqrt(),
            same: score.share(score.same as f64),
            surprise: (tokens > 0).then(|| surprise / tokens as f64),
            setting,
        }
    }
}
