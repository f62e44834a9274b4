//! Bits for channels: how many each group gets, so that the whole error is least.
//!
//! A channel of variance λ that gets b bits is off by λ·D(b) on average, with the same D for all. Groups of channels share a
//! width, so the sum over groups of (Σ λ)·D(b) is to be made least with a given number of bits. There are few groups and few
//! bits, so all allocations are compared, by dynamic programming, and none is better.

use crate::format::{PageSize, Side};
use std::sync::OnceLock;

/// Bits a code has on average where channels have widths of their own, in hundredths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Budget(u16);

impl Budget {
    /// For families whose codes all have one width.
    pub const NONE: Budget = Budget(0);
    /// The least there can be.
    pub const LEAST: Budget = Budget(100);
    /// The most there can be.
    pub const MOST: Budget = Budget(800);

    /// From hundredths of a bit.
    pub const fn hundredths(count: u16) -> Budget {
        Budget(count)
    }

    /// In bits.
    pub fn bits(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

/// The widths a channel may have.
pub const WIDTHS: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 8];

/// The mean squared error of a Gaussian of variance one, rounded to 2^b evenly spaced levels between the least and the largest of
/// `tokens` samples, for every entry of [`WIDTHS`].
///
/// The ends are taken at their expected value ±E max. One bit is *worse* than none: both of its levels lie at the ends, where
/// hardly any number is.
pub fn distortions(tokens: usize) -> [f64; 8] {
    /// By page size: the integrals take a while.
    static KNOWN: [OnceLock<[f64; 8]>; 3] = [const { OnceLock::new() }; 3];
    match [32, 64, 128].iter().position(|size| *size == tokens) {
        Some(place) => *KNOWN[place].get_or_init(|| integrals(tokens)),
        None => integrals(tokens),
    }
}

fn integrals(tokens: usize) -> [f64; 8] {
    let end = expected_largest(tokens);
    WIDTHS.map(|bits| {
        let step = 2.0 * end / f64::from((1u32 << bits) - 1);
        let squared_error = |x: f64| match bits {
            0 => x * x,
            // The ends of a page with such a number lie farther out, and it is rounded like any other.
            _ if x.abs() > end => step * step / 12.0,
            _ => (((x + end) / step).round() * step - end - x).powi(2),
        };
        integrate(|x| density(x) * squared_error(x))
    })
}

fn density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt()
}

/// Midpoint rule over ten standard deviations to both sides.
fn integrate(f: impl Fn(f64) -> f64) -> f64 {
    const STEPS: usize = 200_000;
    let width = 20.0 / STEPS as f64;
    (0..STEPS).map(|i| f((i as f64 + 0.5) * width - 10.0)).sum::<f64>() * width
}

/// E[max of n Gaussians] = ∫ x d(Φⁿ), by parts ∫ (1 − Φⁿ) over the positive numbers − ∫ Φⁿ over the negative ones.
fn expected_largest(tokens: usize) -> f64 {
    let n = i32::try_from(tokens.max(1)).unwrap_or(i32::MAX);
    let mut below = 0.0; // Φ up to x
    let (mut mean, width) = (0.0, 1e-4);
    for i in -100_000..100_000 {
        let x = (f64::from(i) + 0.5) * width;
        below += density(x) * width;
        let all = below.min(1.0).powi(n);
        mean += if x < 0.0 { -all * width } else { (1.0 - all) * width };
    }
    mean
}

/// Why bits cannot be shared out.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocationError {
    /// Variances that are none.
    #[error("variances must be finite, not negative and not increasing, and there must be some")]
    Variances,
    /// A number of bits that no allocation reaches.
    #[error("{bits} bits a channel cannot be allocated: from 1 to 8 are possible")]
    Bits {
        /// Asked for.
        bits: f64,
    },
}

/// Widths for a codec of that side whose channels have these variances, largest first: one for every row of units (8 channels of
/// a key, 16 of a value), with not more bits on average than the budget.
///
/// # Errors
/// When the variances are none, or the budget cannot be had.
pub fn widths(
    variances: &[f32],
    side: Side,
    budget: Budget,
    page: PageSize,
) -> Result<Vec<u8>, AllocationError> {
    let sum = |group: &[f32]| group.iter().map(|x| f64::from(*x)).sum();
    let sums: Vec<f64> = variances.chunks(side.row()).map(sum).collect();
    allocate(&sums, budget.bits(), &distortions(page.tokens()))
}

