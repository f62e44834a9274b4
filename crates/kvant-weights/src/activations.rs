//! QuantizedActivations as the products meet them: signed bytes with a scale for every 32.
//!
//! For a block with largest magnitude a, the scale is a / 127 and a byte is x · 127 / a, rounded to nearest even. The
//! arithmetic is element-wise and its sums are of small integers, so every instruction set makes the same bytes.

use crate::format::BLOCK;
use kvant_simd::{LANES, Simd, Tier, Work, with_tier};
use std::cell::RefCell;
use std::marker::PhantomData;

/// Tokens that lie together: as many as the widest kernel takes at a time.
pub(crate) const TILE: usize = 16;

/// Rows of activations, quantised.
///
/// Sixteen tokens make a *tile* (the last one has what is left), and a tile lies block after block: all its tokens'
/// 32 bytes of a block side by side, and so with scales, sums and masses. A kernel goes through them front to back.
#[derive(Debug)]
pub struct QuantizedActivations {
    tokens: usize,
    columns: usize,
    buffers: Buffers,
}

/// Memory of quantised rows; there may be more of it than the rows take. A pass quantises rows a hundred times over, and zeroing
/// fresh memory is work that only one thread does, so what rows leave behind is kept for the next ones.
#[derive(Debug, Default)]
struct Buffers {
    bytes: Vec<i8>,   // (tiles, blocks, tokens of the tile, 32)
    scales: Vec<f32>, // (tiles, blocks, tokens of the tile)
    sums: Vec<i32>,   // (tiles, blocks, 2 halves, tokens of the tile): of the bytes of half a block
    masses: Vec<f32>, // (tiles, blocks, tokens of the tile): scale · sum of the bytes, what meets a minimum
}

thread_local! {
    /// Memory of rows that are gone.
    static SPARE: RefCell<Vec<Buffers>> = const { RefCell::new(Vec::new()) };
}

/// Buffers kept by a thread: more than a pass has at a time.
const SPARES: usize = 4;
/// The most values of buffers that are kept.
const SPARE_LEN: usize = 16 << 20;

impl Buffers {
    /// Room for `len` values, and old values in it: the smallest spare buffers that have it, or the largest, grown.
    fn take(len: usize) -> Buffers {
        let spare = SPARE.with_borrow_mut(|spare| {
            let room = |i: &usize| spare[*i].bytes.len();
            let fits = (0..spare.len()).filter(|i| room(i) >= len).min_by_key(room);
            fits.or_else(|| (0..spare.len()).max_by_key(room)).map(|i| spare.swap_remove(i))
        });
        let mut buffers = spare.unwrap_or_default();
        if buffers.bytes.len() < len {
            buffers.bytes.resize(len, 0);
            buffers.scales.resize(len / BLOCK, 0.0);
            buffers.sums.resize(len / LANES, 0);
            buffers.masses.resize(len / BLOCK, 0.0);
        }
        buffers
    }
}

impl Drop for QuantizedActivations {
    fn drop(&mut self) {
        let buffers = std::mem::take(&mut self.buffers);
        // A thread that is ending has nowhere to keep them.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if buffers.bytes.len() <= SPARE_LEN && spare.len() < SPARES {
                spare.push(buffers);
            }
        });
    }
}

/// A tile, or its end from some token on.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Tokens of the whole tile: from one block to the next are that many scales.
    pub width: usize,
    pub bytes: *const i8,
    pub scales: *const f32,
    pub sums: *const i32,
    pub masses: *const f32,
}

