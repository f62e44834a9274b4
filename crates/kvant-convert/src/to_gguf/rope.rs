//! Rotary embeddings in GGUF metadata, from either spelling of the configuration.

use super::metadata::Keys;
use crate::error::{ConvertError, Result};
use kvant_model::description::{Description, Rope};
use kvant_model::gguf::WriterValue;
use kvant_model::{LoadError, Tensor};
use serde_json::Value;

/// What a frequency is divided by where a pair of channels does not turn.
const STANDS_STILL: f32 = 1e30;

/// The rotary embeddings of a model; where it has none, that.
pub(super) fn write(keys: &mut Keys<'_>, description: &Description, config: &Value) -> Result<()> {
    let Some(rope) = description.ropes.first() else {
        keys.set("rope.scaling.finetuned", WriterValue::Bool(false));
        return Ok(());
    };
    keys.size("rope.dimension_count", rope.dims())?;
    let new = &config["rope_parameters"];
    let by_type = |kind: &str| if new[kind].is_object() { &new[kind] } else { new };
    let global = by_type("full_attention");
    let theta = [&global["rope_theta"], &config["rope_theta"], &config["rotary_emb_base"]]
        .into_iter()
        .find_map(Value::as_f64);
    let local =
        [&new["sliding_attention"]["rope_theta"], &config["rope_local_base_freq"], &config["swa_rope_theta"]];
    let local = local.into_iter().find_map(Value::as_f64);
    if let Some(theta) = theta {
        keys.number("rope.freq_base", theta);
    }
    let slides = keys.architecture == "olmo2" && description.ropes.len() > 1;
    if let Some(theta) = local.or(theta.filter(|_| slides)) {
        keys.number("rope.freq_base_swa", theta);
    }
    if let Some(sliding) = description.ropes.get(1).filter(|_| keys.architecture == "gemma4") {
        keys.size("rope.dimension_count_swa", sliding.dims())?;
    }
    let table = if global.is_object() { global } else { &config["rope_scaling"] };
    if let Some(sections) = table["mrope_section"].as_array() {
        let mut sections: Vec<i32> = sections.iter().map(|n| n.as_i64().unwrap_or(0) as i32).collect();
        sections.resize(4, 0);
        keys.set("rope.dimension_sections", WriterValue::i32s(sections));
    }
    Scaling { config, table, rope, theta }.write(keys)
}

/// How frequencies are stretched; what GGUF has no rule for becomes a tensor of divisors.
struct Scaling<'a> {
    config: &'a Value,
    table: &'a Value,
    rope: &'a Rope,
    theta: Option<f64>,
}

