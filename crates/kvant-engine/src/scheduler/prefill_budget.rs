//! How many tokens of prompts a pass takes, so that those who are being answered hardly notice.

use std::time::Duration;

/// A pass with tokens of prompts in it may take this many times longer than one without.
const MAX_SLOWDOWN: f64 = 3.0;

/// The least and, before anything is known, the usual number of prompt tokens in such a pass.
const LEAST: usize = 16;
const USUAL: usize = 64;

/// How much the newest measurement counts.
const NEWEST: f64 = 0.2;

/// What passes have taken lately.
///
/// **Invariant:** only the cutting of prompts follows from times, and no result depends on that.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PrefillBudget {
    /// Seconds of a pass with nothing but one token of each sequence.
    quiet: Option<f64>,
    /// Seconds that a token of a prompt adds.
    reading: Option<f64>,
}

impl PrefillBudget {
    /// Tokens of prompts for the next pass, in which so many sequences are being answered: at most `most`.
    pub(super) fn budget(&self, answering: usize, most: usize) -> usize {
        match (answering, self.quiet, self.reading) {
            (0, ..) => most,
            (_, Some(quiet), Some(reading)) if reading > 0.0 => {
                ((MAX_SLOWDOWN * quiet / reading) as usize).clamp(LEAST, most)
            }
            _ => USUAL,
        }
    }

    /// Learns from a pass with so many prompt tokens and so many sequences being answered.
    pub(super) fn learn(&mut self, read: usize, answering: usize, took: Duration) {
        let took = took.as_secs_f64();
        match (read, answering) {
            (0, _) => mix(&mut self.quiet, took),
            (_, 0) => mix(&mut self.reading, took / read as f64),
            (..) => {
                if let Some(quiet) = self.quiet {
                    mix(&mut self.reading, (took - quiet).max(0.0) / read as f64);
                }
            }
        }
    }
}

fn mix(known: &mut Option<f64>, newest: f64) {
    *known = Some(known.map_or(newest, |known| known + NEWEST * (newest - known)));
}

/// Splits `budget` tokens to sequences that wait for `pending` each: in equal shares, what one does not need to the
/// others, and at least one token to each.
pub(super) fn split_budget(budget: usize, pending: &[usize]) -> Vec<usize> {
    let mut by_need: Vec<usize> = (0..pending.len()).collect();
    by_need.sort_by_key(|&index| pending[index]);
    let mut shares = vec![0; pending.len()];
    let mut left = budget;
    for (served, &index) in by_need.iter().enumerate() {
        let share = (left / (pending.len() - served)).max(1).min(pending[index]);
        shares[index] = share;
        left = left.saturating_sub(share);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_get_what_passes_can_bear() {
        let mut times = PrefillBudget::default();
        assert_eq!((times.budget(0, 256), times.budget(3, 256)), (256, USUAL));
        times.learn(0, 4, Duration::from_millis(10));
        times.learn(100, 4, Duration::from_millis(110));
        assert_eq!((times.budget(0, 1024), times.budget(4, 1024)), (1024, 30));
        // Prompts have become dear: at 100 ms a token the least is still read.
        (0..50).for_each(|_| times.learn(10, 0, Duration::from_secs(1)));
        assert_eq!(times.budget(1, 256), LEAST);
        (0..50).for_each(|_| times.learn(1000, 0, Duration::from_micros(1)));
        assert_eq!((times.budget(1, 256), times.budget(1, 1024)), (256, 1024));
    }

    #[test]
    fn short_prompts_do_not_wait_for_long_ones() {
        assert_eq!(split_budget(100, &[4000, 20]), [80, 20]);
        assert_eq!(split_budget(100, &[4000, 3000]), [50, 50]);
        assert_eq!(split_budget(100, &[10]), [10]);
        assert_eq!(split_budget(2, &[9, 9, 9, 9]), [1, 1, 1, 1]);
        assert!(split_budget(100, &[]).is_empty());
    }
}
