//! A panel times tokens, for every format and instruction set.
//!
//! For row r, token t and group g of inputs, with integer dot product n = Σ (code − centre)·byte, or Σ level·byte:
//!
//! ```text
//! sum[r, t] = fma(f32(n) · scale[r, g],  activation scale[t, g],  sum[r, t])
//! sum[r, t] = fma(minimum[r, g],         mass[t, g],              sum[r, t])     where there are minima
//! ```
//!
//! group after group. **Invariant:** these are all the roundings there are, always in this order. A row and a token
//! therefore give the same bits alone or among others, on any number of threads, on every instruction set.

use crate::activations::{QuantizedActivations, TILE, Tile};
use crate::format::{
    BLOCK, Format, PANEL, code_bytes, group_offset, has_byte_scales, is_full, low_bits, scale_bytes,
};
use kvant_simd::{LANES, Simd, Work};
use std::marker::PhantomData;
use std::ops::Range;

/// How far ahead codes are asked for: beyond what the processor foresees by itself, and into the next panel at the end
/// of one.
const PREFETCH: usize = 8192;

/// A panel, the tokens it meets, and where the products go.
pub(crate) struct Panel<'a> {
    pub codes: *const u8,
    pub scales: *const u8,
    /// Inputs.
    pub columns: usize,
    /// Rows of the panel that exist.
    pub rows: usize,
    pub x: &'a QuantizedActivations,
    /// Those of its tokens that are met; the first is a tile's first.
    pub tokens: Range<usize>,
    /// The first token's place for the first row.
    pub out: *mut f32,
    /// Floats from one token's place to the next.
    pub stride: usize,
}

impl Panel<'_> {
    /// The part of it that has to do with the tile of token `first`.
    pub fn job(&self, first: usize) -> Job {
        Job {
            codes: self.codes,
            scales: self.scales,
            columns: self.columns,
            rows: self.rows,
            x: self.x.tile(first),
            out: self.out.wrapping_add(first * self.stride),
            stride: self.stride,
        }
    }
}

/// A panel and a tile of tokens.
#[derive(Clone, Copy)]
pub(crate) struct Job {
    pub codes: *const u8,
    pub scales: *const u8,
    pub columns: usize,
    rows: usize,
    pub x: Tile,
    out: *mut f32,
    stride: usize,
}

impl Job {
    /// The same job from token `first` of the tile on.
    ///
    /// # Safety
    /// There is such a token.
    #[inline(always)]
    unsafe fn onward(&self, first: usize) -> Job {
        // SAFETY: the caller's contract.
        unsafe { Job { x: self.x.token(first), out: self.out.add(first * self.stride), ..*self } }
    }

    /// Puts the products of token `t` with the rows in their places.
    ///
    /// # Safety
    /// The CPU has the tier and the token is of the job.
    #[inline(always)]
    pub unsafe fn put<S: Simd>(&self, t: usize, sums: S::F) {
        // SAFETY: the caller's contract; a panel that is not full writes no further than its rows.
        unsafe {
            let out = self.out.add(t * self.stride);
            if self.rows == PANEL {
                S::store(out, sums);
            } else {
                let mut all = [0.0; PANEL];
                S::store(all.as_mut_ptr(), sums);
                out.copy_from_nonoverlapping(all.as_ptr(), self.rows);
            }
        }
    }
}

impl Tile {
    /// The tile from token `first` on.
    ///
    /// # Safety
    /// There is such a token.
    #[inline(always)]
    unsafe fn token(&self, first: usize) -> Tile {
        // SAFETY: the caller's contract.
        unsafe {
            Tile {
                width: self.width,
                bytes: self.bytes.add(first * BLOCK),
                scales: self.scales.add(first),
                sums: self.sums.add(first),
                masses: self.masses.add(first),
            }
        }
    }

    /// The next block of the same tokens.
    ///
    /// # Safety
    /// There is one, or nothing is read of it.
    #[inline(always)]
    pub unsafe fn next_block(&self) -> Tile {
        Tile {
            width: self.width,
            bytes: self.bytes.wrapping_add(self.width * BLOCK),
            scales: self.scales.wrapping_add(self.width),
            sums: self.sums.wrapping_add(2 * self.width),
            masses: self.masses.wrapping_add(self.width),
        }
    }

    /// What meets the minimum of group `part` of the block: scale · sum of the bytes of token `t`.
    ///
    /// # Safety
    /// There is such a token.
    #[inline(always)]
    pub unsafe fn mass<F: Format>(&self, t: usize, part: usize) -> f32 {
        // SAFETY: the caller's contract.
        unsafe {
            match F::GROUP {
                LANES => *self.scales.add(t) * *self.sums.add(part * self.width + t) as f32,
                _ => *self.masses.add(t),
            }
        }
    }
}

