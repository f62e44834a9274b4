//! q·k for every token of a page of keys, from its codes.
//!
//! A quad's levels meet four bytes of each query in the lanes of sixteen runs, one vector for each of a run's eight tokens;
//! nothing is transposed. Levels of the quads that share a leak are made once and lie in the first-level cache, where they meet
//! as many heads as registers have sums for. What a leak carries on is carried on in the scores: sₜ = ρ·sₜ₋₁ + q·eₜ, along the
//! eight vectors first, then from lane to lane by ρ⁸ ([`Leak`]).

use super::scan::Leak;
use super::window::{levels, run};
use crate::format::{MAX_DIM, QUAD, RUN, TRELLIS_TOKENS, TrellisFormat, TrellisTable, scale};
use crate::kernel::{Pages, Query, by_heads};
use kvant_simd::{LANES, Simd};
use std::mem::MaybeUninit;

/// Queries that share one look at the page.
const BLOCK: usize = 16;

/// Quads whose levels are held at once.
const HELD: usize = 64;

/// The integers that a query is rounded to go from −127 to 127.
const LIMIT: f32 = 127.0;

/// Bytes of a vector.
const WIDE: usize = 4 * LANES;

/// Memory of a call. Nothing of it is cleared: every part is written before it is read.
#[repr(C, align(64))]
struct Room {
    /// (quads, 8, 64).
    levels: [MaybeUninit<u8>; HELD * RUN * WIDE],
    /// Sums over the quads of a leak, carried on within runs: (heads, 8, 16).
    sums: [[[MaybeUninit<f32>; LANES]; RUN]; BLOCK],
    /// Scores in units: (heads, 8, 16), and as much again that a transposition reads.
    scores: [[[MaybeUninit<f32>; LANES]; RUN]; BLOCK + 1],
    /// Scale times the unit of the width; zero where there are no codes, and after the last channel.
    scales: [MaybeUninit<f32>; MAX_DIM + LANES],
    zeros: [MaybeUninit<f32>; MAX_DIM + LANES],
    /// Queries times scales, in units of their own: (heads, channels).
    bytes: [[MaybeUninit<i8>; MAX_DIM + LANES]; BLOCK],
    /// Where the codes of quads begin.
    codes: [MaybeUninit<usize>; MAX_DIM / QUAD],
    /// One unit of the bytes.
    step: [f32; BLOCK],
    /// What every token's score has besides: zeros and the mean.
    base: [f32; BLOCK],
}

/// Scores of all heads of the query, (heads, tokens).
///
/// # Safety
/// `pages.page` is a page of the format, `out` is valid for heads · tokens floats, the query was prepared for this format;
/// the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn scores<S: Simd>(format: &TrellisFormat, query: &Query, pages: Pages, out: *mut f32) {
    // SAFETY: the caller's contract.
    let page = unsafe { std::slice::from_raw_parts(pages.page, format.bytes()) };
    let mut room = Room {
        levels: [MaybeUninit::uninit(); HELD * RUN * WIDE],
        sums: [[[MaybeUninit::uninit(); LANES]; RUN]; BLOCK],
        scores: [[[MaybeUninit::uninit(); LANES]; RUN]; BLOCK + 1],
        scales: [MaybeUninit::uninit(); MAX_DIM + LANES],
        zeros: [MaybeUninit::uninit(); MAX_DIM + LANES],
        bytes: [[MaybeUninit::uninit(); MAX_DIM + LANES]; BLOCK],
        codes: [MaybeUninit::uninit(); MAX_DIM / QUAD],
        step: [0.0; BLOCK],
        base: [0.0; BLOCK],
    };
    // What no quad asks for: the next page's head, and the end of its last line.
    for line in (0..format.codes()).step_by(WIDE).chain([page.len() - 1]) {
        // SAFETY: nothing is read.
        unsafe { S::prefetch(pages.next.wrapping_add(line)) };
    }
    // SAFETY: the caller's contract.
    let held = unsafe { read_channels::<S>(format, page, &mut room) };
    for first in (0..query.heads()).step_by(BLOCK) {
        let heads = BLOCK.min(query.heads() - first);
        // SAFETY: the caller's contract; the channels have been read.
        unsafe {
            fold::<S>(format.dim, query, first, &mut room, heads);
            let mut fresh = true;
            for (n, held) in held.iter().take(format.padded().div_ceil(HELD * QUAD)).enumerate() {
                held.unpack::<S>(HELD * n, pages, &mut room);
                for (leak, alike) in held.leaks() {
                    add_leak::<S>(HELD * n, Leak::of(leak), alike, &mut room, heads, fresh);
                    fresh = false;
                }
            }
            // Without codes all scores are the same; a transposition reads the rows of a head more.
            for scores in &mut room.scores[if fresh { 0 } else { heads }..=heads] {
                *scores = [[MaybeUninit::new(0.0); LANES]; RUN];
            }
            for h in 0..heads {
                put::<S>(&room, h, out.add((first + h) * TRELLIS_TOKENS));
            }
        }
    }
}

