//! Softmax attention over keys and values.

use crate::function::{add, capped, dot, sigmoid, softmax};
use crate::oracle::{Rows, Run, scaled};
use kvant_cache::SlotKind;
use kvant_model::description::{Attention, Norm, NormPlace, OutputGate, Projection, RopeId};

/// How a query's scores become weights.
pub struct Softmax {
    pub window: Option<usize>,
    pub scale: f64,
    pub soft_cap: Option<f32>,
    /// A logit without a value.
    pub sink: Option<f64>,
}

impl Softmax {
    /// The weighted sum of the values that the query at `position` sees; `key` and `value` are those of a position.
    pub fn attend<'k>(
        &self,
        query: &[f64],
        position: usize,
        key: impl Fn(usize) -> &'k [f64],
        value: impl Fn(usize) -> &'k [f64],
    ) -> Vec<f64> {
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let score = |at| capped(self.scale * dot(query, key(at)), self.soft_cap);
        let mut scores: Vec<f64> = (first..=position).map(score).collect();
        scores.extend(self.sink);
        let mut sum = vec![0.0; value(position).len()];
        // The sink's weight comes last and meets no value.
        for (at, weight) in (first..=position).zip(softmax(&scores)) {
            add(&mut sum, value(at), weight);
        }
        sum
    }
}

/// What the projection gives for a token.
struct Projected {
    q: Vec<f64>,            // (heads, key_dim)
    gate: Option<Vec<f64>>, // (heads, key_dim)
    kv: Option<(Vec<f64>, Vec<f64>)>,
}

/// `(tokens, hidden)` to `(tokens, hidden)`.
pub fn attention(run: &mut Run<'_>, of: &Attention, x: &Rows) -> Rows {
    let (mut queries, mut gates, mut keys, mut values) = (Rows::new(), Vec::new(), Rows::new(), Rows::new());
    for (position, x) in x.iter().enumerate() {
        let Projected { q, gate, kv } = project(run, of, x);
        let gain = of.query_gain.map_or(1.0, |gain| gain.at(position));
        let q = turned(run, of, q, of.q_norm.as_ref(), position);
        queries.push(q.into_iter().map(|q| q * gain).collect());
        gates.push(gate);
        if let Some((k, v)) = kv {
            keys.push(turned(run, of, scaled(k, of.key_scale), of.k_norm.as_ref(), position));
            values.push(run.weights.norm_if(of.v_norm.as_ref(), v));
        }
    }
    let owner = run.description.slots.owner(of.slot);
    match run.description.slots.get(of.slot.index()).expect("a slot of the description").kind {
        SlotKind::KeysValues(_) => {
            run.trace.keys.insert(owner, keys.clone());
            run.trace.values.insert(owner, values.clone());
        }
        SlotKind::Latent(_) => {
            run.trace.keys.insert(owner, turning(run, of, &keys));
            run.trace.values.insert(owner, values.clone());
        }
        SlotKind::View(_) => {
            assert!(keys.is_empty(), "a view takes no keys and values");
            (keys, values) = (run.trace.keys[&owner].clone(), run.trace.values[&owner].clone());
        }
        SlotKind::Recurrent(_) => panic!("attention over recurrent state"),
    }
    assert_eq!(keys.len(), x.len(), "every token has a key");
    let sinks = of.sink_logits.as_ref().map(|logits| run.weights.vector(logits));
    let row = |(position, (query, gate)): (usize, (&Vec<f64>, &Option<Vec<f64>>))| {
        let mut heads = Vec::new(); // (heads, value_dim)
        for (head, query) in query.chunks(of.key_dim).enumerate() {
            let kv_head = head / (of.heads / of.kv_heads);
            let softmax = Softmax {
                window: of.window,
                scale: f64::from(of.scale),
                soft_cap: of.soft_cap,
                sink: sinks.as_ref().map(|sinks| sinks[head]),
            };
            heads.extend(softmax.attend(
                query,
                position,
                |at| &keys[at][kv_head * of.key_dim..][..of.key_dim],
                |at| &values[at][kv_head * of.value_dim..][..of.value_dim],
            ));
        }
        if let Some(gate) = gate {
            heads.iter_mut().zip(gate).for_each(|(x, gate)| *x *= sigmoid(*gate));
        }
        run.weights.linear(&of.output, &heads)
    };
    queries.iter().zip(&gates).enumerate().map(row).collect()
}

/// The channels of keys that turn.
fn turning(run: &Run<'_>, of: &Attention, keys: &Rows) -> Rows {
    let RopeId(rope) = of.rope.expect("keys are rotated in part");
    let channels = run.description.ropes[rope].turning_channels();
    let row = |key: &Vec<f64>| {
        key.chunks(of.key_dim).flat_map(|head| channels.iter().map(|&channel| head[channel])).collect()
    };
    keys.iter().map(row).collect()
}

/// The queries or keys of a token, normed and rotated.
fn turned(run: &Run<'_>, of: &Attention, x: Vec<f64>, norm: Option<&Norm>, position: usize) -> Vec<f64> {
    let rotated = |mut x: Vec<f64>, rope: Option<RopeId>| {
        x.chunks_mut(of.key_dim).for_each(|head| run.rotate(rope, head, position));
        x
    };
    match of.norm_place {
        NormPlace::BeforeRope => rotated(run.weights.norm_if(norm, x), of.rope),
        NormPlace::AfterRope => run.weights.norm_if(norm, rotated(x, of.rope)),
    }
}

fn project(run: &Run<'_>, of: &Attention, x: &[f64]) -> Projected {
    let weights = run.weights;
    let (q, kv) = match &of.projection {
        Projection::Apart { q, k, v } => {
            (weights.linear(q, x), Some((weights.linear(k, x), weights.linear(v, x))))
        }
        Projection::Fused(qkv) => {
            let mut q = weights.linear(qkv, x);
            let v = q.split_off(q.len() - of.kv_heads * of.value_dim);
            let k = q.split_off(q.len() - of.kv_heads * of.key_dim);
            (q, Some((k, v)))
        }
        Projection::FusedByHead(qkv) => {
            let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
            for head in weights.linear(qkv, x).chunks(2 * of.key_dim + of.value_dim) {
                q.extend_from_slice(&head[..of.key_dim]);
                k.extend_from_slice(&head[of.key_dim..2 * of.key_dim]);
                v.extend_from_slice(&head[2 * of.key_dim..]);
            }
            (q, Some((k, v)))
        }
        Projection::Shared { q } => (weights.linear(q, x), None),
        Projection::Equal { q, kv } => {
            let kv = weights.linear(kv, x);
            (weights.linear(q, x), Some((kv.clone(), kv)))
        }
    };
    let Some(gate) = &of.gate else { return Projected { q, gate: None, kv } };
    match gate {
        OutputGate::InQuery => {
            let half = |second: usize| {
                q.chunks(2 * of.key_dim)
                    .flat_map(|head| head[second * of.key_dim..][..of.key_dim].to_vec())
                    .collect()
            };
            Projected { q: half(0), gate: Some(half(1)), kv }
        }
    }
}