/// All tokens of a panel.
///
/// # Safety
/// The CPU has the tier; the panel has the format's sizes and the activations its columns, and their places in the
/// output are the caller's alone.
pub(crate) unsafe fn panel<S: Simd, F: Format>(panel: &Panel<'_>) {
    for first in panel.tokens.clone().step_by(TILE) {
        // SAFETY: the caller's contract.
        unsafe { product::<S, F>(&panel.job(first)) };
    }
}

/// A tile of tokens, as many at a time as the registers hold, and all times about as many: codes are unpacked once each time.
///
/// A pass that checks proposed tokens has two to eight; all of them meet the codes in one go, so that a pass costs little more than
/// that of one token.
///
/// # Safety
/// As for [`panel`].
pub(crate) unsafe fn product<S: Simd, F: Format>(job: &Job) {
    let most = if const { S::REGISTERS >= 32 } { 8 } else { 4 };
    let (mut done, tokens) = (0, job.x.width);
    while done < tokens {
        let rest = tokens - done;
        let count = rest.div_ceil(rest.div_ceil(most));
        // SAFETY: the caller's contract, and tokens `done` to `done + count` are of the job.
        unsafe {
            let job = job.onward(done);
            match count {
                1 => S::call(Tokens::<S, F, 1>::new(job)),
                2 => S::call(Tokens::<S, F, 2>::new(job)),
                3 => S::call(Tokens::<S, F, 3>::new(job)),
                4 => S::call(Tokens::<S, F, 4>::new(job)),
                _ => {
                    if const { S::REGISTERS >= 32 } {
                        match count {
                            5 => S::call(Tokens::<S, F, 5>::new(job)),
                            6 => S::call(Tokens::<S, F, 6>::new(job)),
                            7 => S::call(Tokens::<S, F, 7>::new(job)),
                            _ => S::call(Tokens::<S, F, 8>::new(job)),
                        }
                    }
                }
            }
        }
        done += count;
    }
}

/// The panel times `T` tokens.
struct Tokens<S, F, const T: usize> {
    job: Job,
    kinds: PhantomData<(S, F)>,
}

impl<S, F, const T: usize> Tokens<S, F, T> {
    fn new(job: Job) -> Self {
        Self { job, kinds: PhantomData }
    }
}

impl<S: Simd, F: Format, const T: usize> Work<S> for Tokens<S, F, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the contract of `product`.
        unsafe {
            let Job { mut codes, mut scales, columns, mut x, .. } = self.job;
            let mut sums = [S::splat(0.0); T];
            let levels = levels::<S, F>();
            for _ in 0..columns / F::UNIT {
                let halves = UnitScales::<S>::read::<F>(scales);
                for block in 0..F::UNIT / BLOCK {
                    for line in 0..code_bytes::<F>() / 64 {
                        S::prefetch(codes.wrapping_add(PREFETCH + 64 * line));
                    }
                    let quads = unpack::<S, F>(codes, levels);
                    for part in 0..BLOCK / F::GROUP {
                        let group = block * (BLOCK / F::GROUP) + part;
                        let (scale, minimum) = halves.group::<F>(scales, group);
                        let n = integer_dots::<S, F, T>(&quads, part, &x);
                        for t in 0..T {
                            let scaled = S::mul(S::to_f(n[t]), scale);
                            sums[t] = S::fma(scaled, S::splat(*x.scales.add(t)), sums[t]);
                            if F::MINIMA {
                                sums[t] = S::fma(minimum, S::splat(x.mass::<F>(t, part)), sums[t]);
                            }
                        }
                    }
                    codes = codes.add(code_bytes::<F>());
                    x = x.next_block();
                }
                scales = scales.add(scale_bytes::<F>());
            }
            for t in 0..T {
                self.job.put::<S>(t, sums[t]);
            }
        }
    }
}

/// The scales of a unit, a row to a lane.
pub(crate) struct UnitScales<S: Simd> {
    scale: S::F,
    minimum: S::F,
}

impl<S: Simd> UnitScales<S> {
    /// # Safety
    /// The CPU has the tier and the scales of a unit are readable.
    #[inline(always)]
    pub unsafe fn read<F: Format>(scales: *const u8) -> Self {
        // SAFETY: the caller's contract.
        unsafe {
            if F::EXPONENT {
                let scale = half_powers::<S>(scales);
                return Self { scale, minimum: scale };
            }
            let scale = S::load_f16(scales.cast());
            let minimum = if F::MINIMA { S::load_f16(scales.cast::<u16>().add(PANEL)) } else { scale };
            Self { scale, minimum }
        }
    }

    /// The scale and minimum of a group.
    ///
    /// # Safety
    /// As for `read`.
    #[inline(always)]
    pub unsafe fn group<F: Format>(&self, scales: *const u8, group: usize) -> (S::F, S::F) {
        if !has_byte_scales::<F>() && (group == 0 || F::UNIT > BLOCK) {
            return (self.scale, self.minimum);
        }
        // SAFETY: the caller's contract.
        unsafe {
            if !has_byte_scales::<F>() {
                let scale = S::load_f16(scales.cast::<u16>().add(group * PANEL));
                return (scale, scale);
            }
            let bytes = scales.add(group_offset::<F>(group));
            let own = if F::SIGNED { S::load_i8(bytes.cast()) } else { S::load_u8(bytes) };
            let scale = S::mul(self.scale, own);
            let minimum = if F::MINIMA { S::mul(self.minimum, S::load_u8(bytes.add(PANEL))) } else { scale };
            (scale, minimum)
        }
    }
}