/// Widths and leaks, scales and zeros of a page.
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
unsafe fn read_channels<S: Simd>(
    format: &TrellisFormat,
    page: &[u8],
    room: &mut Room,
) -> [Held; MAX_DIM / QUAD / HELD] {
    let (padded, end) = (format.padded(), format.dim.next_multiple_of(LANES));
    let mut held = [Held { by_bits: [0; 9], by_leak: [0; 16] }; MAX_DIM / QUAD / HELD];
    // Units of the channels' widths first, then scales and zeros in their places.
    let (units, _) = room.scales.as_chunks_mut::<QUAD>();
    for (((q, quad), units), codes) in format.quads(page).enumerate().zip(units).zip(&mut room.codes) {
        let (held, bit) = (&mut held[q / HELD], q % HELD);
        codes.write(quad.codes);
        held.by_bits[usize::from(quad.bits)] |= 1 << bit;
        held.by_leak[usize::from(quad.leak / 16)] |= u64::from(quad.bits > 0) << bit;
        *units = [MaybeUninit::new(TrellisTable::of(quad.bits).map_or(0.0, |table| table.unit)); QUAD];
    }
    let mut zeros = [0i8; LANES];
    for c in (0..end).step_by(LANES) {
        let count = LANES.min(padded - c);
        let exponents = &page[format.scales() + c..][..count];
        let mut scales = [0.0f32; LANES];
        for (to, exponent) in scales.iter_mut().zip(exponents) {
            *to = scale(*exponent);
        }
        for (to, zero) in zeros.iter_mut().zip(&page[format.scales() + padded + c..][..count]) {
            *to = *zero as i8;
        }
        // Nothing after the last channel.
        for c in c + count..c + LANES {
            room.scales[c].write(0.0);
        }
        scales.iter_mut().skip(format.dim - c).for_each(|scale| *scale = 0.0);
        // SAFETY: vectors of sixteen, all of them written; the CPU has the tier.
        unsafe {
            let (scales, units) = (S::load(scales.as_ptr()), room.scales.as_mut_ptr().add(c).cast::<f32>());
            S::store(units, S::mul(scales, S::load(units)));
            let steps = S::mul(S::splat(0.5), S::load_i8(zeros.as_ptr()));
            S::store(room.zeros.as_mut_ptr().add(c).cast(), S::mul(steps, scales));
        }
    }
    held
}

/// Up to 64 quads, by width and by leak: a bit for each. Jumps that depend on a page's widths are what costs most in reading
/// it, so quads are taken width by width and not one after the other.
#[derive(Clone, Copy)]
struct Held {
    by_bits: [u64; 9],
    by_leak: [u64; 16],
}

impl Held {
    /// Leaks in 256ths, each with the quads that have it.
    fn leaks(&self) -> impl Iterator<Item = (u8, u64)> {
        let all = self.by_leak.iter().enumerate();
        all.filter(|(_, alike)| **alike > 0).map(|(leak, alike)| (16 * leak as u8, *alike))
    }

    /// The levels of all of them, (quads, 8, 64). The first is number `first` of the page.
    ///
    /// # Safety
    /// As [`scores`]; the channels have been read.
    #[inline(always)]
    unsafe fn unpack<S: Simd>(&self, first: usize, pages: Pages, room: &mut Room) {
        // SAFETY: the caller's contract.
        unsafe {
            self.unpack_bits::<S, 1>(first, pages, room);
            self.unpack_bits::<S, 2>(first, pages, room);
            self.unpack_bits::<S, 3>(first, pages, room);
            self.unpack_bits::<S, 4>(first, pages, room);
            self.unpack_bits::<S, 5>(first, pages, room);
            self.unpack_bits::<S, 6>(first, pages, room);
            self.unpack_bits::<S, 8>(first, pages, room);
        }
    }

