//! Blocks by ARM's matrix multiply: 2 rows × 2 lanes × 8 numbers in one instruction, twice what a dot product does.

use super::{Block, MatrixUnit, OCTET, ROWS};
use crate::{LANES, Neon};
use std::arch::aarch64::*;
use std::arch::asm;

/// The 8-bit integer matrix extension: Apple M2, Graviton 3, Cortex-X2 and later.
#[derive(Clone, Copy, Debug)]
pub struct I8mm;

/// Pairs of rows that are summed up at a time: with all eight pairs of lanes they take half of the registers.
const PAIRS: usize = 2;

/// sums = lanes · rowsᵀ for two lanes and two rows of eight signed bytes: lane 0 with rows 0 and 1, then lane 1.
///
/// # Safety
/// The CPU has the extension.
#[inline(always)]
unsafe fn smmla(mut sums: int32x4_t, lanes: int8x16_t, rows: int8x16_t) -> int32x4_t {
    // SAFETY: a pure register operation that the caller vouches for.
    unsafe {
        asm!(
            ".arch_extension i8mm",
            "smmla {sums:v}.4s, {lanes:v}.16b, {rows:v}.16b",
            sums = inout(vreg) sums, lanes = in(vreg) lanes, rows = in(vreg) rows,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

impl MatrixUnit<Neon> for I8mm {
    const NAME: &str = "i8mm";

    fn is_there() -> bool {
        std::arch::is_aarch64_feature_detected!("i8mm")
    }

    unsafe fn begin(_: usize) {}

    unsafe fn end() {}

    /// Pairs of lanes, eight codes each.
    #[inline(always)]
    unsafe fn keep(at: *mut u8, first: [uint8x16_t; 4], second: [uint8x16_t; 4]) {
        // SAFETY: the caller's contract: room for 128 bytes.
        unsafe {
            for i in 0..4 {
                let (a, b) = (vreinterpretq_u32_u8(first[i]), vreinterpretq_u32_u8(second[i]));
                vst1q_u8(at.add(32 * i), vreinterpretq_u8_u32(vzip1q_u32(a, b)));
                vst1q_u8(at.add(32 * i + 16), vreinterpretq_u8_u32(vzip2q_u32(a, b)));
            }
        }
    }

    #[inline(always)]
    unsafe fn kept(at: *const u8) -> ([uint8x16_t; 4], [uint8x16_t; 4]) {
        // SAFETY: the caller's contract: 128 bytes that were kept.
        unsafe {
            let (mut first, mut second) = ([vdupq_n_u8(0); 4], [vdupq_n_u8(0); 4]);
            for i in 0..4 {
                let low = vreinterpretq_u32_u8(vld1q_u8(at.add(32 * i)));
                let high = vreinterpretq_u32_u8(vld1q_u8(at.add(32 * i + 16)));
                first[i] = vreinterpretq_u8_u32(vuzp1q_u32(low, high));
                second[i] = vreinterpretq_u8_u32(vuzp2q_u32(low, high));
            }
            (first, second)
        }
    }

    #[inline(always)]
    unsafe fn multiply(block: &Block) {
        // SAFETY: the caller's contract.
        unsafe {
            for tile in 0..block.tiles {
                let codes = block.codes.add(tile * block.octets * OCTET);
                for first in (0..ROWS).step_by(2 * PAIRS) {
                    let mut sums = [[vdupq_n_s32(0); LANES / 2]; PAIRS];
                    for octet in 0..block.octets {
                        let mut rows = [vdupq_n_s8(0); PAIRS];
                        for p in 0..PAIRS {
                            let row = block.rows.add((first + 2 * p) * block.stride + 8 * octet);
                            rows[p] = vcombine_s8(vld1_s8(row), vld1_s8(row.add(block.stride)));
                        }
                        for l in 0..LANES / 2 {
                            let lanes = vreinterpretq_s8_u8(vld1q_u8(codes.add(octet * OCTET + 16 * l)));
                            for p in 0..PAIRS {
                                sums[p][l] = smmla(sums[p][l], lanes, rows[p]);
                            }
                        }
                    }
                    for p in 0..PAIRS {
                        let to = block.sums.add((tile * ROWS + first + 2 * p) * LANES);
                        for l in (0..LANES / 2).step_by(2) {
                            let (a, b) = (sums[p][l], sums[p][l + 1]);
                            vst1q_s32(to.add(2 * l), vuzp1q_s32(a, b));
                            vst1q_s32(to.add(LANES + 2 * l), vuzp2q_s32(a, b));
                        }
                    }
                }
            }
        }
    }
}
