//! What a GGUF file says about a model, from its `config.json` and its description.

use super::rope;
use crate::error::{ConvertError, Result};
use crate::keys::{KeyKind, PARAMETERS};
use kvant_model::LoadError;
use kvant_model::config::TEXT_CONFIG;
use kvant_model::description::{
    Attention, Description, Ffn, GatedDeltaNet, LatentAttention, Layer, Mamba2, Mixer, Moe, RouterScore,
    ShortConv,
};
use kvant_model::gguf::{ValueType, Writer, WriterValue};
use serde_json::Value;

/// Architectures with a list of the layers that slide.
const LISTED_WINDOWS: [&str; 4] = ["exaone4", "gemma4", "mimo2", "olmo2"];

/// Numbers of experts and of their groups.
const EXPERT_COUNTS: [&str; 4] =
    ["expert_count", "expert_used_count", "expert_group_count", "expert_group_used_count"];

/// Parameters under one prefix.
pub(super) struct Keys<'w> {
    pub writer: &'w mut Writer,
    pub architecture: &'w str,
}

impl Keys<'_> {
    pub fn set(&mut self, key: &str, value: WriterValue) {
        self.writer.set(&format!("{}.{key}", self.architecture), value);
    }

    pub fn size(&mut self, key: &str, size: usize) -> Result<()> {
        let size =
            u32::try_from(size).map_err(|_| ConvertError::Refused(format!("{key} {size} is too large")))?;
        self.set(key, WriterValue::U32(size));
        Ok(())
    }

    pub fn number(&mut self, key: &str, number: f64) {
        self.set(key, WriterValue::F32(number as f32));
    }

    pub fn text(&mut self, key: &str, text: &str) {
        self.set(key, WriterValue::String(text.to_owned()));
    }

    /// A size for every layer, or one where they are all the same.
    fn sizes(&mut self, key: &str, sizes: &[usize]) -> Result<()> {
        match sizes {
            [first, rest @ ..] if rest.iter().all(|size| size == first) => self.size(key, *first),
            _ => {
                let wide =
                    |&size| i32::try_from(size).map_err(|_| LoadError::mismatch(format!("{key} {size}")));
                let sizes = sizes.iter().map(wide).collect::<std::result::Result<Vec<i32>, _>>()?;
                self.set(key, WriterValue::i32s(sizes));
                Ok(())
            }
        }
    }

    fn flags(&mut self, key: &str, flags: impl Iterator<Item = bool>) {
        self.set(key, WriterValue::Array(ValueType::Bool, flags.map(WriterValue::Bool).collect()));
    }
}

/// A writer with all keys but the vocabulary's, and the tensors that rotary embeddings have.
pub(super) fn of(
    description: &Description,
    config: &Value,
    architecture: &str,
    name: &str,
) -> Result<Writer> {
    let whole = config;
    let config = config.get(TEXT_CONFIG).filter(|text| text.is_object()).unwrap_or(config);
    let mut writer = Writer::new(architecture);
    writer.set("general.type", WriterValue::String("model".to_owned()));
    writer.set("general.name", WriterValue::String(name.to_owned()));
    let mut keys = Keys { writer: &mut writer, architecture };
    let has_experts = !Mixers::of(&description.layers).experts.is_empty();
    for parameter in PARAMETERS.iter().filter(|parameter| parameter.is_of(architecture)) {
        let (names, key) = (parameter.config, parameter.gguf);
        let Some(value) = names.split('|').find_map(|name| config.get(name).filter(|v| !v.is_null())) else {
            continue;
        };
        let wrong = || LoadError::mismatch(format!("config.json: key {names:?}: {value} cannot be written"));
        match parameter.kind {
            // A list or a text is another rule, which the description has.
            KeyKind::Size if !value.is_number() => {}
            // Configurations may count experts that no layer has.
            KeyKind::Size if EXPERT_COUNTS.contains(&key) && !has_experts => keys.size(key, 0)?,
            KeyKind::Size => keys.size(key, value.as_u64().ok_or_else(wrong)? as usize)?,
            KeyKind::Number => keys.number(key, value.as_f64().ok_or_else(wrong)?),
            KeyKind::Flag => keys.set(key, WriterValue::Bool(value.as_bool().ok_or_else(wrong)?)),
        }
    }
    keys.size("vocab_size", description.vocabulary)?;
    keys.size("block_count", description.layers.len())?;
    // Layers behind the last that predict further tokens are not converted.
    if architecture == "glm4moe" {
        keys.size("nextn_predict_layers", 0)?;
    }
    heads(&mut keys, description)?;
    windows(&mut keys, description, config)?;
    feed_forward(&mut keys, description)?;
    recurrent(&mut keys, description)?;
    if let Some(layers) = whole["vision_config"]["deepstack_visual_indexes"].as_array() {
        keys.size("n_deepstack_layers", layers.len())?;
    }
    rope::write(&mut keys, description, config)?;
    Ok(writer)
}