    /// # Safety
    /// As [`Held::unpack`].
    #[inline(always)]
    unsafe fn unpack_bits<S: Simd, const BITS: usize>(&self, first: usize, pages: Pages, room: &mut Room) {
        let Some(table) = TrellisTable::of(BITS as u8) else { return };
        let mut alike = self.by_bits[BITS];
        if alike == 0 {
            return;
        }
        // SAFETY: a quad's codes lie within the page; there is a place for eight vectors of each.
        unsafe {
            let table_levels = levels::<S>(table);
            while alike > 0 {
                let n = alike.trailing_zeros() as usize;
                alike &= alike - 1;
                let place = room.codes[first + n].assume_init();
                let codes = pages.page.add(place);
                for j in 0..BITS {
                    S::prefetch(pages.next.wrapping_add(place + WIDE * j));
                }
                // A run's windows begin in the run before, which is one lane further down.
                let before = S::next_lane(S::bload(codes.add(WIDE * (BITS - 1))), table.start);
                let (found, _) = run::<S, BITS>(table_levels, before, codes);
                let out = room.levels.as_mut_ptr().cast::<i8>().add(n * RUN * WIDE);
                for k in 0..RUN {
                    S::bstore(out.add(WIDE * k), found[k]);
                }
            }
        }
    }
}

/// Rounds queries from number `first` on, times the page's scales, to bytes. In two rounds, so that what a head waits for in the
/// first is there when the second begins.
///
/// # Safety
/// As [`scores`]; the channels have been read.
#[inline(always)]
unsafe fn fold<S: Simd>(dim: usize, query: &Query, first: usize, room: &mut Room, heads: usize) {
    let end = dim.next_multiple_of(LANES);
    let (scales, offsets) = (room.scales.as_ptr().cast::<f32>(), room.zeros.as_ptr().cast::<f32>());
    for place in 0..heads {
        let q = query.padded(first + place).as_ptr();
        // SAFETY: a head's floats and the channels have room for whole vectors.
        unsafe {
            let (mut top, mut zeros) = (S::splat(0.0), S::splat(0.0));
            for c in (0..end).step_by(LANES) {
                let q = S::load(q.add(c));
                top = S::max_abs(top, S::mul(q, S::load(scales.add(c))));
                zeros = S::fma(q, S::load(offsets.add(c)), zeros);
            }
            room.step[place] = S::reduce_max(top) / LIMIT;
            room.base[place] = S::reduce_add(zeros) + query.parts()[0].floats(first + place)[0];
        }
    }
    for place in 0..heads {
        let q = query.padded(first + place).as_ptr();
        // What is too small for a reciprocal is rounded to zero as a whole.
        let inverse = if room.step[place] > 1e-32 { 1.0 / room.step[place] } else { 0.0 };
        let bytes = room.bytes[place].as_mut_ptr().cast::<u8>();
        // SAFETY: a head's floats, the channels and the bytes have room for whole vectors.
        unsafe {
            for c in (0..end).step_by(LANES) {
                let p = S::mul(S::load(q.add(c)), S::load(scales.add(c)));
                S::store_low_bytes(bytes.add(c), S::round(S::mul(p, S::splat(inverse))));
            }
        }
    }
}

/// Adds what the held quads of a leak give to the scores of all heads of a block, or begins these. The first held quad is number
/// `first` of the page.
///
/// # Safety
/// As [`scores`]; levels were unpacked and the heads folded; there are scores unless `fresh`.
#[inline(always)]
unsafe fn add_leak<S: Simd>(
    first: usize,
    leak: &Leak,
    mut alike: u64,
    room: &mut Room,
    heads: usize,
    fresh: bool,
) {
    let (mut places, mut count) = ([0u8; HELD], 0);
    while alike > 0 {
        places[count] = alike.trailing_zeros() as u8;
        count += 1;
        alike &= alike - 1;
    }
    let (mut h, places) = (0, &places[..count]);
    while h < heads {
        // SAFETY: the caller's contract; there are as many heads left.
        h += unsafe { by_heads!(S, heads - h, add_heads::<S>(first, leak, places, room, h, fresh)) };
    }
}

