//! The head of a Q4_K or Q5_K block: `d, dmin, scales[12]`.

use half::f16;

/// Bytes of the head.
pub(super) const HEAD: usize = 16;

/// Writes two scales and, for each of 8 groups, a scale and a minimum of 6 bits over bytes that are zero. Groups 0 to 3 have a byte
/// for each, whose two top bits complete the nibbles of groups 4 to 7.
#[inline(always)]
pub(super) fn write(out: &mut [u8; HEAD], d: f16, dmin: f16, groups: [(u8, u8); 8]) {
    out[..2].copy_from_slice(&d.to_le_bytes());
    out[2..4].copy_from_slice(&dmin.to_le_bytes());
    for (g, (s, m)) in groups.into_iter().enumerate() {
        if g < 4 {
            out[4 + g] |= s;
            out[8 + g] |= m;
        } else {
            out[8 + g] = s & 15 | (m & 15) << 4;
            out[g] |= s >> 4 << 6;
            out[4 + g] |= m >> 4 << 6;
        }
    }
}
