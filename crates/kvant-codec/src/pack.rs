//! How codes of 1 to 8 bits lie in bytes.
//!
//! The atom is a *unit* of 128 codes: two vectors V₀ and V₁ of 64 codes, each sixteen lanes of four codes — the
//! operand of an integer dot product. A unit of b-bit codes takes exactly 16·b bytes, with nothing wasted at any
//! width, as a sum of planes:
//!
//! | plane | bytes per unit | where the code's bits are |
//! |---|---|---|
//! | byte (8 bits) | 128 | V₀, then V₁ |
//! | nibble (4) | 64 | byte i: low nibble from V₀\[i\], high nibble from V₁\[i\] |
//! | crumb (2) | 2 × 16 | V's code 16·l + i in byte i, bits 2l and 2l+1 |
//! | bit (1) | 2 × 8 | V's code i in bit i of a 64-bit mask |
//!
//! so 3 bits are a crumb and a bit plane, 5 a nibble and a bit, 6 a nibble and a crumb, 7 all three. Why planes and
//! not a bit stream: a nibble costs one `and` and half a shift for 64 codes, a crumb one broadcast and one variable
//! shift, a bit plane *is* an AVX-512 mask register; a bit stream would need byte shuffles that cross lanes, which
//! neither AVX2 nor NEON has. The planes of a unit lie side by side, so that a page is read front to back.

use kvant_simd::Simd;

/// The four codes of one lane, lowest byte first; a vector of 64 codes is sixteen of these.
pub(crate) type Words = [u32; 16];

const fn repeated(byte: u8) -> u32 {
    byte as u32 * 0x0101_0101
}

/// Packs one unit into `out`, which has 16·bits bytes.
#[inline(always)]
pub(crate) fn pack(bits: u8, v: &[Words; 2], out: &mut [u8]) {
    if bits == 8 {
        put(&mut out[..64], &v[0]);
        put(&mut out[64..128], &v[1]);
        return;
    }
    let mut shift = 0;
    let mut out = out;
    if bits & 4 != 0 {
        let nibbles: Words =
            std::array::from_fn(|i| (v[0][i] & repeated(15)) | ((v[1][i] & repeated(15)) << 4));
        put(&mut out[..64], &nibbles);
        out = &mut out[64..];
        shift = 4;
    }
    if bits & 2 != 0 {
        for (half, v) in v.iter().enumerate() {
            let crumb = |i: usize| (v[i] >> shift) & repeated(3);
            let words: [u32; 4] = std::array::from_fn(|k| {
                crumb(k) | (crumb(4 + k) << 2) | (crumb(8 + k) << 4) | (crumb(12 + k) << 6)
            });
            put(&mut out[16 * half..16 * half + 16], &words);
        }
        out = &mut out[32..];
        shift += 2;
    }
    if bits & 1 != 0 {
        for (half, v) in v.iter().enumerate() {
            // Four flags, one per byte, gathered into a nibble by one multiplication.
            let flags = |w: u32| u64::from((((w >> shift) & repeated(1)).wrapping_mul(0x1020_4080)) >> 28);
            let mask = v.iter().enumerate().fold(0u64, |mask, (lane, w)| mask | (flags(*w) << (4 * lane)));
            out[8 * half..8 * half + 8].copy_from_slice(&mask.to_le_bytes());
        }
    }
}

#[inline(always)]
fn put(out: &mut [u8], words: &[u32]) {
    for (bytes, word) in out.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

/// The code at `index` of vector `half` of a unit: the definition, one code at a time.
#[cfg(test)]
pub(crate) fn code(bits: u8, unit: &[u8], half: usize, index: usize) -> u8 {
    if bits == 8 {
        return unit[64 * half + index];
    }
    let (mut value, mut shift, mut at) = (0, 0, 0);
    if bits & 4 != 0 {
        value = (unit[index] >> (4 * half)) & 15;
        (shift, at) = (4, 64);
    }
    if bits & 2 != 0 {
        value |= ((unit[at + 16 * half + index % 16] >> (2 * (index / 16))) & 3) << shift;
        (shift, at) = (shift + 2, at + 32);
    }
    if bits & 1 != 0 {
        value |= ((unit[at + 8 * half + index / 8] >> (index % 8)) & 1) << shift;
    }
    value
}

/// Both vectors of a unit in registers. With `BITS` = 8 the bytes come centred as [`Simd::bytes`] does it.
///
/// # Safety
/// `unit` is valid for 16·BITS bytes; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn unpack<S: Simd, const BITS: u32>(unit: *const u8) -> (S::B, S::B) {
    // SAFETY: the planes add up to 16·BITS bytes.
    unsafe {
        if BITS == 8 {
            return (S::bytes(unit), S::bytes(unit.add(64)));
        }
        let mut at = unit;
        let (mut a, mut b) = (S::bzero(), S::bzero());
        if BITS & 4 != 0 {
            (a, b) = S::nibbles(at);
            at = at.add(64);
        }
        if BITS & 2 != 0 {
            let (high_a, high_b) = (S::crumbs(at), S::crumbs(at.add(16)));
            (a, b) = if BITS & 4 != 0 {
                (S::add_high(a, high_a), S::add_high(b, high_b))
            } else {
                (high_a, high_b)
            };
            at = at.add(32);
        }
        if BITS & 1 != 0 {
            let value = 1u8 << (BITS - 1);
            (a, b) = (S::add_bits(a, at, value), S::add_bits(b, at.add(8), value));
        }
        (a, b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::unit_bytes;

    #[test]
    fn every_width_packs_tightly_and_reads_back() {
        let mut state = 1u32;
        for bits in 1..=8u8 {
            let mut random = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8 & (0xFF >> (8 - bits))
            };
            let codes: [[u8; 64]; 2] = std::array::from_fn(|_| std::array::from_fn(|_| random()));
            let words = codes.map(|v| {
                std::array::from_fn(|lane| u32::from_le_bytes(std::array::from_fn(|j| v[4 * lane + j])))
            });
            let mut unit = vec![0; unit_bytes(bits)];
            pack(bits, &words, &mut unit);
            for half in 0..2 {
                for (index, want) in codes[half].iter().enumerate() {
                    assert_eq!(code(bits, &unit, half, index), *want, "{bits} bits, V{half}[{index}]");
                }
            }
        }
    }
}
