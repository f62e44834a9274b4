//! What a GGUF file says about a model, from its `config.json` and its description.

use crate::error::{ConvertError, Result};
use kvant_model::config::TEXT_CONFIG;
use kvant_model::description::{Attention, Description, Ffn, Mixer, RouterScore};
use kvant_model::gguf::{ValueType, Writer, WriterValue};
use kvant_model::{LoadError, Tensor};
use serde_json::Value;

/// How a parameter is written.
#[derive(Clone, Copy)]
enum Kind {
    Size,
    Number,
    Flag,
}

use Kind::{Flag, Number, Size};

/// Parameters that only change their names: in `config.json`, alternatives apart by `|`, and in GGUF.
const KEYS: &[(&str, &str, Kind)] = &[
    ("max_position_embeddings|n_positions", "context_length", Size),
    ("hidden_size|n_embd", "embedding_length", Size),
    ("num_hidden_layers|n_layer", "block_count", Size),
    ("intermediate_size|n_inner", "feed_forward_length", Size),
    ("num_attention_heads|n_head", "attention.head_count", Size),
    ("num_key_value_heads", "attention.head_count_kv", Size),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon", Number),
    ("norm_epsilon|layer_norm_eps|layer_norm_epsilon", "attention.layer_norm_epsilon", Number),
    ("attn_logit_softcapping", "attn_logit_softcapping", Number),
    ("final_logit_softcapping", "final_logit_softcapping", Number),
    ("sliding_window_pattern|_sliding_window_pattern", "attention.sliding_window_pattern", Size),
    ("embedding_multiplier", "embedding_scale", Number),
    ("residual_multiplier", "residual_scale", Number),
    ("attention_multiplier", "attention.scale", Number),
    ("logits_scaling", "logit_scale", Number),
    ("num_local_experts|num_experts|moe_num_experts|n_routed_experts", "expert_count", Size),
    ("num_experts_per_tok|moe_k", "expert_used_count", Size),
    ("moe_intermediate_size", "expert_feed_forward_length", Size),
    ("shared_expert_intermediate_size", "expert_shared_feed_forward_length", Size),
    ("moe_num_shared_experts|n_shared_experts", "expert_shared_count", Size),
    ("moe_layer_start_index|first_k_dense_replace", "leading_dense_block_count", Size),
    ("moe_layer_interval", "interleave_moe_layer_step", Size),
    ("routed_scaling_factor", "expert_weights_scale", Number),
    ("norm_topk_prob", "expert_weights_norm", Flag),
    ("use_parallel_residual", "use_parallel_residual", Flag),
];

/// Parameters under one prefix.
struct Keys<'w> {
    writer: &'w mut Writer,
    architecture: &'w str,
}

impl Keys<'_> {
    fn set(&mut self, key: &str, value: WriterValue) {
        self.writer.set(&format!("{}.{key}", self.architecture), value);
    }

    fn size(&mut self, key: &str, size: usize) -> Result<()> {
        let size =
            u32::try_from(size).map_err(|_| ConvertError::Refused(format!("{key} {size} is too large")))?;
        self.set(key, WriterValue::U32(size));
        Ok(())
    }

    fn number(&mut self, key: &str, number: f64) {
        self.set(key, WriterValue::F32(number as f32));
    }
}

/// A writer with all keys but the vocabulary's, and the tensors that rotary embeddings have.
pub(super) fn of(
    description: &Description,
    config: &Value,
    architecture: &str,
    name: &str,
) -> Result<Writer> {
    let config = config.get(TEXT_CONFIG).filter(|text| text.is_object()).unwrap_or(config);
    let mut writer = Writer::new(architecture);
    writer.set("general.name", WriterValue::String(name.to_owned()));
    let mut keys = Keys { writer: &mut writer, architecture };
    for (names, key, kind) in KEYS {
        let Some(value) = names.split('|').find_map(|name| config.get(name).filter(|v| !v.is_null())) else {
            continue;
        };
        let wrong = || LoadError::mismatch(format!("config.json: key {names:?}: {value} cannot be written"));
        match kind {
            // A list or a text is another rule, which the description has.
            Size if !value.is_number() => {}
            Size => keys.size(key, value.as_u64().ok_or_else(wrong)? as usize)?,
            Number => keys.number(key, value.as_f64().ok_or_else(wrong)?),
            Flag => keys.set(key, WriterValue::Bool(value.as_bool().ok_or_else(wrong)?)),
        }
    }
    described(&mut keys, description, config)?;
    rotary(&mut keys, description, config)?;
    Ok(writer)
}

