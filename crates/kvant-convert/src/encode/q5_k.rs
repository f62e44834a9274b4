//! Q5_K: 8 groups of 32, codes of 5 bits, scales and minima of 6.

use super::affine::{Affine, AffineKind};
use super::head;

const LEN: usize = 256;

/// `d, dmin, scales[12], high[32], codes[128]`: value `d·s·q − dmin·m`. Groups `2k` and `2k + 1` are the low and high nibbles of code
/// bytes `32k..32k+32`; the high bit of value `l` of group `g` is bit `g` of `high[l]`.
#[inline(always)]
pub(super) fn q5_k(x: &[f32; LEN], weights: Option<&[f32; LEN]>, out: &mut [u8; 176]) -> bool {
    let Some(block) = Affine::<32>::best(x, weights, AffineKind { most: 31.0, limit: 63.0 }) else {
        return false;
    };
    out.fill(0);
    let groups = std::array::from_fn(|g| (block.scales[g] as u8, block.minima[g] as u8));
    head::write(out.first_chunk_mut().expect("a block is longer"), block.d, block.dmin, groups);
    for (i, code) in block.codes.iter().enumerate() {
        let (code, group, l) = (*code as u8, i / 32, i % 32);
        out[48 + 32 * (group / 2) + l] |= (code & 15) << (4 * (group % 2));
        out[16 + l] |= (code >> 4) << group;
    }
    true
}
