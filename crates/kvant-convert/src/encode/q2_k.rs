//! Q2_K: 16 groups of 16, codes of 2 bits, scales and minima of 4.

use super::affine::{Affine, AffineKind};

const LEN: usize = 256;

/// `scales[16], codes[64], d, dmin`: value `d·s·q − dmin·m`. Half `h` of the block uses code bytes `32h..32h+32`, its run `k` of 32
/// values the bits `2k`.
#[inline(always)]
pub(super) fn q2_k(x: &[f32; LEN], weights: Option<&[f32; LEN]>, out: &mut [u8; 84]) -> bool {
    let Some(block) = Affine::<16>::best(x, weights, AffineKind { most: 3.0, limit: 15.0 }) else {
        return false;
    };
    out.fill(0);
    for (out, (scale, minimum)) in out.iter_mut().zip(block.scales.iter().zip(&block.minima)) {
        *out = *scale as u8 | (*minimum as u8) << 4;
    }
    for (i, code) in block.codes.iter().enumerate() {
        let (half, run, l) = (i / 128, i % 128 / 32, i % 32);
        out[16 + 32 * half + l] |= (*code as u8) << (2 * run);
    }
    out[80..82].copy_from_slice(&block.d.to_le_bytes());
    out[82..].copy_from_slice(&block.dmin.to_le_bytes());
    true
}
