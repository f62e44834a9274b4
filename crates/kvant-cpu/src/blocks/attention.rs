//! Attention: projections, norms and rotation around the state, which does the attending.

use crate::blocks::{Activations, AdaptedRows, Attention, Block, Linear};
use crate::pass::CpuPass;
use kvant_cache::{Scoring, StateError};
use kvant_model::description::{NormPlace, OutputGate, Projection};

/// Keys that are their values times a norm's weights, but for the channels that turn: the slot holds these and the value.
pub struct Folded {
    /// The channels that turn.
    pub turning: Vec<usize>,
    /// Multiplier of each channel of a query that meets a value: the norm's weight, and 0 where the channel turns.
    pub by: Vec<f32>, // (key_dim)
}

impl Folded {
    /// The channels of every head that turn.
    fn keys(&self, keys: &Activations, dim: usize) -> Vec<f32> {
        keys.data().chunks_exact(dim).flat_map(|head| self.turning.iter().map(|&at| head[at])).collect()
    }

    /// Queries as the slot wants them, `(tokens, heads, turning + key_dim)`.
    fn queries(&self, queries: &Activations, dim: usize) -> Activations {
        let heads = queries.width() / dim;
        let head = |head: &[f32]| {
            let turned: Vec<f32> = self.turning.iter().map(|&at| head[at]).collect();
            turned.into_iter().chain(head.iter().zip(&self.by).map(|(q, by)| q * by)).collect::<Vec<f32>>()
        };
        let folded = queries.data().chunks_exact(dim).flat_map(head).collect();
        Activations::from_vec(folded, heads * (self.turning.len() + dim))
    }
}

/// What the projections of a pass gave.
struct Projected {
    q: Activations,                         // (tokens, heads · key_dim)
    kv: Option<(Activations, Activations)>, // (tokens, kv_heads · key_dim), (tokens, kv_heads · value_dim)
}

