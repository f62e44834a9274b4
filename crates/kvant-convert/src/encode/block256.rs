//! Q4_K and Q6_K: 256 values in groups whose scales are small integers under an f16 scale.
//!
//! Groups are fitted on their own first, then their scales are rounded to the integers that the super-block has, and codes are
//! chosen for the rounded ones; the scale of the super-block is fitted once more to all codes.

use super::fit::{Codes, stored, sum};
use half::f16;

const LEN: usize = 256;
const ONES: [f32; LEN] = [1.0; LEN];

/// `codes[128], high[64], scales[16], d`: 16 groups of 16, value `d·s·(q − 32)`, `s` a signed byte.
#[inline(always)]
pub(super) fn q6_k(x: &[f32; LEN], weights: Option<&[f32; LEN]>, out: &mut [u8; 210]) -> bool {
    let Some(mut best) = Six::fit(x, &ONES) else { return false };
    if let Some(w) = weights {
        let found = Six::fit(x, w);
        best = found.filter(|six| six.error(x, w) < best.error(x, w)).unwrap_or(best);
    }
    best.write(out);
    true
}

struct Six {
    d: f16,
    scales: [f32; 16],
    codes: [f32; LEN], // −32 to 31
}

impl Six {
    const CODES: Codes = Codes { least: -32.0, most: 31.0 };

    /// `None` when a scale is beyond f16.
    #[inline(always)]
    fn fit(x: &[f32; LEN], w: &[f32; LEN]) -> Option<Self> {
        let (xs, ws) = (x.as_chunks::<16>().0, w.as_chunks::<16>().0);
        let mut wanted = [0.0f32; 16];
        for g in 0..16 {
            let ends = (0..9).map(|step| 29.0 + 0.75 * step as f32);
            wanted[g] = Self::CODES.best_scale(&xs[g], &ws[g], ends);
        }
        let largest = super::fit::extreme(&wanted);
        let mut six = Self::under(x, stored(largest / -128.0)?.0, &wanted);
        // Once more, with the scale that fits the codes best.
        let by = |i: usize| six.scales[i / 16] * six.codes[i];
        let (both, square) = (sum::<LEN>(|i| w[i] * x[i] * by(i)), sum::<LEN>(|i| w[i] * by(i) * by(i)));
        if square > 0.0
            && let Some((d, _)) = stored(both / square)
        {
            let again = Self::under(x, d, &wanted);
            if again.error(x, w) < six.error(x, w) {
                six = again;
            }
        }
        Some(six)
    }

    /// Scales and codes under a scale of the super-block.
    #[inline(always)]
    fn under(x: &[f32; LEN], d: f16, wanted: &[f32; 16]) -> Self {
        let scale = d.to_f32();
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let mut six = Self { d, scales: [0.0; 16], codes: [0.0; LEN] };
        for (g, values) in x.as_chunks::<16>().0.iter().enumerate() {
            let s = (wanted[g] * inverse).round_ties_even().clamp(-128.0, 127.0);
            let own = scale * s;
            six.scales[g] = s;
            let codes = Self::CODES.of(values, if own == 0.0 { 0.0 } else { 1.0 / own });
            six.codes[16 * g..][..16].copy_from_slice(&codes);
        }
        six
    }

    #[inline(always)]
    fn error(&self, x: &[f32; LEN], w: &[f32; LEN]) -> f32 {
        let d = self.d.to_f32();
        sum::<LEN>(|i| {
            let off = x[i] - d * self.scales[i / 16] * self.codes[i];
            w[i] * off * off
        })
    }

    /// In half `h`, run `k` of 32 values has nibble `k / 2` of code bytes `64h + 32(k % 2) + l` and bits `2k` of `high[32h + l]`.
    #[inline(always)]
    fn write(&self, out: &mut [u8; 210]) {
        out.fill(0);
        for (i, code) in self.codes.iter().enumerate() {
            let code = (code + 32.0) as u8;
            let (half, run, l) = (i / 128, i % 128 / 32, i % 32);
            out[64 * half + 32 * (run % 2) + l] |= (code & 15) << (4 * (run / 2));
            out[128 + 32 * half + l] |= (code >> 4) << (2 * run);
        }
        for (byte, s) in out[192..208].iter_mut().zip(self.scales) {
            *byte = (s as i8).cast_unsigned();
        }
        out[208..].copy_from_slice(&self.d.to_le_bytes());
    }
}

