//! Gated DeltaNets in their chunked form.
//!
//! With S the state at the chunk's start and the rows of [`DeltaDims::state_shape`], a token t of the chunk has
//! `u[t] = β · (v − exp(G[t]) · Sᵀk[t] − Σ_{j < t} exp(G[t] − G[j]) · (k[j] · k[t]) · u[j])` and
//! `o[t] = exp(G[t]) · Sᵀq[t] + Σ_{j ≤ t} exp(G[t] − G[j]) · (k[j] · q[t]) · u[j]`.

use crate::blocks::recurrent::{add_up, for_each_piece, gather, remaining, softplus, weighted};
use crate::blocks::sums::add_rows;
use crate::blocks::{Activations, Block, GatedDeltaNet, dot, dot_block, for_each_row, function};
use crate::pass::CpuPass;
use kvant_cache::{RecurrentState, StateError};
use kvant_model::description::{Activation, DeltaDims, DeltaProjection};
use kvant_threads::for_each_chunk;

/// What the projection gives.
struct DeltaProjected {
    qkv: Activations, // (tokens, all queries, all keys, all values)
    z: Activations,   // (tokens, value_heads, value_dim)
    b: Activations,   // (tokens, value_heads)
    a: Activations,   // (tokens, value_heads)
}

/// Where the parts of a row of state begin.
struct DeltaPlaces {
    keys: usize,
    u: usize,
    decay: usize, // G
    width: usize,
}

