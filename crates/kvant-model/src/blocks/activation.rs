//! The non-linear functions between the two halves of a feed-forward layer.

use crate::blocks::rows::{Rows, for_each_row};
use kvant_simd::{LANES, Simd, Tier, Work, sigmoid, with_tier};

const ROOT_TWO_OVER_PI: f32 = 0.797_884_6;

/// An activation function, applied value by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(x)`, also called swish.
    Silu,
    /// `x · Φ(x)` with the exact normal distribution function.
    Gelu,
    /// The tanh approximation of the same.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
}

impl Activation {
    /// The function that configurations call `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "silu" | "swish" => Some(Self::Silu),
            "gelu" | "gelu_python" => Some(Self::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" | "gelu_accurate" => Some(Self::GeluTanh),
            "relu" => Some(Self::Relu),
            _ => None,
        }
    }

    /// The function of one value.
    pub fn apply(self, x: f32) -> f32 {
        match self {
            Self::Silu => x / (1.0 + (-x).exp()),
            Self::Gelu => 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)),
            Self::GeluTanh => 0.5 * x * (1.0 + (ROOT_TWO_OVER_PI * (x + 0.044_715 * x * x * x)).tanh()),
            Self::Relu => x.max(0.0),
        }
    }

    /// The function of every value; `width` is the row length, for sharing the work out.
    pub fn in_place(self, x: &mut [f32], width: usize) {
        for_each_row(x, width, |_, row| self.apply_row(row, None));
    }

    /// `gate = function(gate) · up`, value by value.
    pub fn gate(self, gate: &mut Rows, up: &Rows) {
        let width = gate.width();
        for_each_row(gate.data_mut(), width, |token, row| self.apply_row(row, Some(up.row(token))));
    }

    /// The functions made of an exponential run in vectors; the same arithmetic on every instruction set.
    fn apply_row(self, x: &mut [f32], times: Option<&[f32]>) {
        assert!(times.is_none_or(|times| times.len() == x.len()), "rows of different widths");
        if matches!(self, Self::Silu | Self::GeluTanh) {
            let tier = Tier::select().unwrap_or(Tier::Scalar);
            // SAFETY: `with_tier!` names tiers that this CPU has; the rows are of one length.
            with_tier!(tier, S => unsafe { S::call(Row { function: self, x, times }) });
            return;
        }
        x.iter_mut().for_each(|x| *x = self.apply(*x));
        if let Some(times) = times {
            x.iter_mut().zip(times).for_each(|(x, y)| *x *= y);
        }
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
                let mut y = self.function.vector::<S>(S::load(x));
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
                let y = S::mul(self.function.vector::<S>(S::load(x.as_ptr())), S::load(times.as_ptr()));
                S::store(x.as_mut_ptr(), y);
                self.x[whole..].copy_from_slice(&x[..rest]);
            }
        }
    }
}

impl Activation {
    /// The function of 16 values: with s the sigmoid, x·s(x) and, because ½(1 + tanh u) = s(2u), x·s(2u).
    ///
    /// # Safety
    /// The CPU has the tier, and the function is one of these two.
    #[inline(always)]
    unsafe fn vector<S: Simd>(self, x: S::F) -> S::F {
        // SAFETY: the caller's contract.
        unsafe {
            let inner = match self {
                Self::GeluTanh => {
                    let cubed = S::mul(S::mul(x, x), x);
                    let u = S::fma(cubed, S::splat(0.044_715), x);
                    S::mul(u, S::splat(2.0 * ROOT_TWO_OVER_PI))
                }
                _ => x,
            };
            S::mul(x, sigmoid::<S>(inner))
        }
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
        ];
        for (function, values) in known {
            for (x, expected) in [-2.0, 0.0, 1.0, 3.0].into_iter().zip(values) {
                assert!(
                    (function.apply(x) - expected).abs() < 2e-6f32,
                    "{function:?}({x}) = {}",
                    function.apply(x)
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
                function.in_place(&mut alone, n);
                let mut gate = Rows::from_vec(x.clone(), n);
                function.gate(&mut gate, &Rows::from_vec(up.clone(), n));
                for i in 0..n {
                    let expected = function.apply(x[i]);
                    assert!(
                        (alone[i] - expected).abs() <= 3e-6 * (1.0 + expected.abs()),
                        "{function:?} {}",
                        x[i]
                    );
                    assert_eq!(gate.data()[i], alone[i] * up[i]);
                }
            }
        }
    }
}
