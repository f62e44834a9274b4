//! q·k for every token of a page of keys, from its codes.
//!
//! A quad's levels meet four bytes of each query in the lanes of sixteen runs, one vector for each of a run's eight tokens;
//! nothing is transposed, and sums of quads with one leak stay integers. What a leak carries on is carried on in the scores:
//! sₜ = ρ·sₜ₋₁ + q·eₜ, along the eight vectors first, then from lane to lane by ρ⁸.

use super::window::{levels, run};
use crate::format::{
    MAX_DIM, QUAD, Quad, RUN, TRELLIS_TOKENS, TrellisFormat, TrellisTable, first_steps, scale,
};
use crate::kernel::{Pages, Query};
use kvant_simd::{LANES, Simd};
use std::mem::MaybeUninit;

/// Queries that share one look at the page.
const BLOCK: usize = 16;

/// The integers that a query is rounded to go from −127 to 127.
const LIMIT: f32 = 127.0;

/// What a page says of its channels, as floats, zeros after the last.
struct Channels {
    /// Scale times the unit of the width; zero where there are no codes.
    scales: [f32; MAX_DIM + LANES],
    zeros: [f32; MAX_DIM + LANES],
}

/// A block of queries, folded with the page's scales.
struct Block {
    bytes: [[MaybeUninit<i8>; MAX_DIM + LANES]; BLOCK],
    /// One unit of the bytes.
    step: [f32; BLOCK],
    /// What every token's score has besides: zeros and the mean.
    base: [f32; BLOCK],
    /// Sums over the quads of a leak: (heads, 8, 16).
    sums: [[[i32; LANES]; RUN]; BLOCK],
    /// Scores in units: (heads, 8, 16), and as much again that a transposition reads.
    scores: [[[f32; LANES]; 2 * RUN]; BLOCK],
}

/// Scores of all heads of the query, (heads, tokens).
///
/// # Safety
/// `pages.page` is a page of the format, `out` is valid for heads · tokens floats, the query was prepared for this format;
/// the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn scores<S: Simd>(format: &TrellisFormat, query: &Query, pages: Pages, out: *mut f32) {
    let mut quads = [Quad { bits: 0, leak: 0, codes: 0 }; MAX_DIM / QUAD];
    // SAFETY: the caller's contract.
    let page = unsafe { std::slice::from_raw_parts(pages.page, format.bytes()) };
    let count = format.padded() / QUAD;
    quads.iter_mut().zip(format.quads(page)).for_each(|(place, quad)| *place = quad);
    let (quads, channels) = (&quads[..count], channels(format, page, &quads[..count]));
    let mut block = Block {
        bytes: [[MaybeUninit::uninit(); MAX_DIM + LANES]; BLOCK],
        step: [0.0; BLOCK],
        base: [0.0; BLOCK],
        sums: [[[0; LANES]; RUN]; BLOCK],
        scores: [[[0.0; LANES]; 2 * RUN]; BLOCK],
    };
    for first in (0..query.heads()).step_by(BLOCK) {
        let heads = BLOCK.min(query.heads() - first);
        // SAFETY: the caller's contract.
        unsafe {
            for h in 0..heads {
                fold::<S>(format.dim, query, first + h, &channels, &mut block, h);
            }
            let mut fresh = true;
            let mut leaks =
                quads.iter().filter(|quad| quad.bits > 0).fold(0u16, |all, quad| all | 1 << (quad.leak / 16));
            while leaks > 0 {
                let leak = 16 * leaks.trailing_zeros() as u8;
                leaks &= leaks - 1;
                for sums in &mut block.sums[..heads] {
                    *sums = [[0; LANES]; RUN];
                }
                for (q, quad) in quads.iter().enumerate().filter(|(_, quad)| quad.leak == leak) {
                    multiply::<S>(quad, q, pages, &mut block, heads);
                }
                carry::<S>(leak, quads, &mut block, heads, fresh);
                fresh = false;
            }
            for h in 0..heads {
                if fresh {
                    block.scores[h] = [[0.0; LANES]; 2 * RUN];
                }
                put::<S>(&block, h, out.add((first + h) * TRELLIS_TOKENS));
            }
        }
    }
}