/// `d, dmin, scales[12], codes[128]`: 8 groups of 32, value `d·s·q − dmin·m`, `s` and `m` of 6 bits.
#[inline(always)]
pub(super) fn q4_k(x: &[f32; LEN], weights: Option<&[f32; LEN]>, out: &mut [u8; 144]) -> bool {
    let Some(mut best) = Four::fit(x, &ONES) else { return false };
    if let Some(w) = weights {
        let found = Four::fit(x, w);
        best = found.filter(|four| four.error(x, w) < best.error(x, w)).unwrap_or(best);
    }
    best.write(out);
    true
}

struct Four {
    d: f16,
    dmin: f16,
    scales: [f32; 8],
    minima: [f32; 8],
    codes: [f32; LEN], // 0 to 15
}

impl Four {
    /// `None` when a scale is beyond f16.
    #[inline(always)]
    fn fit(x: &[f32; LEN], w: &[f32; LEN]) -> Option<Self> {
        let (xs, ws) = (x.as_chunks::<32>().0, w.as_chunks::<32>().0);
        let (mut scales, mut minima) = ([0.0f32; 8], [0.0f32; 8]);
        for g in 0..8 {
            (scales[g], minima[g]) = group(&xs[g], &ws[g]);
        }
        let largest = |all: &[f32; 8]| all.iter().fold(0.0f32, |m, &x| m.max(x)) / 63.0;
        let (d, dmin) = (stored(largest(&scales))?.0, stored(largest(&minima))?.0);
        let mut four = Self::under(x, w, (d, dmin), &scales, &minima);
        for _ in 0..2 {
            let Some(again) = four.refitted(x, w, &scales, &minima) else { break };
            if again.error(x, w) >= four.error(x, w) {
                break;
            }
            four = again;
        }
        Some(four)
    }

    /// Once more, with the two scales that fit the codes best.
    #[inline(always)]
    fn refitted(&self, x: &[f32; LEN], w: &[f32; LEN], scales: &[f32; 8], minima: &[f32; 8]) -> Option<Self> {
        let a = |i: usize| self.scales[i / 32] * self.codes[i];
        let b = |i: usize| -self.minima[i / 32];
        let (aa, bb) = (sum::<LEN>(|i| w[i] * a(i) * a(i)), sum::<LEN>(|i| w[i] * b(i) * b(i)));
        let ab = sum::<LEN>(|i| w[i] * a(i) * b(i));
        let (ax, bx) = (sum::<LEN>(|i| w[i] * a(i) * x[i]), sum::<LEN>(|i| w[i] * b(i) * x[i]));
        let determinant = aa * bb - ab * ab;
        let (d, dmin) = if determinant > 1e-6 * aa * bb {
            ((bb * ax - ab * bx) / determinant, (aa * bx - ab * ax) / determinant)
        } else if aa > 0.0 {
            (ax / aa, 0.0)
        } else {
            return None;
        };
        if d <= 0.0 || dmin < 0.0 {
            return None;
        }
        Some(Self::under(x, w, (stored(d)?.0, stored(dmin)?.0), scales, minima))
    }

    /// Scales, minima and codes under the two scales of the super-block: of the integers beside the wanted ones those of
    /// smallest error.
    #[inline(always)]
    fn under(
        x: &[f32; LEN],
        w: &[f32; LEN],
        (d, dmin): (f16, f16),
        scales: &[f32; 8],
        minima: &[f32; 8],
    ) -> Self {
        let (ds, dm) = (d.to_f32(), dmin.to_f32());
        let nearest =
            |wanted: f32, unit: f32| if unit == 0.0 { 0.0 } else { (wanted / unit).round_ties_even() };
        let mut four = Self { d, dmin, scales: [0.0; 8], minima: [0.0; 8], codes: [0.0; LEN] };
        let (xs, ws) = (x.as_chunks::<32>().0, w.as_chunks::<32>().0);
        for g in 0..8 {
            let mut least = f32::INFINITY;
            for scale_step in [0.0, -1.0, 1.0] {
                for minimum_step in [0.0, -1.0, 1.0] {
                    let s = (nearest(scales[g], ds) + scale_step).clamp(0.0, 63.0);
                    let m = (nearest(minima[g], dm) + minimum_step).clamp(0.0, 63.0);
                    let (codes, found) = codes(&xs[g], &ws[g], ds * s, dm * m);
                    if found < least {
                        least = found;
                        (four.scales[g], four.minima[g]) = (s, m);
                        four.codes[32 * g..][..32].copy_from_slice(&codes);
                    }
                }
            }
        }
        four
    }