impl Scaling<'_> {
    fn number(&self, key: &str) -> Result<f64> {
        let missing = || LoadError::missing(format!("config.json: rotary scaling lacks {key:?}")).into();
        self.table[key].as_f64().ok_or_else(missing)
    }

    fn list(&self, key: &str) -> Result<Vec<f32>> {
        let list = self.table[key].as_array();
        let numbers = list.and_then(|list| list.iter().map(Value::as_f64).collect::<Option<Vec<_>>>());
        let missing = || LoadError::missing(format!("config.json: rotary scaling lacks {key:?}"));
        Ok(numbers.ok_or_else(missing)?.into_iter().map(|n| n as f32).collect())
    }

    fn write(&self, keys: &mut Keys<'_>) -> Result<()> {
        const ORIGINAL: &str = "original_max_position_embeddings";
        let (config, table) = (self.config, self.table);
        let kind = table["rope_type"].as_str().or(table["type"].as_str()).unwrap_or("default");
        let original = table[ORIGINAL].as_f64().or(config[ORIGINAL].as_f64());
        let context = config["max_position_embeddings"].as_f64();
        if let Some(original) = original.filter(|_| kind != "default") {
            keys.size("rope.scaling.original_context_length", original as usize)?;
        }
        match kind {
            "default" | "mrope" => {}
            "linear" => {
                keys.text("rope.scaling.type", "linear");
                keys.number("rope.scaling.factor", self.number("factor")?);
            }
            "yarn" => self.yarn(keys, original, context)?,
            "longrope" | "su" => self.long_rope(keys, original, context)?,
            "llama3" => {
                let divisors = self.llama3(original.or(context).unwrap_or(8192.0))?;
                put_divisors(keys, "rope_freqs.weight", &divisors)?;
            }
            // Gemma 4: some of the pairs turn.
            "proportional" => {
                let turns = |frequency: &f32| if *frequency > 0.0 { 1.0 } else { STANDS_STILL };
                let divisors: Vec<f32> = self.rope.frequencies(0).iter().map(turns).collect();
                put_divisors(keys, "rope_freqs.weight", &divisors)?;
            }
            // Hunyuan: a larger base in any context.
            "dynamic" if table["alpha"].is_number() => {
                let (theta, dims) = (self.theta.unwrap_or(10_000.0), self.rope.dims() as f64);
                keys.number("rope.freq_base", theta * self.number("alpha")?.powf(dims / (dims - 2.0)));
            }
            other => {
                return Err(ConvertError::Refused(format!(
                    "GGUF has no rotary scaling {other:?}; write safetensors (--to safetensors)"
                )));
            }
        }
        Ok(())
    }

    fn yarn(&self, keys: &mut Keys<'_>, original: Option<f64>, context: Option<f64>) -> Result<()> {
        let table = self.table;
        let factor = match (table["factor"].as_f64(), context, original) {
            (Some(factor), ..) => factor,
            (None, Some(context), Some(original)) => context / original,
            _ => self.number("factor")?,
        };
        keys.text("rope.scaling.type", "yarn");
        keys.number("rope.scaling.factor", factor);
        if let Some(context) = context.filter(|_| original.is_none()) {
            keys.size("rope.scaling.original_context_length", context as usize)?;
        }
        for (key, to) in [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")] {
            if let Some(beta) = table[key].as_f64() {
                keys.number(&format!("rope.scaling.{to}"), beta);
            }
        }
        // Latent attention has it in its scores, as a tenth of what configurations say.
        let all_dim = table["mscale_all_dim"].as_f64().filter(|all_dim| *all_dim > 0.0);
        if let Some(all_dim) = all_dim.filter(|_| matches!(keys.architecture, "deepseek2" | "mistral4")) {
            keys.number("rope.scaling.yarn_log_multiplier", 0.1 * all_dim);
        }
        // Readers multiply by what YaRN's paper does.
        if let Some(amplitude) = table["attention_factor"].as_f64() {
            keys.number("rope.scaling.yarn_attn_factor", amplitude);
            keys.number("rope.scaling.attn_factor", amplitude / (0.1 * factor.max(1.0).ln() + 1.0));
        }
        Ok(())
    }

    fn long_rope(&self, keys: &mut Keys<'_>, original: Option<f64>, context: Option<f64>) -> Result<()> {
        if let (Some(context), Some(original)) = (context, original) {
            let stretch = context / original;
            let usual = if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / original.ln()).sqrt() };
            let amplitude = self.table["attention_factor"].as_f64().unwrap_or(usual);
            keys.number("rope.scaling.attn_factor", amplitude);
        }
        put_divisors(keys, "rope_factors_long.weight", &self.list("long_factor")?)?;
        put_divisors(keys, "rope_factors_short.weight", &self.list("short_factor")?)
    }

    fn llama3(&self, original: f64) -> Result<Vec<f32>> {
        let (factor, low, high) =
            (self.number("factor")?, self.number("low_freq_factor")?, self.number("high_freq_factor")?);
        let (theta, dims) = (self.theta.unwrap_or(10_000.0), self.rope.dims());
        Ok(llama3_divisors(theta, dims, (factor, low, high), original))
    }
}

/// What Llama 3 divides frequencies by: slow ones by the factor, fast ones by nothing, those between by something between.
pub(crate) fn llama3_divisors(
    theta: f64,
    dims: usize,
    (factor, low, high): (f64, f64, f64),
    original: f64,
) -> Vec<f32> {
    let divisor = |i: usize| {
        let frequency = theta.powf(-2.0 * i as f64 / dims as f64);
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
    (0..dims / 2).map(|i| divisor(i) as f32).collect()
}

fn put_divisors(keys: &mut Keys<'_>, name: &str, divisors: &[f32]) -> Result<()> {
    keys.writer.tensor(Tensor::from_f32(name, vec![divisors.len()], divisors)?);
    Ok(())
}
