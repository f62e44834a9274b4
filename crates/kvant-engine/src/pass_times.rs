//! What passes have taken lately, and what follows for how many tokens they should have.

use crate::speculation::ProposalLimits;
use std::time::Duration;

/// How much the newest measurement counts.
const NEWEST: f64 = 0.2;

/// A pass counts as at most so many times what is known: the system may have given the processor to others meanwhile.
const OUTLIER: f64 = 3.0;

/// What a row is taken to cost before it is known, as a part of a pass with one token of one sequence. The rest is there however many
/// rows there are: weights are read from memory once.
const USUAL_ROW: f64 = 0.2;

/// How much better than its cost a trial has to look.
const MARGIN: f64 = 1.2;

/// What is left of the cost of trials after each pass without: what was dear once is tried again some time.
const FADING: f64 = 0.998;

/// What passes have taken lately.
///
/// **Invariant:** only the cutting of prompts and the length of proposals follow from times, and no result depends on those.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PassTimes {
    /// Seconds of a pass with nothing but one token of each sequence.
    pub quiet: Option<f64>,
    /// Seconds that a token of a prompt adds.
    pub reading: Option<f64>,
    /// Seconds that a token adds which is read on trial.
    trial: Option<f64>,
}

/// What was in a pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PassRows {
    /// Tokens of prompts.
    pub read: usize,
    /// Sequences that are being answered, with a token each.
    pub answering: usize,
    /// Tokens that they read on trial besides.
    pub proposed: usize,
}

impl PassTimes {
    /// Learns from a pass.
    pub fn learn(&mut self, rows: PassRows, took: Duration) {
        let took = took.as_secs_f64();
        match (rows.read, rows.answering, rows.proposed) {
            (0, _, 0) => {
                let most = self.quiet.map_or(took, |quiet| OUTLIER * quiet);
                mix(&mut self.quiet, took.min(most));
                self.trial.iter_mut().for_each(|trial| *trial *= FADING);
            }
            (0, answering, proposed) => {
                if let Some(quiet) = self.quiet {
                    // A row that is read beside others takes no longer than one that is not.
                    let most = quiet / answering.max(1) as f64;
                    mix(&mut self.trial, ((took - quiet).max(0.0) / proposed as f64).min(most));
                }
            }
            (read, 0, _) => mix(&mut self.reading, took / read as f64),
            (read, _, 0) => {
                if let Some(quiet) = self.quiet {
                    mix(&mut self.reading, (took - quiet).max(0.0) / read as f64);
                }
            }
            // Who took how long cannot be told.
            _ => {}
        }
    }

    /// What may be guessed in a pass that answers so many sequences: `most` tokens of each, if they are worth it.
    pub fn limits(&self, answering: usize, most: usize) -> ProposalLimits {
        let seconds_per_token = self.quiet.map(|quiet| quiet / answering.max(1) as f64);
        ProposalLimits { most, least_chance: self.least_chance(answering), seconds_per_token }
    }

    /// How likely a token that is read on trial has to be right, where so many sequences are being answered: a row is worth it if it
    /// brings more tokens a second than the pass does without it.
    fn least_chance(&self, answering: usize) -> f64 {
        let answering = answering.max(1) as f64;
        let usual = USUAL_ROW / (1.0 - USUAL_ROW + USUAL_ROW * answering);
        let part = |row: f64| self.quiet.filter(|quiet| *quiet > 0.0).map(|quiet| row / quiet);
        // A token of a prompt is cheaper than a row of a small pass, so it says only what a trial costs at least.
        let row = match (self.trial.and_then(part), self.reading.and_then(part)) {
            (Some(trial), _) => trial,
            (None, Some(reading)) => reading.max(usual),
            (None, None) => usual,
        };
        (MARGIN * row * answering).max(0.1)
    }
}

fn mix(known: &mut Option<f64>, newest: f64) {
    *known = Some(known.map_or(newest, |known| known + NEWEST * (newest - known)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dear_rows_are_not_read_on_trial_until_that_fades() {
        let mut times = PassTimes::default();
        let answering = PassRows { answering: 1, ..PassRows::default() };
        assert!(times.least_chance(1) < 0.3 && times.least_chance(8) > 0.75);
        times.learn(answering, Duration::from_millis(10));
        times.learn(PassRows { proposed: 4, ..answering }, Duration::from_millis(14));
        assert!((times.least_chance(1) - 0.12).abs() < 1e-6, "{}", times.least_chance(1));
        (0..50).for_each(|_| times.learn(PassRows { proposed: 2, ..answering }, Duration::from_millis(40)));
        assert!(times.least_chance(1) > 1.0);
        (0..2000).for_each(|_| times.learn(answering, Duration::from_millis(10)));
        assert!(times.least_chance(1) < 0.2);
        // Nothing is learned where prompts are read beside it.
        let before = times.least_chance(1);
        times.learn(PassRows { read: 100, proposed: 2, answering: 1 }, Duration::from_secs(9));
        assert_eq!(times.least_chance(1), before);
    }

    #[test]
    fn a_cheap_prompt_does_not_make_rows_of_a_batch_look_cheap() {
        let mut times = PassTimes::default();
        times.learn(PassRows { read: 100, ..PassRows::default() }, Duration::from_millis(100));
        let answering = PassRows { answering: 8, ..PassRows::default() };
        times.learn(answering, Duration::from_millis(80));
        assert!(times.least_chance(8) > 0.75, "{}", times.least_chance(8));
        // Rows that cost as much as those of answers are not worth it, however likely.
        times.learn(PassRows { proposed: 4, ..answering }, Duration::from_millis(120));
        (0..50).for_each(|_| times.learn(answering, Duration::from_millis(80)));
        assert!(times.least_chance(8) > 1.0, "{}", times.least_chance(8));
    }
}
