//! IQ4_NL and IQ4_XS: codes of 4 bits that name one of sixteen levels, denser near zero.

use super::fit::{SignedScales, extreme, stored};
use half::f16;

/// The levels, as the format fixes them.
const LEVELS: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// Values of a group.
const GROUP: usize = 32;

/// The code of the nearest level.
#[inline(always)]
fn nearest(x: f32) -> u8 {
    let mut code = 0;
    for pair in LEVELS.windows(2) {
        code += u8::from(x > 0.5 * (pair[0] + pair[1]));
    }
    code
}

#[inline(always)]
fn codes(x: &[f32; GROUP], scale: f32) -> [u8; GROUP] {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut codes = [0; GROUP];
    for i in 0..GROUP {
        codes[i] = nearest(x[i] * inverse);
    }
    codes
}

/// Σ w·(x − scale·level)².
#[inline(always)]
fn error(x: &[f32; GROUP], w: &[f32; GROUP], codes: &[u8; GROUP], scale: f32) -> f64 {
    let mut sum = 0.0;
    for i in 0..GROUP {
        let off = f64::from(x[i]) - f64::from(scale) * f64::from(LEVELS[usize::from(codes[i])]);
        sum += f64::from(w[i]) * off * off;
    }
    sum
}

/// The scale that fits codes best.
#[inline(always)]
fn fitted(x: &[f32; GROUP], w: &[f32; GROUP], codes: &[u8; GROUP]) -> f32 {
    let (mut both, mut square) = (0.0f64, 0.0f64);
    for i in 0..GROUP {
        let level = f64::from(LEVELS[usize::from(codes[i])]);
        both += f64::from(w[i]) * f64::from(x[i]) * level;
        square += f64::from(w[i]) * level * level;
    }
    if square > 0.0 { (both / square) as f32 } else { 0.0 }
}

/// Plain rounding: the value of largest magnitude at the level of largest magnitude.
#[inline(always)]
fn plain(x: &[f32; GROUP]) -> f32 {
    extreme(x) / LEVELS[0]
}

/// The scale of least weighted error on a grid of places for the extreme, on either side, each fitted twice.
#[inline(always)]
fn best_scale(x: &[f32; GROUP], w: &[f32; GROUP]) -> f32 {
    let largest = extreme(x);
    if largest == 0.0 {
        return 0.0;
    }
    let mut best = plain(x);
    let mut least = error(x, w, &codes(x, best), best);
    for step in 0..14 {
        for side in [1.0, -1.0] {
            let mut scale = side * largest / (90.0 + 4.0 * step as f32);
            for _ in 0..2 {
                scale = fitted(x, w, &codes(x, scale));
                let found = error(x, w, &codes(x, scale), scale);
                if found < least {
                    (best, least) = (scale, found);
                }
            }
        }
    }
    best
}

/// Byte `i` has the codes of values `i` and `i + 16`.
#[inline(always)]
fn pack(codes: &[u8; GROUP], out: &mut [u8]) {
    for i in 0..GROUP / 2 {
        out[i] = codes[i] | codes[i + GROUP / 2] << 4;
    }
}

const ONES: [f32; 256] = [1.0; 256];

/// `d, nibble[32]`, value `d·level`.
#[inline(always)]
pub(super) fn iq4_nl(x: &[f32; GROUP], weights: Option<&[f32; GROUP]>, out: &mut [u8; 18]) -> bool {
    let ones: &[f32; GROUP] = ONES.first_chunk().expect("it is longer");
    let w = weights.unwrap_or(ones);
    let Some((mut half, d)) = stored(plain(x)) else { return false };
    let mut best = codes(x, d);
    let mut least = error(x, w, &best, d);
    for weights in [ones, w] {
        if let Some((found, d)) = stored(best_scale(x, weights)) {
            let own = codes(x, d);
            let error = error(x, w, &own, d);
            if error < least {
                (half, best, least) = (found, own, error);
            }
        }
    }
    out[..2].copy_from_slice(&half.to_le_bytes());
    pack(&best, &mut out[2..]);
    true
}

