//! Options of MLPs, routers and experts.

use crate::blocks::{check, pre_norm};
use crate::maker::{HIDDEN, Maker};
use kvant_model::description::*;

/// A layer of one feed-forward part.
fn check_ffn(name: &str, make: impl FnOnce(&mut Maker) -> Ffn, without: impl FnOnce(&mut Ffn)) {
    let mut maker = Maker::new(9);
    let ffn = make(&mut maker);
    let layer = vec![pre_norm(&mut maker, Mixer::Ffn(ffn))];
    check(name, maker.model(vec![layer]), |description| {
        match &mut description.layers[0].residuals[0].branches[0].mixer {
            Mixer::Ffn(ffn) => without(ffn),
            other => panic!("{other:?}"),
        }
    });
}

fn mlp_of(ffn: &mut Ffn) -> &mut Mlp {
    match ffn {
        Ffn::Dense(mlp) => mlp,
        Ffn::Experts(_) => panic!("an MLP"),
    }
}

fn moe_of(ffn: &mut Ffn) -> &mut Moe {
    match ffn {
        Ffn::Experts(moe) => moe,
        Ffn::Dense(_) => panic!("experts"),
    }
}

#[test]
fn mlps_with_multipliers_and_sparse_gates() {
    let change = |mlp: Mlp| Ffn::Dense(Mlp { gate_scale: 0.4, down_scale: 1.7, ..mlp });
    check_ffn("gate scale", |maker| change(maker.mlp(16)), |ffn| mlp_of(ffn).gate_scale = 1.0);
    check_ffn("down scale", |maker| change(maker.mlp(16)), |ffn| mlp_of(ffn).down_scale = 1.0);
    let sparse = |maker: &mut Maker| {
        Ffn::Dense(Mlp { sparsity: Some(0.7), activation: Activation::GeluTanh, ..maker.mlp(32) })
    };
    check_ffn("sparse gates", sparse, |ffn| mlp_of(ffn).sparsity = None);
}

#[test]
fn every_activation() {
    for function in
        [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::ReluSquared]
    {
        let plain = |maker: &mut Maker| {
            let (up, down) = (maker.linear(16, HIDDEN), maker.linear(HIDDEN, 16));
            Ffn::Dense(Mlp::new(Inner::Plain(up), function, down))
        };
        let fused = |maker: &mut Maker| {
            let (both, down) = (maker.linear(32, HIDDEN), maker.linear(HIDDEN, 16));
            Ffn::Dense(Mlp::new(Inner::GatedFused(both), function, down))
        };
        // The two forms of GELU are too close to tell apart here.
        let other = if function == Activation::Silu { Activation::Relu } else { Activation::Silu };
        check_ffn("plain", plain, |ffn| mlp_of(ffn).activation = other);
        check_ffn("fused", fused, |ffn| mlp_of(ffn).activation = other);
    }
}

/// Experts as gpt-oss stores them: `(experts, inputs, outputs)`, gate and up rows interleaved, with biases.
fn clamped_experts(maker: &mut Maker) -> Ffn {
    let (count, inner) = (4, 12);
    let gate_up = maker.tensor(&[count, HIDDEN, 2 * inner], 0.0, 1.0);
    let gate_up_bias = maker.tensor(&[count, 2 * inner], 0.0, 0.5);
    let (down, down_bias) =
        (maker.tensor(&[count, inner, HIDDEN], 0.0, 0.5), maker.tensor(&[count, HIDDEN], 0.0, 0.5));
    let part = |weight: &TensorRef, bias: &TensorRef, expert: usize, rows: Option<RowRange>| Linear {
        bias: Some(Vector { tensor: bias.clone(), expert: Some(expert), rows, offset: 0.0 }),
        ..Linear::new(Matrix { tensor: weight.clone(), expert: Some(expert), transposed: true, rows })
    };
    let expert = |index: usize| {
        let every_other = |first| Some(RowRange::every(2, first, inner));
        let gate = part(&gate_up, &gate_up_bias, index, every_other(0));
        let up = part(&gate_up, &gate_up_bias, index, every_other(1));
        let clamp = Some(ClampedSwiglu { limit: 2.0, alpha: 1.702 });
        let mlp = Mlp::new(Inner::Gated { gate, up }, Activation::Silu, part(&down, &down_bias, index, None));
        Mlp { clamp, ..mlp }
    };
    let experts = (0..count).map(expert).collect();
    let router = Router {
        score: RouterScore::SoftmaxOfChosen,
        ..Router::softmax(maker.linear(count, HIDDEN), 2, false)
    };
    Ffn::Experts(Box::new(Moe { router, experts, shared: None, latent: None }))
}

#[test]
fn clamped_swiglu_of_interleaved_experts() {
    check_ffn("clamped", clamped_experts, |ffn| {
        moe_of(ffn).experts.iter_mut().for_each(|expert| expert.clamp.as_mut().unwrap().limit = 1e9);
    });
    check_ffn("alpha", clamped_experts, |ffn| {
        moe_of(ffn).experts.iter_mut().for_each(|expert| expert.clamp.as_mut().unwrap().alpha = 1.0);
    });
    check_ffn("softmax of the chosen", clamped_experts, |ffn| {
        moe_of(ffn).router.score = RouterScore::Softmax
    });
}

