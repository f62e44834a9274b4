//! Q4_0 and Q8_0: 32 values and an f16 scale.

use super::fit::{Codes, extreme, stored};

const LEN: usize = 32;
const FOUR: Codes = Codes { least: -8.0, most: 7.0 };
const EIGHT: Codes = Codes { least: -127.0, most: 127.0 };

/// `d, nibble[32]`, value `d·(q − 8)`. Plain: `d = m / −8` with `m` the value of largest magnitude, codes rounded under `d`
/// before it is rounded to f16, halves up.
#[inline(always)]
pub(super) fn q4_0(x: &[f32; LEN], weights: Option<&[f32; LEN]>, out: &mut [u8; 18]) -> bool {
    let exact = extreme(x) / -8.0;
    let inverse = if exact == 0.0 { 0.0 } else { 1.0 / exact };
    let Some((mut half, d)) = stored(exact) else { return false };
    let mut codes = [0.0; LEN]; // 0 to 15
    for i in 0..LEN {
        codes[i] = (x[i] * inverse + 8.5).floor().clamp(0.0, 15.0);
    }
    if let Some(w) = weights {
        let plain = error(x, w, |i| d * (codes[i] - 8.0));
        // From ends that never clip to ends that clip half of the range.
        let ends = (0..24).map(|step| 6.0 + 0.4 * step as f32);
        if let Some((better, d)) = stored(FOUR.best_scale(x, w, ends)) {
            let (searched, found) = FOUR.under(x, w, d);
            if found < plain {
                half = better;
                (0..LEN).for_each(|i| codes[i] = searched[i] + 8.0);
            }
        }
    }
    out[..2].copy_from_slice(&half.to_le_bytes());
    for i in 0..LEN / 2 {
        out[2 + i] = codes[i] as u8 | (codes[i + LEN / 2] as u8) << 4;
    }
    true
}

/// `d, i8[32]`, value `d·q`. Plain: `d = max|x| / 127`, codes rounded under `d` before it is rounded to f16, halves away from
/// zero.
#[inline(always)]
pub(super) fn q8_0(x: &[f32; LEN], weights: Option<&[f32; LEN]>, out: &mut [u8; 34]) -> bool {
    let exact = extreme(x).abs() / 127.0;
    let inverse = if exact == 0.0 { 0.0 } else { 1.0 / exact };
    let Some((mut half, d)) = stored(exact) else { return false };
    let mut codes = [0.0; LEN];
    for i in 0..LEN {
        codes[i] = (x[i] * inverse).round().clamp(-127.0, 127.0);
    }
    if let Some(w) = weights {
        let plain = error(x, w, |i| d * codes[i]);
        let ends = (0..12).map(|step| 124.0 + 0.5 * step as f32);
        if let Some((better, d)) = stored(EIGHT.best_scale(x, w, ends)) {
            let (searched, found) = EIGHT.under(x, w, d);
            if found < plain {
                half = better;
                codes = searched;
            }
        }
    }
    out[..2].copy_from_slice(&half.to_le_bytes());
    for (byte, code) in out[2..].iter_mut().zip(codes) {
        *byte = (code as i8).cast_unsigned();
    }
    true
}

/// Σ w·(x − x̂)².
#[inline(always)]
pub(super) fn error(x: &[f32; LEN], w: &[f32; LEN], decoded: impl Fn(usize) -> f32) -> f32 {
    super::fit::sum::<LEN>(|i| {
        let off = x[i] - decoded(i);
        w[i] * off * off
    })
}