/// A super-block of 8 groups, whose scales have 6 bits with a sign.
struct Eight {
    d: f16,
    scales: [f32; 8],
    codes: [[u8; GROUP]; 8],
    error: f64,
}

impl SignedScales<8> for Eight {
    #[inline(always)]
    fn under(x: &[f32; 256], w: &[f32; 256], d: f16, wanted: &[f32; 8]) -> Self {
        let unit = d.to_f32();
        let inverse = if unit == 0.0 { 0.0 } else { 1.0 / unit };
        let mut block = Self { d, scales: [0.0; 8], codes: [[0; GROUP]; 8], error: 0.0 };
        let groups = x.as_chunks::<GROUP>().0.iter().zip(w.as_chunks::<GROUP>().0);
        for (g, (x, w)) in groups.enumerate() {
            let mut least = f64::INFINITY;
            for step in [0.0, -1.0, 1.0] {
                let s = ((wanted[g] * inverse).round_ties_even() + step).clamp(-32.0, 31.0);
                let own = codes(x, unit * s);
                let error = error(x, w, &own, unit * s);
                if error < least {
                    least = error;
                    (block.scales[g], block.codes[g]) = (s, own);
                }
            }
            block.error += least;
        }
        block
    }

    #[inline(always)]
    fn refitted(&self, x: &[f32; 256], w: &[f32; 256]) -> Option<f16> {
        let (mut both, mut square) = (0.0f64, 0.0f64);
        for i in 0..256 {
            let level = LEVELS[usize::from(self.codes[i / GROUP][i % GROUP])];
            let by = f64::from(self.scales[i / GROUP] * level);
            both += f64::from(w[i]) * f64::from(x[i]) * by;
            square += f64::from(w[i]) * by * by;
        }
        stored(if square > 0.0 { (both / square) as f32 } else { 0.0 }).map(|(d, _)| d)
    }

    #[inline(always)]
    fn error(&self) -> f64 {
        self.error
    }
}

impl Eight {
    fn error_under(&self, x: &[f32; 256], w: &[f32; 256]) -> f64 {
        let groups = x.as_chunks::<GROUP>().0.iter().zip(w.as_chunks::<GROUP>().0).enumerate();
        groups.map(|(g, (x, w))| error(x, w, &self.codes[g], self.d.to_f32() * self.scales[g])).sum()
    }
}

/// `d, high[16 bits], low[4], nibble[256]`, value `d·(s − 32)·level`: scale `g` has nibble `g` of `low` and bits `2g` of `high`.
#[inline(always)]
pub(super) fn iq4_xs(x: &[f32; 256], weights: Option<&[f32; 256]>, out: &mut [u8; 136]) -> bool {
    let w = weights.unwrap_or(&ONES);
    let xs = x.as_chunks::<GROUP>().0;
    let scales = |of: &dyn Fn(usize) -> f32| -> [f32; 8] { std::array::from_fn(of) };
    let Some(mut best) = Eight::of(x, &ONES, &scales(&|g| plain(&xs[g]))) else { return false };
    let mut least = best.error_under(x, w);
    for weights in [&ONES, w] {
        let ws = weights.as_chunks::<GROUP>().0;
        if let Some(found) = Eight::of(x, weights, &scales(&|g| best_scale(&xs[g], &ws[g]))) {
            let error = found.error_under(x, w);
            if error < least {
                (best, least) = (found, error);
            }
        }
    }
    out.fill(0);
    out[..2].copy_from_slice(&best.d.to_le_bytes());
    let mut high = 0u16;
    for g in 0..8 {
        let s = (best.scales[g] + 32.0) as u16;
        high |= (s >> 4) << (2 * g);
        out[4 + g / 2] |= ((s & 15) as u8) << (4 * (g % 2));
        pack(&best.codes[g], &mut out[8 + 16 * g..]);
    }
    out[2..4].copy_from_slice(&high.to_le_bytes());
    true
}
