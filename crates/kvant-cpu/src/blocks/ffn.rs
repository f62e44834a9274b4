//! Feed-forward layers.

use crate::blocks::{Activations, AdaptedRows, Block, Linear, Mlp, for_each_row, function};
use kvant_model::description::{ClampedSwiglu, Inner};

impl Block<'_, Mlp> {
    /// `(tokens, hidden)` to `(tokens, hidden)`; `adapted` are rows of `x`.
    pub fn forward(&self, x: &Activations, adapted: &AdaptedRows<'_>) -> Activations {
        let forward = |linear: &Linear| linear.forward_adapted(x, adapted);
        let inner = match &self.inner {
            Inner::Gated { gate, up } => {
                let [gate, up] = Linear::forward_all([gate, up], x, adapted);
                self.gated(gate, &up)
            }
            Inner::GatedFused(both) => {
                let both = forward(both);
                let width = both.width() / 2;
                self.gated(both.columns(0..width), &both.columns(width..2 * width))
            }
            Inner::Plain(up) => {
                let mut inner = forward(up);
                let width = inner.width();
                function::in_place(self.activation, inner.data_mut(), width);
                inner
            }
        };
        let mut out = self.down.forward_adapted(&inner, adapted);
        if self.down_scale != 1.0 {
            out.data_mut().iter_mut().for_each(|x| *x *= self.down_scale);
        }
        out
    }

    /// `act(gate) · up`, value by value.
    fn gated(&self, mut gate: Activations, up: &Activations) -> Activations {
        let width = gate.width();
        if let Some(ClampedSwiglu { limit, alpha }) = self.clamp {
            for_each_row(gate.data_mut(), width, |token, row| {
                for (g, u) in row.iter_mut().zip(up.row(token)) {
                    let (gate, up) = (g.min(limit), u.clamp(-limit, limit));
                    *g = (up + 1.0) * (gate / (1.0 + (-alpha * gate).exp()));
                }
            });
            return gate;
        }
        if self.gate_scale != 1.0 {
            gate.data_mut().iter_mut().for_each(|x| *x *= self.gate_scale);
        }
        if let Some(deviations) = self.sparsity {
            for_each_row(gate.data_mut(), width, |_, row| keep_largest(row, f64::from(deviations)));
        }
        function::gate(self.activation, &mut gate, up);
        gate
    }
}

/// `max(x − (mean + deviations · deviation), 0)` over a row.
fn keep_largest(row: &mut [f32], deviations: f64) {
    let count = row.len() as f64;
    let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
    let variance = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
    let cut = (mean + deviations * variance.sqrt()) as f32;
    row.iter_mut().for_each(|x| *x = (*x - cut).max(0.0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_far_below_the_mean_is_dropped() {
        let mut row = [1.0, 2.0, 3.0, 4.0];
        keep_largest(&mut row, 0.0);
        assert_eq!(row, [0.0, 0.0, 0.5, 1.5]);
    }
}
