//! Mamba-2 in its chunked form.
//!
//! With S the state at the chunk's start and the rows of [`Mamba2Dims::state_shape`], a token t of the chunk has
//! `y[t] = exp(L[t]) · S · C[t] + Σ_{j ≤ t} exp(L[t] − L[j]) · (C[t] · B[j]) · (dt ⊙ x)[j] + D · x[t]`.

use crate::blocks::recurrent::{add_up, for_each_piece, gather, remaining, softplus, weighted};
use crate::blocks::sums::add_rows;
use crate::blocks::{Activations, Block, Mamba2, Norm, dot_block, for_each_row, function};
use crate::pass::CpuPass;
use kvant_cache::{RecurrentState, StateError};
use kvant_model::description::{Activation, GateOrder, Mamba2Dims};
use kvant_threads::for_each_chunk;

/// A norm of groups of channels beside a gate.
pub struct GatedNorm {
    /// Of each group, without weights.
    pub norm: Norm,
    /// Of all groups' channels.
    pub weight: Vec<f32>,
    pub order: GateOrder,
}

/// Where the parts of a row of state begin.
struct MambaPlaces {
    inputs: usize, // dt ⊙ x
    b: usize,
    decay: usize, // L
    width: usize,
}

impl Block<'_, Mamba2> {
    /// `(tokens, hidden)` to `(tokens, hidden)`.
    pub fn forward(&self, x: &Activations, pass: &mut CpuPass<'_, '_>) -> Result<Activations, StateError> {
        let (inner, channels) = (self.dims.inner(), self.conv.channels());
        let mut projected = self.input.forward(x);
        self.scale_parts(&mut projected);
        let places = self.places();
        let mut y = Activations::unset(x.tokens(), inner);
        for_each_piece(
            pass,
            self.slot,
            |state, rows| {
                let mut new = Activations::unset(rows.len(), places.width);
                for_each_row(new.data_mut(), places.width, |token, to| {
                    to[..channels]
                        .copy_from_slice(&projected.row(rows.start + token)[inner..inner + channels]);
                });
                let convolved = self.conv.forward(state, &new);
                for_each_row(new.data_mut(), places.width, |token, to| {
                    let dt = &projected.row(rows.start + token)[inner + channels..];
                    self.complete(to, convolved.row(token), dt);
                });
                add_up(state, &mut new, places.decay);
                state.push(new.data())?;
                self.outputs(state, &convolved, &mut y.data_mut()[rows.start * inner..rows.end * inner]);
                Ok(())
            },
            |state, rows| self.advance(state, rows),
        )?;
        Ok(self.output.forward(&self.gated(y, projected.columns(0..inner))))
    }

    fn places(&self) -> MambaPlaces {
        let (inputs, inner) = (self.conv.channels(), self.dims.inner());
        let decay = inputs + inner + self.dims.groups * self.dims.state;
        MambaPlaces { inputs, b: inputs + inner, decay, width: decay + self.dims.heads }
    }

    /// Multiplies z, x, B, C and dt.
    fn scale_parts(&self, projected: &mut Activations) {
        if self.part_scales == [1.0; 5] {
            return;
        }
        let (inner, group) = (self.dims.inner(), self.dims.groups * self.dims.state);
        let widths = [inner, inner, group, group, self.dims.heads];
        let width = projected.width();
        for_each_row(projected.data_mut(), width, |_, mut row| {
            for (width, scale) in widths.into_iter().zip(self.part_scales) {
                let (part, rest) = row.split_at_mut(width);
                part.iter_mut().for_each(|x| *x *= scale);
                row = rest;
            }
        });
    }

    /// Writes what of a token's row follows the convolution's input; in the place of L, what it adds to that of the token
    /// before.
    fn complete(&self, row: &mut [f32], convolved: &[f32], dt: &[f32]) {
        let (places, inner) = (self.places(), self.dims.inner());
        let (x, bc) = convolved.split_at(inner);
        for head in 0..self.dims.heads {
            let mut dt = softplus(dt[head] + self.dt_bias[head]);
            if let Some((least, most)) = self.dt_limit {
                dt = dt.clamp(least, most);
            }
            row[places.decay + head] = dt * self.decay[head];
            let own = head * self.dims.head_dim..(head + 1) * self.dims.head_dim;
            let to = &mut row[places.inputs..places.b][own.clone()];
            to.iter_mut().zip(&x[own]).for_each(|(to, x)| *to = dt * x);
        }
        let b = places.decay - places.b;
        row[places.b..places.decay].copy_from_slice(&bc[..b]);
    }

    /// y `(tokens, heads, head_dim)` of the last tokens of the open chunk, those of `convolved`.
    fn outputs(&self, state: &RecurrentState, convolved: &Activations, y: &mut [f32]) {
        let Mamba2Dims { heads, head_dim, groups, state: width, .. } = self.dims;
        let (places, inner, tokens) = (self.places(), self.dims.inner(), convolved.tokens());
        let rows = state.rows();
        let count = rows.len() / places.width;
        let before = count - tokens;
        // C of the group's tokens, (groups, tokens, state), and C · B, (groups, rows, tokens): heads share them.
        let first_c = inner + groups * width;
        let cs: Vec<Activations> = (0..groups)
            .map(|group| gather(&[], convolved.data(), convolved.width(), first_c + group * width, width))
            .collect();
        let mut products = Activations::unset(groups * count, tokens);
        for_each_chunk(products.data_mut(), count * tokens, |group, out| {
            let b = gather(rows, &[], places.width, places.b + group * width, width);
            dot_block(b.data(), cs[group].data(), width, out);
        });
        let matrices = state.part(self.conv.tail()..state.shape().state);
        let mut by_head = Activations::unset(heads * tokens, head_dim);
        for_each_chunk(by_head.data_mut(), tokens * head_dim, |head, out| {
            let group = head / (heads / groups);
            let mut read = Activations::unset(head_dim, tokens); // S · C
            let matrix = &matrices[head * head_dim * width..][..head_dim * width];
            dot_block(matrix, cs[group].data(), width, read.data_mut());
            let products = &products.data()[group * count * tokens..][..count * tokens];
            let decays = gather(rows, &[], places.width, places.decay + head, 1);
            let (mut left, mut weights) = (Vec::with_capacity(count), Vec::with_capacity(count));
            for (token, out) in out.chunks_exact_mut(head_dim).enumerate() {
                let seen = before + token + 1;
                let decay = decays.data()[seen - 1].exp();
                let x = &convolved.row(token)[head * head_dim..][..head_dim];
                for (channel, (y, x)) in out.iter_mut().zip(x).enumerate() {
                    *y = decay * read.row(channel)[token] + self.skip[head] * x;
                }
                remaining(&decays.data()[..seen], &mut left);
                weighted(&left, &products[token..], tokens, &mut weights);
                add_rows(out, &weights, &rows[places.inputs + head * head_dim..], places.width);
            }
        });
        for_each_row(y, inner, |token, y| {
            for (head, y) in y.chunks_exact_mut(head_dim).enumerate() {
                y.copy_from_slice(by_head.row(head * tokens + token));
            }
        });
    }

    /// The state at a chunk's end.
    fn advance(&self, state: &mut [f32], rows: &[f32]) {
        let Mamba2Dims { heads, head_dim, groups, state: width, .. } = self.dims;
        let places = self.places();
        let (tail, matrices) = state.split_at_mut(self.conv.tail());
        self.conv.advance(tail, rows, places.width);
        for_each_chunk(matrices, head_dim * width, |head, matrix| {
            let group = head / (heads / groups);
            let decays = gather(rows, &[], places.width, places.decay + head, 1);
            let inputs = gather(rows, &[], places.width, places.inputs + head * head_dim, head_dim);
            let whole = decays.data().last().map_or(1.0, |decay| decay.exp());
            let (mut left, mut weights) = (Vec::new(), Vec::with_capacity(decays.tokens()));
            remaining(decays.data(), &mut left);
            for (channel, sums) in matrix.chunks_exact_mut(width).enumerate() {
                sums.iter_mut().for_each(|s| *s *= whole);
                weighted(&left, &inputs.data()[channel..], head_dim, &mut weights);
                add_rows(sums, &weights, &rows[places.b + group * width..], places.width);
            }
        });
    }

    /// y gated with silu(z), and normed before or after.
    fn gated(&self, mut y: Activations, mut z: Activations) -> Activations {
        let norm = |y: &mut Activations| {
            let Some(GatedNorm { norm, weight, .. }) = &self.norm else { return };
            norm.in_place(y);
            for_each_row(y.data_mut(), weight.len(), |_, row| {
                row.iter_mut().zip(weight).for_each(|(y, w)| *y *= w);
            });
        };
        match self.norm.as_ref().map(|norm| norm.order) {
            Some(GateOrder::NormFirst) => {
                norm(&mut y);
                function::gate(Activation::Silu, &mut z, &y);
            }
            Some(GateOrder::GateFirst) | None => {
                function::gate(Activation::Silu, &mut z, &y);
                norm(&mut z);
            }
        }
        z
    }
}
