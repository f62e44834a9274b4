//! Pages of codes of 4 or 8 bits (`KeyPage` and `ValuePage` of `kernels/pages.cuh`): codes in the order of A fragments, scales in that of
//! B fragments.
//!
//! A lane of a warp is 4g + t. Keys are A with tokens as rows, token = 16·mt + 8r + g and channel = 16·ks + 8c + 2t + e; values are A
//! with channels as rows and tokens along k, by the same formulas the other way round. A word has eight codes of 4 bits, of which
//! (r, c, e) lies 4r + 8c + 16e bits up, or four of 8 bits, of which (r, e) lies 8r + 16e bits up.

use super::{PAGE_TOKENS, PageSwizzle, Unsupported};
use kvant_codec::Side;
use kvant_codec::format::{CodeMeaning, PackedFormat, ScaleFormat};
use std::ops::Range;

/// A row (16·tile + 8r + g) and a place along k (16·ks + 8c + 2t + e), taken apart.
struct Fragment {
    tile: usize,
    r: usize,
    g: usize,
    ks: usize,
    c: usize,
    t: usize,
    e: usize,
}

impl Fragment {
    fn of(row: usize, k: usize) -> Fragment {
        let (tile, r, g) = (row / 16, row / 8 % 2, row % 8);
        Fragment { tile, r, g, ks: k / 16, c: k / 8 % 2, t: k / 2 % 4, e: k % 2 }
    }

    /// The first nibble of a code of so many bits, from the first code on; `steps` along k, as many of which as they are whole loads of
    /// a tile lie together. Where they are not, a step of all tiles does.
    fn nibble(&self, bits: u8, steps: usize) -> usize {
        let lane = 4 * self.g + self.t;
        if !steps.is_multiple_of(4) {
            let block = if bits == 4 { self.ks } else { 2 * self.ks + self.c };
            let word = block * 128 + 4 * lane + self.tile;
            8 * word + if bits == 4 { 2 * (self.c + 2 * self.e) + self.r } else { 2 * (self.r + 2 * self.e) }
        } else if bits == 4 {
            let word = (self.tile * (steps / 4) + self.ks / 4) * 128 + 4 * lane + self.ks % 4;
            8 * word + 2 * (self.c + 2 * self.e) + self.r
        } else {
            let word = (self.tile * (steps / 2) + self.ks / 2) * 128 + 4 * lane + 2 * (self.ks % 2) + self.c;
            8 * word + 2 * (self.r + 2 * self.e)
        }
    }

    /// Whether it is in the last of an odd number of steps: scales and zeros of these are [t][c][e].
    fn is_odd(&self, steps: usize) -> bool {
        steps % 2 == 1 && self.ks + 1 == steps
    }

    /// A scale along k, as B fragments want it: [ks/2][t][ks%2][c][e].
    fn scale(&self, steps: usize) -> usize {
        let step = if self.is_odd(steps) { 4 * self.t } else { 8 * self.t + self.ks % 2 * 4 };
        self.ks / 2 * 32 + step + self.c * 2 + self.e
    }

    /// A zero along k, which meets the query as A: [ks/2][t][c][ks%2][e].
    fn zero(&self, steps: usize) -> usize {
        let step = match self.is_odd(steps) {
            true => 4 * self.t + self.c * 2,
            false => 8 * self.t + self.c * 4 + self.ks % 2 * 2,
        };
        self.ks / 2 * 32 + step + self.e
    }
}

/// The page's arrays, all of which must be there.
struct Arrays {
    /// Channel scales of keys, token scales of values.
    scale: Range<usize>,
    /// Channel zeros; empty for values.
    zero: Range<usize>,
    /// Of a code.
    bits: u8,
}

