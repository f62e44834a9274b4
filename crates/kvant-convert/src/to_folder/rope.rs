//! Rotary embeddings in `config.json`, from GGUF metadata and tensors of divisors.

use super::config::{Draft, plain, shortest};
use crate::error::Result;
use crate::to_gguf::llama3_divisors;
use kvant_model::gguf::Value;
use serde_json::{Map, Value as Json, json};

/// Families that came after `rope_parameters`.
const NEW: [&str; 5] = ["gemma4_text", "ministral3", "mistral4", "qwen3_5_moe_text", "qwen3_5_text"];
/// Rules of Llama 3 that were released: factor, and the context before it.
const LLAMA3: [(f64, f64); 3] = [(8.0, 8192.0), (32.0, 8192.0), (16.0, 8192.0)];
/// Beyond it a divisor stands for a pair that does not turn.
const STILL: f32 = 1e20;

pub(super) fn write(draft: &mut Draft<'_>) -> Result<()> {
    let Some(rope) = draft.description.ropes.first() else { return Ok(()) };
    let head_dim =
        match (draft.mixers.latents.first(), draft.mixers.attentions.iter().find(|own| own.window.is_none()))
        {
            (Some(latent), _) => latent.rope_dim,
            (None, Some(attention)) => attention.key_dim,
            (None, None) => {
                draft.mixers.attentions.first().map_or(rope.dims(), |attention| attention.key_dim)
            }
        };
    let name = draft.family.config_name;
    let theta = draft.number("rope.freq_base");
    let share = (rope.dims() != head_dim).then(|| share(rope.dims(), head_dim));
    let mut table = scaling(draft, rope.dims())?;
    if let Some(Value::Array(sections)) = draft.value("rope.dimension_sections") {
        let sections: Vec<Json> = sections.iter().take(3).map(|section| plain(&section)).collect();
        table.entry("rope_type").or_insert("default".into());
        table.insert("mrope_section".into(), sections.into());
        table.insert("mrope_interleaved".into(), true.into());
    }
    let gain = draft.mixers.attentions.iter().find_map(|own| own.query_gain);
    let gain = gain.or(draft.mixers.latents.iter().find_map(|own| own.query_gain));
    if let Some(gain) = gain {
        table.insert("llama_4_scaling_beta".into(), shortest(gain.beta as f32).into());
        table.insert("original_max_position_embeddings".into(), gain.every.into());
    }
    if !NEW.contains(&name) {
        if let Some(theta) = theta {
            draft.set("rope_theta", theta);
        }
        if let Some(theta) = draft.number("rope.freq_base_swa").filter(|_| name == "gemma3_text") {
            draft.set("rope_local_base_freq", theta);
        }
        if let Some(share) = share {
            draft.set(if name == "gpt_neox" { "rotary_pct" } else { "partial_rotary_factor" }, share);
        }
        draft.set("rope_scaling", if table.is_empty() { Json::Null } else { Json::Object(table) });
        return Ok(());
    }
    table.entry("rope_type").or_insert("default".into());
    if let Some(theta) = theta {
        table.insert("rope_theta".into(), theta.into());
    }
    if let Some(share) = share {
        table.insert("partial_rotary_factor".into(), share.into());
    }
    if name == "gemma4_text" {
        let local = draft.number("rope.freq_base_swa").unwrap_or(10_000.0);
        draft.set(
            "rope_parameters",
            json!({
                "full_attention": table,
                "sliding_attention": {"rope_type": "default", "rope_theta": local},
            }),
        );
    } else {
        draft.set("rope_parameters", table);
    }
    Ok(())
}

/// The share of a head's channels that turn. Readers multiply and cut.
fn share(dims: usize, head_dim: usize) -> f64 {
    let share = dims as f64 / head_dim as f64;
    if ((head_dim as f64 * share) as usize) < dims { share.next_up() } else { share }
}

