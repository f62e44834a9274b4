//! Q3_K: 16 groups of 16, codes of 3 bits with a sign, scales of 6 with a sign.
//!
//! Groups are fitted on their own first, their scales are rounded to the integers beside, whichever have the least error, and the
//! scale of the super-block is fitted once more to all codes. Plain rounding is always one of the candidates.

use super::fit::{Codes, SignedScales, extreme, stored, sum};
use half::f16;

const LEN: usize = 256;
const ONES: [f32; LEN] = [1.0; LEN];
const CODES: Codes = Codes { least: -4.0, most: 3.0 };

struct Three {
    d: f16,
    scales: [f32; 16], // −32 to 31
    codes: [f32; LEN], // −4 to 3
    error: f32,
}

impl SignedScales<16> for Three {
    #[inline(always)]
    fn under(x: &[f32; LEN], w: &[f32; LEN], d: f16, wanted: &[f32; 16]) -> Self {
        let unit = d.to_f32();
        let inverse = if unit == 0.0 { 0.0 } else { 1.0 / unit };
        let mut three = Self { d, scales: [0.0; 16], codes: [0.0; LEN], error: 0.0 };
        for (g, (x, w)) in x.as_chunks::<16>().0.iter().zip(w.as_chunks::<16>().0).enumerate() {
            let mut least = f32::INFINITY;
            for step in [0.0, -1.0, 1.0] {
                let s = ((wanted[g] * inverse).round_ties_even() + step).clamp(-32.0, 31.0);
                let (codes, error) = CODES.under(x, w, unit * s);
                if error < least {
                    (three.scales[g], least) = (s, error);
                    three.codes[16 * g..][..16].copy_from_slice(&codes);
                }
            }
            three.error += least;
        }
        three
    }

    #[inline(always)]
    fn refitted(&self, x: &[f32; LEN], w: &[f32; LEN]) -> Option<f16> {
        let by = |i: usize| self.scales[i / 16] * self.codes[i];
        let (both, square) = (sum::<LEN>(|i| w[i] * x[i] * by(i)), sum::<LEN>(|i| w[i] * by(i) * by(i)));
        stored(both / square).filter(|_| square > 0.0).map(|(d, _)| d)
    }

    #[inline(always)]
    fn error(&self) -> f64 {
        f64::from(self.error)
    }
}

impl Three {
    /// The better of plain and searched scales.
    #[inline(always)]
    fn fit(x: &[f32; LEN], w: &[f32; LEN]) -> Option<Self> {
        let (xs, ws) = (x.as_chunks::<16>().0, w.as_chunks::<16>().0);
        let (mut plain, mut searched) = ([0.0f32; 16], [0.0f32; 16]);
        for g in 0..16 {
            plain[g] = extreme(&xs[g]) / -4.0;
            let ends = (0..16).map(|step| 2.4 + 0.16 * step as f32);
            searched[g] = CODES.best_scale(&xs[g], &ws[g], ends);
        }
        let first = Self::of(x, w, &plain)?;
        let second = Self::of(x, w, &searched);
        Some(second.filter(|second| second.error < first.error).unwrap_or(first))
    }

    #[inline(always)]
    fn error_under(&self, x: &[f32; LEN], w: &[f32; LEN]) -> f32 {
        let d = self.d.to_f32();
        sum::<LEN>(|i| {
            let off = x[i] - d * self.scales[i / 16] * self.codes[i];
            w[i] * off * off
        })
    }
}

/// `high[32], codes[64], scales[12], d`: value `d·(s − 32)·(q − 4)`. Codes as in Q2_K; the high bit of value `l` of run `r` (0 to 7
/// over the whole block) is bit `r` of `high[l]`. The low 4 bits of scale `i` are a nibble of byte `i % 8`, its upper 2 bits a pair
/// of byte `8 + i % 4`.
#[inline(always)]
pub(super) fn q3_k(x: &[f32; LEN], weights: Option<&[f32; LEN]>, out: &mut [u8; 110]) -> bool {
    let Some(mut best) = Three::fit(x, &ONES) else { return false };
    if let Some(w) = weights {
        let found = Three::fit(x, w);
        best = found.filter(|three| three.error < best.error_under(x, w)).unwrap_or(best);
    }
    out.fill(0);
    for (i, code) in best.codes.iter().enumerate() {
        let (code, half, run, l) = ((code + 4.0) as u8, i / 128, i % 128 / 32, i % 32);
        out[32 + 32 * half + l] |= (code & 3) << (2 * run);
        out[l] |= (code >> 2) << (i / 32);
    }
    for (g, s) in best.scales.iter().enumerate() {
        let s = (s + 32.0) as u8;
        out[96 + g % 8] |= (s & 15) << (4 * (g / 8));
        out[104 + g % 4] |= (s >> 4) << (2 * (g / 4));
    }
    out[108..].copy_from_slice(&best.d.to_le_bytes());
    true
}