/// 2^(e − 128) for sixteen bytes e. The two smallest are subnormal: a product of normal numbers gives them exactly.
///
/// # Safety
/// The CPU has the tier and 16 bytes are readable.
#[inline(always)]
unsafe fn half_powers<S: Simd>(exponents: *const u8) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        let (e, two, one) = (S::load_u8(exponents), S::splat(2.0), S::splat(1.0));
        let normal = S::ldexp(one, S::round(S::sub(S::max(e, two), S::splat(128.0))));
        S::mul(normal, S::ldexp(one, S::round(S::sub(S::min(e, two), two))))
    }
}

/// The bytes that codes stand for, or of no use where they stand for themselves.
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn levels<S: Simd, F: Format>() -> S::Table {
    let mut table = [0; 32];
    if let Some(levels) = F::LEVELS {
        // The tier adds its own centre to what is in a table.
        let offset = if is_full::<F>() { 0 } else { (F::CENTRE - S::BYTE_CENTRE) as i8 };
        for (entry, level) in table.iter_mut().zip(levels) {
            *entry = level.wrapping_add(offset);
        }
    }
    // SAFETY: the caller's contract.
    unsafe { S::table(&table) }
}

/// The eight quads of a block.
///
/// # Safety
/// The CPU has the tier and the codes of a block are readable.
#[inline(always)]
pub(crate) unsafe fn unpack<S: Simd, F: Format>(codes: *const u8, levels: S::Table) -> [S::B; 8] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut quads = [S::bzero(); 8];
        match low_bits::<F>() {
            8 => {
                for j in 0..8 {
                    quads[j] = S::bytes(codes.add(64 * j));
                }
            }
            2 => {
                for j in 0..8 {
                    quads[j] = S::crumbs(codes.add(16 * j));
                }
            }
            _ => {
                for v in 0..4 {
                    (quads[v], quads[v + 4]) = S::nibbles(codes.add(64 * v));
                }
            }
        }
        if F::LEVELS.is_some() {
            for j in 0..8 {
                quads[j] = S::lookup::<4>(levels, quads[j]);
            }
        }
        for plane in 0..F::BITS - low_bits::<F>() {
            let masks = codes.add(64 * (low_bits::<F>() + plane));
            for j in 0..8 {
                quads[j] = S::add_bits(quads[j], masks.add(8 * j), 1 << (low_bits::<F>() + plane));
            }
        }
        quads
    }
}

/// Σ (code − centre) · byte, or Σ level · byte, over a group: the quads of `part` of the block, and each token of the tile.
///
/// # Safety
/// The CPU has the tier and the tile has `T` tokens.
#[inline(always)]
unsafe fn integer_dots<S: Simd, F: Format, const T: usize>(
    quads: &[S::B; 8],
    part: usize,
    x: &Tile,
) -> [S::I; T] {
    let count = F::GROUP / 4;
    let centre = if is_full::<F>() { S::BYTE_CENTRE } else { F::CENTRE };
    // SAFETY: the caller's contract.
    unsafe {
        let mut n = [S::izero(); T];
        if centre != 0 {
            for t in 0..T {
                let (low, high) = (x.sums.add(t), x.sums.add(x.width + t));
                let sum = match (F::GROUP, part) {
                    (LANES, 0) => *low,
                    (LANES, _) => *high,
                    _ => *low + *high,
                };
                n[t] = S::isplat(-centre * sum);
            }
        }
        let bytes = x.bytes.add(part * F::GROUP);
        if const { S::RUNS && !is_full::<F>() } {
            let quads = &quads[part * count..][..count];
            for t in 0..T {
                let bytes = bytes.add(t * BLOCK);
                n[t] = match F::BITS {
                    2 => S::dot_run::<2>(n[t], quads, bytes),
                    3 => S::dot_run::<3>(n[t], quads, bytes),
                    4 if F::LEVELS.is_none() => S::dot_run::<4>(n[t], quads, bytes),
                    5 => S::dot_run::<5>(n[t], quads, bytes),
                    6 => S::dot_run::<6>(n[t], quads, bytes),
                    _ => S::dot_run::<7>(n[t], quads, bytes),
                };
            }
            return n;
        }
        // Quads outside, tokens inside: as many sums grow side by side as there are tokens.
        for j in 0..count {
            let codes = quads[part * count + j];
            for t in 0..T {
                let quad = S::quad(bytes.add(t * BLOCK + 4 * j));
                n[t] =
                    if is_full::<F>() { S::dot_full(n[t], codes, quad) } else { S::dot(n[t], codes, quad) };
            }
        }
        n
    }
}
