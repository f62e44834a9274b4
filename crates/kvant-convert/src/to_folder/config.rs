//! The `config.json` of a GGUF file.
//!
//! Most parameters only change their names ([`PARAMETERS`]). What files leave out because a family has it so, or say by the tensors
//! they have, comes from the description.

use super::rope;
use crate::error::{ConvertError, Result};
use crate::keys::{Family, KeyKind, PARAMETERS};
use crate::recipe::Weights;
use crate::to_gguf::Mixers;
use kvant_model::config::TEXT_CONFIG;
use kvant_model::description::{
    Activation, Attention, Description, LatentAttention, LatentQuery, Layer, Linear, Mamba2, Mlp, Moe,
    Projection, RouterScore,
};
use kvant_model::gguf::{Metadata, Value};
use kvant_model::{Checkpoint, LoadError};
use serde_json::{Map, Value as Json, json};

/// Families whose attention slides everywhere or nowhere.
const ONE_WINDOW: [&str; 4] = ["mistral", "mixtral", "phi3", "starcoder2"];

pub(super) fn of(
    checkpoint: &Checkpoint,
    metadata: &Metadata,
    description: &Description,
    is_tied: bool,
    weights: Weights,
) -> Result<Json> {
    let mixers = Mixers::of(&description.layers);
    let name = family_name(metadata.architecture()?, description, &mixers);
    let family = Family::of(name).ok_or_else(|| {
        ConvertError::Refused(format!("Hugging Face folders of {name} are not written; convert to GGUF"))
    })?;
    let draft = Draft { checkpoint, metadata, description, mixers, family, map: Map::new() };
    let mut text = draft.written()?;
    let dtype = if weights == Weights::F32 { "float32" } else { "float16" };
    let outer = json!({
        "architectures": [family.class],
        "model_type": family.config_name,
        "tie_word_embeddings": is_tied,
        "torch_dtype": dtype,
    });
    let Json::Object(mut outer) = outer else { unreachable!("made of an object") };
    for (key, id) in [("bos_token_id", "bos_token_id"), ("eos_token_id", "eos_token_id")] {
        if let Some(id) = metadata.value(&format!("tokenizer.ggml.{id}")) {
            outer.insert(key.into(), plain(&id));
        }
    }
    if name == "qwen3_vl" {
        text.insert("model_type".into(), "qwen3_vl_text".into());
        outer.insert(TEXT_CONFIG.into(), Json::Object(text));
    } else {
        outer.extend(text);
    }
    Ok(Json::Object(outer))
}

/// The family whose name GGUF files do not tell.
fn family_name(architecture: &str, description: &Description, mixers: &Mixers<'_>) -> &'static str {
    let slides = mixers.attentions.iter().any(|attention| attention.window.is_some());
    let is_sigmoid = |moe: &&Moe| moe.router.score == RouterScore::Sigmoid;
    match architecture {
        "llama" if !mixers.experts.is_empty() => "mixtral",
        "llama" if slides => "mistral",
        "olmo2" if slides => "olmo3",
        "deepseek2" if mixers.experts.first().is_some_and(is_sigmoid) => "deepseek_v3",
        _ => description.architecture,
    }
}

/// A configuration in the making.
pub(super) struct Draft<'a> {
    pub checkpoint: &'a Checkpoint,
    pub metadata: &'a Metadata,
    pub description: &'a Description,
    pub mixers: Mixers<'a>,
    pub family: &'static Family,
    pub map: Map<String, Json>,
}

impl<'a> Draft<'a> {
    pub fn set(&mut self, key: &str, value: impl Into<Json>) {
        self.map.insert(key.to_owned(), value.into());
    }

