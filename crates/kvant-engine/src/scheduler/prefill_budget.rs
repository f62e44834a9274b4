//! How many tokens of prompts a pass takes, so that those who are being answered hardly notice.

use crate::pass_times::PassTimes;

/// A pass with tokens of prompts in it may take this many times longer than one without.
const MAX_SLOWDOWN: f64 = 3.0;

/// The least and, before anything is known, the usual number of prompt tokens in such a pass.
const LEAST: usize = 16;
const USUAL: usize = 64;

/// Tokens of prompts for the next pass, in which so many sequences are being answered: at most `most`.
pub(super) fn budget(times: &PassTimes, answering: usize, most: usize) -> usize {
    match (answering, times.quiet, times.reading) {
        (0, ..) => most,
        (_, Some(quiet), Some(reading)) if reading > 0.0 => {
            ((MAX_SLOWDOWN * quiet / reading) as usize).clamp(LEAST, most)
        }
        _ => USUAL,
    }
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
    use crate::pass_times::PassRows;
    use std::time::Duration;

    #[test]
    fn prompts_get_what_passes_can_bear() {
        let mut times = PassTimes::default();
        let rows = |read, answering| PassRows { read, answering, proposed: 0 };
        assert_eq!((budget(&times, 0, 256), budget(&times, 3, 256)), (256, USUAL));
        times.learn(rows(0, 4), Duration::from_millis(10));
        times.learn(rows(100, 4), Duration::from_millis(110));
        assert_eq!((budget(&times, 0, 1024), budget(&times, 4, 1024)), (1024, 30));
        // Prompts have become dear: at 100 ms a token the least is still read.
        (0..50).for_each(|_| times.learn(rows(10, 0), Duration::from_secs(1)));
        assert_eq!(budget(&times, 1, 256), LEAST);
        (0..50).for_each(|_| times.learn(rows(1000, 0), Duration::from_micros(1)));
        assert_eq!((budget(&times, 1, 256), budget(&times, 1, 1024)), (256, 1024));
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
