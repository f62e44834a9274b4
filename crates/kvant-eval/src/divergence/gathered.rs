//! What all positions together say about a cache.

use super::compare::Comparison;
use crate::estimate::Estimate;
use crate::kept::WindowResult;
use crate::mean::Mean;
use kvant_cache::Footprint;

/// Positions of the first band of [`Divergence::kl_by_position`].
const FIRST_BAND: usize = 1024;

/// How far a cache moves a model's predictions, over all positions scored so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Divergence {
    /// In the order they came; a few numbers per token, where logits are a hundred thousand.
    kl: Vec<f64>,
    kl_mean: Mean,
    agreeing: usize,
    reference: Estimate,
    estimate: Estimate,
    /// NLL less the reference's, token by token.
    excess: Mean,
    bits_per_value: Option<f64>,
    bits_total: f64,
    kv_bytes: usize,
}

impl Divergence {
    /// Takes in a whole window.
    pub(super) fn take_window(&mut self, window: &WindowResult) {
        self.take(&window.comparisons);
        self.set_footprint(&window.footprint);
    }

    pub(super) fn take(&mut self, comparisons: &[Comparison]) {
        for comparison in comparisons {
            self.kl.push(comparison.kl);
            self.kl_mean.push(comparison.kl);
            self.agreeing += usize::from(comparison.agrees);
            self.reference.push(comparison.reference_nll);
            self.estimate.push(comparison.nll);
            self.excess.push(comparison.nll - comparison.reference_nll);
        }
    }

    /// What the cache took at the end of a window. Windows are of one length, so all end the same.
    fn set_footprint(&mut self, footprint: &Footprint) {
        self.bits_per_value = (footprint.encoded > 0).then_some(footprint.bits_per_value);
        self.bits_total = footprint.bits_total;
        self.kv_bytes = footprint.stored;
    }

    /// Positions compared.
    pub fn tokens(&self) -> usize {
        self.kl.len()
    }

    /// Mean KL divergence in nats, with its standard error.
    pub fn kl(&self) -> (f64, f64) {
        (self.kl_mean.mean(), self.kl_mean.stderr())
    }

    /// The KL divergence that a share `quantile` of the positions do not exceed; zero where there are none.
    pub fn kl_quantile(&self, quantile: f64) -> f64 {
        let mut sorted = self.kl.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let rank = (quantile * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
    }

    /// Mean KL divergence by position in windows that compare `per_window` positions, the first being number `first`: for every
    /// band, each twice as long as the one before, the position it ends before.
    pub fn kl_by_position(&self, first: usize, per_window: usize) -> Vec<(usize, f64)> {
        let mut bands = Vec::new();
        let (mut begin, mut end) = (first, FIRST_BAND);
        while begin < first + per_window {
            if end <= begin {
                end *= 2;
                continue;
            }
            let within = begin - first..per_window.min(end - first);
            let mut mean = Mean::default();
            for window in self.kl.chunks_exact(per_window) {
                window[within.clone()].iter().for_each(|kl| mean.push(*kl));
            }
            bands.push((first + within.end, mean.mean()));
            begin = end;
        }
        bands
    }

    /// The share of positions where both find the same token most likely.
    pub fn top1(&self) -> f64 {
        self.agreeing as f64 / self.tokens().max(1) as f64
    }

    /// NLL with the exact cache.
    pub fn reference(&self) -> &Estimate {
        &self.reference
    }

    /// NLL with the cache in question.
    pub fn estimate(&self) -> &Estimate {
        &self.estimate
    }

    /// By how many percent perplexity grows, with the standard error. It is that of the paired difference: both
    /// caches meet the same tokens, and what makes these hard or easy cancels out.
    pub fn ppl_growth_percent(&self) -> (f64, f64) {
        let ratio = self.excess.mean().exp();
        (100.0 * (ratio - 1.0), 100.0 * ratio * self.excess.stderr())
    }

    /// Bits per value of encoded pages, with all their scales; none while a window is too short for a page.
    pub fn bits_per_value(&self) -> Option<f64> {
        self.bits_per_value
    }

    /// Bits per value over all that is held at the end of a window, sinks and tail included.
    pub fn bits_total(&self) -> f64 {
        self.bits_total
    }

    /// Bytes of keys and values at the end of a window.
    pub fn kv_bytes(&self) -> usize {
        self.kv_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kl: impl Iterator<Item = f64>) -> Divergence {
        let mut found = Divergence::default();
        let all: Vec<Comparison> = kl.map(|kl| Comparison { kl, ..Comparison::default() }).collect();
        found.take(&all);
        found
    }

    #[test]
    fn quantiles_are_values_that_came() {
        let found = of((1..=2000).rev().map(f64::from));
        assert_eq!(
            (found.kl_quantile(0.999), found.kl_quantile(0.5), found.kl_quantile(1.0)),
            (1998.0, 1000.0, 2000.0)
        );
        assert_eq!(of([3.0].into_iter()).kl_quantile(0.999), 3.0);
        assert_eq!(Divergence::default().kl_quantile(0.999), 0.0);
    }

    #[test]
    fn bands_are_by_position_over_all_windows() {
        // Two windows whose positions 1 to 2999 have their own number, and twice as much.
        let found = of((1..3000).chain((1..3000).map(|n| 2 * n)).map(f64::from));
        let mean =
            |range: std::ops::Range<usize>| 1.5 * range.clone().sum::<usize>() as f64 / range.len() as f64;
        let bands = found.kl_by_position(1, 2999);
        let want = [(1024, mean(1..1024)), (2048, mean(1024..2048)), (3000, mean(2048..3000))];
        assert_eq!(bands.len(), want.len());
        for (band, want) in bands.iter().zip(want) {
            assert!(band.0 == want.0 && (band.1 / want.1 - 1.0).abs() < 1e-12, "{band:?}, {want:?}");
        }
        let later = of((0..1000).map(f64::from)).kl_by_position(2048, 1000);
        assert_eq!(later, [(3048, 499.5)]);
        assert!(Divergence::default().kl_by_position(0, 0).is_empty());
    }

    #[test]
    fn the_error_of_a_difference_is_that_of_pairs() {
        let mut found = Divergence::default();
        // Hard and easy tokens in turn, and a cache that adds 0.01 to each.
        let pair = |i: usize| {
            let nll = if i.is_multiple_of(2) { 1.0 } else { 9.0 };
            Comparison { reference_nll: nll, nll: nll + 0.01, ..Comparison::default() }
        };
        found.take(&(0..100).map(pair).collect::<Vec<_>>());
        let (growth, error) = found.ppl_growth_percent();
        assert!((growth - 100.0 * (0.01f64.exp() - 1.0)).abs() < 1e-9 && error < 1e-9, "{growth} {error}");
        assert!(found.estimate().nll_stderr() > 0.3);
        assert!((found.estimate().ppl() / found.reference().ppl() - 0.01f64.exp()).abs() < 1e-9);
    }
}
