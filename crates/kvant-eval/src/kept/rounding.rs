//! A row of logits in two bytes each.
//!
//! With m the largest logit of a row and s the least finite one, a logit z becomes the whole number nearest to (m − z) / Δ,
//! with Δ = (m − s) / 65534: 0 is the most likely token, 65534 the least likely, and 65535 stands for one that is ruled
//! out (−∞). Read back it is −Δ · code: logits count up to a constant, and m is theirs.

/// The code of a token that is ruled out.
const NEVER: u16 = u16::MAX;
/// The code of the least likely token that is not.
const LEAST: f32 = 65534.0;

/// Writes the codes of a row and returns Δ. None where the row is no distribution: a NaN, +∞, or nothing but −∞.
pub fn encode(logits: &[f32], codes: &mut [u16]) -> Option<f32> {
    let (mut largest, mut least) = (f32::NEG_INFINITY, f32::INFINITY);
    for &z in logits {
        if z.is_nan() || z == f32::INFINITY {
            return None;
        }
        largest = largest.max(z);
        if z != f32::NEG_INFINITY {
            least = least.min(z);
        }
    }
    if largest == f32::NEG_INFINITY {
        return None;
    }
    let step = (largest - least) / LEAST;
    // A row of equal logits has a range of nothing, and any divisor will do.
    let per_step = if step > 0.0 { step.recip() } else { 0.0 };
    for (code, &z) in codes.iter_mut().zip(logits) {
        *code =
            if z == f32::NEG_INFINITY { NEVER } else { ((largest - z) * per_step).round().min(LEAST) as u16 };
    }
    Some(step)
}

/// The logits that codes stand for, the largest 0.
pub fn decode(codes: impl Iterator<Item = u16>, step: f32, logits: &mut [f32]) {
    for (z, code) in logits.iter_mut().zip(codes) {
        *z = if code == NEVER { f32::NEG_INFINITY } else { -step * f32::from(code) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(logits: &[f32]) -> Option<Vec<f32>> {
        let (mut codes, mut back) = (vec![0; logits.len()], vec![0.0; logits.len()]);
        let step = encode(logits, &mut codes)?;
        decode(codes.into_iter(), step, &mut back);
        Some(back)
    }

    #[test]
    fn logits_come_back_within_half_a_step() {
        let logits: Vec<f32> = (0..5000).map(|i| ((i * i) as f32 * 0.37).sin() * 15.0 + 3.0).collect();
        let largest = logits.iter().copied().fold(f32::MIN, f32::max);
        for (z, back) in logits.iter().zip(round_trip(&logits).unwrap()) {
            // 30 nats over 65534 steps, and the roundings of f32.
            assert!((z - largest - back).abs() < 0.5 * 30.0 / 65534.0 + 2e-5, "{z} {back}");
        }
        // What is read back is kept without loss: two runs compare with the same numbers.
        let once = round_trip(&logits).unwrap();
        assert_eq!(round_trip(&once).unwrap().len(), once.len());
    }

    #[test]
    fn tokens_that_are_ruled_out_stay_so_and_equal_rows_are_equal() {
        let never = f32::NEG_INFINITY;
        assert_eq!(round_trip(&[1.0, never, 0.0]), Some(vec![0.0, never, -1.0]));
        assert_eq!(round_trip(&[2.5; 4]), Some(vec![0.0; 4]));
        for bad in [[0.0, f32::NAN], [0.0, f32::INFINITY], [never; 2]] {
            assert_eq!(round_trip(&bad), None);
        }
    }
}