/// What configurations leave to defaults, from the description.
fn described(keys: &mut Keys<'_>, description: &Description, config: &Value) -> Result<()> {
    keys.size("vocab_size", description.vocabulary)?;
    let attentions: Vec<_> = description.attentions().map(|(_, attention)| attention).collect();
    if let Some(first) = attentions.first() {
        keys.size("attention.head_count", first.heads)?;
        keys.size("attention.head_count_kv", first.kv_heads)?;
        keys.size("attention.key_length", first.key_dim)?;
        keys.size("attention.value_length", first.value_dim)?;
    }
    if let Some(window) = attentions.iter().find_map(|attention| attention.window) {
        keys.size("attention.sliding_window", window)?;
    }
    if let Some(pattern) = pattern(&attentions).filter(|_| keys.architecture == "gemma3") {
        keys.size("attention.sliding_window_pattern", pattern)?;
    }
    if let Some(scalar) = config["query_pre_attn_scalar"].as_f64() {
        keys.number("attention.scale", 1.0 / scalar.sqrt());
    }
    for mixer in description.layers.iter().flat_map(|layer| layer.mixers()) {
        match mixer {
            Mixer::Ffn(Ffn::Dense(mlp)) if config["intermediate_size"].is_null() => {
                keys.size("feed_forward_length", mlp.down.inputs())?;
            }
            Mixer::Ffn(Ffn::Experts(moe)) => {
                if moe.router.score == RouterScore::Sigmoid {
                    keys.size("expert_gating_func", 2)?;
                }
                if let Some(shared) = &moe.shared {
                    keys.size("expert_shared_feed_forward_length", shared.mlp.down.inputs())?;
                }
                if let Some(expert) = moe.experts.first() {
                    keys.size("expert_feed_forward_length", expert.down.inputs())?;
                }
            }
            Mixer::Ffn(Ffn::Dense(_))
            | Mixer::Attention(_)
            | Mixer::LatentAttention(_)
            | Mixer::ShortConv(_)
            | Mixer::Mamba2(_)
            | Mixer::GatedDeltaNet(_)
            | Mixer::PerLayerInput(_)
            | Mixer::Laurel(_) => {}
        }
    }
    Ok(())
}

/// Of how many layers the last sees everything, where that is the rule.
fn pattern(attentions: &[&Attention]) -> Option<usize> {
    let pattern = attentions.iter().position(|attention| attention.window.is_none())? + 1;
    let is_rule = |(layer, attention): (usize, &&Attention)| {
        attention.window.is_none() == (layer + 1).is_multiple_of(pattern)
    };
    attentions.iter().enumerate().all(is_rule).then_some(pattern)
}

/// The rotary embedding, from either spelling of the configuration.
fn rotary(keys: &mut Keys<'_>, description: &Description, config: &Value) -> Result<()> {
    let Some(rope) = description.ropes.first() else { return Ok(()) };
    keys.size("rope.dimension_count", rope.dims())?;
    let new = &config["rope_parameters"];
    let by_type = |kind: &str| if new[kind].is_object() { &new[kind] } else { new };
    let global = by_type("full_attention");
    let theta = [&global["rope_theta"], &config["rope_theta"], &config["rotary_emb_base"]]
        .into_iter()
        .find_map(Value::as_f64);
    let local = [&new["sliding_attention"]["rope_theta"], &config["rope_local_base_freq"]];
    if let Some(theta) = theta {
        keys.number("rope.freq_base", theta);
    }
    if let Some(theta) = local.into_iter().find_map(Value::as_f64) {
        keys.number("rope.freq_base_swa", theta);
    }
    let table = if global.is_object() { global } else { &config["rope_scaling"] };
    if let Some(sections) = table["mrope_section"].as_array() {
        let mut sections: Vec<i32> = sections.iter().map(|n| n.as_i64().unwrap_or(0) as i32).collect();
        sections.resize(4, 0);
        keys.set(
            "rope.dimension_sections",
            WriterValue::Array(ValueType::I32, sections.into_iter().map(WriterValue::I32).collect()),
        );
    }
    scaling(keys, config, table, rope.dims(), theta)
}

