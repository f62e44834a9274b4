//! Rotary embeddings as configurations describe them.
//!
//! Transformers 5 writes `rope_parameters`, an object with everything in it, or one such object per layer
//! type. Older files write `rope_theta` (or `rotary_emb_base`) beside an optional `rope_scaling`, and the share
//! of rotated channels as `partial_rotary_factor` or `rotary_pct`. GGUF has flat keys under `rope.`, and the
//! divisors of the Llama 3 and LongRoPE rules as tensors, which the caller passes in.

use super::{Key, ModelConfig, RopeOverride};
use crate::description::{Pairing, QueryGain, Rope, RopeScaling};
use crate::error::{LoadError, Result};

/// Which of a model's rotary embeddings to read, and what stands in for absent keys.
pub struct RopeKeys {
    /// The layer type in a `rope_parameters` that is split by layer type.
    pub layer_type: &'static str,
    /// Base of the frequencies in old configurations and in GGUF.
    pub theta: Key,
    /// The base when none is given.
    pub default_theta: f64,
    /// How many channels are rotated, in GGUF.
    pub dims: Key,
    /// Whether `rope_scaling` (and its GGUF twin) applies to these layers.
    pub scaled: bool,
    /// Whether the ends of YaRN's ramp are rounded to whole pairs where the file does not say; GGUF never does.
    pub truncate: bool,
    /// Order of channels in GGUF files of this architecture.
    pub gguf_pairing: Pairing,
}

impl RopeKeys {
    /// The keys of a model with one rotary embedding.
    pub const fn usual(gguf_pairing: Pairing) -> Self {
        Self {
            layer_type: "full_attention",
            theta: Key("rope_theta|rotary_emb_base", "rope.freq_base"),
            default_theta: 10_000.0,
            dims: Key("", "rope.dimension_count"),
            scaled: true,
            truncate: true,
            gguf_pairing,
        }
    }

    /// Reads the embedding of heads with `head_dim` channels, and changes it as `other` says. `divisors` finds the tensors that
    /// GGUF files keep divisors in, by name.
    pub fn read(
        &self,
        config: &ModelConfig<'_>,
        head_dim: usize,
        other: &RopeOverride,
        divisors: impl Fn(&str) -> Result<Option<Vec<f32>>>,
    ) -> Result<Rope> {
        let (mut theta, dims, mut scaling, pairing) = if config.is_gguf() {
            let dims = config.size_if(self.dims)?.unwrap_or(head_dim);
            let theta = config.positive_if(self.theta)?.unwrap_or(self.default_theta);
            let scaling =
                if self.scaled { gguf_scaling(config, self.truncate, divisors)? } else { RopeScaling::None };
            (theta, dims, scaling, self.gguf_pairing)
        } else {
            let (theta, dims, scaling) = self.in_config(config, head_dim)?;
            (theta, dims, scaling, Pairing::Halves)
        };
        if self.scaled {
            theta = other.base.unwrap_or(theta);
            let trained =
                || Ok(if let Some(n) = config.size_if(ORIGINAL)? { n } else { config.size(CONTEXT)? });
            scaling = other.apply(scaling, self.truncate, trained)?;
        }
        if dims < 2 || !dims.is_multiple_of(2) || dims > head_dim {
            return Err(LoadError::mismatch(format!(
                "the rotary embedding turns {dims} of {head_dim} channels; an even number from 2 is needed"
            )));
        }
        if let RopeScaling::LongRope { original_context: 0.0..2.0, .. } = scaling {
            return Err(config.refused(ORIGINAL, "LongRoPE needs at least 2"));
        }
        if matches!(scaling, RopeScaling::Dynamic { .. } | RopeScaling::LargerBase { .. }) && dims < 4 {
            return Err(LoadError::mismatch("a scaled base needs at least 4 rotated channels"));
        }
        if theta <= 1.0 {
            return Err(config.refused(self.theta, format!("{theta} is not a base for frequencies")));
        }
        let lists = match &scaling {
            RopeScaling::LongRope { short, long, .. } => vec![short, long],
            RopeScaling::Divisors(by) => vec![by],
            _ => vec![],
        };
        for list in lists {
            if list.len() != dims / 2 || !list.iter().all(|&d| d.is_finite() && d > 0.0) {
                return Err(LoadError::mismatch(format!(
                    "rotary scaling: {} positive divisors are needed, one per pair of channels; {} values are there",
                    dims / 2,
                    list.len()
                )));
            }
        }
        Ok(Rope::new(dims, theta, &scaling, pairing))
    }

