//! Blocks by the tile unit of Sapphire Rapids and later: 16 rows × 16 lanes × 64 numbers in one instruction.

use super::{Block, MatrixUnit, OCTET, ROWS, Vectors};
use crate::{Amx, Avx512, LANES};
use std::arch::asm;
use std::arch::x86_64::__m512i;

/// AMX.
#[derive(Clone, Copy, Debug)]
pub struct Tiles;

/// Octets that a tile holds.
const DEEP: usize = 8;

/// The shapes of the tile registers, as the processor reads them.
#[repr(C, align(64))]
pub struct TileShapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl TileShapes {
    /// (bytes of a row, rows) of the registers from the first on; the others are not used.
    #[inline(always)]
    pub fn new<const N: usize>(shapes: [(usize, usize); N]) -> TileShapes {
        let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
        for (tile, (bytes, count)) in shapes.into_iter().enumerate() {
            (row_bytes[tile], rows[tile]) = (bytes as u16, count as u8);
        }
        TileShapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
    }

    /// Makes this thread's tile unit ready for them, until [`TileShapes::release`].
    ///
    /// # Safety
    /// [`Amx::status`] is `Used`; rows have 1 to 64 bytes, and there are 1 to 16 of them.
    #[inline(always)]
    pub unsafe fn load(&self) {
        // SAFETY: the caller's contract.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, preserves_flags, readonly)) };
    }

    /// Gives the unit back.
    ///
    /// # Safety
    /// [`Amx::status`] is `Used`.
    #[inline(always)]
    pub unsafe fn release() {
        // SAFETY: the caller's contract.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }
}

/// Rows times codes, added to the sums.
macro_rules! add_product {
    ($rows:literal, $codes:literal, $row:ident, $stride:expr, $code:ident) => {
        asm!(
            concat!("tileloadd tmm", $rows, ", [{row} + {stride}]"),
            concat!("tileloadd tmm", $codes, ", [{code} + {line}]"),
            concat!("tdpbsud tmm0, tmm", $rows, ", tmm", $codes),
            row = in(reg) $row, stride = in(reg) $stride, code = in(reg) $code, line = in(reg) 64usize,
            options(nostack, preserves_flags, readonly)
        )
    };
}

impl MatrixUnit<Avx512> for Tiles {
    const NAME: &str = "AMX tiles";

    fn is_there() -> bool {
        *Amx::status() == Amx::Used
    }

    /// Registers: 0 sums, 1 and 2 a full depth of rows and of codes, 3 and 4 what is left of them at the end. One of sums is
    /// enough: the processor has more of them.
    #[inline(always)]
    unsafe fn begin(octets: usize) {
        let rest = match octets % DEEP {
            0 => DEEP,
            rest => rest,
        };
        // SAFETY: the unit is there.
        unsafe { TileShapes::new([(64, 16), (64, 16), (64, 16), (8 * rest, 16), (64, 2 * rest)]).load() };
    }

    #[inline(always)]
    unsafe fn end() {
        // SAFETY: the unit is there.
        unsafe { TileShapes::release() };
    }

    #[inline(always)]
    unsafe fn keep(at: *mut u8, first: __m512i, second: __m512i) {
        // SAFETY: the caller's contract.
        unsafe { <Vectors as MatrixUnit<Avx512>>::keep(at, first, second) };
    }

    #[inline(always)]
    unsafe fn kept(at: *const u8) -> (__m512i, __m512i) {
        // SAFETY: the caller's contract.
        unsafe { <Vectors as MatrixUnit<Avx512>>::kept(at) }
    }

    #[inline(always)]
    unsafe fn multiply(block: &Block) {
        // SAFETY: the caller's contract: rows, codes and sums are there for all tiles, and the shapes are of these octets.
        unsafe {
            for tile in 0..block.tiles {
                let (mut row, mut code) = (block.rows, block.codes.add(tile * block.octets * OCTET));
                asm!("tilezero tmm0", options(nomem, nostack, preserves_flags));
                for _ in 0..block.octets / DEEP {
                    add_product!("1", "2", row, block.stride, code);
                    row = row.add(8 * DEEP);
                    code = code.add(DEEP * OCTET);
                }
                if !block.octets.is_multiple_of(DEEP) {
                    add_product!("3", "4", row, block.stride, code);
                }
                asm!(
                    "tilestored [{to} + {line}], tmm0",
                    to = in(reg) block.sums.add(tile * ROWS * LANES), line = in(reg) 64usize,
                    options(nostack, preserves_flags)
                );
            }
        }
    }
}
