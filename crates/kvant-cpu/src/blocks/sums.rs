//! Weighted sums of rows, with one order of additions on every instruction set.

use kvant_simd::{LANES, Simd, Tier, Work, with_tier};
use std::array::from_fn;

/// Vectors of channels that are summed side by side: as many additions as the unit has under way at a time.
const WIDE: usize = 4;

/// `out[c] += Σ_j weights[j] · rows[j · stride + c]`: the products of a channel are added in the order of j.
pub fn add_rows(out: &mut [f32], weights: &[f32], rows: &[f32], stride: usize) {
    let Some(last) = weights.len().checked_sub(1) else { return };
    assert!(last * stride + out.len() <= rows.len(), "{} rows are too few", rows.len() / stride.max(1));
    // Where the tier cannot be had no model is loaded, and any gives the same bits.
    let tier = Tier::select().unwrap_or(Tier::Scalar);
    // SAFETY: `with_tier!` takes no tier that this CPU does not have.
    with_tier!(tier, S => unsafe { S::call(Sum { out, weights, rows, stride }) });
}

struct Sum<'a> {
    out: &'a mut [f32],
    weights: &'a [f32],
    rows: &'a [f32],
    stride: usize,
}

impl<S: Simd> Work<S> for Sum<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { out, weights, rows, stride } = self;
        let mut first = 0;
        // SAFETY: the CPU has the tier, and the caller has checked that every row has as many channels as `out`.
        unsafe {
            while first + WIDE * LANES <= out.len() {
                block::<S, WIDE>(out, weights, rows, stride, first);
                first += WIDE * LANES;
            }
            while first + LANES <= out.len() {
                block::<S, 1>(out, weights, rows, stride, first);
                first += LANES;
            }
        }
        if first == out.len() {
            return;
        }
        for (j, &weight) in weights.iter().enumerate() {
            out[first..].iter_mut().zip(&rows[j * stride + first..]).for_each(|(sum, x)| *sum += weight * x);
        }
    }
}

/// The sums of `VECTORS` · 16 channels from `first` on. Not fused: a fused product rounds otherwise than a plain one.
///
/// # Safety
/// The CPU has the tier; `out` and every row that has a weight reach beyond these channels.
#[inline(always)]
unsafe fn block<S: Simd, const VECTORS: usize>(
    out: &mut [f32],
    weights: &[f32],
    rows: &[f32],
    stride: usize,
    first: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let to = out.as_mut_ptr().add(first);
        let from = rows.as_ptr().add(first);
        let mut sums: [S::F; VECTORS] = from_fn(|v| S::load(to.add(v * LANES)));
        for (j, &weight) in weights.iter().enumerate() {
            let (row, weight) = (from.add(j * stride), S::splat(weight));
            sums = from_fn(|v| S::add(sums[v], S::mul(weight, S::load(row.add(v * LANES)))));
        }
        for (v, sum) in sums.into_iter().enumerate() {
            S::store(to.add(v * LANES), sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_every_width_are_those_of_one_channel_after_another() {
        for (width, count) in [(1, 1), (15, 3), (16, 0), (17, 5), (50, 64), (64, 9), (150, 7)] {
            let value = |i: usize| (i as f32 * 1.37).sin();
            let stride = width + 3;
            let rows: Vec<f32> = (0..count * stride + width).map(value).collect();
            let weights: Vec<f32> = (0..count).map(|j| value(j + 99)).collect();
            let start: Vec<f32> = (0..width).map(|c| value(c + 7)).collect();
            let mut out = start.clone();
            add_rows(&mut out, &weights, &rows, stride);
            for c in 0..width {
                let sum = (0..count).fold(start[c], |sum, j| sum + weights[j] * rows[j * stride + c]);
                assert_eq!(out[c].to_bits(), sum.to_bits(), "{width} {count}");
            }
        }
    }
}
