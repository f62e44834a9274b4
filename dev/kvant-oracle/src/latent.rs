//! Multi-head latent attention, with the keys and values of every head made from the latents.

use crate::attention::Softmax;
use crate::oracle::{Rows, Run};
use kvant_model::description::{LatentAttention, LatentQuery, Matrix};

/// `(tokens, hidden)` to `(tokens, hidden)`.
pub fn latent_attention(run: &mut Run<'_>, of: &LatentAttention, x: &Rows) -> Rows {
    let weights = run.weights;
    let (mut queries, mut rotated_keys, mut latents) = (Rows::new(), Rows::new(), Rows::new());
    for (position, x) in x.iter().enumerate() {
        let mut q = match &of.query {
            LatentQuery::Direct(q) => weights.linear(q, x),
            LatentQuery::LowRank { down, norm, up } => {
                weights.linear(up, &weights.norm(norm, &weights.linear(down, x)))
            }
        };
        for head in q.chunks_mut(of.nope_dim + of.rope_dim) {
            run.rotate(of.rope, &mut head[of.nope_dim..], position);
        }
        let gain = of.query_gain.map_or(1.0, |gain| gain.at(position));
        queries.push(q.into_iter().map(|q| q * gain).collect());
        let mut latent = weights.linear(&of.latent, x);
        let mut rotated = latent.split_off(of.latent_dim);
        run.rotate(of.rope, &mut rotated, position);
        rotated_keys.push(rotated);
        latents.push(weights.norm(&of.latent_norm, &latent));
    }

    let up =
        |matrix: &Matrix| -> Rows { latents.iter().map(|latent| weights.product(matrix, latent)).collect() };
    let softmax = Softmax { window: of.window, scale: f64::from(of.scale), soft_cap: None, sink: None };
    let mut attended: Rows = vec![Vec::new(); x.len()]; // (tokens, heads · value_dim)
    for head in 0..of.heads {
        let values = up(&of.up.value[head]);
        let mut keys = up(&of.up.key[head]);
        keys.iter_mut().zip(&rotated_keys).for_each(|(key, rotated)| key.extend_from_slice(rotated));
        let width = of.nope_dim + of.rope_dim;
        for (position, attended) in attended.iter_mut().enumerate() {
            let query = &queries[position][head * width..][..width];
            attended.extend(softmax.attend(query, position, |at| &keys[at], |at| &values[at]));
        }
    }
    run.trace.keys.insert(of.slot, rotated_keys);
    run.trace.values.insert(of.slot, latents);
    attended.iter().map(|heads| weights.linear(&of.output, heads)).collect()
}
