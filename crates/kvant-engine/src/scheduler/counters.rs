//! What has happened since the start, in numbers.

use kvant_cache::DiskUsage;
use std::time::Duration;

/// Upper ends of the classes of a [`Histogram`], in seconds; the last class has none.
pub const BUCKETS: [f64; 12] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0];

/// Times, by class.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Histogram {
    /// How many fell into each class; the last is beyond all ends.
    pub counts: [u64; BUCKETS.len() + 1],
    /// The sum of all, in seconds.
    pub sum: f64,
}

impl Histogram {
    pub(super) fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        let class = BUCKETS.iter().position(|&end| seconds <= end).unwrap_or(BUCKETS.len());
        self.counts[class] += 1;
        self.sum += seconds;
    }
}

/// Counts since the start, and two that go up and down.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counters {
    /// Jobs taken into the queue.
    pub accepted: u64,
    /// Jobs refused because it was full.
    pub refused: u64,
    /// Jobs that ended by themselves.
    pub finished: u64,
    /// Jobs whose listener went away.
    pub cancelled: u64,
    /// Jobs that ran out of time, or failed.
    pub failed: u64,
    /// Times that a sequence was preempted to make room for older ones.
    pub preemptions: u64,
    /// Prompt tokens of jobs that have started.
    pub prompt_tokens: u64,
    /// Those of them that were found in the cache.
    pub cached_tokens: u64,
    /// Tokens chosen.
    pub generated_tokens: u64,
    /// Tokens read on trial.
    pub proposed_tokens: u64,
    /// Those of them that were chosen.
    pub accepted_tokens: u64,
    /// Passes through the network.
    pub passes: u64,
    /// Rows of all passes.
    pub rows: u64,
    /// Seconds they took.
    pub pass_seconds: f64,
    /// Sequences in work now.
    pub running: usize,
    /// Jobs that wait now, those preempted included.
    pub waiting: usize,
    /// Prefixes in files, where they are kept.
    pub disk: Option<DiskUsage>,
    /// From a job's arrival to its first token.
    pub first_token: Histogram,
    /// From one token of a job to its next.
    pub between_tokens: Histogram,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_falls_into_one_class() {
        let mut histogram = Histogram::default();
        for millis in [1, 5, 6, 60_000, 61_000] {
            histogram.add(Duration::from_millis(millis));
        }
        assert_eq!((histogram.counts[0], histogram.counts[1]), (2, 1));
        assert_eq!(histogram.counts[BUCKETS.len() - 1..], [1, 1]);
        assert!((histogram.sum - 121.012).abs() < 1e-9);
    }
}
