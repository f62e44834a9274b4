//! Super-blocks of 256: a scale in f16 over small integer scales of 8 or 16 groups (the "K" types).
//!
//! With `d`, `dmin` the f16 scales and `s[g]`, `m[g]` the integer scale and minimum of group `g`:
//!
//! | type | groups | value |
//! |---|---|---|
//! | Q2_K | 16 of 16 | `d·s·q − dmin·m`, `q` 2 bits, `s`, `m` 4 bits |
//! | Q3_K | 16 of 16 | `d·(s − 32)·(q + 4·h − 4)`, `q` 2 bits, `h` 1 bit, `s` 6 bits |
//! | Q4_K | 8 of 32 | `d·s·q − dmin·m`, `q` 4 bits, `s`, `m` 6 bits |
//! | Q5_K | 8 of 32 | `d·s·(q + 16·h) − dmin·m`, `q` 4 bits, `h` 1 bit, `s`, `m` 6 bits |
//! | Q6_K | 16 of 16 | `d·s·(q + 16·h − 32)`, `q` 4 bits, `h` 2 bits, `s` signed 8 bits |
//! | Q8_K | one | `d·q`, `d` f32, `q` signed 8 bits (sums of 16 follow, unused here) |
//!
//! Codes are spread so that one vector of 32 bytes holds several groups: value `32·k + l` of a run takes its
//! bits from byte `l`, at a shift that grows with `k`. Each function names its shifts.

use super::f16_at;

const LEN: usize = 256;

/// Each block of `BYTES` bytes with the place of its 256 values. An iterator and not a callback: a closure would be
/// compiled once, for the plainest instruction set.
#[inline(always)]
fn blocks<'a, const BYTES: usize>(
    bytes: &'a [u8],
    out: &'a mut [f32],
) -> impl Iterator<Item = (&'a [u8; BYTES], &'a mut [f32; LEN])> {
    bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0)
}

/// `N` bytes from `at` on, as an array: loops over arrays of known length are vectorised.
#[inline(always)]
fn slice<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("blocks are longer than any part of them")
}

/// `scales[16], codes[64], d, dmin`. Half `h` of the block (128 values) uses code bytes `32h..32h+32`, its run
/// `k` of 32 values the bits `2k`.
#[inline(always)]
pub(super) fn q2_k(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in blocks::<84>(bytes, out) {
        let (scales, codes) = (&block[..16], &block[16..80]);
        let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
        for (group, values) in values.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (half, run, part) = (group / 8, group % 8 / 2, group % 2);
            let scale = d * f32::from(scales[group] & 15);
            let minimum = dmin * f32::from(scales[group] >> 4);
            let codes = slice::<16>(codes, 32 * half + 16 * part);
            for (value, &code) in values.iter_mut().zip(codes) {
                *value = scale * (u32::from(code) >> (2 * run) & 3) as f32 - minimum;
            }
        }
    }
}

/// `high[32], codes[64], scales[12], d`. Codes as in Q2_K; the high bit of value `l` of run `r` (0 to 7 over the
/// whole block) is bit `r` of `high[l]`. The low 4 bits of scale `i` are a nibble of byte `i % 8`, its upper 2
/// bits a pair of byte `8 + i % 4`.
#[inline(always)]
pub(super) fn q3_k(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in blocks::<110>(bytes, out) {
        let (high, codes, scales) = (&block[..32], &block[32..96], &block[96..108]);
        let d = f16_at(block, 108);
        for (group, values) in values.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let low = scales[group % 8] >> (4 * (group / 8)) & 15;
            let upper = scales[8 + group % 4] >> (2 * (group / 4)) & 3;
            let scale = d * (f32::from(low | upper << 4) - 32.0);
            let (half, run, part) = (group / 8, group % 8 / 2, group % 2);
            let (codes, high) = (slice::<16>(codes, 32 * half + 16 * part), slice::<16>(high, 16 * part));
            for (value, (&code, &top)) in values.iter_mut().zip(codes.iter().zip(high)) {
                let code = u32::from(code) >> (2 * run) & 3;
                let top = u32::from(top) >> (group / 2) & 1;
                *value = scale * ((code | top << 2) as f32 - 4.0);
            }
        }
    }
}

