//! Which cache a model gets when nobody names one: a table, with what each line rests on.
//!
//! What a rounded key costs is decided by the score it changes. A key that is turned by an angle δ changes a score by
//!
//! ```text
//! Δ = α · ‖q‖ · ‖k‖ · (1 − cos δ)
//! ```
//!
//! with the model's multiplier α, and the divergence of the predictions grows about with Δ². So families differ by α, held
//! against the usual 1/√d: the *gain* α·√d is 1 in most models, and √d where scores are not scaled at all. Four bits leave
//! a step of 1/15 of a channel's range, eight bits one of 1/255: 17 times finer, which pays for a gain of 17.

use kvant_cache::{Policy, SlotKind};
use kvant_model::Description;
use kvant_model::description::ScoreTraits;

/// A kind of attention, as far as a cache has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Family {
    /// Scores over √d, keys as they are projected.
    Usual,
    /// Scores over √d, keys that go through a norm.
    NormedKeys,
    /// Scores scaled down further than by √d.
    SmallScale,
    /// Scores that are larger than usual, by up to 17 times.
    LargeScale,
    /// Scores that are larger still.
    HugeScale,
    /// Latents: what is kept for values is read for scores too.
    Latents,
    /// Attention on some layers, recurrent state on the others.
    Hybrid,
    /// Logits without values take part in the softmax.
    SinkLogits,
}

/// What a default rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// Measured, on these models and with these results.
    Measured(&'static str),
    /// Predicted, for this reason: no model of the family has been measured.
    Predicted(&'static str),
    /// Neither: careful for this reason, until its owner measures.
    NotMeasured(&'static str),
}

/// One line of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct FamilyDefault {
    /// The family.
    pub family: Family,
    /// How it is recognised, and who belongs to it.
    pub about: &'static str,
    /// How keys and values are kept.
    pub kv: &'static str,
    /// Why.
    pub basis: Basis,
}

/// The table.
pub static DEFAULTS: [FamilyDefault; 8] = [
    FamilyDefault {
        family: Family::Usual,
        about: "scores over √d, keys as projected (Llama, Mistral, Phi 3, Qwen 2 …)",
        kv: "int4",
        basis: Basis::Measured(
            "mean KL as deployed 0.00292 on SmolLM2-135M and 0.00406 on Qwen2.5-Coder-0.5B, strict 0.0148 and 0.0143",
        ),
    },
    FamilyDefault {
        family: Family::NormedKeys,
        about: "scores over √d, normalised keys (Qwen 3, Gemma 3, OLMo 2)",
        kv: "int4",
        basis: Basis::Measured(
            "mean KL as deployed 0.00185 on Gemma-3-270M, strict 0.0128; Qwen 3 is not measured yet",
        ),
    },
    FamilyDefault {
        family: Family::SmallScale,
        about: "scores scaled below half of 1/√d (Granite)",
        kv: "int4",
        basis: Basis::Predicted(
            "score errors shrink with the scale, so they are no larger than the usual family's",
        ),
    },
    FamilyDefault {
        family: Family::LargeScale,
        about: "scores scaled above twice 1/√d, up to 17 times (attention scale 1.0 in heads of up to 289 channels)",
        kv: "k8v4",
        basis: Basis::Predicted(
            "score errors grow with the scale, and the divergence with their square; keys of 8 bits are 17 times finer \
             than int4's, values do not meet the scale",
        ),
    },
    FamilyDefault {
        family: Family::HugeScale,
        about: "scores scaled above 17 times 1/√d (attention scale 1.0 in wider heads)",
        kv: "k=f16,v=rot4g32",
        basis: Basis::Predicted(
            "score errors grow with the scale beyond what keys of 8 bits make up for; values do not meet the scale",
        ),
    },
    FamilyDefault {
        family: Family::Latents,
        about: "latents that serve scores and sums (DeepSeek, GLM 4.7 Flash, Mistral 4, global layers of Gemma 4)",
        kv: "int8",
        basis: Basis::NotMeasured(
            "scores of all heads read the same latent, so it is kept as keys are: in 8 bits",
        ),
    },
    FamilyDefault {
        family: Family::Hybrid,
        about: "attention on some layers, recurrent state on the others (Qwen 3.5, LFM2, Granite 4, Nemotron-H, Falcon-H1)",
        kv: "k8v4",
        basis: Basis::NotMeasured("few layers carry all that is looked up, so their keys are kept in 8 bits"),
    },
    FamilyDefault {
        family: Family::SinkLogits,
        about: "a logit per head without a value (gpt-oss)",
        kv: "k8v4",
        basis: Basis::NotMeasured(
            "a score that is off moves weight to or from the sink, so keys are kept in 8 bits",
        ),
    },
];

/// A gain from which on scores are no longer the usual size.
const LARGE: f32 = 2.0;
/// A gain below which they are not either.
const SMALL: f32 = 0.5;
/// Steps of eight bits in one of four: (2⁸ − 1) / (2⁴ − 1).
const FINER: f32 = 17.0;

impl Family {
    /// The family of a model with these attention layers. The layer with the largest scores decides.
    pub fn of(layers: &[ScoreTraits]) -> Family {
        let gain = layers.iter().map(ScoreTraits::gain).fold(0.0, f32::max);
        if gain > FINER {
            Family::HugeScale
        } else if gain > LARGE {
            Family::LargeScale
        } else if layers.iter().all(|layer| layer.normed_keys) && !layers.is_empty() {
            Family::NormedKeys
        } else if gain < SMALL && !layers.is_empty() {
            Family::SmallScale
        } else {
            Family::Usual
        }
    }

    /// Its line of the table.
    pub fn default(self) -> &'static FamilyDefault {
        DEFAULTS.iter().find(|line| line.family == self).unwrap_or(&DEFAULTS[0])
    }
}

