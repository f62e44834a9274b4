//! Eight tokens of sixteen lanes of four: from b vectors of stream bytes to eight of levels.

use crate::format::{RUN, TrellisTable};
use kvant_simd::Simd;

/// A width's levels in registers, so that [`Simd::lookup_pair`] gives level + `BYTE_CENTRE`.
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
pub(super) unsafe fn levels<S: Simd>(table: &TrellisTable) -> S::Table {
    let mut entries = [0; 32];
    entries[..16].copy_from_slice(&table.low);
    // Both halves are centred by the table; the sum shall be once.
    for (entry, level) in entries[16..].iter_mut().zip(table.high) {
        *entry = (i32::from(level) - S::BYTE_CENTRE) as i8;
    }
    // SAFETY: the caller's contract.
    unsafe { S::table(&entries) }
}

/// The levels of a run's eight tokens, and the last bytes of its streams, which the next run's windows begin in.
///
/// # Safety
/// `codes` is valid for 64 · BITS bytes; the CPU has the tier.
#[inline(always)]
pub(super) unsafe fn run<S: Simd, const BITS: usize>(
    table: S::Table,
    before: S::B,
    codes: *const u8,
) -> ([S::B; RUN], S::B) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut bytes = [before; 8];
        for j in 0..BITS {
            bytes[j] = S::bload(codes.add(64 * j));
        }
        let mut out = [before; RUN];
        for k in 0..RUN {
            let end = BITS * (k + 1);
            let upper = if end < 8 { before } else { bytes[end / 8 - 1] };
            let window = if end.is_multiple_of(8) {
                upper
            } else {
                S::funnel(upper, bytes[end / 8], (end % 8) as u32)
            };
            out[k] = S::lookup_pair(table, window);
        }
        (out, bytes[BITS - 1])
    }
}