    /// Base, number of rotated channels and scaling, from either spelling of `config.json`.
    fn in_config(&self, config: &ModelConfig<'_>, head_dim: usize) -> Result<(f64, usize, RopeScaling)> {
        const SHARE: Key = Key("partial_rotary_factor|rotary_pct", "");
        let mut table = config.table("rope_parameters")?;
        if let Some(by_type) = table.map(|t| t.table(self.layer_type)).transpose()?.flatten() {
            table = Some(by_type);
        }
        let old = config.positive_if(self.theta)?.unwrap_or(self.default_theta);
        let (theta, share, scaling) = match table {
            Some(table) => {
                let theta = table.positive_if(Key("rope_theta", ""))?.unwrap_or(old);
                (theta, table.positive_if(SHARE)?, Some(table))
            }
            None => (old, None, if self.scaled { config.table("rope_scaling")? } else { None }),
        };
        let share = if share.is_some() { share } else { config.positive_if(SHARE)? };
        let dims = match share {
            Some(share) if share > 1.0 => {
                return Err(config.refused(SHARE, format!("{share} is more than all channels")));
            }
            // As the reference does: the product is cut to a whole number of channels.
            Some(share) => (head_dim as f64 * share) as usize,
            None => config.size_if(Key("rotary_dim", ""))?.unwrap_or(head_dim),
        };
        // Here the share is of pairs, and all channels count as rotated.
        if let Some(table) = scaling.filter(|table| table.is_proportional()) {
            let factor = table.positive_if(Key("factor", ""))?.unwrap_or(1.0);
            return Ok((theta, head_dim, RopeScaling::Proportional { pairs: dims / 2, factor }));
        }
        let scaling = scaling.map_or(Ok(RopeScaling::None), |table| config_scaling(config, &table))?;
        Ok((theta, dims, scaling))
    }
}

impl ModelConfig<'_> {
    /// True of rotary parameters by Gemma 4's rule.
    fn is_proportional(&self) -> bool {
        matches!(self.text(KIND), Ok(Some(kind)) if kind == "proportional")
    }
}

const KIND: Key = Key("rope_type|type", "");
/// With this in a GGUF file of latent attention, scores take what YaRN would make of the rotated channels.
pub const YARN_LOG_MULTIPLIER: Key = Key("", "rope.scaling.yarn_log_multiplier");
const ORIGINAL: Key = Key("original_max_position_embeddings", "rope.scaling.original_context_length");
const CONTEXT: Key = Key("max_position_embeddings|n_positions", "context_length");

fn config_scaling(config: &ModelConfig<'_>, table: &ModelConfig<'_>) -> Result<RopeScaling> {
    const FACTOR: Key = Key("factor", "");
    const AMPLITUDE: Key = Key("attention_factor", "");
    const ALPHA: Key = Key("alpha", "");
    let original_context = || -> Result<f64> {
        let own = table.size_if(ORIGINAL)?;
        let beside = if own.is_some() { own } else { config.size_if(ORIGINAL)? };
        Ok(if let Some(n) = beside { n } else { config.size(CONTEXT)? } as f64)
    };
    let kind = table.text(KIND)?.unwrap_or_else(|| "default".to_owned());
    Ok(match kind.as_str() {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: table.positive(FACTOR)? },
        // Hunyuan: a larger base in any context.
        "dynamic" if table.positive_if(ALPHA)?.is_some() => {
            RopeScaling::LargerBase { alpha: table.positive(ALPHA)? }
        }
        "dynamic" => match table.positive(FACTOR)? {
            factor if factor >= 1.0 => RopeScaling::Dynamic { factor, context: config.size(CONTEXT)? as f64 },
            factor => return Err(table.refused(FACTOR, format!("{factor} is below 1"))),
        },
        "llama3" => RopeScaling::Llama3 {
            factor: table.positive(FACTOR)?,
            low: table.positive(Key("low_freq_factor", ""))?,
            high: table.positive(Key("high_freq_factor", ""))?,
            original_context: original_context()?,
        },
        "yarn" => {
            let original_context = original_context()?;
            let factor = match table.positive_if(FACTOR)? {
                Some(factor) => factor,
                None => config.size(CONTEXT)? as f64 / original_context,
            };
            RopeScaling::Yarn {
                factor,
                original_context,
                beta_fast: table.positive_if(Key("beta_fast", ""))?.unwrap_or(32.0),
                beta_slow: table.positive_if(Key("beta_slow", ""))?.unwrap_or(1.0),
                truncate: table.flag(Key("truncate", ""), true)?,
                extrapolation: 1.0,
                amplitude: match table.positive_if(AMPLITUDE)? {
                    Some(amplitude) => amplitude,
                    None => yarn_amplitude(table, factor)?,
                },
            }
        }
        "longrope" | "su" => {
            let original_context = original_context()?;
            let stretch = config.size(CONTEXT)? as f64 / original_context;
            let list = |key| table.numbers(key)?.ok_or_else(|| table.missing(key));
            RopeScaling::LongRope {
                short: list(Key("short_factor", ""))?,
                long: list(Key("long_factor", ""))?,
                original_context,
                amplitude: match table.positive_if(AMPLITUDE)? {
                    Some(amplitude) => amplitude,
                    None => longrope_amplitude(stretch, original_context),
                },
            }
        }
        other => {
            return Err(LoadError::unsupported(format!(
                "config.json: kvant does not know the rotary scaling {other:?} (it knows linear, dynamic, llama3, yarn, \
                 longrope)"
            )));
        }
    })
}