fn arrays(format: &PackedFormat) -> Result<Arrays, Unsupported> {
    let refuse = |what: &str| Err(Unsupported { what: what.to_owned() });
    let bits = format.spans.first().map_or(0, |span| span.bits);
    if let Some(span) = format.spans.iter().find(|span| !matches!(span.bits, 4 | 8) || span.bits != bits) {
        return refuse(&format!("codes of {} bits", span.bits));
    }
    if format.scales != ScaleFormat::F16 || format.coded != format.dim {
        return refuse("scales that are not f16, or channels without codes");
    }
    let whole = |meaning: CodeMeaning| format.spans.iter().all(|span| span.meaning == meaning);
    let PackedFormat { channel_scale, channel_zero, token_scale, token_zero, .. } = format;
    match (format.side, channel_scale, channel_zero, token_scale, token_zero) {
        (Side::Key, Some(scale), Some(zero), None, None) if whole(CodeMeaning::WithZero) => {
            Ok(Arrays { scale: scale.clone(), zero: zero.clone(), bits })
        }
        (Side::Value, None, None, Some(scale), None)
            if whole(CodeMeaning::Shifted) && format.groups == format.dim.div_ceil(32) =>
        {
            Ok(Arrays { scale: scale.clone(), zero: 0..0, bits })
        }
        (Side::Key, ..) => refuse("keys without a scale and a zero per channel"),
        (Side::Value, ..) => refuse("values without a scale per token and 32 channels"),
    }
}

/// Bits of a packed page's codes, where kernels read such pages.
pub(super) fn bits(format: &PackedFormat) -> Result<u8, Unsupported> {
    arrays(format).map(|arrays| arrays.bits)
}

/// Channels that lie together: heads of more than 256 lie as heads of 128, one after the other.
fn part_of(dim: usize) -> usize {
    if dim > 256 { 128 } else { dim }
}

pub(super) fn swizzle(format: &PackedFormat) -> Result<PageSwizzle, Unsupported> {
    let Arrays { scale, zero, bits } = arrays(format)?;
    let dim = format.dim;
    let (part, code_bytes) = (part_of(dim), 8 * usize::from(bits)); // code bytes of a channel
    let (key_bytes, value_bytes) = ((4 + code_bytes) * part, code_bytes * part + 128 * part.div_ceil(32));
    let (mut halves, mut nibbles) = (Vec::new(), Vec::new());
    let push = |list: &mut Vec<(u32, u32)>, a: usize, b: usize| list.push((a as u32, b as u32));
    let unit_bytes = 16 * usize::from(bits);
    // From a part's start: keys have scales (2·part bytes), zeros (2·part), codes; values codes (8·bits·part), scales.
    for span in &format.spans {
        for channel in span.first..span.first + span.len {
            for token in 0..PAGE_TOKENS {
                let at = channel - span.first;
                // Unit, vector of the unit, code of the vector; the device's nibble.
                let (unit, high, code, device) = match format.side {
                    Side::Key => {
                        let start = 2 * (channel / part * key_bytes + 4 * part);
                        let device = start + Fragment::of(token, channel % part).nibble(bits, part / 16);
                        (at / 8 * 4 + token / 16, at % 8 / 4, 4 * (token % 16) + at % 4, device)
                    }
                    Side::Value => {
                        let start = 2 * (channel / part * value_bytes);
                        let device =
                            start + Fragment::of(channel % part, token).nibble(bits, PAGE_TOKENS / 16);
                        (at / 16 * 8 + token / 8, token % 8 / 4, 4 * (at % 16) + token % 4, device)
                    }
                };
                let start = span.codes + unit * unit_bytes;
                if bits == 4 {
                    push(&mut nibbles, 2 * (start + code) + high, device);
                } else {
                    let byte = start + 64 * high + code;
                    (0..2).for_each(|half| push(&mut nibbles, 2 * byte + half, device + half));
                }
            }
        }
    }
    match format.side {
        Side::Key => {
            for channel in 0..dim {
                let (f, start) = (Fragment::of(0, channel % part), channel / part * key_bytes / 2);
                push(&mut halves, scale.start / 2 + channel, start + f.scale(part / 16));
                push(&mut halves, zero.start / 2 + channel, start + part + f.zero(part / 16));
            }
        }
        Side::Value => {
            let groups = part.div_ceil(32);
            for group in 0..format.groups {
                let start = (group / groups * value_bytes + code_bytes * part) / 2 + group % groups * 64;
                for token in 0..PAGE_TOKENS {
                    let f = Fragment::of(0, token);
                    push(
                        &mut halves,
                        scale.start / 2 + group * PAGE_TOKENS + token,
                        start + f.scale(PAGE_TOKENS / 16),
                    );
                }
            }
        }
    }
    Ok(PageSwizzle { bytes: format.bytes, halves, nibbles, bits: Vec::new() })
}
