//! Multi-head latent attention with W_uk and W_uv absorbed: queries meet the latents themselves, and what weights sum up is
//! latents. Prefill and decode share this form, so they share their bits.

use crate::blocks::{Activations, Block, LatentAttention, Linear};
use crate::pass::CpuPass;
use kvant_cache::{Scoring, StateError};
use kvant_model::description::LatentQuery;

/// The matrices of every head.
pub struct LatentHeads {
    /// For each head W_ukᵀ, from `nope_dim` to `latent_dim`.
    pub query_to_latent: Vec<Linear>,
    /// For each head W_uv.
    pub value_up: Vec<Linear>,
}

impl Block<'_, LatentAttention> {
    /// `(tokens, hidden)` to `(tokens, hidden)`.
    pub fn forward(&self, x: &Activations, pass: &mut CpuPass<'_, '_>) -> Result<Activations, StateError> {
        let (heads, nope, rope) = (self.heads, self.nope_dim, self.rope_dim);
        let mut q = match &self.query {
            LatentQuery::Direct(q) => q.forward(x),
            LatentQuery::LowRank { down, norm, up } => {
                let mut narrow = down.forward(x);
                norm.in_place(&mut narrow);
                up.forward(&narrow)
            }
        };
        if let Some(gain) = &self.query_gain {
            for (row, position) in pass.positions().enumerate() {
                let gain = gain.at(position) as f32;
                q.row_mut(row).iter_mut().for_each(|x| *x *= gain);
            }
        }
        let both = self.latent.forward(x);
        let mut latent = both.columns(0..self.latent_dim);
        self.latent_norm.in_place(&mut latent);
        let mut key = both.columns(self.latent_dim..self.latent_dim + rope);

        let by_head = Activations::from_vec(q.into_vec(), nope + rope); // (tokens · heads, nope + rope)
        let mut turned = Activations::from_vec(by_head.columns(nope..nope + rope).into_vec(), heads * rope);
        let mut at_sinks = None;
        if let Some(id) = self.rope {
            let rotations = pass.rotations(id);
            at_sinks = rotations.at_sinks.as_ref().map(|table| {
                let mut turned = turned.clone();
                table.rotate(&mut turned, rope);
                turned
            });
            rotations.own.rotate(&mut turned, rope);
            rotations.own.rotate(&mut key, rope);
        }
        pass.append(self.slot, key.data(), latent.data())?;

        let plain = Activations::from_vec(by_head.columns(0..nope).into_vec(), heads * nope);
        let absorbed: Vec<Activations> = (0..heads)
            .map(|head| self.up.query_to_latent[head].forward(&plain.columns(head * nope..(head + 1) * nope)))
            .collect();
        let joined = |turned: &Activations| self.joined(turned, &absorbed);
        let (queries, at_sinks) = (joined(&turned), at_sinks.as_ref().map(joined));
        let width = heads * self.latent_dim;
        let summed = pass.attend(self.slot, &queries, at_sinks.as_ref(), &Scoring::new(self.scale), width)?;
        Ok(self.output.forward(&self.values(&summed)))
    }

    /// Queries as the slot wants them, `(tokens, heads, rope_dim + latent_dim)`.
    fn joined(&self, turned: &Activations, absorbed: &[Activations]) -> Activations {
        let (rope, width) = (self.rope_dim, self.rope_dim + self.latent_dim);
        let mut queries = Activations::unset(turned.tokens(), self.heads * width);
        for token in 0..turned.tokens() {
            for (head, query) in queries.row_mut(token).chunks_exact_mut(width).enumerate() {
                query[..rope].copy_from_slice(&turned.row(token)[head * rope..][..rope]);
                query[rope..].copy_from_slice(absorbed[head].row(token));
            }
        }
        queries
    }

    /// From sums of latents, `(tokens, heads, latent_dim)`, to values, `(tokens, heads, value_dim)`.
    fn values(&self, summed: &Activations) -> Activations {
        let (latent, width) = (self.latent_dim, self.value_dim);
        let mut values = Activations::unset(summed.tokens(), self.heads * width);
        for (head, up) in self.up.value_up.iter().enumerate() {
            let own = up.forward(&summed.columns(head * latent..(head + 1) * latent));
            for token in 0..own.tokens() {
                values.row_mut(token)[head * width..][..width].copy_from_slice(own.row(token));
            }
        }
        values
    }

    /// What the residual stream gets of a sum of latents, `(hidden, heads · latent_dim)`: the output layer times W_uv.
    pub fn output_weights(&self) -> Activations {
        let output = self.output.weights(); // (hidden, heads · value_dim)
        let (latent, width) = (self.latent_dim, self.value_dim);
        let mut weights = Activations::zeros(output.tokens(), self.heads * latent);
        for (head, up) in self.up.value_up.iter().enumerate() {
            let up = up.weights(); // (value_dim, latent_dim)
            for row in 0..output.tokens() {
                let by = &output.row(row)[head * width..][..width];
                let to = &mut weights.row_mut(row)[head * latent..][..latent];
                crate::blocks::sums::add_rows(to, by, up.data(), latent);
            }
        }
        weights
    }
}