/// How frequencies are stretched; what GGUF has no rule for becomes a tensor of divisors.
fn scaling(
    keys: &mut Keys<'_>,
    config: &Value,
    table: &Value,
    dims: usize,
    theta: Option<f64>,
) -> Result<()> {
    let kind = table["rope_type"].as_str().or(table["type"].as_str()).unwrap_or("default");
    let number = |key: &str| {
        table[key]
            .as_f64()
            .ok_or_else(|| LoadError::missing(format!("config.json: rotary scaling lacks {key:?}")))
    };
    const ORIGINAL: &str = "original_max_position_embeddings";
    let original = table[ORIGINAL].as_f64().or(config[ORIGINAL].as_f64());
    let context = config["max_position_embeddings"].as_f64();
    if let Some(original) = original.filter(|_| kind != "default") {
        keys.size("rope.scaling.original_context_length", original as usize)?;
    }
    let list = |key: &str| -> Result<Vec<f32>> {
        let numbers =
            table[key].as_array().map(|list| list.iter().map(Value::as_f64).collect::<Option<Vec<_>>>());
        let numbers = numbers.flatten();
        let missing = || LoadError::missing(format!("config.json: rotary scaling lacks {key:?}"));
        Ok(numbers.ok_or_else(missing)?.into_iter().map(|n| n as f32).collect())
    };
    match kind {
        "default" | "mrope" => {}
        "linear" => {
            keys.set("rope.scaling.type", WriterValue::String("linear".into()));
            keys.number("rope.scaling.factor", number("factor")?);
        }
        "yarn" => {
            let factor = match (table["factor"].as_f64(), context, original) {
                (Some(factor), ..) => factor,
                (None, Some(context), Some(original)) => context / original,
                _ => number("factor")?,
            };
            keys.set("rope.scaling.type", WriterValue::String("yarn".into()));
            keys.number("rope.scaling.factor", factor);
            if let Some(context) = context.filter(|_| original.is_none()) {
                keys.size("rope.scaling.original_context_length", context as usize)?;
            }
            for (key, to) in [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")] {
                if let Some(beta) = table[key].as_f64() {
                    keys.number(&format!("rope.scaling.{to}"), beta);
                }
            }
            // Readers multiply by what YaRN's paper does.
            if let Some(amplitude) = table["attention_factor"].as_f64() {
                keys.number("rope.scaling.attn_factor", amplitude / (0.1 * factor.max(1.0).ln() + 1.0));
            }
        }
        "longrope" | "su" => {
            if let (Some(context), Some(original)) = (context, original) {
                let stretch = context / original;
                let usual = if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / original.ln()).sqrt() };
                keys.number("rope.scaling.attn_factor", table["attention_factor"].as_f64().unwrap_or(usual));
            }
            for (name, key) in
                [("rope_factors_long.weight", "long_factor"), ("rope_factors_short.weight", "short_factor")]
            {
                let list = list(key)?;
                keys.writer.tensor(Tensor::from_f32(name, vec![list.len()], &list)?);
            }
        }
        "llama3" => {
            let (factor, low, high) =
                (number("factor")?, number("low_freq_factor")?, number("high_freq_factor")?);
            let original = original.or(context).unwrap_or(8192.0);
            let divisor = |i: usize| {
                let frequency = theta.unwrap_or(10_000.0).powf(-2.0 * i as f64 / dims as f64);
                let wavelength = 2.0 * std::f64::consts::PI / frequency;
                if wavelength < original / high {
                    1.0
                } else if wavelength > original / low {
                    factor
                } else {
                    let smooth = (original / wavelength - low) / (high - low);
                    1.0 / ((1.0 - smooth) / factor + smooth)
                }
            };
            let divisors: Vec<f32> = (0..dims / 2).map(|i| divisor(i) as f32).collect();
            keys.writer.tensor(Tensor::from_f32("rope_freqs.weight", vec![divisors.len()], &divisors)?);
        }
        // Hunyuan: a larger base in any context.
        "dynamic" if table["alpha"].is_number() => {
            let (theta, dims) = (theta.unwrap_or(10_000.0), dims as f64);
            keys.number("rope.freq_base", theta * number("alpha")?.powf(dims / (dims - 2.0)));
        }
        other => {
            return Err(ConvertError::Refused(format!(
                "GGUF has no rotary scaling {other:?}; write safetensors (--to safetensors)"
            )));
        }
    }
    Ok(())
}
