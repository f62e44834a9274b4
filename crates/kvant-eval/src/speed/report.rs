//! Times of a case, and a row of a report on them.

use super::{Case, Test};
use crate::machine::Machine;
use serde::Serialize;

/// A case with the time of each run.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// What ran.
    pub case: Case,
    /// Seconds, run by run.
    pub seconds: Vec<f64>,
}

impl Timing {
    /// Seconds of the fastest run.
    pub fn best(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Seconds of the middle run; of an even number, the mean of the middle two.
    pub fn median(&self) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0
    }
}

/// A row of `kvant bench --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpeedRow {
    /// `pp` (a prompt is read) or `tg` (text is generated).
    pub test: Test,
    /// Tokens of a run.
    pub tokens: usize,
    /// Tokens of context before it.
    pub depth: usize,
    /// How keys and values were kept.
    pub kv: String,
    /// Threads that computed.
    pub threads: usize,
    /// What computed: `cpu`, or the name of a device.
    pub device: String,
    /// Tokens per second in the fastest run.
    pub tok_s_best: f64,
    /// Tokens per second in the middle run.
    pub tok_s_median: f64,
    /// Milliseconds per token in the fastest run.
    pub ms_best: f64,
    /// Milliseconds per token in the middle run.
    pub ms_median: f64,
    /// Runs.
    pub repetitions: usize,
    /// Whether the context was made of copies.
    pub filled: bool,
    /// The model, as it was named.
    pub model: String,
    /// Its architecture.
    pub architecture: String,
    /// Version of kvant.
    pub version: String,
    /// Where.
    pub machine: Machine,
}

impl SpeedRow {
    /// The row of a timing; `model` is its name and its architecture.
    pub fn new(timing: &Timing, filled: bool, model: (&str, &str), version: &str, machine: &Machine) -> Self {
        let Case { test, tokens, depth, kv, threads } = &timing.case;
        let rate = |seconds: f64| *tokens as f64 / seconds.max(f64::MIN_POSITIVE);
        let ms = |seconds: f64| seconds * 1e3 / *tokens as f64;
        Self {
            test: *test,
            tokens: *tokens,
            depth: *depth,
            kv: kv.to_string(),
            threads: *threads,
            device: "cpu".to_owned(),
            tok_s_best: rate(timing.best()),
            tok_s_median: rate(timing.median()),
            ms_best: ms(timing.best()),
            ms_median: ms(timing.median()),
            repetitions: timing.seconds.len(),
            filled,
            model: model.0.to_owned(),
            architecture: model.1.to_owned(),
            version: version.to_owned(),
            machine: machine.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(seconds: &[f64]) -> Timing {
        let case = Case { test: Test::Decode, tokens: 10, depth: 5, kv: "f16".parse().unwrap(), threads: 2 };
        Timing { case, seconds: seconds.to_vec() }
    }

    #[test]
    fn best_and_median_are_what_they_are_called() {
        assert_eq!((timing(&[3.0, 1.0, 2.0]).best(), timing(&[3.0, 1.0, 2.0]).median()), (1.0, 2.0));
        assert_eq!(timing(&[4.0, 1.0, 2.0, 9.0]).median(), 3.0);
        assert_eq!(timing(&[4.0]).median(), 4.0);
    }

    #[test]
    fn rates_and_times_are_per_token() {
        let row = SpeedRow::new(&timing(&[0.5, 2.0, 1.0]), false, ("m", "llama"), "1", &Machine::this());
        assert_eq!((row.tok_s_best, row.ms_best), (20.0, 50.0));
        assert_eq!((row.tok_s_median, row.ms_median), (10.0, 100.0));
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!((&json["test"], &json["kv"], &json["threads"]), (&"tg".into(), &"f16".into(), &2.into()));
    }
}