/// How queries grow with their position, where they do.
pub fn query_gain(config: &ModelConfig<'_>) -> Result<Option<QueryGain>> {
    const BETA: Key = Key("llama_4_scaling_beta", "attention.temperature_scale");
    let table = scaling_table(config)?.unwrap_or(*config);
    let Some(beta) = table.positive_if(BETA)? else { return Ok(None) };
    Ok(Some(QueryGain { beta, every: table.size(ORIGINAL)? }))
}

/// What models with latent attention multiply scores by under YaRN, in place of the rotated channels.
pub fn yarn_score_gain(config: &ModelConfig<'_>) -> Result<f64> {
    if config.is_gguf() {
        let factor = config.positive_if(Key("", "rope.scaling.factor"))?.unwrap_or(1.0);
        // The file has a tenth of `mscale_all_dim`.
        let tenth = config.positive_if(YARN_LOG_MULTIPLIER)?.unwrap_or(0.0);
        return Ok(if factor > 1.0 { (tenth * factor.ln() + 1.0).powi(2) } else { 1.0 });
    }
    let Some(table) = scaling_table(config)? else { return Ok(1.0) };
    let is_yarn = table.text(KIND)?.as_deref() == Some("yarn");
    let (all_dim, factor) =
        (table.positive_if(Key("mscale_all_dim", ""))?, table.positive_if(Key("factor", ""))?);
    Ok(match (all_dim, factor) {
        (Some(all_dim), Some(factor)) if is_yarn && factor > 1.0 => {
            (0.1 * all_dim * factor.ln() + 1.0).powi(2)
        }
        _ => 1.0,
    })
}

/// `rope_parameters`, or `rope_scaling` in older files.
fn scaling_table<'a>(config: &ModelConfig<'a>) -> Result<Option<ModelConfig<'a>>> {
    Ok(match config.table("rope_parameters")? {
        Some(table) => Some(table),
        None => config.table("rope_scaling")?,
    })
}

fn yarn_amplitude(table: &ModelConfig<'_>, factor: f64) -> Result<f64> {
    let of = |multiplier: f64| if factor <= 1.0 { 1.0 } else { 0.1 * multiplier * factor.ln() + 1.0 };
    let (mscale, all_dim) =
        (table.positive_if(Key("mscale", ""))?, table.positive_if(Key("mscale_all_dim", ""))?);
    Ok(match (mscale, all_dim) {
        (Some(mscale), Some(all_dim)) => of(mscale) / of(all_dim),
        _ => of(1.0),
    })
}

fn longrope_amplitude(stretch: f64, original_context: f64) -> f64 {
    if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / original_context.ln()).sqrt() }
}