/// The 6-bit scale and minimum of group `g` (of 8) from their 12 bytes: groups 0 to 3 have a byte each, whose
/// two top bits complete the nibbles of groups 4 to 7.
#[inline(always)]
fn scale_and_minimum(packed: &[u8], g: usize) -> (f32, f32) {
    let (scale, minimum) = if g < 4 {
        (packed[g] & 63, packed[g + 4] & 63)
    } else {
        (packed[g + 4] & 15 | packed[g - 4] >> 6 << 4, packed[g + 4] >> 4 | packed[g] >> 6 << 4)
    };
    (f32::from(scale), f32::from(minimum))
}

/// `d, dmin, scales[12], codes[128]`. Groups `2k` and `2k + 1` are the low and high nibbles of code bytes
/// `32k..32k+32`.
#[inline(always)]
pub(super) fn q4_k(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in blocks::<144>(bytes, out) {
        let (d, dmin, scales, codes) = (f16_at(block, 0), f16_at(block, 2), &block[4..16], &block[16..]);
        for (group, values) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, minimum) = scale_and_minimum(scales, group);
            let (scale, minimum) = (d * scale, dmin * minimum);
            let codes = slice::<32>(codes, 32 * (group / 2));
            for (value, &code) in values.iter_mut().zip(codes) {
                *value = scale * (u32::from(code) >> (4 * (group % 2)) & 15) as f32 - minimum;
            }
        }
    }
}

/// `d, dmin, scales[12], high[32], codes[128]`. As Q4_K; the high bit of value `l` of group `g` is bit `g` of
/// `high[l]`.
#[inline(always)]
pub(super) fn q5_k(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in blocks::<176>(bytes, out) {
        let (d, dmin, scales) = (f16_at(block, 0), f16_at(block, 2), &block[4..16]);
        let (high, codes) = (slice::<32>(block, 16), &block[48..]);
        for (group, values) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, minimum) = scale_and_minimum(scales, group);
            let (scale, minimum) = (d * scale, dmin * minimum);
            let codes = slice::<32>(codes, 32 * (group / 2));
            for (value, (&code, &top)) in values.iter_mut().zip(codes.iter().zip(high)) {
                let code = u32::from(code) >> (4 * (group % 2)) & 15;
                let top = u32::from(top) >> group & 1;
                *value = scale * (code | top << 4) as f32 - minimum;
            }
        }
    }
}

/// `codes[128], high[64], scales[16], d`. In half `h`, run `k` of 32 values takes nibble `k / 2` of code bytes
/// `64h + 32(k % 2) + l` and bits `2k` of `high[32h + l]`.
#[inline(always)]
pub(super) fn q6_k(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in blocks::<210>(bytes, out) {
        let (codes, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
        let d = f16_at(block, 208);
        for (group, values) in values.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (half, run, part) = (group / 8, group % 8 / 2, group % 2);
            let scale = d * f32::from(scales[group].cast_signed());
            let codes = slice::<16>(codes, 64 * half + 32 * (run % 2) + 16 * part);
            let high = slice::<16>(high, 32 * half + 16 * part);
            for (value, (&code, &top)) in values.iter_mut().zip(codes.iter().zip(high)) {
                let code = u32::from(code) >> (4 * (run / 2)) & 15;
                let top = u32::from(top) >> (2 * run) & 3;
                *value = scale * ((code | top << 4) as f32 - 32.0);
            }
        }
    }
}

/// `d (f32), codes[256], sums[16]`.
#[inline(always)]
pub(super) fn q8_k(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in blocks::<292>(bytes, out) {
        let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        for (value, &code) in values.iter_mut().zip(&block[4..]) {
            *value = f32::from(code.cast_signed()) * d;
        }
    }
}