/// Eight experts, three of which a token visits.
fn eight_experts(maker: &mut Maker, change: impl FnOnce(&mut Maker, &mut Moe)) -> Ffn {
    let experts = (0..8).map(|_| maker.mlp(10)).collect();
    let router = Router::softmax(maker.linear(8, HIDDEN), 3, false);
    let mut moe = Moe { router, experts, shared: None, latent: None };
    change(maker, &mut moe);
    Ffn::Experts(Box::new(moe))
}

fn check_moe(name: &str, change: impl FnOnce(&mut Maker, &mut Moe), without: impl FnOnce(&mut Moe)) {
    check_ffn(name, |maker| eight_experts(maker, change), |ffn| without(moe_of(ffn)));
}

/// As DeepSeek V3 routes: sigmoids, a bias for the choice, groups by their two best.
fn deepseek_router(maker: &mut Maker, moe: &mut Moe) {
    moe.router.score = RouterScore::Sigmoid;
    moe.router.bias = Some(maker.vector(8, 0.0, 0.5));
    moe.router.groups = Some(ExpertGroups { count: 4, kept: 2, best: 2 });
    moe.router.renormalise = Some(Renormalise { epsilon: 1e-20, least: 0.0 });
    moe.router.scale = 2.5;
}

#[test]
fn routers() {
    check_moe("sigmoid", deepseek_router, |moe| moe.router.score = RouterScore::Softmax);
    check_moe("bias", deepseek_router, |moe| moe.router.bias = None);
    check_moe("groups", deepseek_router, |moe| moe.router.groups = None);
    check_moe("groups by their two best", deepseek_router, |moe| {
        moe.router.groups.as_mut().unwrap().best = 1
    });
    check_moe("renormalised", deepseek_router, |moe| moe.router.renormalise = None);
    check_moe("scaled", deepseek_router, |moe| moe.router.scale = 1.0);
    let softmax = |maker: &mut Maker, moe: &mut Moe| {
        moe.router.bias = Some(maker.vector(8, 0.0, 0.3));
        moe.router.groups = Some(ExpertGroups { count: 2, kept: 1, best: 1 });
        moe.router.renormalise = Some(Renormalise { epsilon: 0.25, least: 0.5 });
    };
    check_moe("bias of a softmax", softmax, |moe| moe.router.bias = None);
    check_moe("groups by their maximum", softmax, |moe| moe.router.groups = None);
    check_moe("least divisor", softmax, |moe| moe.router.renormalise.as_mut().unwrap().least = 0.0);
    check_moe("epsilon", softmax, |moe| moe.router.renormalise.as_mut().unwrap().epsilon = 0.0);
}

#[test]
fn routers_with_inputs_of_their_own() {
    let change = |maker: &mut Maker, moe: &mut Moe| {
        moe.router.norm = Some(Norm { weight: None, ..maker.norm(HIDDEN) });
        moe.router.reads_residual = true;
        moe.router.input_scale = Some(maker.vector(HIDDEN, 1.0, 0.8));
        moe.router.renormalise = Some(Renormalise::default());
        moe.router.expert_scale = Some(maker.vector(8, 1.0, 0.5));
    };
    check_moe("router's norm", change, |moe| moe.router.norm = None);
    check_moe("router of the residual stream", change, |moe| moe.router.reads_residual = false);
    check_moe("scaled input", change, |moe| moe.router.input_scale = None);
    check_moe("scaled experts", change, |moe| moe.router.expert_scale = None);
}

#[test]
fn shared_experts_and_experts_in_a_narrow_space() {
    let shared = |maker: &mut Maker, moe: &mut Moe| {
        moe.shared = Some(SharedExpert { mlp: maker.mlp(14), gate: None });
    };
    check_moe("shared without gate", shared, |moe| moe.shared = None);
    let gated = |maker: &mut Maker, moe: &mut Moe| {
        let (mlp, gate) = (maker.mlp(14), Some(maker.linear(1, HIDDEN)));
        moe.shared = Some(SharedExpert { mlp, gate });
    };
    check_moe("shared with a gate", gated, |moe| moe.shared.as_mut().unwrap().gate = None);
    let narrow = |maker: &mut Maker, moe: &mut Moe| {
        let expert = |maker: &mut Maker| {
            let (up, down) = (maker.linear(12, 10), maker.linear(10, 12));
            Mlp::new(Inner::Plain(up), Activation::ReluSquared, down)
        };
        moe.experts = (0..8).map(|_| expert(maker)).collect();
        moe.latent = Some((maker.linear(10, HIDDEN), maker.linear(HIDDEN, 10)));
        moe.shared = Some(SharedExpert { mlp: maker.mlp(14), gate: None });
    };
    check_moe("experts in a narrow space", narrow, |moe| moe.shared = None);
}
