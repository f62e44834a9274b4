//! Weighted sums of rows, with one order of additions on every instruction set.

use kvant_simd::{Simd, Tier, Work, with_tier};
use std::array::from_fn;

/// Channels that are summed side by side.
const LANES: usize = 16;

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
        let (blocks, rest) = out.as_chunks_mut::<LANES>();
        let mut first = 0;
        for block in blocks {
            let mut sums = *block;
            for (j, &weight) in weights.iter().enumerate() {
                let Some(row) = rows[j * stride + first..].first_chunk::<LANES>() else { continue };
                sums = from_fn(|l| sums[l] + weight * row[l]);
            }
            *block = sums;
            first += LANES;
        }
        for (j, &weight) in weights.iter().enumerate() {
            rest.iter_mut().zip(&rows[j * stride + first..]).for_each(|(sum, x)| *sum += weight * x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_every_width_are_those_of_one_channel_after_another() {
        for (width, count) in [(1, 1), (15, 3), (16, 0), (17, 5), (50, 64)] {
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