/// The mixers of a model by kind, in the order of its layers.
#[derive(Default)]
pub(crate) struct Mixers<'d> {
    pub attentions: Vec<&'d Attention>,
    pub latents: Vec<&'d LatentAttention>,
    pub mamba: Vec<&'d Mamba2>,
    pub delta: Vec<&'d GatedDeltaNet>,
    pub convs: Vec<&'d ShortConv>,
    pub dense: Vec<&'d kvant_model::description::Mlp>,
    pub experts: Vec<&'d Moe>,
}

impl<'d> Mixers<'d> {
    pub fn of(layers: impl IntoIterator<Item = &'d Layer>) -> Self {
        let mut found = Self::default();
        for mixer in layers.into_iter().flat_map(Layer::mixers) {
            match mixer {
                Mixer::Attention(attention) => found.attentions.push(attention),
                Mixer::LatentAttention(attention) => found.latents.push(attention),
                Mixer::Mamba2(mamba) => found.mamba.push(mamba),
                Mixer::GatedDeltaNet(net) => found.delta.push(net),
                Mixer::ShortConv(conv) => found.convs.push(conv),
                Mixer::Ffn(Ffn::Dense(mlp)) => found.dense.push(mlp),
                Mixer::Ffn(Ffn::Experts(moe)) => found.experts.push(moe),
                Mixer::PerLayerInput(_) | Mixer::Laurel(_) => {}
            }
        }
        found
    }
}

/// The heads of attention, layer by layer where they differ.
fn heads(keys: &mut Keys<'_>, description: &Description) -> Result<()> {
    let mixers = Mixers::of(&description.layers);
    if let Some(latent) = mixers.latents.first() {
        keys.size("attention.head_count", latent.heads)?;
        keys.size("attention.head_count_kv", 1)?;
        keys.size("attention.key_length", latent.latent_dim + latent.rope_dim)?;
        keys.size("attention.value_length", latent.latent_dim)?;
        keys.size("attention.key_length_mla", latent.nope_dim + latent.rope_dim)?;
        keys.size("attention.value_length_mla", latent.value_dim)?;
        return Ok(());
    }
    let Some(first) = mixers.attentions.first() else { return Ok(()) };
    let global = mixers.attentions.iter().find(|attention| attention.window.is_none()).unwrap_or(first);
    keys.size("attention.head_count", first.heads)?;
    keys.size("attention.key_length", global.key_dim)?;
    keys.size("attention.value_length", global.value_dim)?;
    let sliding = mixers.attentions.iter().find(|attention| attention.window.is_some());
    if let Some(sliding) = sliding.filter(|_| keys.architecture == "gemma4") {
        keys.size("attention.key_length_swa", sliding.key_dim)?;
        keys.size("attention.value_length_swa", sliding.value_dim)?;
    }
    // Layers without attention have none, unless a number says how often it comes.
    let kv_heads = |layer: &Layer| layer.attentions().next().map(|attention| attention.kv_heads);
    let by_layer: Vec<usize> = match mixers.delta.is_empty() {
        true => description.layers.iter().map(|layer| kv_heads(layer).unwrap_or(0)).collect(),
        false => description.layers.iter().filter_map(kv_heads).collect(),
    };
    keys.sizes("attention.head_count_kv", &by_layer)
}

