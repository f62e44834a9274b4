//! Integer products by the tile unit of Sapphire Rapids and later: 16 tokens × 16 rows × 32 inputs in one instruction.
//!
//! The tile unit does the integer part of [`super::product`], and nothing else changes: its sums are exact, and the
//! roundings that follow are the same in the same order, so the products have the same bits.
//!
//! Codes are expanded to signed bytes once per panel, which pays from one full tile of tokens on; tokens that do not
//! fill a tile go the ordinary way.

use super::product::{Job, Panel, UnitScales, levels, product, unpack};
use crate::activations::{TILE, Tile};
use crate::format::{BLOCK, Format, PANEL, code_bytes, scale_bytes};
use kvant_simd::{Avx512, Simd, TileShapes, Work};
use std::arch::asm;
use std::arch::x86_64::{__m512i, _mm512_set1_epi8, _mm512_sub_epi8};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Registers: 0 to 3 sums (16 tokens × 16 rows), 4 and 5 activations (16 tokens × group), 6 and 7 codes
/// (group / 4 × 16 rows × 4).
fn shapes<F: Format>() -> TileShapes {
    let (sums, x, codes) = ((64, 16), (F::GROUP, 16), (64, F::GROUP / 4));
    TileShapes::new([sums, sums, sums, sums, x, x, codes, codes])
}

/// All tokens of a panel: full tiles by the tile unit, the rest by vectors.
///
/// # Safety
/// As for [`product`], and [`kvant_simd::Amx::status`] is `Used`.
pub(crate) unsafe fn tiled<F: Format>(panel: &Panel<'_>) {
    thread_local! {
        static EXPANDED: RefCell<Vec<i8>> = const { RefCell::new(Vec::new()) };
    }
    let tokens = panel.tokens.clone();
    let full = tokens.start + tokens.len() / TILE * TILE;
    if full > tokens.start {
        EXPANDED.with_borrow_mut(|expanded| {
            expanded.resize(panel.columns * PANEL + 64, 0);
            let aligned = expanded.as_mut_ptr().wrapping_add(expanded.as_ptr().align_offset(64));
            // SAFETY: the caller's contract; the buffer has a byte for every code.
            unsafe {
                Avx512::call(Expand::<F> { panel, codes: aligned, format: PhantomData });
                shapes::<F>().load();
                for first in (tokens.start..full).step_by(TILE) {
                    Avx512::call(FullTile::<F> {
                        job: panel.job(first),
                        codes: aligned,
                        format: PhantomData,
                    });
                }
                TileShapes::release();
            }
        });
    }
    if full < tokens.end {
        // SAFETY: the caller's contract.
        unsafe { product::<Avx512, F>(&panel.job(full)) };
    }
}

/// Writes a panel's codes as signed bytes, quad after quad.
struct Expand<'a, F> {
    panel: &'a Panel<'a>,
    codes: *mut i8, // (columns / 4, 16 rows, 4)
    format: PhantomData<F>,
}

impl<F: Format> Work<Avx512> for Expand<'_, F> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the contract of `tiled`.
        unsafe {
            let centre: __m512i = _mm512_set1_epi8(F::CENTRE as i8);
            let levels = levels::<Avx512, F>();
            for block in 0..self.panel.columns / BLOCK {
                let quads = unpack::<Avx512, F>(self.panel.codes.add(block * code_bytes::<F>()), levels);
                for j in 0..8 {
                    let signed = _mm512_sub_epi8(quads[j], centre);
                    Avx512::bstore(self.codes.add((block * 8 + j) * 64), signed);
                }
            }
        }
    }
}

/// Sixteen tokens times a panel.
struct FullTile<F> {
    job: Job,
    codes: *const i8,
    format: PhantomData<F>,
}

/// Groups under way at a time: one for each tile register of sums.
const AHEAD: usize = 4;

/// Sums of one group: 16 tokens × 16 rows.
#[repr(C, align(64))]
struct GroupSums([i32; TILE * PANEL]);