/// Scales and zeros of a page.
fn channels(format: &TrellisFormat, page: &[u8], quads: &[Quad]) -> Channels {
    let mut channels = Channels { scales: [0.0; MAX_DIM + LANES], zeros: [0.0; MAX_DIM + LANES] };
    let (scales, zeros) = (format.scales(), format.scales() + format.padded());
    for c in 0..format.dim {
        let scale = scale(page[scales + c]);
        let unit = TrellisTable::of(quads[c / QUAD].bits).map_or(0.0, |table| table.unit);
        channels.scales[c] = scale * unit;
        channels.zeros[c] = 0.5 * f32::from(page[zeros + c] as i8) * scale;
    }
    channels
}

/// Rounds one query, times the page's scales, to bytes.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn fold<S: Simd>(
    dim: usize,
    query: &Query,
    head: usize,
    channels: &Channels,
    block: &mut Block,
    place: usize,
) {
    let q = query.padded(head).as_ptr();
    let end = dim.next_multiple_of(LANES);
    // SAFETY: a head's floats, the channels and the bytes have room for whole vectors.
    unsafe {
        let (mut top, mut zeros) = (S::splat(0.0), S::splat(0.0));
        for c in (0..end).step_by(LANES) {
            let q = S::load(q.add(c));
            top = S::max_abs(top, S::mul(q, S::load(channels.scales.as_ptr().add(c))));
            zeros = S::fma(q, S::load(channels.zeros.as_ptr().add(c)), zeros);
        }
        let top = S::reduce_max(top);
        // What is too small for a reciprocal is rounded to zero as a whole.
        let inverse = if top > 1e-30 { LIMIT / top } else { 0.0 };
        block.step[place] = top / LIMIT;
        block.base[place] = S::reduce_add(zeros) + query.parts()[0].floats(head)[0];
        let bytes = block.bytes[place].as_mut_ptr().cast::<u8>();
        for c in (0..end).step_by(LANES) {
            let p = S::mul(S::load(q.add(c)), S::load(channels.scales.as_ptr().add(c)));
            S::store_low_bytes(bytes.add(c), S::round(S::mul(p, S::splat(inverse))));
        }
    }
}

/// Adds a quad's products with all heads of a block.
///
/// # Safety
/// As [`scores`]; the heads were folded.
#[inline(always)]
unsafe fn multiply<S: Simd>(quad: &Quad, q: usize, pages: Pages, block: &mut Block, heads: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        match quad.bits {
            0 => {}
            1 => multiply_bits::<S, 1>(quad, q, pages, block, heads),
            2 => multiply_bits::<S, 2>(quad, q, pages, block, heads),
            3 => multiply_bits::<S, 3>(quad, q, pages, block, heads),
            4 => multiply_bits::<S, 4>(quad, q, pages, block, heads),
            5 => multiply_bits::<S, 5>(quad, q, pages, block, heads),
            6 => multiply_bits::<S, 6>(quad, q, pages, block, heads),
            _ => multiply_bits::<S, 8>(quad, q, pages, block, heads),
        }
    }
}

/// # Safety
/// As [`multiply`]; the quad has that width.
#[inline(always)]
unsafe fn multiply_bits<S: Simd, const BITS: usize>(
    quad: &Quad,
    q: usize,
    pages: Pages,
    block: &mut Block,
    heads: usize,
) {
    let Some(table) = TrellisTable::of(BITS as u8) else { return };
    // SAFETY: the quad's codes lie within the page; a block has bytes for all channels of its heads.
    unsafe {
        let codes = pages.page.add(quad.codes);
        for j in 0..BITS {
            S::prefetch(pages.next.wrapping_add(quad.codes + 64 * j));
        }
        // A run's windows begin in the run before, which is one lane further down.
        let before = S::next_lane(S::bload(codes.add(64 * (BITS - 1))), table.start);
        let (found, _) = run::<S, BITS>(levels::<S>(table), before, codes);
        for h in 0..heads {
            let bytes = S::quad(block.bytes[h].as_ptr().cast::<i8>().add(QUAD * q));
            for k in 0..RUN {
                let sums = block.sums[h][k].as_mut_ptr();
                S::istore(sums, S::dot_full(S::iload(sums), found[k], bytes));
            }
        }
    }
}

