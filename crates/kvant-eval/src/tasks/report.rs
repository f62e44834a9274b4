//! What came of a task, for machines.

use super::random::Random;
use crate::mean::Mean;
use crate::report::Setting;
use serde::Serialize;

/// Draws behind an interval.
const RESAMPLES: usize = 2000;

/// Cases, one by one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Score {
    /// One for every case that was right, zero for the others; something between where a case can be partly right.
    pub rights: Vec<f64>,
    /// Those that came out as with the exact cache.
    pub same: usize,
    /// Sum of token_nlls, and how many tokens they are of.
    pub nll: (f64, usize),
    /// Answers of the form that was asked for, whatever they say, and how many answers have a form.
    pub valid: (usize, usize),
    /// Cases of every document, where several are about one; empty where each is its own.
    pub documents: Vec<usize>,
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
        self.valid = (self.valid.0 + other.valid.0, self.valid.1 + other.valid.1);
        self.documents.extend(&other.documents);
    }

    /// The same cases, all about one document.
    pub fn as_document(self) -> Self {
        Self { documents: vec![self.cases()], ..self }
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
    /// How probable it is that as many cases or more fall to one side if both caches are as good: McNemar's test, exact.
    pub p_value: f64,
    /// 95 % of the differences of resampled documents lie between these.
    pub difference_low: f64,
    /// The upper one.
    pub difference_high: f64,
}

impl Paired {
    /// A score against another of the same cases.
    pub fn new(score: &Score, against: String, other: &Score) -> Self {
        let differences = || score.rights.iter().zip(&other.rights).map(|(a, b)| a - b);
        let mut mean = Mean::default();
        mean.extend(differences());
        let gained = differences().filter(|difference| *difference > 0.0).count();
        let lost = differences().filter(|difference| *difference < 0.0).count();
        let (difference_low, difference_high) =
            interval(&differences().collect::<Vec<_>>(), &score.documents);
        Self {
            against,
            gained,
            lost,
            difference: score.share(score.right()) - other.share(other.right()),
            difference_stderr: mean.stderr(),
            p_value: mcnemar(gained, lost),
            difference_low,
            difference_high,
        }
    }
}

/// The probability of a split at least as uneven as this one, either way, of fair coins.
fn mcnemar(gained: usize, lost: usize) -> f64 {
    let coins = gained + lost;
    // ln of the binomial coefficients, each from the one before.
    let (mut ln, mut sum) = (-(coins as f64) * std::f64::consts::LN_2, 0.0);
    for few in 0..=gained.min(lost) {
        sum += ln.exp();
        ln += ((coins - few) as f64).ln() - ((few + 1) as f64).ln();
    }
    (2.0 * sum).min(1.0)
}

/// The middle 95 % of the means that documents drawn again and again, with replacement, would give. Questions about one document
/// stand or fall together, so whole documents are drawn.
fn interval(differences: &[f64], documents: &[usize]) -> (f64, f64) {
    let mut rest = differences;
    let mut sums: Vec<(f64, usize)> = Vec::new();
    for &cases in documents {
        let (document, others) = rest.split_at(cases.min(rest.len()));
        sums.push((document.iter().sum(), document.len()));
        rest = others;
    }
    sums.extend(rest.iter().map(|&difference| (difference, 1)));
    let mut random = Random::new(0);
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let drawn = (0..sums.len()).map(|_| sums[random.below(sums.len())]);
            let (sum, cases) = drawn.fold((0.0, 0), |(a, b), (sum, cases)| (a + sum, b + cases));
            sum / cases.max(1) as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    (means[RESAMPLES / 40], means[RESAMPLES - 1 - RESAMPLES / 40])
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
    /// Share of the answers that have the form asked for, where they have one.
    pub valid: Option<f64>,
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
        let ((nll, tokens), (valid, formed)) = (score.nll, score.valid);
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
            valid: (formed > 0).then(|| valid as f64 / formed as f64),
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
        assert_eq!((found.p_value, found.difference_low, found.difference_high), (1.0, 0.0, 0.0));
    }

    #[test]
    fn splits_are_as_probable_as_coins_make_them() {
        // 1 + 6 of 64 splits on either side.
        assert!((mcnemar(5, 1) - 14.0 / 64.0).abs() < 1e-12);
        assert_eq!(mcnemar(5, 1), mcnemar(1, 5));
        assert!((mcnemar(0, 10) - 2.0 / 1024.0).abs() < 1e-15);
        assert_eq!(mcnemar(3, 3), 1.0);
    }

    #[test]
    fn documents_are_drawn_whole() {
        // 400 cases, a tenth of them lost: about 1.96 standard errors on either side.
        let differences: Vec<f64> = (0..400).map(|i| if i < 40 { -1.0 } else { 0.0 }).collect();
        let (low, high) = interval(&differences, &[]);
        assert!((low + 0.1294).abs() < 0.006 && (high + 0.0706).abs() < 0.006, "{low} {high}");
        // The same losses in one document of ten: all or nothing of it is drawn, several times over.
        let (low, high) = interval(&differences, &[40; 10]);
        assert!(low < -0.25 && high == 0.0, "{low} {high}");
    }
}
