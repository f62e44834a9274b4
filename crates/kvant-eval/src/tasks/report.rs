//! What came of a task, for machines.

use crate::mean::Mean;
use crate::report::Setting;
use serde::Serialize;

/// Cases, one by one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Score {
    /// One for every case that was right, zero for the others; something between where a case can be partly right.
    pub rights: Vec<f64>,
    /// Those that came out as with the exact cache.
    pub same: usize,
    /// Sum of token_nlls, and how many tokens they are of.
    pub nll: (f64, usize),
}

impl Score {
    /// Takes in a case.
    pub fn take(&mut self, right: f64, same: bool) {
        self.rights.push(right);
        self.same += usize::from(same);
    }

    /// Takes in the cases of another.
    pub fn add(&mut self, other: &Self) {
        self.rights.extend(&other.rights);
        self.same += other.same;
        self.nll = (self.nll.0 + other.nll.0, self.nll.1 + other.nll.1);
    }

    /// How many cases.
    pub fn cases(&self) -> usize {
        self.rights.len()
    }

    /// How many were right.
    pub fn right(&self) -> f64 {
        self.rights.iter().sum()
    }

    fn share(&self, count: f64) -> f64 {
        count / self.cases().max(1) as f64
    }
}

/// The same cases with two caches, held against each other one by one. What makes a case hard for both cancels out: only cases
/// that one of them has right and the other has not make a difference, or its error.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Paired {
    /// The other cache.
    pub against: String,
    /// Cases that are right here and not there.
    pub gained: usize,
    /// Cases that are right there and not here.
    pub lost: usize,
    /// Share of right cases less the other's.
    pub difference: f64,
    /// Its standard error, from the differences of the cases; zero where no case differs, which is no proof that none would.
    pub difference_stderr: f64,
}

impl Paired {
    /// A score against another of the same cases.
    pub fn new(score: &Score, against: String, other: &Score) -> Self {
        let differences = || score.rights.iter().zip(&other.rights).map(|(a, b)| a - b);
        let mut mean = Mean::default();
        mean.extend(differences());
        Self {
            against,
            gained: differences().filter(|difference| *difference > 0.0).count(),
            lost: differences().filter(|difference| *difference < 0.0).count(),
            difference: score.share(score.right()) - other.share(other.right()),
            difference_stderr: mean.stderr(),
        }
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
    /// The same cases with another cache; none for that cache itself.
    #[serde(flatten)]
    pub paired: Option<Paired>,
    /// Share of the cases that came out as with the exact cache.
    pub same: f64,
    /// Mean nll at a token of the right answer, in nats, where there is one.
    #[serde(rename = "surprise")]
    pub nll: Option<f64>,
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
        (score, paired): (&Score, Option<Paired>),
        setting: Setting,
    ) -> Self {
        let right = score.share(score.right());
        let (nll, tokens) = score.nll;
        Self {
            task,
            spec,
            mode,
            context,
            cases: score.cases(),
            right,
            right_stderr: (right * (1.0 - right) / score.cases().max(1) as f64).max(0.0).sqrt(),
            paired,
            same: score.share(score.same as f64),
            nll: (tokens > 0).then(|| nll / tokens as f64),
            setting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(rights: &[f64]) -> Score {
        Score { rights: rights.to_vec(), ..Score::default() }
    }

    #[test]
    fn pairs_differ_by_what_one_has_and_the_other_has_not() {
        // 100 cases: 60 right with both, 25 with neither, 10 lost and 5 gained.
        let of = |both: f64, lost: f64, gained: f64| {
            let counts = [(60, both), (25, 0.0), (10, lost), (5, gained)];
            counts.iter().flat_map(|&(count, right)| vec![right; count]).collect::<Vec<f64>>()
        };
        let (here, there) = (score(&of(1.0, 0.0, 1.0)), score(&of(1.0, 1.0, 0.0)));
        let found = Paired::new(&here, "f16".to_owned(), &there);
        assert_eq!((found.gained, found.lost), (5, 10));
        assert!((found.difference + 0.05).abs() < 1e-12);
        // As McNemar has it: (b + c − (b − c)²/n) / n, over n − 1.
        let variance = (15.0 - 25.0 / 100.0) / 99.0;
        assert!((found.difference_stderr - (variance / 100.0f64).sqrt()).abs() < 1e-12);
        let back = Paired::new(&there, "x".to_owned(), &here);
        assert_eq!((back.gained, back.lost, back.difference), (10, 5, -found.difference));
        // Far below the error of a difference of two independent shares.
        assert!(found.difference_stderr < 0.6 * (2.0 * 0.65 * 0.35 / 100.0f64).sqrt());
    }

    #[test]
    fn a_cache_against_itself_differs_in_nothing() {
        let one = score(&[1.0, 0.0, 0.5]);
        let found = Paired::new(&one, "f16".to_owned(), &one);
        assert_eq!((found.gained, found.lost, found.difference, found.difference_stderr), (0, 0, 0.0, 0.0));
    }
}
