//! Options of mixers with recurrent state and of latent attention.

use crate::blocks::{check, check_chunks, pre_norm};
use crate::maker::{HIDDEN, Made, Maker};
use kvant_model::description::*;

/// Two chunks of recurrent state and some of a third, cut within them and at their ends.
const CHUNKS: [&[usize]; 3] = [&[150], &[5, 1, 58, 64, 22], &[63, 2, 1, 1, 70, 13]];

fn conv(maker: &mut Maker, channels: usize, kernel: usize, activation: Option<Activation>) -> Convolution {
    let weight = Vector::whole(maker.tensor(&[channels, 1, kernel], 0.0, 0.8));
    Convolution { channels, kernel, weight, bias: Some(maker.vector(channels, 0.0, 0.3)), activation }
}

fn short_conv(maker: &mut Maker, kernel: usize) -> Mixer {
    let slot = maker.slots.recurrent(0, ShortConv::state_shape(HIDDEN, kernel));
    let (input, conv) = (maker.linear(3 * HIDDEN, HIDDEN), conv(maker, HIDDEN, kernel, None));
    Mixer::ShortConv(Box::new(ShortConv { slot, input, conv, output: maker.linear(HIDDEN, HIDDEN) }))
}

fn mamba2(maker: &mut Maker) -> Mamba2 {
    let dims = Mamba2Dims { heads: 6, head_dim: 5, groups: 3, state: 7, kernel: 4 };
    Mamba2 {
        slot: maker.slots.recurrent(0, dims.state_shape()),
        dims,
        input: maker.linear(dims.projected(), HIDDEN),
        part_scales: [1.2, 0.8, 1.1, 0.9, 1.3],
        conv: conv(maker, dims.conv_channels(), dims.kernel, Some(Activation::Silu)),
        dt_bias: maker.vector(dims.heads, -1.0, 1.0),
        dt_limit: Some((0.2, 0.9)),
        decay: DecayRate::Log(maker.vector(dims.heads, 0.0, 1.0)),
        skip: maker.vector(dims.heads, 1.0, 0.5),
        norm: Some(GatedNorm {
            weight: maker.vector(dims.inner(), 1.0, 0.5),
            width: dims.inner() / dims.groups,
            eps: 1e-5,
            order: GateOrder::GateFirst,
        }),
        output: maker.linear(HIDDEN, dims.inner()),
    }
}

fn delta_net(maker: &mut Maker) -> GatedDeltaNet {
    let order = HeadOrder::Grouped;
    let dims = DeltaDims { key_heads: 2, value_heads: 6, order, key_dim: 7, value_dim: 5, kernel: 4 };
    let (keys, values) = (2 * dims.key_width(), dims.value_width());
    GatedDeltaNet {
        slot: maker.slots.recurrent(0, dims.state_shape()),
        dims,
        projection: DeltaProjection::ByKeyHead {
            qkvz: maker.linear(keys + 2 * values, HIDDEN),
            ba: maker.linear(2 * dims.value_heads, HIDDEN),
        },
        conv: conv(maker, dims.conv_channels(), dims.kernel, Some(Activation::Silu)),
        qk_eps: 1e-6,
        decay: DecayRate::Log(maker.vector(dims.value_heads, -1.0, 1.0)),
        dt_bias: maker.vector(dims.value_heads, -1.0, 1.0),
        norm: maker.norm(dims.value_dim),
        output: maker.linear(HIDDEN, dims.value_width()),
    }
}

fn latent_attention(maker: &mut Maker) -> LatentAttention {
    let (heads, nope_dim, rope_dim, latent_dim, value_dim) = (3, 6, 4, 10, 5);
    let key_up = maker.tensor(&[heads, latent_dim, nope_dim], 0.0, 0.5);
    let value_up = maker.tensor(&[heads, value_dim, latent_dim], 0.0, 0.5);
    let each = |tensor: &TensorRef, transposed: bool| -> Vec<Matrix> {
        let matrix = |head| Matrix { expert: Some(head), transposed, ..Matrix::whole(tensor.clone()) };
        (0..heads).map(matrix).collect()
    };
    LatentAttention {
        slot: maker.slots.latent(0, LatentAttention::latent_shape(latent_dim, rope_dim, Some(8))),
        heads,
        nope_dim,
        rope_dim,
        latent_dim,
        value_dim,
        window: Some(8),
        query: LatentQuery::LowRank {
            down: maker.linear(9, HIDDEN),
            norm: maker.norm(9),
            up: maker.linear(heads * (nope_dim + rope_dim), 9),
        },
        latent: maker.linear(latent_dim + rope_dim, HIDDEN),
        latent_norm: maker.norm(latent_dim),
        up: LatentHeads { key: each(&key_up, true), value: each(&value_up, false) },
        rope: Some(maker.rope(rope_dim, Pairing::Neighbours)),
        query_gain: Some(QueryGain { beta: 0.7, every: 4 }),
        scale: 0.4,
        output: maker.linear(HIDDEN, heads * value_dim),
    }
}

/// A layer of one mixer.
fn model(make: impl FnOnce(&mut Maker) -> Mixer) -> Made {
    let mut maker = Maker::new(13);
    let mixer = make(&mut maker);
    let layer = vec![pre_norm(&mut maker, mixer)];
    maker.model(vec![layer])
}

fn mixer_of(description: &mut Description) -> &mut Mixer {
    &mut description.layers[0].residuals[0].branches[0].mixer
}

#[test]
fn short_convolutions() {
    // A kernel of one tap keeps no state, and caches refuse such a slot.
    for kernel in [2, 3, 4] {
        let made = model(|maker| short_conv(maker, kernel));
        check_chunks("short convolution", made, &CHUNKS, |description| match mixer_of(description) {
            Mixer::ShortConv(short) => short.conv.bias = None,
            other => panic!("{other:?}"),
        });
    }
}

