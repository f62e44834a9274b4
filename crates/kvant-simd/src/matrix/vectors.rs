//! Blocks by the vectors of a tier: what a unit is compared with, and the place of one where there is none.

use super::{Block, MatrixUnit, OCTET, ROWS};
use crate::{LANES, Simd};

/// No unit at all.
#[derive(Clone, Copy, Debug)]
pub struct Vectors;

impl<S: Simd> MatrixUnit<S> for Vectors {
    const NAME: &str = "vectors";

    fn is_there() -> bool {
        false
    }

    unsafe fn begin(_: usize) {}

    unsafe fn end() {}

    #[inline(always)]
    unsafe fn keep(at: *mut u8, first: S::B, second: S::B) {
        // SAFETY: the caller's contract: room for both.
        unsafe {
            S::bstore(at.cast(), first);
            S::bstore(at.add(OCTET / 2).cast(), second);
        }
    }

    #[inline(always)]
    unsafe fn kept(at: *const u8) -> (S::B, S::B) {
        // SAFETY: the caller's contract.
        unsafe { (S::bload(at), S::bload(at.add(OCTET / 2))) }
    }

    #[inline(always)]
    unsafe fn multiply(block: &Block) {
        // Kept codes are as the dot product reads them; reading them again must not move their centre.
        // SAFETY: the caller's contract.
        unsafe {
            for tile in 0..block.tiles {
                let codes = block.codes.add(tile * block.octets * OCTET);
                for row in 0..ROWS {
                    let numbers = block.rows.add(row * block.stride);
                    let mut sums = S::izero();
                    for quad in 0..2 * block.octets {
                        let codes = S::bload(codes.add(quad * OCTET / 2));
                        sums = S::dot_full(sums, codes, S::quad(numbers.add(4 * quad)));
                    }
                    S::istore(block.sums.add((tile * ROWS + row) * LANES), sums);
                }
            }
        }
    }
}