    /// A parameter of the file.
    pub fn value(&self, key: &str) -> Option<Value<'a>> {
        let architecture = self.metadata.architecture().ok()?;
        self.metadata.value(&format!("{architecture}.{key}"))
    }

    pub fn number(&self, key: &str) -> Option<f64> {
        plain(&self.value(key)?).as_f64()
    }

    fn is(&self, names: &[&str]) -> bool {
        names.contains(&self.family.config_name)
    }

    fn written(mut self) -> Result<Map<String, Json>> {
        let constants = serde_json::from_str(self.family.constants);
        self.map = constants.map_err(|e| LoadError::malformed(e.to_string()))?;
        let architecture = self.metadata.architecture()?;
        for parameter in PARAMETERS.iter().filter(|parameter| parameter.is_of(architecture)) {
            // Lists are said in other ways.
            let value = self.value(parameter.gguf).map(|value| plain(&value));
            let fits = |value: &Json| match parameter.kind {
                KeyKind::Size | KeyKind::Number => value.is_number(),
                KeyKind::Flag => value.is_boolean(),
            };
            if let Some(value) = value.filter(fits) {
                self.set(self.family.spelling(parameter), value);
            }
        }
        let layers = if self.is(&["gpt2"]) { "n_layer" } else { "num_hidden_layers" };
        self.set(layers, self.description.layers.len());
        self.set("vocab_size", self.description.vocabulary);
        if let Some(first) = self.mixers.attentions.first().copied() {
            self.attention(first);
        }
        if let Some(latent) = self.mixers.latents.first().copied() {
            self.latent(latent);
        }
        self.feed_forward();
        self.layer_kinds();
        self.recurrent();
        rope::write(&mut self)?;
        Ok(self.map)
    }

    fn attention(&mut self, first: &Attention) {
        if !self.is(&["gpt2", "gpt_neox"]) {
            self.set("num_attention_heads", first.heads);
            self.set("num_key_value_heads", first.kv_heads);
            self.set("head_dim", first.key_dim);
        }
        let q = match &first.projection {
            Projection::Apart { q, .. } | Projection::Shared { q } | Projection::Equal { q, .. } => q,
            Projection::Fused(qkv) | Projection::FusedByHead(qkv) => qkv,
        };
        let (in_bias, out_bias) = (q.bias.is_some(), first.output.bias.is_some());
        match self.family.config_name {
            "gpt2" | "qwen2" => {}
            "ernie4_5" | "ernie4_5_moe" | "starcoder2" => self.set("use_bias", in_bias),
            "qwen2_moe" => self.set("qkv_bias", in_bias),
            "seed_oss" => {
                self.set("attention_bias", in_bias);
                self.set("attention_out_bias", out_bias);
            }
            _ => self.set("attention_bias", in_bias),
        }
        if self.is(&["glm4_moe", "hunyuan_v1_dense", "minimax_m2"]) {
            self.set("use_qk_norm", first.q_norm.is_some());
        }
        if self.is(&["gemma2", "gemma3_text"]) {
            // Files have the multiplier, in f32.
            let scalar = 1.0 / f64::from(first.scale).powi(2);
            let whole = scalar.round();
            let scalar = if (scalar - whole).abs() < 1e-4 * whole { whole } else { scalar };
            self.set("query_pre_attn_scalar", scalar);
        }
        if self.is(&["smollm3"]) {
            let turns = |layer: &Layer| layer.attentions().next().is_some_and(|own| own.rope.is_some());
            let turns: Vec<u8> = self.description.layers.iter().map(|layer| turns(layer).into()).collect();
            self.set("no_rope_layers", turns);
        }
        if self.is(&["granitemoehybrid"]) {
            let kind = if first.rope.is_some() { "rope" } else { "nope" };
            self.set("position_embedding_type", kind);
        }
        if self.is(&["gemma4_text"]) {
            self.gemma4();
        }
    }

    fn gemma4(&mut self) {
        let attentions = self.mixers.attentions.clone();
        let of = |slides: bool| attentions.iter().find(|own| own.window.is_some() == slides).copied();
        if let Some(sliding) = of(true) {
            self.set("head_dim", sliding.key_dim);
            self.set("num_key_value_heads", sliding.kv_heads);
        }
        if let Some(global) = of(false) {
            self.set("global_head_dim", global.key_dim);
            let is_equal = matches!(global.projection, Projection::Equal { .. });
            self.set("attention_k_eq_v", is_equal);
            if is_equal {
                self.set("num_global_key_value_heads", global.kv_heads);
            }
        }
        let widths: Vec<usize> = self.mixers.dense.iter().map(|mlp| mlp.down.inputs()).collect();
        let (first, last) = (widths.first().copied().unwrap_or(0), widths.last().copied().unwrap_or(0));
        self.set("intermediate_size", first);
        self.set("use_double_wide_mlp", last == 2 * first);
        self.set("enable_moe_block", !self.mixers.experts.is_empty());
        if let Some(inputs) = &self.description.embedding.per_layer {
            self.set("vocab_size_per_layer_input", inputs.table.shape[0]);
        }
    }

    fn latent(&mut self, of: &LatentAttention) {
        self.set("num_attention_heads", of.heads);
        self.set("num_key_value_heads", of.heads);
        self.set("qk_nope_head_dim", of.nope_dim);
        self.set("qk_rope_head_dim", of.rope_dim);
        self.set("qk_head_dim", of.nope_dim + of.rope_dim);
        self.set("v_head_dim", of.value_dim);
        self.set("kv_lora_rank", of.latent_dim);
        self.set("attention_bias", of.latent.bias.is_some());
        self.set("rope_interleave", true);
        if matches!(of.query, LatentQuery::Direct(_)) {
            self.set("q_lora_rank", Json::Null);
        }
    }

    fn feed_forward(&mut self) {
        let activation = |mlp: &Mlp| mlp.activation;
        let dense = self.mixers.dense.first().map(|mlp| activation(mlp));
        let experts = self.mixers.experts.first().and_then(|moe| moe.experts.first().map(activation));
        if let Some(activation) = dense.or(experts) {
            let name = match (activation, self.family.config_name) {
                (Activation::GeluTanh, "gpt2") => "gelu_new",
                (Activation::GeluTanh, _) => "gelu_pytorch_tanh",
                (activation, _) => activation.name(),
            };
            let key = match self.family.config_name {
                "gpt2" => "activation_function",
                "gemma" | "gemma2" | "gemma3_text" | "gemma4_text" => "hidden_activation",
                "nemotron_h" => "mlp_hidden_act",
                _ => "hidden_act",
            };
            self.set(key, name);
        }
        let width = self.mixers.dense.first().map(|mlp| mlp.down.inputs());
        if let Some(width) = width.filter(|_| self.is(&["nemotron_h"])) {
            self.set("intermediate_size", width);
        }
        let mlp_bias = self.mixers.dense.first().is_some_and(|mlp| mlp.down.bias.is_some());
        if self.is(&[
            "llama",
            "granite",
            "hunyuan_v1_dense",
            "seed_oss",
            "smollm3",
            "falcon_h1",
            "nemotron_h",
        ]) {
            self.set("mlp_bias", mlp_bias);
        }
        let Some(moe) = self.mixers.experts.first().copied() else { return };
        self.set("norm_topk_prob", moe.router.renormalise.is_some());
        if let Some(expert) = moe.experts.first() {
            // Some have the width of experts where others have that of MLPs.
            let key = match self.family.config_name {
                "mixtral" | "gpt_oss" | "granitemoehybrid" | "minimax_m2" => "intermediate_size",
                _ => "moe_intermediate_size",
            };
            self.set(key, expert.down.inputs());
        }
        if let Some(shared) = moe.shared.as_ref().filter(|_| self.is(&["granitemoehybrid", "nemotron_h"])) {
            let key = match self.family.config_name {
                "nemotron_h" => "moe_shared_expert_intermediate_size",
                _ => "shared_intermediate_size",
            };
            self.set(key, shared.mlp.down.inputs());
        }
        match self.family.config_name {
            "lfm2_moe" => self.set("use_expert_bias", moe.router.bias.is_some()),
            "deepseek_v2" if moe.router.groups.is_some() => self.set("topk_method", "group_limited_greedy"),
            "deepseek_v2" => self.set("topk_method", "greedy"),
            "deepseek_v3" => self.set("topk_method", "noaux_tc"),
            "qwen2_moe" | "qwen3_moe" | "qwen3_next" => self.set("decoder_sparse_step", 1),
            _ => {}
        }
    }

    /// What every layer is: how far it sees, or with what it mixes.
    fn layer_kinds(&mut self) {
        let window = self.mixers.attentions.iter().find_map(|attention| attention.window);
        if self.is(&["qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_vl", "smollm3"]) {
            self.set("use_sliding_window", window.is_some());
        }
        if window.is_some() || self.is(&["exaone4", "mistral", "mixtral", "phi3", "starcoder2"]) {
            self.set("sliding_window", window);
        }
        let layers = &self.description.layers;
        let kinds: Vec<&str> = layers.iter().map(|layer| self.kind(layer)).collect();
        match self.family.config_name {
            "nemotron_h" => self.set("hybrid_override_pattern", kinds.concat()),
            "granitemoehybrid" | "lfm2" | "lfm2_moe" | "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text" => {
                self.set("layer_types", kinds);
            }
            _ if window.is_some() && !self.is(&ONE_WINDOW) => self.set("layer_types", kinds),
            _ => {}
        }
        if let Some(interval) = self.number("full_attention_interval") {
            self.set("full_attention_interval", interval as u64);
        }
    }

    fn kind(&self, layer: &Layer) -> &'static str {
        let own = Mixers::of([layer]);
        match (self.family.config_name, own.attentions.first()) {
            ("nemotron_h", Some(_)) => "*",
            ("nemotron_h", None) if !own.mamba.is_empty() => "M",
            ("nemotron_h", None) if !own.experts.is_empty() => "E",
            ("nemotron_h", None) => "-",
            ("granitemoehybrid", Some(_)) => "attention",
            (_, Some(attention)) if attention.window.is_some() => "sliding_attention",
            (_, Some(_)) => "full_attention",
            ("granitemoehybrid", None) => "mamba",
            (_, None) if !own.convs.is_empty() => "conv",
            (_, None) => "linear_attention",
        }
    }

    fn recurrent(&mut self) {
        if let Some(mamba) = self.mixers.mamba.first().copied() {
            self.mamba(mamba);
        }
        if let Some(net) = self.mixers.delta.first().copied() {
            self.set("linear_value_head_dim", net.dims.value_dim);
        }
        if let Some(conv) = self.mixers.convs.first().copied() {
            self.set("conv_bias", conv.conv.bias.is_some());
        }
    }

    fn mamba(&mut self, of: &Mamba2) {
        let has_bias = |linear: &Linear| linear.bias.is_some();
        let (projection, conv) = (has_bias(&of.input), of.conv.bias.is_some());
        if self.is(&["nemotron_h"]) {
            self.set("mamba_head_dim", of.dims.head_dim);
            self.set("use_bias", projection);
            self.set("use_conv_bias", conv);
            return;
        }
        self.set("mamba_d_head", of.dims.head_dim);
        self.set("mamba_proj_bias", projection);
        self.set("mamba_conv_bias", conv);
        self.set("mamba_expand", of.dims.inner() / self.description.hidden.max(1));
        if self.is(&["falcon_h1"]) {
            self.set("mamba_rms_norm", of.norm.is_some());
        }
    }
}

/// A value as JSON; numbers in f32 by the shortest decimals that mean them.
pub(super) fn plain(value: &Value<'_>) -> Json {
    match value {
        Value::U8(n) => (*n).into(),
        Value::I8(n) => (*n).into(),
        Value::U16(n) => (*n).into(),
        Value::I16(n) => (*n).into(),
        Value::U32(n) => (*n).into(),
        Value::I32(n) => (*n).into(),
        Value::U64(n) => (*n).into(),
        Value::I64(n) => (*n).into(),
        Value::F32(n) => shortest(*n).into(),
        Value::F64(n) => (*n).into(),
        Value::Bool(flag) => (*flag).into(),
        Value::String(text) => (*text).into(),
        Value::Array(items) => items.iter().map(|item| plain(&item)).collect(),
    }
}

/// The number in f64 whose decimals are the shortest of those that are this number in f32.
pub(super) fn shortest(n: f32) -> f64 {
    n.to_string().parse().unwrap_or_else(|_| n.into())
}
