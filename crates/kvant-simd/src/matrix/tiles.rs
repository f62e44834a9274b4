//! Blocks by the tile unit of Sapphire Rapids and later: 16 rows × 16 lanes × 64 numbers in one instruction.

use super::{Block, MatrixUnit, OCTET, ROWS};
use crate::{Amx, Avx512, LANES, Simd};
use std::arch::asm;
use std::arch::x86_64::__m512i;

/// AMX.
#[derive(Clone, Copy, Debug)]
pub struct Tiles;

/// Octets that a tile holds.
const DEEP: usize = 8;

/// Shapes of the tiles: 0 sums, 1 and 2 a full depth of rows and of codes, 3 and 4 what is left of them at the end. One register
/// of sums is enough: the processor has more of them.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    fn of(octets: usize) -> Shapes {
        let rest = match octets % DEEP {
            0 => DEEP,
            rest => rest,
        };
        let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
        for tile in 0..5 {
            (row_bytes[tile], rows[tile]) = match tile {
                0..3 => (64, 16),
                3 => (8 * rest as u16, 16),
                _ => (64, 2 * rest as u8),
            };
        }
        Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
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

    #[inline(always)]
    unsafe fn begin(octets: usize) {
        // SAFETY: the unit is there; the shapes are a valid configuration.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &Shapes::of(octets), options(nostack, preserves_flags, readonly))
        };
    }

    #[inline(always)]
    unsafe fn end() {
        // SAFETY: the unit is there.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }

    #[inline(always)]
    unsafe fn keep(at: *mut u8, first: __m512i, second: __m512i) {
        // SAFETY: the caller's contract: room for both.
        unsafe {
            Avx512::bstore(at.cast(), first);
            Avx512::bstore(at.add(OCTET / 2).cast(), second);
        }
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
