//! Softmax of one row of scores, in vectors.

use kvant_simd::{LANES, Simd, Tier, Work, exp, with_tier};

/// Turns scores into weights that sum up to 1. The same arithmetic on every instruction set.
pub fn softmax(scores: &mut [f32]) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let tier = Tier::select().unwrap_or(Tier::Scalar);
    // SAFETY: `with_tier!` names tiers that this CPU has.
    with_tier!(tier, S => unsafe { S::call(Exp { x: scores, largest }) });
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|x| *x /= sum);
}

/// `exp(x − largest)` of every value.
struct Exp<'a> {
    x: &'a mut [f32],
    largest: f32,
}

impl<S: Simd> Work<S> for Exp<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let (whole, rest) = self.x.split_at_mut(self.x.len() / LANES * LANES);
        let mut last = [self.largest; LANES];
        last[..rest.len()].copy_from_slice(rest);
        // SAFETY: the CPU has the tier; every stretch has as many values as a vector.
        unsafe {
            let largest = S::splat(self.largest);
            for lanes in whole.chunks_exact_mut(LANES).chain(std::iter::once(&mut last[..])) {
                S::store(lanes.as_mut_ptr(), exp::<S>(S::sub(S::load(lanes.as_ptr()), largest)));
            }
        }
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_those_of_the_definition_and_sum_up_to_one() {
        for count in [1, 3, 16, 37] {
            let scores: Vec<f32> = (0..count).map(|i| (i as f32 * 1.7).sin() * 20.0).collect();
            let largest = f64::from(scores.iter().copied().fold(f32::MIN, f32::max));
            let exact: Vec<f64> = scores.iter().map(|&x| (f64::from(x) - largest).exp()).collect();
            let sum: f64 = exact.iter().sum();
            let mut weights = scores;
            softmax(&mut weights);
            for (weight, exact) in weights.iter().zip(exact) {
                assert!((f64::from(*weight) - exact / sum).abs() < 1e-6, "{weight} {}", exact / sum);
            }
        }
    }
}