/// The same for the held quads with these places and H heads. Returns H.
///
/// # Safety
/// As [`add_leak`]; there are H heads from `h` on.
#[inline(always)]
unsafe fn add_heads<S: Simd, const H: usize>(
    first: usize,
    leak: &Leak,
    places: &[u8],
    room: &mut Room,
    h: usize,
    fresh: bool,
) -> usize {
    // SAFETY: the caller's contract; vectors of sixteen.
    unsafe {
        // As many sums as registers hold beside a level and the queries.
        let ends = if const { S::REGISTERS >= 32 && H <= 3 } {
            multiply::<S, H, 8>(first, leak, places, room, h)
        } else if const { S::REGISTERS >= 32 } {
            multiply::<S, H, 4>(first, leak, places, room, h)
        } else {
            multiply::<S, H, 1>(first, leak, places, room, h)
        };
        let mut carried = ends;
        for i in 0..H {
            carried[i] = leak.scan::<S>(ends[i]);
        }
        for i in 0..H {
            for k in 0..RUN {
                let y = S::load(room.sums[h + i][k].as_ptr().cast());
                let y = S::fma(carried[i], leak.power::<S>(k), y);
                let scores = room.scores[h + i][k].as_mut_ptr().cast();
                S::store(scores, if fresh { y } else { S::add(S::load(scores), y) });
            }
        }
    }
    H
}

/// Sums over quads, carried on within every run, to the room; returns what is at the runs' ends. ROWS tokens of a run at a time.
///
/// # Safety
/// As [`add_heads`].
#[inline(always)]
unsafe fn multiply<S: Simd, const H: usize, const ROWS: usize>(
    first: usize,
    leak: &Leak,
    places: &[u8],
    room: &mut Room,
    h: usize,
) -> [S::F; H] {
    let levels = room.levels.as_ptr().cast::<u8>();
    // SAFETY: the bytes of all channels of H heads and the levels of all places were written.
    unsafe {
        let mut queries = [std::ptr::null::<i8>(); H];
        for i in 0..H {
            queries[i] = room.bytes[h + i].as_ptr().cast::<i8>().add(QUAD * first);
        }
        // What the centre of levels adds, to begin with what takes it away: below 2²³, so exact as floats.
        let (centre_bytes, mut centres) = ([S::BYTE_CENTRE as u8; WIDE], [S::izero(); H]);
        let centre = S::bload(centre_bytes.as_ptr());
        for place in places {
            for i in 0..H {
                let query = S::quad(queries[i].add(QUAD * usize::from(*place)));
                centres[i] = S::dot_full(centres[i], centre, query);
            }
        }
        for i in 0..H {
            centres[i] = S::round(S::sub(S::splat(0.0), S::to_f(centres[i])));
        }
        let rho = S::splat(leak.rho);
        let mut ends = [S::splat(0.0); H];
        for k in (0..RUN).step_by(ROWS) {
            let mut sums = [[S::izero(); ROWS]; H];
            for i in 0..H {
                sums[i] = [centres[i]; ROWS];
            }
            for place in places {
                let place = usize::from(*place);
                for j in 0..ROWS {
                    let levels = S::bload(levels.add(WIDE * (RUN * place + k + j)));
                    for i in 0..H {
                        sums[i][j] = S::dot_full(sums[i][j], levels, S::quad(queries[i].add(QUAD * place)));
                    }
                }
            }
            for i in 0..H {
                for j in 0..ROWS {
                    let e = leak.stepped::<S>(k + j, S::to_f(sums[i][j]));
                    ends[i] = if k + j == 0 { e } else { S::fma(rho, ends[i], e) };
                    S::store(room.sums[h + i][k + j].as_mut_ptr().cast(), ends[i]);
                }
            }
        }
        ends
    }
}

/// Writes a head's scores, token by token.
///
/// # Safety
/// `out` is valid for 128 floats; the scores of the head and of one more were written; the CPU has the tier.
#[inline(always)]
unsafe fn put<S: Simd>(room: &Room, h: usize, out: *mut f32) {
    // SAFETY: a head has eight rows of sixteen, and the next one's are read with them; a run's eight scores come with eight that
    // the next run overwrites, and the last run's go by way of a buffer.
    unsafe {
        let (step, base) = (S::splat(room.step[h]), S::splat(room.base[h]));
        let runs = S::transpose(room.scores.as_ptr().cast::<f32>().add(h * RUN * LANES), LANES);
        for n in 0..LANES - 1 {
            S::store(out.add(RUN * n), S::fma(runs[n], step, base));
        }
        let mut last = [0.0f32; LANES];
        S::store(last.as_mut_ptr(), S::fma(runs[LANES - 1], step, base));
        out.add(RUN * (LANES - 1)).copy_from_nonoverlapping(last.as_ptr(), RUN);
    }
}