impl QuantizedActivations {
    /// Quantises `x`, (tokens, columns), with this tier's instructions.
    ///
    /// # Panics
    /// When `columns` is not a positive multiple of 32 or `x` is not a whole number of rows.
    pub fn new(tier: Tier, x: &[f32], columns: usize) -> Self {
        assert!(columns > 0 && columns.is_multiple_of(BLOCK), "rows of {columns} are not blocks of {BLOCK}");
        assert!(x.len().is_multiple_of(columns), "{} values in rows of {columns}", x.len());
        let mut made = Self { tokens: x.len() / columns, columns, buffers: Buffers::take(x.len()) };
        let quantise = kernel(tier);
        let Buffers { bytes, scales, sums, masses } = &mut made.buffers;
        let whole = Target {
            width: 0,
            bytes: bytes.as_mut_ptr(),
            scales: scales.as_mut_ptr(),
            sums: sums.as_mut_ptr(),
            masses: masses.as_mut_ptr(),
        };
        // Tokens of a tile share cache lines.
        kvant_threads::for_each(made.tokens.div_ceil(TILE), |tile| {
            let (first, width) = made.tile_of(tile * TILE);
            for token in first..first + width {
                // SAFETY: the tier is available (kernels come only for such), the token has its place in the buffers, and
                // no other task writes there.
                unsafe {
                    let place = whole.after(first * columns).token(token - first).of_width(width);
                    quantise(x[token * columns..][..columns].as_ptr(), columns, place);
                }
            }
        });
        made
    }

    /// Rows.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Values of a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The value that stands for `x[token][column]`.
    pub fn value(&self, token: usize, column: usize) -> f32 {
        let (first, width) = self.tile_of(token);
        let scale = first * (self.columns / BLOCK) + column / BLOCK * width + token - first;
        f32::from(self.buffers.bytes[scale * BLOCK + column % BLOCK]) * self.buffers.scales[scale]
    }

    /// The first token of a token's tile, and the tile's tokens.
    fn tile_of(&self, token: usize) -> (usize, usize) {
        let first = token / TILE * TILE;
        (first, TILE.min(self.tokens - first))
    }

    /// The tile whose first token is `first`.
    pub(crate) fn tile(&self, first: usize) -> Tile {
        let at = first * self.columns;
        Tile {
            width: self.tile_of(first).1,
            bytes: self.buffers.bytes[at..].as_ptr(),
            scales: self.buffers.scales[at / BLOCK..].as_ptr(),
            sums: self.buffers.sums[at / LANES..].as_ptr(),
            masses: self.buffers.masses[at / BLOCK..].as_ptr(),
        }
    }
}

/// Where quantised values go.
#[derive(Clone, Copy)]
struct Target {
    width: usize,
    bytes: *mut i8,
    scales: *mut f32,
    sums: *mut i32,
    masses: *mut f32,
}

// SAFETY: tasks write to the places of tokens of their own.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Target {
    /// Beyond `values` values, whole blocks of all tokens of the tile.
    ///
    /// # Safety
    /// That is inside the buffers.
    #[inline(always)]
    unsafe fn after(self, values: usize) -> Self {
        // SAFETY: the caller's contract.
        unsafe {
            Self {
                width: self.width,
                bytes: self.bytes.add(values),
                scales: self.scales.add(values / BLOCK),
                sums: self.sums.add(values / LANES),
                masses: self.masses.add(values / BLOCK),
            }
        }
    }

    /// The same place, in a tile of that many tokens.
    fn of_width(self, width: usize) -> Self {
        Self { width, ..self }
    }

    /// The places of a token of the tile.
    ///
    /// # Safety
    /// The tile has such a token.
    unsafe fn token(self, token: usize) -> Self {
        // SAFETY: the caller's contract.
        unsafe {
            Self {
                width: self.width,
                bytes: self.bytes.add(token * BLOCK),
                scales: self.scales.add(token),
                sums: self.sums.add(token),
                masses: self.masses.add(token),
            }
        }
    }
}

type Quantise = unsafe fn(*const f32, usize, Target);

fn kernel(tier: Tier) -> Quantise {
    with_tier!(tier, S => quantise::<S>)
}

