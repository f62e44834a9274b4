//! The non-linear functions between the two halves of a feed-forward layer.

use crate::blocks::activations::{Activations, for_each_row};
use kvant_model::description::Activation;
use kvant_simd::{LANES, Simd, Tier, Work, sigmoid, with_tier};

const ROOT_TWO_OVER_PI: f32 = 0.797_884_6;

/// The function of one value.
pub fn apply(function: Activation, x: f32) -> f32 {
    match function {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)),
        Activation::GeluTanh => 0.5 * x * (1.0 + (ROOT_TWO_OVER_PI * (x + 0.044_715 * x * x * x)).tanh()),
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0) * x.max(0.0),
    }
}

/// The function of every value; `width` is the row length, for sharing the work out.
pub fn in_place(function: Activation, x: &mut [f32], width: usize) {
    for_each_row(x, width, |_, row| apply_row(function, row, None));
}

/// `gate = function(gate) · up`, value by value.
pub fn gate(function: Activation, gate: &mut Activations, up: &Activations) {
    let width = gate.width();
    for_each_row(gate.data_mut(), width, |token, row| apply_row(function, row, Some(up.row(token))));
}

/// The functions made of an exponential run in vectors; the same arithmetic on every instruction set.
fn apply_row(function: Activation, x: &mut [f32], times: Option<&[f32]>) {
    assert!(times.is_none_or(|times| times.len() == x.len()), "rows of different widths");
    if matches!(function, Activation::Silu | Activation::GeluTanh) {
        let tier = Tier::select().unwrap_or(Tier::Scalar);
        // SAFETY: `with_tier!` names tiers that this CPU has; the rows are of one length.
        with_tier!(tier, S => unsafe { S::call(Row { function, x, times }) });
        return;
    }
    x.iter_mut().for_each(|x| *x = apply(function, *x));
    if let Some(times) = times {
        x.iter_mut().zip(times).for_each(|(x, y)| *x *= y);
    }
}

/// A row that a function is applied to, and perhaps multiplied with another.
struct Row<'a> {
    function: Activation,
    x: &'a mut [f32],
    times: Option<&'a [f32]>,
}

impl<S: Simd> Work<S> for Row<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let whole = self.x.len() / LANES * LANES;
        // SAFETY: the CPU has the tier; what is left of the rows is copied before it is loaded as 16.
        unsafe {
            for at in (0..whole).step_by(LANES) {
                let x = self.x.as_mut_ptr().add(at);
                let mut y = vector::<S>(self.function, S::load(x));
                if let Some(times) = self.times {
                    y = S::mul(y, S::load(times.as_ptr().add(at)));
                }
                S::store(x, y);
            }
            let rest = self.x.len() - whole;
            if rest > 0 {
                let (mut x, mut times) = ([0.0; LANES], [1.0; LANES]);
                x[..rest].copy_from_slice(&self.x[whole..]);
                if let Some(from) = self.times {
                    times[..rest].copy_from_slice(&from[whole..]);
                }
                let y = S::mul(vector::<S>(self.function, S::load(x.as_ptr())), S::load(times.as_ptr()));
                S::store(x.as_mut_ptr(), y);
                self.x[whole..].copy_from_slice(&x[..rest]);
            }
        }
    }
}

/// The function of 16 values: with s the sigmoid, x·s(x) and, because ½(1 + tanh u) = s(2u), x·s(2u).
///
/// # Safety
/// The CPU has the tier, and the function is one of these two.
#[inline(always)]
unsafe fn vector<S: Simd>(function: Activation, x: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        let inner = match function {
            Activation::GeluTanh => {
                let cubed = S::mul(S::mul(x, x), x);
                let u = S::fma(cubed, S::splat(0.044_715), x);
                S::mul(u, S::splat(2.0 * ROOT_TWO_OVER_PI))
            }
            _ => x,
        };
        S::mul(x, sigmoid::<S>(inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_known_to_six_digits() {
        // From the definitions in double precision.
        let known = [
            (Activation::Silu, [-0.238_406, 0.0, 0.731_059, 2.857_722]),
            (Activation::Gelu, [-0.045_5, 0.0, 0.841_345, 2.995_95]),
            (Activation::GeluTanh, [-0.045_402, 0.0, 0.841_192, 2.996_363]),
            (Activation::Relu, [0.0, 0.0, 1.0, 3.0]),
            (Activation::ReluSquared, [0.0, 0.0, 1.0, 9.0]),
        ];
        for (function, values) in known {
            for (x, expected) in [-2.0, 0.0, 1.0, 3.0].into_iter().zip(values) {
                assert!(
                    (apply(function, x) - expected).abs() < 2e-6f32,
                    "{function:?}({x}) = {}",
                    apply(function, x)
                );
            }
        }
    }

    #[test]
    fn rows_of_every_length_match_the_function_of_one_value() {
        for function in [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu] {
            for n in [1, 15, 16, 17, 50] {
                let value = |i: usize| (i as f32 * 1.37).sin() * 8.0;
                let x: Vec<f32> = (0..n).map(value).collect();
                let up: Vec<f32> = (0..n).map(|i| value(i + 99)).collect();
                let mut alone = x.clone();
                in_place(function, &mut alone, n);
                let mut gated = Activations::from_vec(x.clone(), n);
                gate(function, &mut gated, &Activations::from_vec(up.clone(), n));
                for i in 0..n {
                    let expected = apply(function, x[i]);
                    assert!(
                        (alone[i] - expected).abs() <= 3e-6 * (1.0 + expected.abs()),
                        "{function:?} {}",
                        x[i]
                    );
                    assert_eq!(gated.data()[i], alone[i] * up[i]);
                }
            }
        }
    }
}