/// From sums over the quads of a leak to scores, added to those of other leaks.
///
/// # Safety
/// As [`scores`].
#[inline(always)]
unsafe fn carry<S: Simd>(leak: u8, quads: &[Quad], block: &mut Block, heads: usize, fresh: bool) {
    let rho = f32::from(leak) / 256.0;
    // Steps of the first tokens of the page, which lie in the first lane.
    let mut first = [[1.0f32; LANES]; 3];
    first.iter_mut().zip(first_steps(leak)).for_each(|(lanes, step)| lanes[0] = step);
    for h in 0..heads {
        // What the centre of levels has added.
        let bytes = &block.bytes[h];
        let alike = quads.iter().enumerate().filter(|(_, quad)| quad.leak == leak && quad.bits > 0);
        // SAFETY: bytes of all channels were written by `fold`.
        let sum: i32 = alike
            .flat_map(|(q, _)| &bytes[QUAD * q..QUAD * q + QUAD])
            .map(|byte| i32::from(unsafe { byte.assume_init() }))
            .sum();
        // SAFETY: vectors of sixteen; the CPU has the tier.
        unsafe {
            let centre = S::isplat(-S::BYTE_CENTRE * sum);
            let (rho_all, mut y) = (S::splat(rho), [S::splat(0.0); RUN]);
            for k in 0..RUN {
                let e = S::to_f(S::iadd(S::iload(block.sums[h][k].as_ptr()), centre));
                let e = first.get(k).map_or(e, |first| S::mul(e, S::load(first.as_ptr())));
                y[k] = if k == 0 { e } else { S::fma(rho_all, y[k - 1], e) };
            }
            if leak > 0 {
                let mut ends = [0.0f32; LANES];
                S::store(ends.as_mut_ptr(), y[RUN - 1]);
                let whole = rho.powi(RUN as i32);
                let mut carried = 0.0f32;
                for end in &mut ends {
                    (*end, carried) = (carried, carried * whole + *end);
                }
                let (carried, mut power) = (S::load(ends.as_ptr()), rho);
                for y in &mut y {
                    *y = S::fma(carried, S::splat(power), *y);
                    power *= rho;
                }
            }
            for k in 0..RUN {
                let scores = block.scores[h][k].as_mut_ptr();
                S::store(scores, if fresh { y[k] } else { S::add(S::load(scores), y[k]) });
            }
        }
    }
}

/// Writes a head's scores, token by token.
///
/// # Safety
/// `out` is valid for 128 floats; the CPU has the tier.
#[inline(always)]
unsafe fn put<S: Simd>(block: &Block, h: usize, out: *mut f32) {
    // SAFETY: a head has sixteen rows of sixteen; a run's eight scores come with eight that the next run overwrites, and the
    // last run's go by way of a buffer.
    unsafe {
        let (step, base) = (S::splat(block.step[h]), S::splat(block.base[h]));
        let runs = S::transpose(block.scores[h].as_ptr().cast(), LANES);
        for n in 0..LANES - 1 {
            S::store(out.add(RUN * n), S::fma(runs[n], step, base));
        }
        let mut last = [0.0f32; LANES];
        S::store(last.as_mut_ptr(), S::fma(runs[LANES - 1], step, base));
        out.add(RUN * (LANES - 1)).copy_from_nonoverlapping(last.as_ptr(), RUN);
    }
}