    #[inline(always)]
    fn error(&self, x: &[f32; LEN], w: &[f32; LEN]) -> f32 {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        sum::<LEN>(|i| {
            let off = x[i] - (d * self.scales[i / 32] * self.codes[i] - dmin * self.minima[i / 32]);
            w[i] * off * off
        })
    }

    /// Groups `2k` and `2k + 1` are the low and high nibbles of code bytes `32k..32k+32`. Scales and minima of groups 0 to 3 have
    /// a byte each, whose two top bits complete the nibbles of groups 4 to 7.
    #[inline(always)]
    fn write(&self, out: &mut [u8; 144]) {
        out.fill(0);
        out[..2].copy_from_slice(&self.d.to_le_bytes());
        out[2..4].copy_from_slice(&self.dmin.to_le_bytes());
        for g in 0..8 {
            let (s, m) = (self.scales[g] as u8, self.minima[g] as u8);
            if g < 4 {
                out[4 + g] |= s;
                out[8 + g] |= m;
            } else {
                out[8 + g] = s & 15 | (m & 15) << 4;
                out[g] |= s >> 4 << 6;
                out[4 + g] |= m >> 4 << 6;
            }
        }
        for (i, code) in self.codes.iter().enumerate() {
            let (group, l) = (i / 32, i % 32);
            out[16 + 32 * (group / 2) + l] |= (*code as u8) << (4 * (group % 2));
        }
    }
}

/// Codes of a group under its scale and minimum, and their weighted error.
#[inline(always)]
fn codes(x: &[f32; 32], w: &[f32; 32], scale: f32, minimum: f32) -> ([f32; 32], f32) {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut codes = [0.0; 32];
    for i in 0..32 {
        codes[i] = ((x[i] + minimum) * inverse).round_ties_even().clamp(0.0, 15.0);
    }
    let error = sum::<32>(|i| {
        let off = x[i] - (scale * codes[i] - minimum);
        w[i] * off * off
    });
    (codes, error)
}

/// The scale and the minimum, neither negative, of smallest weighted error on a grid of ranges.
#[inline(always)]
fn group(x: &[f32; 32], w: &[f32; 32]) -> (f32, f32) {
    let (low, high) = x.iter().fold((0.0f32, f32::MIN), |(l, h), &x| (l.min(x), h.max(x)));
    if high <= low {
        return (0.0, -low);
    }
    let (mut best, mut least) = (((high - low) / 15.0, -low), f32::INFINITY);
    let (all, first) = (sum::<32>(|i| w[i]), sum::<32>(|i| w[i] * x[i]));
    // One place to try a candidate: what is called twice may be compiled apart, for the plainest instruction set.
    for step in 0..21 {
        let (scale, minimum) = if step == 0 {
            best
        } else {
            let inverse = (13.8 + 0.12 * (step - 1) as f32) / (high - low);
            let mut q = [0.0f32; 32];
            for i in 0..32 {
                q[i] = ((x[i] - low) * inverse).round_ties_even().clamp(0.0, 15.0);
            }
            let (sq, sqq) = (sum::<32>(|i| w[i] * q[i]), sum::<32>(|i| w[i] * q[i] * q[i]));
            let sqx = sum::<32>(|i| w[i] * q[i] * x[i]);
            let determinant = all * sqq - sq * sq;
            if determinant <= 0.0 {
                continue;
            }
            let offset = (sqq * first - sq * sqx) / determinant;
            // Without an offset where it would have to be positive.
            if offset > 0.0 { (sqx / sqq, 0.0) } else { ((all * sqx - first * sq) / determinant, -offset) }
        };
        if scale > 0.0 {
            let found = codes(x, w, scale, minimum).1;
            if found < least {
                (best, least) = ((scale, minimum), found);
            }
        }
    }
    best
}
