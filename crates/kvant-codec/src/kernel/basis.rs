//! Into the codec's basis and back: once per step, sixteen heads at a time.

use super::operand::PreparedSpan;
use super::round::{Folded, ONES, Rounded, fold};
use super::{Accumulator, Query};
use crate::format::{MAX_DIM, PackedFormat};
use crate::scratch::Scratch;
use crate::transform::Basis;
use kvant_simd::{LANES, Simd};

/// Moves queries, (heads, dim), into the basis; rounds them to bytes where no page scale is waiting to be folded in.
///
/// # Safety
/// `queries` holds a whole number of heads, `basis` is the format's; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn prepare<S: Simd>(
    format: &PackedFormat,
    basis: &Basis,
    owner: u64,
    queries: &[f32],
    query: &mut Query,
) {
    let dim = format.dim;
    let spans = format.spans.len();
    query.reset(owner, queries.len() / dim, dim, spans);
    for head in 0..query.heads {
        let q = &queries[head * dim..(head + 1) * dim];
        query.bias[head] = basis.mean().iter().zip(q).map(|(m, q)| m * q).sum();
    }
    if basis.is_plain() {
        for head in 0..query.heads {
            query.floats_mut(head)[..dim].copy_from_slice(&queries[head * dim..(head + 1) * dim]);
        }
    } else {
        let mut buffer = Scratch::take(2 * LANES * dim);
        let (columns, scratch) = buffer.floats().split_at_mut(LANES * dim);
        for first in (0..query.heads).step_by(LANES) {
            let heads = LANES.min(query.heads - first);
            columns.fill(0.0);
            for lane in 0..heads {
                for c in 0..dim {
                    columns[LANES * c + lane] = queries[(first + lane) * dim + c];
                }
            }
            // SAFETY: both buffers have `dim` columns.
            unsafe { basis.query::<S>(columns.as_mut_ptr(), scratch.as_mut_ptr()) };
            for lane in 0..heads {
                for (c, x) in query.floats_mut(first + lane)[..dim].iter_mut().enumerate() {
                    *x = columns[LANES * c + lane];
                }
            }
        }
    }
    if format.channel_scale.is_some() {
        return;
    }
    for head in 0..query.heads {
        for (index, span) in format.spans.iter().enumerate() {
            let len = span.len.next_multiple_of(LANES);
            // Zeros after the span, or the next one would have a say in its step.
            let mut part = [0.0f32; MAX_DIM + LANES];
            part[..span.len].copy_from_slice(&query.floats_mut(head)[span.first..span.first + span.len]);
            let (bytes, plane) = (query.bytes_mut(head, span.first), query.plane());
            // SAFETY: a head's bytes have room for a whole vector past any span; the next span overwrites the surplus.
            let rounded = unsafe {
                let (bits, part) = (u32::from(span.bits), part.as_ptr());
                let Folded { steps, sums } = fold::<S, 1>(|_| part, ONES.as_ptr(), len, bits, bytes, plane);
                Rounded { step: steps[0], sum: S::reduce_add(sums[0]) }
            };
            let exact_sum = part[..len + LANES].iter().sum();
            query.spans[head * spans + index] = PreparedSpan { rounded, exact_sum };
        }
    }
}

/// Moves sums back to the model's basis, (heads, dim), and adds the mean's share.
///
/// # Safety
/// `out` is valid for heads · dim floats; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn finish<S: Simd>(basis: &Basis, sums: &Accumulator, out: *mut f32) {
    let dim = basis.dim();
    let mut buffer = Scratch::take(2 * LANES * dim);
    let (columns, scratch) = buffer.floats().split_at_mut(LANES * dim);
    for first in (0..sums.heads).step_by(LANES) {
        let heads = LANES.min(sums.heads - first);
        columns.fill(0.0);
        for lane in 0..heads {
            for c in 0..dim {
                columns[LANES * c + lane] = sums.sums[(first + lane) * sums.stride + c];
            }
        }
        // SAFETY: both buffers have `dim` columns.
        unsafe { basis.inverse::<S>(columns.as_mut_ptr(), scratch.as_mut_ptr()) };
        for lane in 0..heads {
            let denominator = sums.denominator[first + lane];
            for c in 0..dim {
                let mean = basis.mean().get(c).map_or(0.0, |mean| mean * denominator);
                // SAFETY: the caller's buffer has heads · dim floats.
                unsafe { *out.add((first + lane) * dim + c) = columns[LANES * c + lane] + mean };
            }
        }
    }
}
