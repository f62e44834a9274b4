//! Options of attention.

use crate::blocks::{check, pre_norm};
use crate::maker::{HEADS, HIDDEN, Maker};
use kvant_cache::KvShape;
use kvant_model::description::*;

/// The attention of a layer's first branch.
fn attention_of(description: &mut Description, layer: usize) -> &mut Attention {
    match &mut description.layers[layer].residuals[0].branches[0].mixer {
        Mixer::Attention(attention) => attention,
        other => panic!("{other:?}"),
    }
}

/// A layer of one attention that `change` gives its option.
fn check_attention(
    name: &str,
    change: impl FnOnce(&mut Maker, &mut Attention),
    without: impl FnOnce(&mut Attention),
) {
    let mut maker = Maker::new(7);
    let mut attention = maker.attention(0);
    change(&mut maker, &mut attention);
    let layer = vec![pre_norm(&mut maker, Mixer::Attention(Box::new(attention)))];
    check(name, maker.model(vec![layer]), |description| without(attention_of(description, 0)));
}

#[test]
fn sink_logits() {
    let change = |maker: &mut Maker, a: &mut Attention| a.sink_logits = Some(maker.vector(HEADS.0, 1.0, 2.0));
    check_attention("sink logits", change, |a| a.sink_logits = None);
    let windowed = |maker: &mut Maker, a: &mut Attention| {
        let (_, kv_heads, dim) = HEADS;
        a.window = Some(3);
        a.slot =
            maker.slots.keys_values(0, KvShape { kv_heads, key_dim: dim, value_dim: dim, window: Some(3) });
        a.sink_logits = Some(maker.vector(HEADS.0, 1.0, 2.0));
        a.soft_cap = Some(1.5);
    };
    check_attention("sink logits in a window, capped", windowed, |a| a.sink_logits = None);
}

#[test]
fn output_gates() {
    let (heads, kv_heads, dim) = HEADS;
    let change = |maker: &mut Maker, a: &mut Attention| {
        a.projection = Projection::Apart {
            q: maker.linear(heads * 2 * dim, HIDDEN),
            k: maker.linear(kv_heads * dim, HIDDEN),
            v: maker.linear(kv_heads * dim, HIDDEN),
        };
        a.gate = Some(OutputGate::InQuery);
        (a.q_norm, a.k_norm) = (Some(maker.norm(dim)), Some(maker.norm(dim)));
    };
    check_attention("output gate", change, |a| {
        // The queries without their gates: the first half of the outputs, which are others for all heads but the first.
        a.gate = None;
        let Projection::Apart { q, .. } = &mut a.projection else { panic!("{:?}", a.projection) };
        let rows = Some(RowRange::from(0, heads * dim));
        q.weight.rows = rows;
        q.bias.as_mut().unwrap().rows = rows;
    });
}

#[test]
fn views_of_another_layers_keys_and_values() {
    let (heads, _, dim) = HEADS;
    let mut maker = Maker::new(8);
    let first = maker.attention(0);
    let mut second = maker.attention(1);
    let (view, other) = (maker.slots.view(1, first.slot), maker.slot(1));
    let q = maker.linear(heads * dim, HIDDEN);
    let own = Attention { slot: other, ..second.clone() };
    second.projection = Projection::Shared { q };
    second.slot = view;
    let layer = |maker: &mut Maker, a| vec![pre_norm(maker, Mixer::Attention(Box::new(a)))];
    let layers = vec![layer(&mut maker, first), layer(&mut maker, second)];
    check("view", maker.model(layers), |description| *attention_of(description, 1) = own);
}

#[test]
fn one_projection_for_keys_and_values() {
    let (heads, kv_heads, dim) = HEADS;
    let change = |maker: &mut Maker, a: &mut Attention| {
        let (q, kv) = (maker.linear(heads * dim, HIDDEN), maker.linear(kv_heads * dim, HIDDEN));
        a.projection = Projection::Equal { q, kv };
        a.k_norm = Some(maker.norm(dim));
        a.v_norm = Some(Norm { weight: None, ..maker.norm(dim) });
        a.rope = Some(maker.rope(dim / 4, Pairing::Halves));
    };
    check_attention("k = v", change, |a| a.v_norm = None);
}

#[test]
fn norms_after_the_rotation() {
    let change = |maker: &mut Maker, a: &mut Attention| {
        (a.q_norm, a.k_norm) = (Some(maker.norm(HEADS.2)), Some(maker.norm(HEADS.2)));
        a.norm_place = NormPlace::AfterRope;
    };
    check_attention("norm after rope", change, |a| a.norm_place = NormPlace::BeforeRope);
}

#[test]
fn scaled_keys_growing_queries_and_neighbours_in_pairs() {
    check_attention("key scale", |_, a| a.key_scale = 0.6, |a| a.key_scale = 1.0);
    // A norm would hide the scale, were its place another.
    let normed = |maker: &mut Maker, a: &mut Attention| {
        a.key_scale = 1e-3;
        a.k_norm = Some(maker.norm(HEADS.2));
    };
    check_attention("key scale before a norm", normed, |a| a.key_scale = 1.0);
    let gain = Some(QueryGain { beta: 0.7, every: 4 });
    check_attention("query gain", |_, a| a.query_gain = gain, |a| a.query_gain = None);
    let neighbours = |maker: &mut Maker, a: &mut Attention| a.rope = Some(maker.rope(4, Pairing::Neighbours));
    check_attention("neighbours, partial", neighbours, |a| a.rope = Some(RopeId(0)));
}

#[test]
fn values_of_another_width_and_fused_projections() {
    let (heads, kv_heads, dim) = (4, 2, 8);
    let change = |maker: &mut Maker, a: &mut Attention| {
        a.value_dim = 5;
        let shape = KvShape { kv_heads, key_dim: dim, value_dim: 5, window: None };
        a.slot = maker.slots.keys_values(0, shape);
        a.projection = Projection::Fused(maker.linear(heads * dim + kv_heads * (dim + 5), HIDDEN));
        a.q_norm = Some(maker.norm(heads * dim));
        a.output = maker.linear(HIDDEN, heads * 5);
    };
    check_attention("values of 5", change, |a| a.q_norm = None);
}