/// Which layers attend, and how far they see.
fn windows(keys: &mut Keys<'_>, description: &Description, config: &Value) -> Result<()> {
    let attends = |layer: &Layer| layer.attentions().next().is_some();
    let mixers = Mixers::of(&description.layers);
    if !mixers.delta.is_empty() {
        let interval = config["full_attention_interval"].as_u64().map(|interval| interval as usize);
        let first = description.layers.iter().position(attends).map(|first| first + 1);
        keys.size("full_attention_interval", interval.or(first).unwrap_or(description.layers.len() + 1))?;
    }
    let window = mixers.attentions.iter().find_map(|attention| attention.window);
    if window.is_some() || keys.architecture == "phi3" {
        keys.size("attention.sliding_window", window.unwrap_or(0))?;
    }
    let by_layer = || mixers.attentions.iter().map(|attention| attention.window.is_some());
    if window.is_some() && LISTED_WINDOWS.contains(&keys.architecture) {
        keys.flags("attention.sliding_window_pattern", by_layer());
    }
    if let Some(pattern) = pattern(by_layer().collect()).filter(|_| keys.architecture == "gemma3") {
        keys.size("attention.sliding_window_pattern", pattern)?;
    }
    if let Some(scalar) = config["query_pre_attn_scalar"].as_f64() {
        keys.number("attention.scale", 1.0 / scalar.sqrt());
    }
    let gain = mixers.attentions.iter().map(|own| own.query_gain);
    let gain = gain.chain(mixers.latents.iter().map(|own| own.query_gain)).find_map(|gain| gain);
    if let Some(gain) = gain {
        keys.number("attention.temperature_scale", gain.beta);
        keys.size("attention.temperature_length", gain.every)?;
    }
    Ok(())
}

/// Of how many layers the last sees everything, where that is the rule.
fn pattern(slides: Vec<bool>) -> Option<usize> {
    let pattern = slides.iter().position(|slides| !slides)? + 1;
    let is_rule = |(layer, slides): (usize, &bool)| *slides != (layer + 1).is_multiple_of(pattern);
    slides.iter().enumerate().all(is_rule).then_some(pattern)
}

/// Widths and experts, which configurations may leave to defaults.
fn feed_forward(keys: &mut Keys<'_>, description: &Description) -> Result<()> {
    let mixers = Mixers::of(&description.layers);
    let dense: Vec<usize> = mixers.dense.iter().map(|mlp| mlp.down.inputs()).collect();
    let expert = mixers.experts.first().and_then(|moe| Some(moe.experts.first()?.down.inputs()));
    match keys.architecture {
        "nemotron_h" | "nemotron_h_moe" => {
            let width = |layer: &Layer| {
                let own = Mixers::of([layer]);
                let expert = own.experts.first().and(expert);
                own.dense.first().map(|mlp| mlp.down.inputs()).or(expert).unwrap_or(0)
            };
            let widths: Vec<usize> = description.layers.iter().map(width).collect();
            keys.sizes("feed_forward_length", &widths)?;
        }
        // The shared expert is what is left without the others, and has their name.
        "granitehybrid" if mixers.experts.is_empty() => {
            keys.sizes("feed_forward_length", &dense)?;
            keys.sizes("expert_shared_feed_forward_length", &dense)?;
        }
        _ if !dense.is_empty() => keys.sizes("feed_forward_length", &dense)?,
        "gpt-oss" | "minimax-m2" => keys.size("feed_forward_length", expert.unwrap_or(0))?,
        _ => {}
    }
    let is_leading = |layer: &&Layer| Mixers::of([*layer]).experts.is_empty();
    let leading = description.layers.iter().take_while(is_leading).count();
    let Some(moe) = mixers.experts.first() else { return Ok(()) };
    if matches!(keys.architecture, "deepseek2" | "mistral4" | "lfm2moe") {
        keys.size("leading_dense_block_count", leading)?;
    }
    if moe.router.score == RouterScore::Sigmoid {
        keys.size("expert_gating_func", 2)?;
    }
    if let Some(shared) = &moe.shared {
        keys.size("expert_shared_feed_forward_length", shared.mlp.down.inputs())?;
    }
    // Mixtral and Granite have the width of experts where others have that of MLPs.
    if let Some(expert) = expert.filter(|_| !matches!(keys.architecture, "llama" | "granitehybrid")) {
        keys.size("expert_feed_forward_length", expert)?;
    }
    Ok(())
}

/// Sizes of mixers with state.
fn recurrent(keys: &mut Keys<'_>, description: &Description) -> Result<()> {
    let mixers = Mixers::of(&description.layers);
    if let Some(mamba) = mixers.mamba.first() {
        keys.size("ssm.inner_size", mamba.dims.inner())?;
    }
    if let Some(net) = mixers.delta.first() {
        keys.size("ssm.inner_size", net.dims.value_width())?;
    }
    if let Some(conv) = mixers.convs.first() {
        keys.size("shortconv.l_cache", conv.conv.kernel)?;
    }
    Ok(())
}