/// The integer products of one group, with one of four sets of tile registers, so that neighbours overlap.
macro_rules! tile_product {
    ($sums:literal, $x:literal, $codes:literal, $from:expr, $with:expr, $to:expr) => {
        asm!(
            concat!("tilezero tmm", $sums),
            concat!("tileloadd tmm", $x, ", [{from} + {x_stride}]"),
            concat!("tileloadd tmm", $codes, ", [{with} + {stride}]"),
            concat!("tdpbssd tmm", $sums, ", tmm", $x, ", tmm", $codes),
            concat!("tilestored [{to} + {stride}], tmm", $sums),
            from = in(reg) $from, with = in(reg) $with, to = in(reg) $to,
            x_stride = in(reg) BLOCK, stride = in(reg) 64usize,
            options(nostack, preserves_flags)
        )
    };
}

impl<F: Format> Work<Avx512> for FullTile<F> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        type S = Avx512;
        // SAFETY: the contract of `tiled`; the tile has 16 tokens, so its bytes of a block are 32 apart.
        unsafe {
            let Job { mut scales, columns, mut x, .. } = self.job;
            let mut dots = [const { MaybeUninit::<GroupSums>::uninit() }; AHEAD];
            let mut sums = [S::splat(0.0); TILE];
            let groups = columns / F::GROUP;
            let in_unit = F::UNIT / F::GROUP;
            for first in (0..groups).step_by(AHEAD) {
                let count = AHEAD.min(groups - first);
                // The unit takes its time over each; several are under way before the first is needed.
                for slot in 0..count {
                    let at = (first + slot) * F::GROUP;
                    let from = self.job.x.bytes.add(at / BLOCK * BLOCK * TILE + at % BLOCK);
                    let (codes, to) = (self.codes.add(at * PANEL), dots[slot].as_mut_ptr());
                    match slot {
                        0 => tile_product!("0", "4", "6", from, codes, to),
                        1 => tile_product!("1", "5", "7", from, codes, to),
                        2 => tile_product!("2", "4", "6", from, codes, to),
                        _ => tile_product!("3", "5", "7", from, codes, to),
                    }
                }
                for slot in 0..count {
                    let group = first + slot;
                    let halves = UnitScales::<S>::read::<F>(scales);
                    let (scale, minimum) = halves.group::<F>(scales, group % in_unit);
                    let part = group % (BLOCK / F::GROUP);
                    add_group::<F>(&mut sums, dots[slot].as_ptr().cast(), (scale, minimum), part, &x);
                    if (group + 1).is_multiple_of(BLOCK / F::GROUP) {
                        x = x.next_block();
                    }
                    if (group + 1).is_multiple_of(in_unit) {
                        scales = scales.add(scale_bytes::<F>());
                    }
                }
            }
            for t in 0..TILE {
                self.job.put::<S>(t, sums[t]);
            }
        }
    }
}

/// Adds a group's products: the roundings of [`super::product`].
///
/// # Safety
/// The CPU has AVX-512, the tile 16 tokens, and the sums of a group are at `dots`.
#[inline(always)]
unsafe fn add_group<F: Format>(
    sums: &mut [<Avx512 as Simd>::F; TILE],
    dots: *const i32,
    (scale, minimum): (<Avx512 as Simd>::F, <Avx512 as Simd>::F),
    part: usize,
    x: &Tile,
) {
    type S = Avx512;
    // SAFETY: the caller's contract.
    unsafe {
        for t in 0..TILE {
            let n = S::iload(dots.add(t * PANEL));
            let scaled = S::mul(S::to_f(n), scale);
            sums[t] = S::fma(scaled, S::splat(*x.scales.add(t)), sums[t]);
            if F::MINIMA {
                sums[t] = S::fma(minimum, S::splat(x.mass::<F>(t, part)), sums[t]);
            }
        }
    }
}