impl Block<'_, Attention> {
    /// `(tokens, hidden)` to `(tokens, hidden)`.
    pub fn forward(&self, x: &Activations, pass: &mut CpuPass<'_, '_>) -> Result<Activations, StateError> {
        let Projected { mut q, mut kv } = self.project(x, &pass.adapted);
        let gate = self.gate.as_ref().map(|OutputGate::InQuery| split_halves(&mut q, self.key_dim));
        if let Some((k, v)) = &mut kv {
            if self.key_scale != 1.0 {
                k.data_mut().iter_mut().for_each(|x| *x *= self.key_scale);
            }
            if let Some(norm) = &self.v_norm {
                norm.in_place(v);
            }
        }
        if self.norm_place == NormPlace::BeforeRope {
            self.norm_queries_keys(&mut q, kv.as_mut());
        }
        let mut at_sinks = None;
        if let Some(rope) = self.rope {
            let rotations = pass.rotations(rope);
            at_sinks = rotations.at_sinks.as_ref().map(|table| {
                let mut turned = q.clone();
                table.rotate(&mut turned, self.key_dim);
                turned
            });
            rotations.own.rotate(&mut q, self.key_dim);
            if let Some((k, _)) = &mut kv {
                rotations.own.rotate(k, self.key_dim);
            }
        }
        if self.norm_place == NormPlace::AfterRope {
            if let (Some(turned), Some(norm)) = (&mut at_sinks, &self.q_norm) {
                norm.in_place(turned);
            }
            self.norm_queries_keys(&mut q, kv.as_mut());
        }
        if let Some(gain) = &self.query_gain {
            for q in std::iter::once(&mut q).chain(&mut at_sinks) {
                for (row, position) in pass.positions().enumerate() {
                    let gain = gain.at(position) as f32;
                    q.row_mut(row).iter_mut().for_each(|x| *x *= gain);
                }
            }
        }
        let folded = pass.folded[self.slot.index()].as_ref();
        match (&kv, folded) {
            (Some((k, v)), None) => pass.append(self.slot, k.data(), v.data())?,
            (Some((k, v)), Some(folded)) => {
                pass.append(self.slot, &folded.keys(k, self.key_dim), v.data())?;
            }
            (None, _) => {}
        }
        if let Some(folded) = folded {
            q = folded.queries(&q, self.key_dim);
            at_sinks = at_sinks.map(|turned| folded.queries(&turned, self.key_dim));
        }
        let width = self.heads * self.value_dim;
        let scoring =
            Scoring { scale: self.scale, soft_cap: self.soft_cap, sink_logits: self.sink_logits.as_deref() };
        let mut attended = pass.attend(self.slot, &q, at_sinks.as_ref(), &scoring, width)?;
        if let Some(gate) = gate {
            let pairs = attended.data_mut().iter_mut().zip(gate.data());
            pairs.for_each(|(x, g)| *x *= 1.0 / (1.0 + (-g).exp()));
        }
        Ok(self.output.forward_adapted(&attended, &pass.adapted))
    }

    fn norm_queries_keys(&self, q: &mut Activations, kv: Option<&mut (Activations, Activations)>) {
        if let Some(norm) = &self.q_norm {
            norm.in_place(q);
        }
        if let (Some(norm), Some((k, _))) = (&self.k_norm, kv) {
            norm.in_place(k);
        }
    }

    fn project(&self, x: &Activations, adapted: &AdaptedRows<'_>) -> Projected {
        let forward = |linear: &Linear| linear.forward_adapted(x, adapted);
        let Attention { heads, kv_heads, key_dim, value_dim, .. } = *self.0;
        let (q_width, k_width, v_width) = (heads * key_dim, kv_heads * key_dim, kv_heads * value_dim);
        match &self.projection {
            Projection::Apart { q, k, v } => {
                let [q, k, v] = Linear::forward_all([q, k, v], x, adapted);
                Projected { q, kv: Some((k, v)) }
            }
            Projection::Fused(qkv) => {
                let all = forward(qkv);
                let k_end = q_width + k_width;
                let (k, v) = (all.columns(q_width..k_end), all.columns(k_end..k_end + v_width));
                Projected { q: all.columns(0..q_width), kv: Some((k, v)) }
            }
            Projection::FusedByHead(qkv) => {
                // A row per head.
                let all = Activations::from_vec(forward(qkv).into_vec(), 2 * key_dim + value_dim);
                let part = |range: std::ops::Range<usize>, width| {
                    Activations::from_vec(all.columns(range).into_vec(), width)
                };
                let k = part(key_dim..2 * key_dim, k_width);
                let v = part(2 * key_dim..2 * key_dim + value_dim, v_width);
                Projected { q: part(0..key_dim, q_width), kv: Some((k, v)) }
            }
            Projection::Shared { q } => Projected { q: forward(q), kv: None },
            Projection::Equal { q, kv } => {
                let [q, k] = Linear::forward_all([q, kv], x, adapted);
                Projected { q, kv: Some((k.clone(), k)) }
            }
        }
    }
}

/// Takes the second half of every head, `(tokens, heads, 2, dim)`, out of `rows`.
fn split_halves(rows: &mut Activations, dim: usize) -> Activations {
    let width = rows.width() / 2;
    let all =
        Activations::from_vec(std::mem::replace(rows, Activations::zeros(0, width)).into_vec(), 2 * dim);
    let half = |range| Activations::from_vec(all.columns(range).into_vec(), width);
    *rows = half(0..dim);
    half(dim..2 * dim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_half_of_every_head_is_its_gate() {
        let mut rows = Activations::from_vec((0..16).map(|i| i as f32).collect(), 8);
        let gate = split_halves(&mut rows, 2);
        assert_eq!(rows.data(), [0.0, 1.0, 4.0, 5.0, 8.0, 9.0, 12.0, 13.0]);
        assert_eq!(gate.data(), [2.0, 3.0, 6.0, 7.0, 10.0, 11.0, 14.0, 15.0]);
        assert_eq!((rows.width(), gate.width()), (4, 4));
    }
}