/// # Safety
/// The CPU has the tier; `count`, a multiple of 32, values are readable at `x`, and `out` is a token of a tile with as many
/// columns.
unsafe fn quantise<S: Simd>(x: *const f32, count: usize, out: Target) {
    // SAFETY: the caller's contract.
    unsafe { S::call(Values::<S> { x, count, out, tier: PhantomData }) }
}

struct Values<S> {
    x: *const f32,
    count: usize,
    out: Target,
    tier: PhantomData<S>,
}

impl<S: Simd> Work<S> for Values<S> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's contract; a last single block is padded to two.
        unsafe {
            let stride = self.out.width * BLOCK;
            let pairs = self.count / (2 * BLOCK);
            for pair in 0..pairs {
                let made = two_blocks::<S>(self.x.add(pair * 2 * BLOCK));
                made.put(self.out.after(2 * pair * stride), 2);
            }
            if !self.count.is_multiple_of(2 * BLOCK) {
                let mut padded = [0.0; 2 * BLOCK];
                padded.as_mut_ptr().copy_from_nonoverlapping(self.x.add(pairs * 2 * BLOCK), BLOCK);
                two_blocks::<S>(padded.as_ptr()).put(self.out.after(2 * pairs * stride), 1);
            }
        }
    }
}

/// Two blocks, quantised.
struct Two {
    bytes: [i8; 2 * BLOCK],
    scales: [f32; 2],
    sums: [f32; 4],
}

/// # Safety
/// The CPU has the tier and 64 values are readable.
#[inline(always)]
unsafe fn two_blocks<S: Simd>(x: *const f32) -> Two {
    // SAFETY: the caller's contract.
    unsafe {
        let v = [S::load(x), S::load(x.add(16)), S::load(x.add(32)), S::load(x.add(48))];
        let first = S::max(S::abs(v[0]), S::abs(v[1]));
        let second = S::max(S::abs(v[2]), S::abs(v[3]));
        let largest = [S::reduce_max(first), S::reduce_max(second)];
        let zero = S::splat(0.0);
        let mut scales = [0.0; 2];
        let mut inverse = [zero; 2];
        for b in 0..2 {
            // Below this the inverse would be infinite; such values are zero for any purpose.
            if largest[b] > 1e-35 {
                scales[b] = largest[b] / 127.0;
                inverse[b] = S::splat(127.0 / largest[b]);
            }
        }
        let codes = [
            S::round(S::mul(v[0], inverse[0])),
            S::round(S::mul(v[1], inverse[0])),
            S::round(S::mul(v[2], inverse[1])),
            S::round(S::mul(v[3], inverse[1])),
        ];
        // x · 0 is NaN for a NaN and for an infinity, and zero otherwise: what is not finite shows in the sums.
        let sums = S::reduce4_add([
            S::fma(v[0], zero, S::to_f(codes[0])),
            S::fma(v[1], zero, S::to_f(codes[1])),
            S::fma(v[2], zero, S::to_f(codes[2])),
            S::fma(v[3], zero, S::to_f(codes[3])),
        ]);
        let mut bytes = [0; 2 * BLOCK];
        S::bstore(bytes.as_mut_ptr(), S::narrow(codes));
        for b in 0..2 {
            scales[b] += 0.0 * (sums[2 * b] + sums[2 * b + 1]);
        }
        Two { bytes, scales, sums }
    }
}

impl Two {
    /// Writes the first `blocks` of them.
    ///
    /// # Safety
    /// That many have their places from `out` on.
    #[inline(always)]
    unsafe fn put(&self, out: Target, blocks: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            for b in 0..blocks {
                let (low, high) = (self.sums[2 * b], self.sums[2 * b + 1]);
                let out = out.after(b * out.width * BLOCK);
                out.bytes.copy_from_nonoverlapping(self.bytes[b * BLOCK..].as_ptr(), BLOCK);
                *out.scales = self.scales[b];
                *out.sums = low as i32;
                *out.sums.add(out.width) = high as i32;
                *out.masses = self.scales[b] * (low + high);
            }
        }
    }
}