impl FamilyDefault {
    /// The line for a model: structures that nobody measured come before scales, unless those ask for finer keys.
    pub fn of(description: &Description) -> &'static FamilyDefault {
        let by_scale = Family::of(&description.score_traits());
        let has_latents = description.slots.iter().any(|(_, slot)| matches!(slot.kind, SlotKind::Latent(_)));
        let family = match by_scale {
            _ if has_latents => Family::Latents,
            Family::LargeScale | Family::HugeScale => by_scale,
            _ if description.slots.state_slots().next().is_some() => Family::Hybrid,
            _ if description.attentions().any(|(_, of)| of.sink_logits.is_some()) => Family::SinkLogits,
            usual => usual,
        };
        family.default()
    }

    /// How keys and values are kept.
    ///
    /// # Panics
    /// Never: a test parses every line.
    pub fn policy(&self) -> Policy {
        self.kv.parse().expect("every line of the table parses")
    }
}

impl std::fmt::Display for Basis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Basis::Measured(what) => write!(f, "measured: {what}"),
            Basis::Predicted(why) => write!(f, "predicted: {why}"),
            Basis::NotMeasured(why) => {
                write!(
                    f,
                    "not measured: {why}; `kvant calibrate MODEL` measures and plans it on this machine"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(key_dim: usize, scale: f32, normed_keys: bool) -> ScoreTraits {
        ScoreTraits { key_dim, scale, normed_keys }
    }

    #[test]
    fn every_family_has_one_line_whose_policy_parses() {
        for line in &DEFAULTS {
            assert_eq!(line.policy().to_string(), line.kv);
            assert_eq!(line.family.default(), line);
        }
    }

    /// `kvant doctor` shows these, `--kv list` the same from the same page.
    #[test]
    fn the_figures_are_those_of_the_record() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/codecs.md");
        let record = std::fs::read_to_string(path).unwrap();
        let row = record.lines().find(|line| line.starts_with("| `int4` |")).unwrap();
        let known: Vec<&str> = row.split('|').map(str::trim).collect();
        for line in &DEFAULTS {
            let Basis::Measured(words) = line.basis else { continue };
            let figures = words.split([' ', ',', ';']).filter(|word| word.starts_with("0."));
            figures.for_each(|figure| assert!(known.contains(&figure), "{figure} is not in {row}"));
        }
    }

    #[test]
    fn the_layer_with_the_largest_scores_decides() {
        let usual = layer(64, 0.125, false);
        for (layers, family) in [
            (vec![], Family::Usual),
            (vec![usual; 3], Family::Usual),
            (vec![layer(256, 0.0625, true); 3], Family::NormedKeys),
            (vec![layer(64, 0.125, true), usual], Family::Usual),
            (vec![layer(64, 1.0 / 64.0, false)], Family::SmallScale),
            (vec![usual, layer(64, 1.0, false)], Family::LargeScale),
            (vec![layer(256, 1.0, true)], Family::LargeScale),
            (vec![layer(512, 1.0, true), usual], Family::HugeScale),
        ] {
            assert_eq!(Family::of(&layers), family, "{layers:?}");
        }
    }
}