/// A Mamba-2 mixer that `change` gives an option.
fn check_mamba2(name: &str, change: impl FnOnce(&mut Maker, &mut Mamba2), without: impl FnOnce(&mut Mamba2)) {
    let made = model(|maker| {
        let mut mamba = mamba2(maker);
        change(maker, &mut mamba);
        Mixer::Mamba2(Box::new(mamba))
    });
    check_chunks(name, made, &CHUNKS, |description| match mixer_of(description) {
        Mixer::Mamba2(mamba) => without(mamba),
        other => panic!("{other:?}"),
    });
}

#[test]
fn mamba2_with_its_options() {
    let as_made = |_: &mut Maker, _: &mut Mamba2| ();
    for part in 0..5 {
        check_mamba2("scaled part", as_made, |mamba| mamba.part_scales[part] = 1.0);
    }
    check_mamba2("bias of the convolution", as_made, |mamba| mamba.conv.bias = None);
    check_mamba2("limits of dt", as_made, |mamba| mamba.dt_limit = None);
    check_mamba2("gated norm", as_made, |mamba| mamba.norm = None);
    check_mamba2("norm by groups", as_made, |mamba| mamba.norm.as_mut().unwrap().width = mamba.dims.inner());
    check_mamba2("gate first", as_made, |mamba| mamba.norm.as_mut().unwrap().order = GateOrder::NormFirst);
    let norm_first = |_: &mut Maker, mamba: &mut Mamba2| {
        mamba.norm.as_mut().unwrap().order = GateOrder::NormFirst;
        mamba.dt_limit = None;
    };
    check_mamba2("norm first", norm_first, |mamba| mamba.norm.as_mut().unwrap().order = GateOrder::GateFirst);
    let plain = |maker: &mut Maker, mamba: &mut Mamba2| {
        mamba.norm = None;
        mamba.decay = DecayRate::Plain(maker.vector(mamba.dims.heads, -0.6, 0.5));
    };
    check_mamba2("rates as they are, a gate alone", plain, |mamba| {
        let DecayRate::Plain(rates) = mamba.decay.clone() else { panic!("{:?}", mamba.decay) };
        mamba.decay = DecayRate::Log(rates);
    });
}

/// A gated DeltaNet that `change` gives an option.
fn check_delta_net(
    name: &str,
    change: impl FnOnce(&mut Maker, &mut GatedDeltaNet),
    without: impl FnOnce(&mut GatedDeltaNet),
) {
    let made = model(|maker| {
        let mut net = delta_net(maker);
        change(maker, &mut net);
        Mixer::GatedDeltaNet(Box::new(net))
    });
    check_chunks(name, made, &CHUNKS, |description| match mixer_of(description) {
        Mixer::GatedDeltaNet(net) => without(net),
        other => panic!("{other:?}"),
    });
}

#[test]
fn gated_delta_nets_with_their_options() {
    let as_made = |_: &mut Maker, _: &mut GatedDeltaNet| ();
    check_delta_net("bias of the convolution", as_made, |net| net.conv.bias = None);
    check_delta_net("epsilon", |_, net| net.qk_eps = 0.5, |net| net.qk_eps = 1e-6);
    check_delta_net(
        "heads that take turns",
        |_, net| net.dims.order = HeadOrder::Tiled,
        |net| net.dims.order = HeadOrder::Grouped,
    );
    let apart = |maker: &mut Maker, net: &mut GatedDeltaNet| {
        let dims = net.dims;
        net.projection = DeltaProjection::Apart {
            qkv: maker.linear(dims.conv_channels(), HIDDEN),
            z: maker.linear(dims.value_width(), HIDDEN),
            b: maker.linear(dims.value_heads, HIDDEN),
            a: maker.linear(dims.value_heads, HIDDEN),
        };
        net.decay = DecayRate::Plain(maker.vector(dims.value_heads, -0.6, 0.5));
    };
    check_delta_net("projections apart, rates as they are", apart, |net| {
        let DecayRate::Plain(rates) = net.decay.clone() else { panic!("{:?}", net.decay) };
        net.decay = DecayRate::Log(rates);
    });
}

/// Latent attention that `change` gives an option.
fn check_latent(
    name: &str,
    change: impl FnOnce(&mut Maker, &mut LatentAttention),
    without: impl FnOnce(&mut LatentAttention),
) {
    let made = model(|maker| {
        let mut attention = latent_attention(maker);
        change(maker, &mut attention);
        Mixer::LatentAttention(Box::new(attention))
    });
    check(name, made, |description| match mixer_of(description) {
        Mixer::LatentAttention(attention) => without(attention),
        other => panic!("{other:?}"),
    });
}

#[test]
fn latent_attention_with_its_options() {
    let as_made = |_: &mut Maker, _: &mut LatentAttention| ();
    check_latent("window", as_made, |attention| attention.window = None);
    check_latent("query gain", as_made, |attention| attention.query_gain = None);
    check_latent("rotation", as_made, |attention| attention.rope = None);
    let direct = |maker: &mut Maker, attention: &mut LatentAttention| {
        let width = attention.heads * (attention.nope_dim + attention.rope_dim);
        attention.query = LatentQuery::Direct(maker.linear(width, HIDDEN));
        attention.window = None;
        let shape = LatentAttention::latent_shape(attention.latent_dim, attention.rope_dim, None);
        attention.slot = maker.slots.latent(0, shape);
    };
    check_latent("direct queries, no window", direct, |attention| attention.window = Some(8));
}
