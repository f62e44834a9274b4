//! Into the codec's basis and back: once per step, sixteen heads at a time.

use super::MAX_DIM;
use super::round::{Rounded, planes, round_bytes, step};
use super::scratch::Scratch;
use crate::codec::scalar::ScalarCodec;
use crate::codec::{Accumulator, PreparedSpan, Query};
use crate::transform::Basis;
use kvant_simd::{LANES, Simd};

/// Moves queries, (heads, dim), into the basis; rounds them to bytes where no page scale is waiting to be folded in.
///
/// # Safety
/// `queries` holds a whole number of heads; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn prepare<S: Simd>(codec: &ScalarCodec, queries: &[f32], query: &mut Query) {
    let dim = codec.layout.dim;
    let spans = codec.layout.spans.len();
    query.reset(codec.id, queries.len() / dim, dim, spans);
    for head in 0..query.heads {
        let q = &queries[head * dim..(head + 1) * dim];
        query.bias[head] = codec.basis.mean().iter().zip(q).map(|(m, q)| m * q).sum();
    }
    if codec.basis.is_plain() {
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
            unsafe { codec.basis.query::<S>(columns.as_mut_ptr(), scratch.as_mut_ptr()) };
            for lane in 0..heads {
                for (c, x) in query.floats_mut(first + lane)[..dim].iter_mut().enumerate() {
                    *x = columns[LANES * c + lane];
                }
            }
        }
    }
    if codec.layout.channel_scale.is_some() {
        return;
    }
    for head in 0..query.heads {
        for (index, span) in codec.layout.spans.iter().enumerate() {
            let mut part = [0.0f32; MAX_DIM + LANES];
            part[..span.len].copy_from_slice(&query.floats_mut(head)[span.first..span.first + span.len]);
            let top = part.iter().fold(0.0f32, |top, x| top.max(x.abs()));
            let len = span.len.next_multiple_of(LANES);
            let (bytes, plane) = (query.bytes_mut(head, span.first), query.plane());
            // SAFETY: a head's bytes have room for a whole vector past any span; the next span overwrites the surplus.
            let rounded = unsafe {
                let planes = planes(u32::from(span.bits));
                let (step, inverse) = step(top, planes);
                let sum = match planes {
                    1 => round_bytes::<S, 1>(part.as_ptr(), len, inverse, bytes, plane),
                    _ => round_bytes::<S, 2>(part.as_ptr(), len, inverse, bytes, plane),
                };
                Rounded { step, sum: S::reduce_add(sum) }
            };
            query.spans[head * spans + index] = PreparedSpan { rounded, exact_sum: part.iter().sum() };
        }
    }
}

/// Moves sums back to the model's basis, (heads, dim), and adds the mean's share.
///
/// # Safety
/// `out` is valid for heads · dim floats; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn finish<S: Simd>(codec: &ScalarCodec, sums: &Accumulator, out: *mut f32) {
    let dim = codec.layout.dim;
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
        unsafe { codec.basis.inverse::<S>(columns.as_mut_ptr(), scratch.as_mut_ptr()) };
        for lane in 0..heads {
            let mass = sums.mass[first + lane];
            for c in 0..dim {
                let mean = codec.basis.mean().get(c).map_or(0.0, |mean| mean * mass);
                // SAFETY: the caller's buffer has heads · dim floats.
                unsafe { *out.add((first + lane) * dim + c) = columns[LANES * c + lane] + mean };
            }
        }
    }
}

/// Moves `count` vectors into the basis, in place.
///
/// # Safety
/// `rows` is valid for count · dim floats; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn apply<S: Simd>(basis: &Basis, rows: *mut f32, count: usize) {
    let dim = basis.dim();
    let mut buffer = Scratch::take(2 * LANES * dim);
    let (columns, scratch) = buffer.floats().split_at_mut(LANES * dim);
    for first in (0..count).step_by(LANES) {
        let lanes = LANES.min(count - first);
        // SAFETY: rows first .. first + lanes are within the vectors; both buffers have `dim` columns.
        unsafe {
            let rows = rows.add(first * dim);
            for c in (0..dim).step_by(LANES) {
                if lanes == LANES && c + LANES <= dim {
                    let block = S::transpose(rows.add(c), dim);
                    for i in 0..LANES {
                        S::store(columns.as_mut_ptr().add(LANES * (c + i)), block[i]);
                    }
                } else {
                    for c in c..dim.min(c + LANES) {
                        for lane in 0..LANES {
                            columns[LANES * c + lane] =
                                if lane < lanes { *rows.add(lane * dim + c) } else { 0.0 };
                        }
                    }
                }
            }
            basis.forward::<S>(columns.as_mut_ptr(), scratch.as_mut_ptr());
            for c in (0..dim).step_by(LANES) {
                if lanes == LANES && c + LANES <= dim {
                    let block = S::transpose(columns.as_ptr().add(LANES * c), LANES);
                    for i in 0..LANES {
                        S::store(rows.add(i * dim + c), block[i]);
                    }
                } else {
                    for c in c..dim.min(c + LANES) {
                        for lane in 0..lanes {
                            *rows.add(lane * dim + c) = columns[LANES * c + lane];
                        }
                    }
                }
            }
        }
    }
}
