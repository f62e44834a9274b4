//! gpt-oss: sink logits in every attention, a window on every other layer, experts with biases and a clamped SwiGLU.

use crate::arch::common::{self, Common, EXPERTS, EXPERTS_CHOSEN};
use crate::arch::{Name, Scope};
use crate::config::{Key, RopeKeys};
use crate::description::{
    Activation, ClampedSwiglu, Description, Ffn, Inner, Linear, Matrix, Mlp, Moe, Pairing, Router,
    RouterScore, RowRange, Vector,
};
use crate::error::{LoadError, Result};

/// The ramp of its YaRN ends between pairs; GGUF files do not say so.
const ROPE: RopeKeys =
    RopeKeys { default_theta: 150_000.0, truncate: false, ..RopeKeys::usual(Pairing::Halves) };

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let Common { dims, inner, eps, activation } = Common::read(config)?;
    let bias = config.flag(common::ATTENTION_BIAS, !config.is_gguf())?;
    let clamp = ClampedSwiglu {
        limit: config.positive_if(Key("swiglu_limit", ""))?.unwrap_or(7.0) as f32,
        alpha: config.positive_if(Key("swiglu_alpha", ""))?.unwrap_or(1.702) as f32,
    };
    let inner = config.size_if(Key("", "expert_feed_forward_length"))?.unwrap_or(inner);
    let windows = common::windows(config, dims.layers, |layer| layer.is_multiple_of(2))?;
    let rope = scope.rope(&ROPE, dims.head_dim)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mut attention = common::attention(layer, index, &dims, windows[index], (bias, bias))?;
        attention.rope = Some(rope);
        let sinks = layer.tensor(("self_attn.sinks", "attn_sinks.weight"), &[dims.heads])?;
        attention.sink_logits = Some(Vector::whole(sinks));
        let moe = experts(layer, dims.hidden, inner, activation, clamp)?;
        let norm = |name| layer.rms_norm(name, dims.hidden, eps, 0.0);
        let attention_norm = norm(("input_layernorm", "attn_norm"))?;
        let ffn_norm = norm(("post_attention_layernorm", "post_attention_norm"))?;
        Ok(common::pre_normed(attention_norm, attention, ffn_norm, Ffn::Experts(Box::new(moe))))
    })?;
    common::decoder(scope, &dims, layers, 0.0)
}

fn experts(
    layer: &Scope<'_>,
    hidden: usize,
    inner: usize,
    activation: Activation,
    clamp: ClampedSwiglu,
) -> Result<Moe> {
    let config = layer.config();
    let (count, chosen) = (config.size(EXPERTS)?, config.size(EXPERTS_CHOSEN)?);
    if chosen > count {
        return Err(config.refused(EXPERTS_CHOSEN, format!("{chosen} experts per token of {count} in all")));
    }
    let weight = layer.exact_linear(("mlp.router", "ffn_gate_inp"), count, hidden)?;
    let bias = Vector::whole(layer.tensor(("mlp.router.bias", "ffn_gate_inp.bias"), &[count])?);
    let router = Linear { bias: Some(bias), ..weight };
    let parts = if config.is_gguf() { apart } else { interleaved };
    let experts = parts(layer, count, hidden, inner)?
        .into_iter()
        .map(|[gate, up, down]| Mlp {
            clamp: Some(clamp),
            ..Mlp::new(Inner::Gated { gate, up }, activation, down)
        })
        .collect();
    let router = Router { score: RouterScore::SoftmaxOfChosen, ..Router::softmax(router, chosen, false) };
    Ok(Moe { router, experts, shared: None, latent: None })
}

/// Gate, up and down of every expert in a Hugging Face checkpoint: all experts in one tensor `(experts, inputs, outputs)`, gate
/// and up taking turns along the outputs.
fn interleaved(layer: &Scope<'_>, count: usize, hidden: usize, inner: usize) -> Result<Vec<[Linear; 3]>> {
    const PACKED: Name = ("mlp.experts.gate_up_proj_blocks", "");
    if layer.has_tensor(PACKED)? {
        return Err(LoadError::unsupported(format!(
            "tensor {:?}: experts packed as MXFP4 are not supported; use a checkpoint with experts in bf16",
            layer.name_of(PACKED)
        )));
    }
    let tensor = |name, shape: &[usize]| layer.tensor((name, ""), shape);
    let both = tensor("mlp.experts.gate_up_proj", &[count, hidden, 2 * inner])?;
    let both_bias = tensor("mlp.experts.gate_up_proj_bias", &[count, 2 * inner])?;
    let down = tensor("mlp.experts.down_proj", &[count, inner, hidden])?;
    let down_bias = tensor("mlp.experts.down_proj_bias", &[count, hidden])?;
    let part = |weight: &_, bias: &_, expert, rows| {
        let weight =
            Matrix { expert: Some(expert), transposed: true, rows, ..Matrix::whole(Clone::clone(weight)) };
        let bias = Vector { expert: Some(expert), rows, ..Vector::whole(Clone::clone(bias)) };
        Linear { bias: Some(bias), ..Linear::new(weight) }
    };
    let every_other = |first| Some(RowRange { first, step: 2, count: inner });
    let expert = |expert| {
        let gate = part(&both, &both_bias, expert, every_other(0));
        [gate, part(&both, &both_bias, expert, every_other(1)), part(&down, &down_bias, expert, None)]
    };
    Ok((0..count).map(expert).collect())
}

/// The same in a GGUF file: a tensor `(experts, outputs, inputs)` and its biases for each of the three.
fn apart(layer: &Scope<'_>, count: usize, hidden: usize, inner: usize) -> Result<Vec<[Linear; 3]>> {
    let part = |name: &'static str, outputs, inputs| {
        let weights = layer.experts(("", name), count, outputs, inputs)?;
        let biases = layer.tensor(("", &format!("{name}.bias")), &[count, outputs])?;
        let biased = move |(expert, weight): (usize, Linear)| {
            let bias = Vector { expert: Some(expert), ..Vector::whole(biases.clone()) };
            Linear { bias: Some(bias), ..weight }
        };
        Ok::<_, LoadError>(weights.into_iter().enumerate().map(biased))
    };
    let (gate, up) = (part("ffn_gate_exps", inner, hidden)?, part("ffn_up_exps", inner, hidden)?);
    let down = part("ffn_down_exps", hidden, inner)?;
    Ok(gate.zip(up).zip(down).map(|((gate, up), down)| [gate, up, down]).collect())
}
