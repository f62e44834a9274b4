//! Feed-forward layers.

use crate::blocks::{Activation, Linear, Moe, Rows};

/// The feed-forward half of a layer.
pub enum Ffn {
    /// The same for every token.
    Dense(Mlp),
    /// A few experts out of many, chosen for each token.
    Experts(Moe),
}

impl Ffn {
    /// `(tokens, hidden)` to `(tokens, hidden)`.
    pub fn forward(&self, x: &Rows) -> Rows {
        match self {
            Self::Dense(mlp) => mlp.forward(x),
            Self::Experts(moe) => moe.forward(x),
        }
    }
}

/// A multi-layer perceptron.
pub enum Mlp {
    /// `down(act(gate(x)) · up(x))`.
    Gated {
        /// To the inner width, through the activation.
        gate: Linear,
        /// To the inner width.
        up: Linear,
        /// Back to the residual stream.
        down: Linear,
        /// The non-linear function.
        activation: Activation,
    },
    /// The same with gate and up in one layer, gate first.
    GatedFused {
        /// To twice the inner width.
        gate_up: Linear,
        /// Back to the residual stream.
        down: Linear,
        /// The non-linear function.
        activation: Activation,
    },
    /// `down(act(up(x)))`.
    Plain {
        /// To the inner width.
        up: Linear,
        /// Back to the residual stream.
        down: Linear,
        /// The non-linear function.
        activation: Activation,
    },
}

impl Mlp {
    /// `(tokens, hidden)` to `(tokens, hidden)`.
    pub fn forward(&self, x: &Rows) -> Rows {
        match self {
            Self::Gated { gate, up, down, activation } => {
                let mut inner = gate.forward(x);
                activation.gate(&mut inner, &up.forward(x));
                down.forward(&inner)
            }
            Self::GatedFused { gate_up, down, activation } => {
                let both = gate_up.forward(x);
                let width = both.width() / 2;
                let mut inner = both.columns(0..width);
                activation.gate(&mut inner, &both.columns(width..2 * width));
                down.forward(&inner)
            }
            Self::Plain { up, down, activation } => {
                let mut inner = up.forward(x);
                let width = inner.width();
                activation.in_place(inner.data_mut(), width);
                down.forward(&inner)
            }
        }
    }
}
