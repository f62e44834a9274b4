//! Falcon-H1: Mamba-2 and attention side by side in every layer, and multipliers everywhere.

use crate::arch::common::{self, Common};
use crate::arch::recurrent::{self, Mamba2Options, NormOptions};
use crate::arch::{Name, Scope, granitemoehybrid};
use crate::config::{Key, ModelConfig, RopeKeys};
use crate::description::{
    Branch, Description, Ffn, GateOrder, Inner, Layer, Mamba2Dims, Mixer, Mlp, Norm, NormKind, Pairing,
    Residual,
};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let Common { dims, inner, eps, activation } = Common::read(config)?;
    let hidden = dims.hidden;
    let multiplier = |name| Ok(config.positive_if(Key(name, ""))?.unwrap_or(1.0) as f32);
    let [gate_scale, down_scale] = multipliers(config, Key("mlp_multipliers", ""))?;
    let mamba = mamba_dims(config, hidden)?;
    // Converters to GGUF multiply all multipliers into weights, and leave out which of norm and gate comes first.
    let order = if config.flag(Key("mamba_norm_before_gate", ""), !config.is_gguf())? {
        GateOrder::NormFirst
    } else {
        GateOrder::GateFirst
    };
    let normed = if config.is_gguf() {
        scope.has_tensor(("model.layers.0.mamba.norm.weight", "blk.0.ssm_norm.weight"))?
    } else {
        config.flag(Key("mamba_rms_norm", ""), false)?
    };
    let options = Mamba2Options {
        projection_bias: config.flag(Key("mamba_proj_bias|projectors_bias", ""), false)?,
        conv_bias: config.flag(Key("mamba_conv_bias", ""), true)?,
        part_scales: multipliers(config, Key("ssm_multipliers", ""))?,
        norm: normed.then_some(NormOptions { width: mamba.inner() / mamba.groups, eps, order }),
    };
    let bias = config.flag(common::ATTENTION_BIAS, false)?;
    let mlp_bias = config.flag(Key("mlp_bias", ""), false)?;
    let key_scale = multiplier("key_multiplier")?;
    let (ssm_in, ssm_out) = (multiplier("ssm_in_multiplier")?, multiplier("ssm_out_multiplier")?);
    let (attention_in, attention_out) =
        (multiplier("attention_in_multiplier")?, multiplier("attention_out_multiplier")?);
    let rope = scope.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mamba = recurrent::mamba2(&layer.inside(("mamba", "")), index, hidden, mamba, &options)?;
        let mut attention = common::attention(layer, index, &dims, None, (bias, bias))?;
        attention.key_scale = key_scale;
        attention.rope = Some(rope);
        let norm = layer.rms_norm(("input_layernorm", "attn_norm"), hidden, eps, 0.0)?;
        let branch = |mixer, input_scale, scale| Branch {
            input_scale,
            scale,
            ..Branch::new(Some(norm.clone()), mixer, None)
        };
        let branches = vec![
            branch(Mixer::Mamba2(Box::new(mamba)), ssm_in, ssm_out),
            branch(Mixer::Attention(Box::new(attention)), attention_in, attention_out),
        ];
        let gate = layer.linear(("feed_forward.gate_proj", "ffn_gate"), inner, hidden, mlp_bias)?;
        let up = layer.linear(("feed_forward.up_proj", "ffn_up"), inner, hidden, mlp_bias)?;
        let down = layer.linear(("feed_forward.down_proj", "ffn_down"), hidden, inner, mlp_bias)?;
        let mlp = Mlp { gate_scale, down_scale, ..Mlp::new(Inner::Gated { gate, up }, activation, down) };
        let ffn_norm = ffn_norm(layer, hidden, eps)?;
        let ffn = Residual::pre_norm(ffn_norm, Mixer::Ffn(Ffn::Dense(mlp)));
        Ok(Layer::new(vec![Residual::sum(branches), ffn]))
    })?;
    let table = common::token_table(scope, "model.embed_tokens", &dims)?;
    let norm = scope.rms_norm(("model.final_layernorm", "output_norm"), hidden, eps, 0.0)?;
    let output = common::output(scope, "lm_head", &table)?;
    let mut description = common::framed(scope, &dims, table, layers, norm, output)?;
    description.embedding.scale = multiplier("embedding_multiplier")?;
    description.head.scale = multiplier("lm_head_multiplier")?;
    Ok(description)
}

/// A list of N multipliers, all 1 where the configuration has none.
fn multipliers<const N: usize>(config: &ModelConfig<'_>, key: Key) -> Result<[f32; N]> {
    let Some(list) = config.numbers(key)? else { return Ok([1.0; N]) };
    let found = list.len();
    let list: Vec<f32> = list.into_iter().map(|x| x as f32).collect();
    list.try_into().map_err(|_| config.refused(key, format!("{N} numbers are needed, {found} were found")))
}

fn mamba_dims(config: &ModelConfig<'_>, hidden: usize) -> Result<Mamba2Dims> {
    recurrent::mamba2_dims(config, &granitemoehybrid::MAMBA, || {
        Ok(match config.size_if(Key("mamba_d_ssm", ""))? {
            Some(inner) => inner,
            None => config.size(Key("mamba_expand", ""))? * hidden,
        })
    })
}

/// The norm before the MLP, whose weights have a bare name in GGUF files.
fn ffn_norm(layer: &Scope<'_>, hidden: usize, eps: f32) -> Result<Norm> {
    const NAME: Name = ("pre_ff_layernorm", "ffn_norm");
    if !layer.config().is_gguf() || layer.has_weights() && layer.has(NAME)? {
        return layer.rms_norm(NAME, hidden, eps, 0.0);
    }
    let weight = Some(layer.numbers(NAME, &[hidden])?);
    Ok(Norm { kind: NormKind::Rms, width: hidden, weight, bias: None, eps })
}
