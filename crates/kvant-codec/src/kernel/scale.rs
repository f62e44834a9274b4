//! Choosing scales and zeros: from the extremes or the power of what shares them, rounded to how they are stored.

use crate::format::ScaleFormat;
use crate::quant::{Levels, Rule};
use kvant_simd::{LANES, Simd};

/// Over one channel of all tiles; lane sums in a fixed order, so that every tier gets the same bits.
///
/// # Safety
/// `tiles` columns, `stride` floats apart.
pub(super) unsafe fn root_mean_square(column: *const f32, stride: usize, tiles: usize) -> f32 {
    let mut squares = [0.0f32; LANES];
    for tile in 0..tiles {
        for (lane, sum) in squares.iter_mut().enumerate() {
            // SAFETY: the caller's columns.
            let x = unsafe { *column.add(stride * tile + lane) };
            *sum = x.mul_add(x, *sum);
        }
    }
    (squares.iter().sum::<f32>() / (tiles * LANES) as f32).sqrt()
}

/// Smallest and largest number of each lane (for some rules the root mean square instead of the largest), and Σ(x − x),
/// which is zero for finite numbers and NaN for others.
///
/// # Safety
/// `columns` holds `len` columns; the CPU has the tier.
#[inline(always)]
pub(super) unsafe fn extremes<S: Simd>(
    levels: &Levels,
    columns: *const f32,
    len: usize,
) -> (S::F, S::F, S::F) {
    /// Independent chains, so that the latency of one operation does not set the pace.
    const CHAINS: usize = 4;
    // SAFETY: c < len.
    unsafe {
        let first = S::load(columns);
        let whole = len / CHAINS * CHAINS;
        if levels.by_power() {
            let mut squares = [S::splat(0.0); CHAINS];
            for c in (0..whole).step_by(CHAINS) {
                for i in 0..CHAINS {
                    let x = S::load(columns.add(LANES * (c + i)));
                    squares[i] = S::fma(x, x, squares[i]);
                }
            }
            for c in whole..len {
                let x = S::load(columns.add(LANES * c));
                squares[0] = S::fma(x, x, squares[0]);
            }
            let sum = S::add(S::add(squares[0], squares[1]), S::add(squares[2], squares[3]));
            // A square is infinite or NaN if its root is, and so is their sum.
            return (first, S::sqrt(S::mul(sum, S::splat(1.0 / len as f32))), S::sub(sum, sum));
        }
        let (mut low, mut high) = ([first; CHAINS], [first; CHAINS]);
        let mut odd = [S::splat(0.0); CHAINS];
        for c in (0..whole).step_by(CHAINS) {
            for i in 0..CHAINS {
                let x = S::load(columns.add(LANES * (c + i)));
                (low[i], high[i]) = (S::min(low[i], x), S::max(high[i], x));
                odd[i] = S::add(odd[i], S::sub(x, x));
            }
        }
        for c in whole..len {
            let x = S::load(columns.add(LANES * c));
            odd[0] = S::add(odd[0], S::sub(x, x));
            (low[0], high[0]) = (S::min(low[0], x), S::max(high[0], x));
        }
        (
            S::min(S::min(low[0], low[1]), S::min(low[2], low[3])),
            S::max(S::max(high[0], high[1]), S::max(high[2], high[3])),
            S::add(S::add(odd[0], odd[1]), S::add(odd[2], odd[3])),
        )
    }
}

