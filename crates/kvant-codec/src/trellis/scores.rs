//! q·k for every token of a page of keys, from its codes.
//!
//! A quad's levels meet four bytes of each query in the lanes of sixteen runs, one vector for each of a run's eight tokens;
//! nothing is transposed. Levels of the quads that share a leak are made once and lie in the first-level cache, where they meet
//! as many heads as registers have sums for. What a leak carries on is carried on in the scores: sₜ = ρ·sₜ₋₁ + q·eₜ, along the
//! eight vectors first, then from lane to lane by ρ⁸ ([`Leak`]). All leaks take each of these steps before any takes the next: a
//! step of one leak is mostly waiting for the step before.

use super::channels::{Channels, HELD, Held};
use super::scan::Leak;
use super::window::{levels, run};
use crate::format::{MAX_DIM, QUAD, RUN, TRELLIS_TOKENS, TrellisFormat, TrellisTable};
use crate::kernel::{Pages, Query, by_heads};
use kvant_simd::{LANES, Simd};
use std::mem::MaybeUninit;

/// Queries that share one look at the page.
const BLOCK: usize = 16;

/// Queries that meet levels at once, at most.
const HEADS: usize = 4;

/// Leaks that a page can have.
const MOST_LEAKS: usize = 16;

/// The integers that a query is rounded to go from −127 to 127.
const LIMIT: f32 = 127.0;

/// Bytes of a vector.
const WIDE: usize = 4 * LANES;

/// A vector in memory.
type Vector = [MaybeUninit<f32>; LANES];

/// Memory of a call. Nothing of it is cleared: every part is written before it is read.
#[repr(C, align(64))]
struct ScoreRoom {
    /// (quads, 8, 64).
    levels: [MaybeUninit<u8>; HELD * RUN * WIDE],
    /// Sums over the quads of a leak, carried on within runs: (leaks, heads, 8, 16).
    sums: [[[Vector; RUN]; HEADS]; MOST_LEAKS],
    /// What a leak carries into runs: (leaks, heads, 16).
    carried: [[Vector; HEADS]; MOST_LEAKS],
    /// Scores in units: (heads, 8, 16), and as much again that a transposition reads.
    scores: [[Vector; RUN]; BLOCK + 1],
    channels: Channels,
    /// Queries times scales, in units of their own: (heads, channels).
    bytes: [[MaybeUninit<i8>; MAX_DIM + LANES]; BLOCK],
    /// What takes the centre of levels away again, by quad.
    centres: [[MaybeUninit<i32>; MAX_DIM / QUAD]; BLOCK],
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
    let mut room = ScoreRoom {
        levels: [MaybeUninit::uninit(); HELD * RUN * WIDE],
        sums: [[[[MaybeUninit::uninit(); LANES]; RUN]; HEADS]; MOST_LEAKS],
        carried: [[[MaybeUninit::uninit(); LANES]; HEADS]; MOST_LEAKS],
        scores: [[[MaybeUninit::uninit(); LANES]; RUN]; BLOCK + 1],
        channels: Channels::room(),
        bytes: [[MaybeUninit::uninit(); MAX_DIM + LANES]; BLOCK],
        centres: [[MaybeUninit::uninit(); MAX_DIM / QUAD]; BLOCK],
        step: [0.0; BLOCK],
        base: [0.0; BLOCK],
    };
    // What no quad asks for: the next page's head, and the end of its last line.
    for line in (0..format.codes()).step_by(WIDE).chain([page.len() - 1]) {
        // SAFETY: nothing is read.
        unsafe { S::prefetch(pages.next.wrapping_add(line)) };
    }
    // SAFETY: the caller's contract.
    let quads = unsafe { room.channels.read::<S>(format, page) };
    for first in (0..query.heads()).step_by(BLOCK) {
        let heads = BLOCK.min(query.heads() - first);
        // SAFETY: the caller's contract; the channels have been read.
        unsafe {
            fold::<S>(format.dim, query, first, &mut room, heads);
            let mut fresh = true;
            for quad in (0..format.padded() / QUAD).step_by(HELD) {
                let held = quads.held(quad);
                unpack::<S>(&held, quad, pages, &mut room);
                let leaks = Leaks::of(&held);
                if leaks.count > 0 {
                    add_leaks::<S>(quad, &leaks, &mut room, heads, fresh);
                    fresh = false;
                }
            }
            // Without codes all scores are the same; a transposition reads the rows of a head more.
            for scores in &mut room.scores[if fresh { 0 } else { heads }..=heads] {
                *scores = [[MaybeUninit::new(0.0); LANES]; RUN];
            }
            for h in (0..heads).step_by(2) {
                put::<S>(&room, h, heads, out.add((first + h) * TRELLIS_TOKENS));
            }
        }
    }
}