impl Block<'_, GatedDeltaNet> {
    /// `(tokens, hidden)` to `(tokens, hidden)`.
    pub fn forward(&self, x: &Activations, pass: &mut CpuPass<'_, '_>) -> Result<Activations, StateError> {
        let (places, values) = (self.places(), self.dims.value_width());
        let DeltaProjected { qkv, mut z, b, a } = self.project(x);
        let mut y = Activations::unset(x.tokens(), values);
        for_each_piece(
            pass,
            self.slot,
            |state, rows| {
                let mut new = Activations::unset(rows.len(), places.width);
                for_each_row(new.data_mut(), places.width, |token, to| {
                    to[..places.keys].copy_from_slice(qkv.row(rows.start + token));
                });
                let mut convolved = self.conv.forward(state, &new);
                let width = convolved.width();
                for_each_row(convolved.data_mut(), width, |_, row| self.unit_lengths(row));
                for_each_row(new.data_mut(), places.width, |token, to| {
                    let keys = self.dims.key_width();
                    to[places.keys..places.u].copy_from_slice(&convolved.row(token)[keys..2 * keys]);
                    for (head, (decay, a)) in
                        to[places.decay..].iter_mut().zip(a.row(rows.start + token)).enumerate()
                    {
                        *decay = self.decay[head] * softplus(a + self.dt_bias[head]);
                    }
                });
                add_up(state, &mut new, places.decay);
                let beta = b.gather(&rows.clone().collect::<Vec<_>>());
                let y = &mut y.data_mut()[rows.start * values..rows.end * values];
                self.outputs(state, &convolved, &beta, &mut new, y);
                state.push(new.data())
            },
            |state, rows| self.advance(state, rows),
        )?;
        self.norm.in_place(&mut y);
        function::gate(Activation::Silu, &mut z, &y);
        Ok(self.output.forward(&z))
    }

    fn places(&self) -> DeltaPlaces {
        let keys = self.conv.channels();
        let u = keys + self.dims.key_width();
        let decay = u + self.dims.value_width();
        DeltaPlaces { keys, u, decay, width: decay + self.dims.value_heads }
    }

    fn project(&self, x: &Activations) -> DeltaProjected {
        match &self.projection {
            DeltaProjection::Apart { qkv, z, b, a } => {
                DeltaProjected { qkv: qkv.forward(x), z: z.forward(x), b: b.forward(x), a: a.forward(x) }
            }
            DeltaProjection::ByKeyHead { qkvz, ba } => {
                let DeltaDims { key_heads, value_heads, key_dim, value_dim, .. } = self.dims;
                let group = value_heads / key_heads;
                let values = group * value_dim;
                // A row per key head.
                let heads = Activations::from_vec(qkvz.forward(x).into_vec(), 2 * (key_dim + values));
                let small = Activations::from_vec(ba.forward(x).into_vec(), 2 * group);
                let part = |of: &Activations, first: usize, width: usize| {
                    Activations::from_vec(of.columns(first..first + width).into_vec(), key_heads * width)
                };
                let parts = [
                    part(&heads, 0, key_dim),
                    part(&heads, key_dim, key_dim),
                    part(&heads, 2 * key_dim, values),
                ];
                let mut qkv = Activations::unset(x.tokens(), self.conv.channels());
                for token in 0..x.tokens() {
                    let mut to = qkv.row_mut(token);
                    for part in &parts {
                        let (own, rest) = to.split_at_mut(part.width());
                        own.copy_from_slice(part.row(token));
                        to = rest;
                    }
                }
                let z = part(&heads, 2 * key_dim + values, values);
                DeltaProjected { qkv, z, b: part(&small, 0, group), a: part(&small, group, group) }
            }
        }
    }

    /// Divides every head of q and of k by its length, q also by √key_dim.
    fn unit_lengths(&self, row: &mut [f32]) {
        let (queries, keys) = row[..2 * self.dims.key_width()].split_at_mut(self.dims.key_width());
        let unit = |part: &mut [f32], by: f32| {
            for head in part.chunks_exact_mut(self.dims.key_dim) {
                let scale = by / (dot(head, head) + self.qk_eps).sqrt();
                head.iter_mut().for_each(|x| *x *= scale);
            }
        };
        unit(queries, 1.0 / (self.dims.key_dim as f32).sqrt());
        unit(keys, 1.0);
    }

    /// u of further tokens of the open chunk, into their rows `new`, and o `(tokens, value_heads, value_dim)`.
    fn outputs(
        &self,
        state: &RecurrentState,
        convolved: &Activations,
        beta: &Activations,
        new: &mut Activations,
        out: &mut [f32],
    ) {
        let DeltaDims { key_heads, value_heads, key_dim, value_dim, .. } = self.dims;
        let (places, tokens, old) = (self.places(), new.tokens(), state.rows());
        let count = state.open_tokens() + tokens;
        let (key_width, values) = (self.dims.key_width(), self.dims.value_width());
        // For each key head k[j] · k[t] and k[j] · q[t], (key_heads, 2, rows, tokens).
        let own = |first: usize, head: usize| {
            gather(&[], convolved.data(), convolved.width(), first + head * key_dim, key_dim)
        };
        let mut products = Activations::unset(key_heads * 2 * count, tokens);
        for_each_chunk(products.data_mut(), 2 * count * tokens, |head, out| {
            let all = gather(old, new.data(), places.width, places.keys + head * key_dim, key_dim);
            let (with_keys, with_queries) = out.split_at_mut(count * tokens);
            dot_block(all.data(), own(key_width, head).data(), key_dim, with_keys);
            dot_block(all.data(), own(0, head).data(), key_dim, with_queries);
        });
        let matrices = state.part(self.conv.tail()..state.shape().state);
        let mut by_head = Activations::unset(value_heads * 2 * tokens, value_dim); // u, then o
        for_each_chunk(by_head.data_mut(), 2 * tokens * value_dim, |head, out| {
            let key_head = self.dims.key_head(head);
            let matrix = &matrices[head * key_dim * value_dim..][..key_dim * value_dim];
            let products = &products.data()[key_head * 2 * count * tokens..][..2 * count * tokens];
            let (with_keys, with_queries) = products.split_at(count * tokens);
            let decays = gather(old, new.data(), places.width, places.decay + head, 1);
            // Those of further tokens are written as they come.
            let mut us = gather(old, new.data(), places.width, places.u + head * value_dim, value_dim);
            let (mut left, mut weights) = (Vec::with_capacity(count), Vec::with_capacity(count));
            let (u_out, o_out) = out.split_at_mut(tokens * value_dim);
            let pairs = u_out.chunks_exact_mut(value_dim).zip(o_out.chunks_exact_mut(value_dim));
            for (token, (u, o)) in pairs.enumerate() {
                let at = count - tokens + token;
                let decay = decays.data()[at].exp();
                let (queries, keys) = convolved.row(token)[..2 * key_width].split_at(key_width);
                let of_head = key_head * key_dim..(key_head + 1) * key_dim;
                remaining(&decays.data()[..=at], &mut left);
                u.fill(0.0);
                add_rows(u, &keys[of_head.clone()], matrix, value_dim);
                u.iter_mut().for_each(|x| *x *= decay);
                weighted(&left, &with_keys[token..], tokens, &mut weights);
                add_rows(u, &weights[..at], us.data(), value_dim);
                let beta = 1.0 / (1.0 + (-beta.row(token)[head]).exp());
                let v = &convolved.row(token)[2 * key_width + head * value_dim..][..value_dim];
                u.iter_mut().zip(v).for_each(|(u, v)| *u = beta * (v - *u));
                us.row_mut(at).copy_from_slice(u);

                o.fill(0.0);
                add_rows(o, &queries[of_head], matrix, value_dim);
                o.iter_mut().for_each(|x| *x *= decay);
                weighted(&left, &with_queries[token..], tokens, &mut weights);
                add_rows(o, &weights, us.data(), value_dim);
            }
        });
        let collect = |kind: usize, token: usize, to: &mut [f32]| {
            for (head, to) in to.chunks_exact_mut(value_dim).enumerate() {
                to.copy_from_slice(by_head.row((2 * head + kind) * tokens + token));
            }
        };
        for_each_row(new.data_mut(), places.width, |token, to| {
            collect(0, token, &mut to[places.u..places.decay])
        });
        for_each_row(out, values, |token, to| collect(1, token, to));
    }

    /// The state at a chunk's end.
    fn advance(&self, state: &mut [f32], rows: &[f32]) {
        let DeltaDims { key_dim, value_dim, .. } = self.dims;
        let places = self.places();
        let (tail, matrices) = state.split_at_mut(self.conv.tail());
        self.conv.advance(tail, rows, places.width);
        for_each_chunk(matrices, key_dim * value_dim, |head, matrix| {
            let key_head = self.dims.key_head(head);
            let decays = gather(rows, &[], places.width, places.decay + head, 1);
            let keys = gather(rows, &[], places.width, places.keys + key_head * key_dim, key_dim);
            let whole = decays.data().last().map_or(1.0, |decay| decay.exp());
            let (mut left, mut weights) = (Vec::new(), Vec::with_capacity(decays.tokens()));
            remaining(decays.data(), &mut left);
            for (channel, sums) in matrix.chunks_exact_mut(value_dim).enumerate() {
                sums.iter_mut().for_each(|s| *s *= whole);
                weighted(&left, &keys.data()[channel..], key_dim, &mut weights);
                add_rows(sums, &weights, &rows[places.u + head * value_dim..], places.width);
            }
        });
    }
}