fn gguf_scaling(
    config: &ModelConfig<'_>,
    truncate: bool,
    divisors: impl Fn(&str) -> Result<Option<Vec<f32>>>,
) -> Result<RopeScaling> {
    const FACTOR: Key = Key("", "rope.scaling.factor");
    const AMPLITUDE: Key = Key("", "rope.scaling.attn_factor");
    let wide = |list: Vec<f32>| list.into_iter().map(f64::from).collect();
    if let (Some(short), Some(long)) =
        (divisors("rope_factors_short.weight")?, divisors("rope_factors_long.weight")?)
    {
        let original_context = config.size(ORIGINAL)? as f64;
        let stretch = config.size(CONTEXT)? as f64 / original_context;
        let amplitude = config.positive_if(AMPLITUDE)?;
        return Ok(RopeScaling::LongRope {
            short: wide(short),
            long: wide(long),
            original_context,
            amplitude: amplitude.unwrap_or_else(|| longrope_amplitude(stretch, original_context)),
        });
    }
    if let Some(list) = divisors("rope_freqs.weight")? {
        return Ok(RopeScaling::Divisors(wide(list)));
    }
    let kind = config.text(Key("", "rope.scaling.type"))?.unwrap_or_else(|| "none".to_owned());
    Ok(match kind.as_str() {
        "none" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: config.positive(FACTOR)? },
        "yarn" => {
            let factor = config.positive(FACTOR)?;
            RopeScaling::Yarn {
                factor,
                original_context: config.size(ORIGINAL)? as f64,
                beta_fast: config.positive_if(Key("", "rope.scaling.yarn_beta_fast"))?.unwrap_or(32.0),
                beta_slow: config.positive_if(Key("", "rope.scaling.yarn_beta_slow"))?.unwrap_or(1.0),
                truncate,
                extrapolation: 1.0,
                amplitude: config.positive_if(AMPLITUDE)?.unwrap_or(1.0) * (0.1 * factor.max(1.0).ln() + 1.0),
            }
        }
        other => {
            return Err(LoadError::unsupported(format!(
                "key \"rope.scaling.type\": kvant does not know the rotary scaling {other:?} (it knows none, linear and yarn)"
            )));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::ConfigSource;

    fn read(scaling: &str) -> Result<Rope> {
        let text = format!(r#"{{"max_position_embeddings": 64, "rope_scaling": {scaling}}}"#);
        let config = serde_json::from_str(&text).unwrap();
        let config = ModelConfig::new(ConfigSource::Config(&config)).unwrap();
        RopeKeys::usual(Pairing::Halves).read(&config, 16, &RopeOverride::default(), |_| Ok(None))
    }

    #[test]
    fn scalings_are_read_in_both_spellings_and_refused_by_name() {
        for good in [
            "null",
            r#"{"type": "linear", "factor": 2}"#,
            r#"{"type": "dynamic", "factor": 2.0}"#,
            r#"{"rope_type": "dynamic", "factor": 1}"#,
            r#"{"type": "dynamic", "alpha": 1000.0, "factor": 0.5}"#,
        ] {
            assert!(read(good).is_ok(), "{good}");
        }
        for (bad, word) in [
            (r#"{"type": "dynamic", "factor": 0.5}"#, "factor"),
            (r#"{"type": "dynamic"}"#, "factor"),
            (r#"{"type": "quadratic"}"#, "quadratic"),
        ] {
            let error = read(bad).unwrap_err().to_string();
            assert!(error.contains(word), "{bad}: {error}");
        }
    }

    #[test]
    fn part_of_a_head_is_rotated_by_a_share_or_by_a_number() {
        let dims = |text: &str| {
            let config = serde_json::from_str(text).unwrap();
            let config = ModelConfig::new(ConfigSource::Config(&config)).unwrap();
            let rope =
                RopeKeys::usual(Pairing::Halves).read(&config, 24, &RopeOverride::default(), |_| Ok(None));
            rope.map(|rope| rope.dims())
        };
        assert_eq!(dims("{}").unwrap(), 24);
        assert_eq!(dims(r#"{"rotary_dim": 14}"#).unwrap(), 14);
        assert_eq!(dims(r#"{"partial_rotary_factor": 0.5, "rotary_dim": 14}"#).unwrap(), 12);
        assert_eq!(dims(r#"{"rope_parameters": {"partial_rotary_factor": 0.25}}"#).unwrap(), 6);
        assert!(dims(r#"{"rotary_dim": 26}"#).is_err());
    }
}
