//! gpt-oss: sink logits in every attention, a window on every other layer, experts with biases and a clamped SwiGLU.

use crate::arch::Scope;
use crate::arch::common::{self, Common, EXPERTS, EXPERTS_CHOSEN};
use crate::config::{Key, RopeKeys};
use crate::description::{
    Activation, ClampedSwiglu, Description, Ffn, Inner, Linear, Matrix, Mlp, Moe, Pairing, Router,
    RouterScore, RowRange, TensorRef, Vector,
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

/// Gate, up and down of every expert in a Hugging Face checkpoint: all experts in one tensor, gate and up taking turns along the
/// outputs. Plain numbers lie `(experts, inputs, outputs)`, packed ones (MXFP4, as released) `(experts, outputs, inputs)`.
fn interleaved(layer: &Scope<'_>, count: usize, hidden: usize, inner: usize) -> Result<Vec<[Linear; 3]>> {
    let is_packed = match layer.has_weights() {
        true => layer.has_tensor(("mlp.experts.gate_up_proj_blocks", ""))?,
        false => is_released_type(layer)?,
    };
    let weight = |plain, packed, outputs: usize, inputs: usize| {
        if is_packed {
            return layer.tensor((packed, ""), &[count, outputs, inputs]);
        }
        layer.tensor((plain, ""), &[count, inputs, outputs])
    };
    let bias = |name, outputs: usize| layer.tensor((name, ""), &[count, outputs]);
    let both = weight("mlp.experts.gate_up_proj", "mlp.experts.gate_up_proj_blocks", 2 * inner, hidden)?;
    let both_bias = bias("mlp.experts.gate_up_proj_bias", 2 * inner)?;
    let down = weight("mlp.experts.down_proj", "mlp.experts.down_proj_blocks", hidden, inner)?;
    let down_bias = bias("mlp.experts.down_proj_bias", hidden)?;
    let part = |weight: &TensorRef, bias: &TensorRef, expert, rows| {
        let whole = Matrix::whole(weight.clone());
        let weight = Matrix { expert: Some(expert), transposed: !is_packed, rows, ..whole };
        let bias = Vector { expert: Some(expert), rows, ..Vector::whole(bias.clone()) };
        Linear { bias: Some(bias), ..Linear::new(weight) }
    };
    let every_other = |first| Some(RowRange::every(2, first, inner));
    let expert = |expert| {
        let gate = part(&both, &both_bias, expert, every_other(0));
        [gate, part(&both, &both_bias, expert, every_other(1)), part(&down, &down_bias, expert, None)]
    };
    Ok((0..count).map(expert).collect())
}

/// Whether a configuration without weights is one of packed experts.
fn is_released_type(layer: &Scope<'_>) -> Result<bool> {
    const METHOD: Key = Key("quant_method", "");
    let Ok(quantization) = layer.config().nested("quantization_config") else { return Ok(false) };
    Ok(quantization.text(METHOD)?.is_some_and(|method| method == "mxfp4"))
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