/// The rule's scale and zero per lane, as they will be stored, from the extremes (or the root mean square as `high`).
///
/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
pub(super) unsafe fn scale_of<S: Simd>(
    format: ScaleFormat,
    levels: &Levels,
    low: S::F,
    high: S::F,
) -> (S::F, S::F) {
    // SAFETY: the tier is available.
    unsafe {
        let zero = S::splat(0.0);
        let divisor = S::splat(levels.divisor());
        let (scale, base) = match levels.rule {
            Rule::Symmetric | Rule::NormalFloat => {
                let top = S::max(high, S::sub(zero, low));
                (round_lanes::<S>(format, S::div(top, divisor)), zero)
            }
            Rule::SignedMax | Rule::FittedMax => {
                let extreme = S::select_gt(S::sub(zero, low), high, low, high);
                (round_lanes::<S>(format, S::div(extreme, divisor)), zero)
            }
            // Not rounded: it is only there to make codes, of which the stored scale comes later.
            Rule::NonLinear => {
                let extreme = S::select_gt(S::sub(zero, low), high, low, high);
                (S::div(extreme, divisor), zero)
            }
            Rule::Asymmetric | Rule::FittedRange => {
                let base = outward::<S>(format, low, -1.0);
                (outward::<S>(format, S::div(S::sub(high, base), divisor), 1.0), base)
            }
            Rule::Bins => {
                let scale = round_lanes::<S>(format, S::div(S::sub(high, low), divisor));
                (scale, round_lanes::<S>(format, S::fma(scale, S::splat(0.5), low)))
            }
            Rule::LloydMax | Rule::Sketch => {
                (round_lanes::<S>(format, S::mul(high, S::splat(levels.unit))), zero)
            }
        };
        // Which of −0 and +0 is the larger depends on the machine; make both +0.
        (S::add(scale, zero), S::add(base, zero))
    }
}

/// The scale of least Σ x²·(x − s·level)² for the codes under `scale`, as it will be stored.
///
/// # Safety
/// `columns` holds `len` columns; the CPU has the tier.
#[inline(always)]
pub(super) unsafe fn refit<S: Simd>(
    format: ScaleFormat,
    levels: &Levels,
    columns: *const f32,
    len: usize,
    scale: S::F,
) -> S::F {
    let table = &levels.meaning.table()[..1 << levels.bits];
    // SAFETY: c < len.
    unsafe {
        let inverse = inverse_of::<S>(scale);
        let (mut along, mut power) = (S::splat(0.0), S::splat(0.0));
        for c in 0..len {
            // In units of the extreme, so that no power of it overflows.
            let x = S::mul(S::load(columns.add(LANES * c)), inverse);
            let mut level = S::splat(f32::from(table[0]));
            for (boundary, next) in levels.boundaries.iter().zip(&table[1..]) {
                level = S::select_gt(x, S::splat(*boundary), S::splat(f32::from(*next)), level);
            }
            let weighted = S::mul(S::mul(x, x), level);
            along = S::fma(weighted, x, along);
            power = S::fma(weighted, level, power);
        }
        // All zeros have no power, and any scale will do.
        let ratio = S::select_gt(power, S::splat(0.0), S::div(along, power), S::splat(1.0));
        round_lanes::<S>(format, S::mul(scale, ratio))
    }
}

/// 1/s; of a zero or subnormal scale it would be infinite, and such codes do not matter, so zero.
///
/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
pub(super) unsafe fn inverse_of<S: Simd>(scale: S::F) -> S::F {
    // SAFETY: the tier is available.
    unsafe {
        S::select_gt(S::abs(scale), S::splat(f32::MIN_POSITIVE), S::div(S::splat(1.0), scale), S::splat(0.0))
    }
}

/// Rounds to the format towards `direction`·∞, so that a range only grows.
///
/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
unsafe fn outward<S: Simd>(format: ScaleFormat, x: S::F, direction: f32) -> S::F {
    // SAFETY: the tier is available.
    unsafe {
        let near = round_lanes::<S>(format, x);
        // Half a binary16 step further, in the normal and in the subnormal range.
        let nudge = S::max(S::mul(S::abs(x), S::splat(1.0 / 2048.0)), S::splat(3.0e-8));
        let far = round_lanes::<S>(format, S::fma(nudge, S::splat(direction), x));
        if direction > 0.0 { S::select_gt(x, near, far, near) } else { S::select_gt(near, x, far, near) }
    }
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
pub(super) unsafe fn round_lanes<S: Simd>(format: ScaleFormat, x: S::F) -> S::F {
    if format == ScaleFormat::F32 {
        return x;
    }
    let mut halves = [0u16; LANES];
    // SAFETY: sixteen halves.
    unsafe {
        S::store_f16(halves.as_mut_ptr(), x);
        S::load_f16(halves.as_ptr())
    }
}