/// Widths of groups whose variances sum up to `variances`, not increasing: not more than `bits` per group on average, and of all
/// such the least error. The first group has at least one bit.
///
/// # Errors
/// When that many bits cannot be had, or the variances are not positive, finite and in order.
pub fn allocate(variances: &[f64], bits: f64, distortions: &[f64; 8]) -> Result<Vec<u8>, AllocationError> {
    let is_ordered =
        variances.is_sorted_by(|a, b| a >= b) && variances.last().is_some_and(|last| *last >= 0.0);
    if !is_ordered || !variances[0].is_finite() {
        return Err(AllocationError::Variances);
    }
    let budget = (bits * variances.len() as f64 + 1e-9).floor();
    if !(1.0..=8.0).contains(&bits) {
        return Err(AllocationError::Bits { bits });
    }
    let budget = budget as usize;
    // least[b]: the least error of the groups so far with at most b bits; choice[g][b]: the width of group g in it.
    let mut least = vec![0.0; budget + 1];
    let mut choices = Vec::with_capacity(variances.len());
    for (group, &variance) in variances.iter().enumerate() {
        let mut next = vec![f64::INFINITY; budget + 1];
        let mut choice = vec![0; budget + 1];
        for (have, (next, choice)) in next.iter_mut().zip(&mut choice).enumerate() {
            for (&width, distortion) in WIDTHS.iter().zip(distortions) {
                let cost = usize::from(width);
                if cost > have || (group == 0 && width == 0) {
                    continue;
                }
                let error = least[have - cost] + variance * distortion;
                if error < *next {
                    (*next, *choice) = (error, width);
                }
            }
        }
        least = next;
        choices.push(choice);
    }
    let mut left = budget;
    let mut widths: Vec<u8> = Vec::with_capacity(variances.len());
    for choice in choices.iter().rev() {
        widths.push(choice[left]);
        left -= usize::from(choice[left]);
    }
    // Larger variances get the more bits in some best allocation; groups of equal variance may come out of order.
    widths.sort_unstable_by(|a, b| b.cmp(a));
    Ok(widths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn error(variances: &[f64], widths: &[u8], distortions: &[f64; 8]) -> f64 {
        let of = |width: &u8| distortions[WIDTHS.iter().position(|w| w == width).unwrap()];
        variances.iter().zip(widths).map(|(variance, width)| variance * of(width)).sum()
    }

    /// All allocations there are.
    fn least(variances: &[f64], budget: usize, distortions: &[f64; 8]) -> f64 {
        let groups = variances.len();
        let mut least = f64::INFINITY;
        for n in 0..8usize.pow(groups as u32) {
            let widths: Vec<u8> = (0..groups).map(|g| WIDTHS[n / 8usize.pow(g as u32) % 8]).collect();
            if widths[0] > 0 && widths.iter().map(|w| usize::from(*w)).sum::<usize>() <= budget {
                least = least.min(error(variances, &widths, distortions));
            }
        }
        least
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn no_allocation_is_better(mut variances in prop::collection::vec(0.001f64..100.0, 1..5), bits in 1.0f64..8.0) {
            variances.sort_by(|a, b| b.total_cmp(a));
            let table = [1.0, 3.6, 0.25, 0.046, 0.01, 0.0023, 0.00057, 0.000035];
            let widths = allocate(&variances, bits, &table).unwrap();
            let budget = (bits * variances.len() as f64).floor() as usize;
            prop_assert!(widths.iter().map(|w| usize::from(*w)).sum::<usize>() <= budget);
            prop_assert!(widths.is_sorted_by(|a, b| a >= b) && widths[0] > 0);
            let found = error(&variances, &widths, &table);
            prop_assert!(found <= least(&variances, budget, &table) * (1.0 + 1e-12));
        }
    }

    #[test]
    fn distortions_are_those_of_samples() {
        // A linear congruential stream through the sum of twelve, which is nearly Gaussian, in pages of 64.
        let mut state = 1u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let table = distortions(64);
        let (pages, tokens) = (600, 64);
        let mut sums = [0.0; 8];
        for _ in 0..pages {
            let page: Vec<f64> = (0..tokens).map(|_| (0..12).map(|_| uniform()).sum::<f64>() - 6.0).collect();
            let low = page.iter().copied().fold(f64::INFINITY, f64::min);
            let high = page.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            for (sum, bits) in sums.iter_mut().zip(WIDTHS) {
                let step = (high - low) / f64::from((1u32 << bits) - 1);
                let rounded = |x: f64| if bits == 0 { 0.0 } else { ((x - low) / step).round() * step + low };
                *sum += page.iter().map(|x| (x - rounded(*x)).powi(2)).sum::<f64>();
            }
        }
        for ((sum, expected), bits) in sums.iter().zip(table).zip(WIDTHS) {
            let found = sum / (pages * tokens) as f64;
            assert!((found / expected - 1.0).abs() < 0.15, "{bits} bits: {found} found, {expected} expected");
        }
        assert!(table[1] > table[0] && table[1..].is_sorted_by(|a, b| a > b));
    }

    #[test]
    fn widths_are_for_groups_of_channels_within_the_budget() {
        let variances: Vec<f32> = (0..64).map(|c| 0.9f32.powi(c)).collect();
        let of = |side, hundredths| widths(&variances, side, Budget::hundredths(hundredths), PageSize::P128);
        let total = |widths: &[u8]| widths.iter().map(|width| u32::from(*width)).sum::<u32>();
        let (key, value) = (of(Side::Key, 425).unwrap(), of(Side::Value, 425).unwrap());
        assert_eq!((key.len(), total(&key)), (8, 34));
        assert_eq!((value.len(), total(&value)), (4, 17));
        assert!(of(Side::Key, 99).is_err() && widths(&[], Side::Key, Budget::MOST, PageSize::P64).is_err());
    }

    #[test]
    fn what_cannot_be_allocated_is_refused() {
        let table = distortions(64);
        assert!(allocate(&[1.0, 2.0], 4.0, &table).is_err(), "out of order");
        assert!(allocate(&[f64::NAN], 4.0, &table).is_err() && allocate(&[], 4.0, &table).is_err());
        assert_eq!(allocate(&[1.0], 0.5, &table), Err(AllocationError::Bits { bits: 0.5 }));
        assert_eq!(allocate(&[1.0, 1.0], 8.0, &table).unwrap(), [8, 8]);
    }
}
