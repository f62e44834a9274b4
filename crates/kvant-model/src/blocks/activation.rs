//! The non-linear functions between the two halves of a feed-forward layer.

use crate::blocks::rows::for_each_row;

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
        const ROOT_TWO_OVER_PI: f32 = 0.797_884_6;
        match self {
            Self::Silu => x / (1.0 + (-x).exp()),
            Self::Gelu => 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)),
            Self::GeluTanh => 0.5 * x * (1.0 + (ROOT_TWO_OVER_PI * (x + 0.044_715 * x * x * x)).tanh()),
            Self::Relu => x.max(0.0),
        }
    }

    /// The function of every value; `width` is the row length, for sharing the work out.
    pub fn in_place(self, x: &mut [f32], width: usize) {
        for_each_row(x, width, |_, row| row.iter_mut().for_each(|x| *x = self.apply(*x)));
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
}