/// The leaks of held quads, and the places of the quads that have each.
struct Leaks {
    /// Of all quads with codes, leak by leak.
    places: [u8; HELD],
    /// With the end of each one's places.
    all: [(&'static Leak, usize); MOST_LEAKS],
    count: usize,
}

impl Leaks {
    #[inline(always)]
    fn of(held: &Held) -> Leaks {
        let mut leaks = Leaks { places: [0; HELD], all: [(Leak::of(0), 0); MOST_LEAKS], count: 0 };
        let mut end = 0;
        for (leak, mut alike) in held.leaks() {
            while alike > 0 {
                leaks.places[end] = alike.trailing_zeros() as u8;
                end += 1;
                alike &= alike - 1;
            }
            leaks.all[leaks.count] = (Leak::of(leak), end);
            leaks.count += 1;
        }
        leaks
    }

    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = (&'static Leak, &[u8])> {
        let mut start = 0;
        self.all[..self.count].iter().map(move |(leak, end)| {
            let places = &self.places[start..*end];
            start = *end;
            (*leak, places)
        })
    }
}

/// The levels of all held quads, (quads, 8, 64). The first is number `first` of the page.
///
/// # Safety
/// As [`scores`]; the channels have been read.
#[inline(always)]
unsafe fn unpack<S: Simd>(held: &Held, first: usize, pages: Pages, room: &mut ScoreRoom) {
    // SAFETY: the caller's contract.
    unsafe {
        unpack_bits::<S, 1>(held, first, pages, room);
        unpack_bits::<S, 2>(held, first, pages, room);
        unpack_bits::<S, 3>(held, first, pages, room);
        unpack_bits::<S, 4>(held, first, pages, room);
        unpack_bits::<S, 5>(held, first, pages, room);
        unpack_bits::<S, 6>(held, first, pages, room);
        unpack_bits::<S, 8>(held, first, pages, room);
    }
}

/// # Safety
/// As [`unpack`].
#[inline(always)]
unsafe fn unpack_bits<S: Simd, const BITS: usize>(
    held: &Held,
    first: usize,
    pages: Pages,
    room: &mut ScoreRoom,
) {
    let Some(table) = TrellisTable::of(BITS as u8) else { return };
    let mut alike = held.by_bits[BITS];
    if alike == 0 {
        return;
    }
    // SAFETY: a quad's codes lie within the page; there is a place for eight vectors of each.
    unsafe {
        let table_levels = levels::<S>(table);
        while alike > 0 {
            let n = alike.trailing_zeros() as usize;
            alike &= alike - 1;
            let place = room.channels.codes[first + n].assume_init();
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

/// Rounds queries from number `first` on, times the page's scales, to bytes. In three rounds, so that what a head waits for in one
/// is there when the next begins.
///
/// # Safety
/// As [`scores`]; the channels have been read.
#[inline(always)]
unsafe fn fold<S: Simd>(dim: usize, query: &Query, first: usize, room: &mut ScoreRoom, heads: usize) {
    let end = dim.next_multiple_of(LANES);
    let (scales, offsets) =
        (room.channels.scales.as_ptr().cast::<f32>(), room.channels.zeros.as_ptr().cast::<f32>());
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
            for c in (end..end.next_multiple_of(WIDE)).step_by(LANES) {
                S::store_low_bytes(bytes.add(c), S::izero());
            }
        }
    }
    for place in 0..heads {
        let bytes = room.bytes[place].as_ptr().cast::<u8>();
        let centres = room.centres[place].as_mut_ptr().cast::<i32>();
        // SAFETY: whole vectors of bytes were written, each of sixteen quads.
        unsafe {
            for c in (0..end).step_by(WIDE) {
                let centre = S::mul(S::sum_bytes(S::bload(bytes.add(c))), S::splat(-S::BYTE_CENTRE as f32));
                S::istore(centres.add(c / QUAD), S::round(centre));
            }
        }
    }
}

/// Adds what the held quads give to the scores of all heads of a block, or begins these. The first held quad is number `first` of
/// the page.
///
/// # Safety
/// As [`scores`]; levels were unpacked and the heads folded; there is a leak, and there are scores unless `fresh`.
#[inline(always)]
unsafe fn add_leaks<S: Simd>(first: usize, leaks: &Leaks, room: &mut ScoreRoom, heads: usize, fresh: bool) {
    let mut h = 0;
    while h < heads {
        // SAFETY: the caller's contract; there are as many heads left.
        h += unsafe { by_heads!(S, heads - h, add_heads::<S>(first, leaks, room, h, fresh)) };
    }
}

/// The same for H heads. Returns H.
///
/// # Safety
/// As [`add_leaks`]; there are H heads from `h` on.
#[inline(always)]
unsafe fn add_heads<S: Simd, const H: usize>(
    first: usize,
    leaks: &Leaks,
    room: &mut ScoreRoom,
    h: usize,
    fresh: bool,
) -> usize {
    // SAFETY: the caller's contract; vectors of sixteen.
    unsafe {
        for (n, (leak, places)) in leaks.iter().enumerate() {
            // As many sums as registers hold beside a level and the queries.
            if const { S::REGISTERS >= 32 && H <= 3 } {
                multiply::<S, H, 8>(first, n, leak, places, room, h);
            } else {
                multiply::<S, H, 4>(first, n, leak, places, room, h);
            }
        }
        for (n, (leak, _)) in leaks.iter().enumerate() {
            for i in 0..H {
                let carried = room.carried[n][i].as_mut_ptr().cast();
                S::store(carried, leak.scan::<S>(S::load(carried)));
            }
        }
        for i in 0..H {
            let scores: *mut f32 = room.scores[h + i].as_mut_ptr().cast();
            let mut totals = [S::splat(0.0); RUN];
            for (n, (leak, _)) in leaks.iter().enumerate() {
                let carried = S::load(room.carried[n][i].as_ptr().cast());
                for k in 0..RUN {
                    let y = S::load(room.sums[n][i][k].as_ptr().cast());
                    let y = S::fma(carried, leak.power::<S>(k), y);
                    totals[k] = match n {
                        0 if fresh => y,
                        0 => S::add(S::load(scores.add(LANES * k)), y),
                        _ => S::add(totals[k], y),
                    };
                }
            }
            for k in 0..RUN {
                S::store(scores.add(LANES * k), totals[k]);
            }
        }
    }
    H
}

/// Sums over the quads of leak number `n`, carried on within every run, to the room, and what is at the runs' ends. ROWS tokens of
/// a run at a time.
///
/// # Safety
/// As [`add_heads`].
#[inline(always)]
unsafe fn multiply<S: Simd, const H: usize, const ROWS: usize>(
    first: usize,
    n: usize,
    leak: &Leak,
    places: &[u8],
    room: &mut ScoreRoom,
    h: usize,
) {
    let levels = room.levels.as_ptr().cast::<u8>();
    // SAFETY: the bytes of all channels of H heads, their centres and the levels of all places were written.
    unsafe {
        let (mut queries, mut centres) = ([std::ptr::null::<i8>(); H], [0; H]);
        for i in 0..H {
            queries[i] = room.bytes[h + i].as_ptr().cast::<i8>().add(QUAD * first);
            for place in places {
                centres[i] += room.centres[h + i][first + usize::from(*place)].assume_init();
            }
        }
        let rho = S::splat(leak.rho);
        let mut ends = [S::splat(0.0); H];
        for k in (0..RUN).step_by(ROWS) {
            let mut sums = [[S::izero(); ROWS]; H];
            for i in 0..H {
                sums[i] = [S::isplat(centres[i]); ROWS];
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
                    S::store(room.sums[n][i][k + j].as_mut_ptr().cast(), ends[i]);
                }
            }
        }
        for i in 0..H {
            S::store(room.carried[n][i].as_mut_ptr().cast(), ends[i]);
        }
    }
}

/// Writes the scores of head `h` and the one after it, where there is one, token by token.
///
/// # Safety
/// `out` is valid for 128 floats of each of these heads; the scores of both were written, or of one more than there are; the CPU
/// has the tier.
#[inline(always)]
unsafe fn put<S: Simd>(room: &ScoreRoom, h: usize, heads: usize, out: *mut f32) {
    // SAFETY: a head has eight rows of sixteen, and the next one's are transposed with them: a vector has eight scores of the first,
    // then eight of the second. What goes over the edge of a run is written again, or goes by way of a buffer.
    unsafe {
        let runs = S::transpose(room.scores.as_ptr().cast::<f32>().add(h * RUN * LANES), LANES);
        let of = |h: usize, n: usize| S::fma(runs[n], S::splat(room.step[h]), S::splat(room.base[h]));
        if h + 1 < heads {
            // From the last run on, each over the wrong half of the one before.
            for n in (0..LANES).rev() {
                S::store(out.add(TRELLIS_TOKENS + RUN * n - RUN), of(h + 1, n));
            }
        }
        for n in 0..LANES - 1 {
            S::store(out.add(RUN * n), of(h, n));
        }
        let mut last = [0.0f32; LANES];
        S::store(last.as_mut_ptr(), of(h, LANES - 1));
        out.add(RUN * (LANES - 1)).copy_from_nonoverlapping(last.as_ptr(), RUN);
    }
}
