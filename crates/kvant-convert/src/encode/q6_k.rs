//! Q6_K: 256 values in groups of 16 whose scales are small integers under an f16 scale.
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