/// How frequencies are stretched; empty where they are not.
fn scaling(draft: &Draft<'_>, dims: usize) -> Result<Map<String, Json>> {
    let divisors = |name: &str| -> Result<Option<Vec<f32>>> {
        Ok(draft.checkpoint.get(name)?.map(|tensor| tensor.to_f32()).transpose()?)
    };
    let original = draft.number("rope.scaling.original_context_length").map(|context| context as u64);
    let (short, long) = (divisors("rope_factors_short.weight")?, divisors("rope_factors_long.weight")?);
    if let (Some(short), Some(long)) = (short, long) {
        return Ok(listed(&short, &long, original, draft.number("rope.scaling.attn_factor")));
    }
    if let Some(list) = divisors("rope_freqs.weight")? {
        let turning = list.iter().filter(|divisor| **divisor < STILL).count();
        if turning < list.len() {
            let share = share(2 * turning, 2 * list.len());
            return Ok(object(json!({"rope_type": "proportional", "partial_rotary_factor": share})));
        }
        return Ok(released(draft, &list, dims).unwrap_or_else(|| {
            let context = draft.number("context_length").map(|context| context as u64);
            listed(&list, &list, original.or(context), Some(1.0))
        }));
    }
    let Some(Value::String(kind)) = draft.value("rope.scaling.type") else { return Ok(Map::new()) };
    let factor = draft.number("rope.scaling.factor").unwrap_or(1.0);
    Ok(match kind {
        "linear" => object(json!({"rope_type": "linear", "factor": factor})),
        "yarn" => yarn(draft, factor, original),
        _ => Map::new(),
    })
}

fn object(value: Json) -> Map<String, Json> {
    if let Json::Object(map) = value { map } else { Map::new() }
}

fn yarn(draft: &Draft<'_>, factor: f64, original: Option<u64>) -> Map<String, Json> {
    let mut table = object(json!({
        "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original,
    }));
    for (key, from) in [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")] {
        if let Some(beta) = draft.number(&format!("rope.scaling.{from}")) {
            table.insert(key.into(), beta.into());
        }
    }
    let name = draft.family.config_name;
    if name == "gpt_oss" {
        table.insert("truncate".into(), false.into());
    }
    // Of latent attention, whose scores take it.
    let all_dim =
        draft.number("rope.scaling.yarn_log_multiplier").map(|tenth| shortest((10.0 * tenth) as f32));
    let all_dim = all_dim.or((name == "ministral3").then_some(1.0));
    if let Some(all_dim) = all_dim {
        table.insert("mscale".into(), all_dim.into());
        table.insert("mscale_all_dim".into(), all_dim.into());
        return table;
    }
    if let Some(amplitude) = draft.number("rope.scaling.attn_factor").filter(|amplitude| *amplitude != 1.0) {
        table.insert("attention_factor".into(), (amplitude * (0.1 * factor.max(1.0).ln() + 1.0)).into());
    }
    table
}

/// Divisors as LongRoPE lists them.
fn listed(short: &[f32], long: &[f32], original: Option<u64>, amplitude: Option<f64>) -> Map<String, Json> {
    let list =
        |divisors: &[f32]| divisors.iter().map(|&divisor| Json::from(shortest(divisor))).collect::<Json>();
    let mut table = object(json!({
        "rope_type": "longrope", "short_factor": list(short), "long_factor": list(long),
        "original_max_position_embeddings": original,
    }));
    if let Some(amplitude) = amplitude {
        table.insert("attention_factor".into(), amplitude.into());
    }
    table
}

/// The rule that divisors follow, where it is one of a released Llama 3.
fn released(draft: &Draft<'_>, divisors: &[f32], dims: usize) -> Option<Map<String, Json>> {
    let theta = draft.number("rope.freq_base")?;
    let is_rule = |&(factor, original): &(f64, f64)| {
        let rule = llama3_divisors(theta, dims, (factor, 1.0, 4.0), original);
        rule.len() == divisors.len() && rule.iter().zip(divisors).all(|(a, b)| (a - b).abs() <= 1e-5 * a)
    };
    let (factor, original) = *LLAMA3.iter().find(|rule| is_rule(rule))?;
    Some(object(json!({
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": original as u64,
    })))
}
