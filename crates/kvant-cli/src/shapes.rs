//! Sizes of the models that have short names: what `kvant fit qwen3:8b` uses before the model is downloaded.
//!
//! The numbers are those of the models' published `config.json`. A name that has none here is described by the beginning of its file.

use crate::failure::Failure;
use kvant_engine::FamilyDefault;
use kvant_engine::estimate::{MemoryEstimate, RunConfig, weight_bytes};
use kvant_engine::open::default_context;
use kvant_hub::{KNOWN, ModelName, SHORT_NAMES};
use kvant_model::{Checkpoint, DType, Description};
use serde_json::{Value, json};

/// A model's sizes.
struct Shape {
    names: &'static [&'static str],
    kind: ShapeKind,
    hidden: usize,
    layers: usize,
    /// Heads of queries, and of keys and values.
    heads: [usize; 2],
    head_dim: usize,
    ffn: usize,
    vocabulary: usize,
    context: usize,
    /// The token table is the output too.
    is_tied: bool,
}

/// What the numbers do not say.
#[derive(Clone, Copy)]
enum ShapeKind {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    /// Experts of this width.
    Qwen3Moe(usize),
    /// Every sixth layer is global, the others see a window.
    Gemma3(usize),
    Phi3(f64),
    SmolLm3,
    Olmo2,
    StarCoder2,
    /// So many experts.
    GptOss(usize),
}

macro_rules! shapes {
    ($([$($name:literal),+] $kind:expr, $hidden:literal x $layers:literal, $heads:literal / $kv:literal x $dim:literal, $ffn:literal,
       $vocabulary:literal, $context:literal, $tied:literal;)+) => {
        &[$(Shape { names: &[$($name),+], kind: $kind, hidden: $hidden, layers: $layers, heads: [$heads, $kv], head_dim: $dim,
                    ffn: $ffn, vocabulary: $vocabulary, context: $context, is_tied: $tied }),+]
    };
}

/// The table: names, structure, width × layers, heads / kv heads × channels, inner width, vocabulary, context, tied.
const SHAPES: &[Shape] = shapes![
    ["smollm2-135m"] ShapeKind::Llama, 576 x 30, 9 / 3 x 64, 1536, 49_152, 8192, true;
    ["smollm2:360m"] ShapeKind::Llama, 960 x 32, 15 / 5 x 64, 2560, 49_152, 8192, true;
    ["smollm2:1.7b"] ShapeKind::Llama, 2048 x 24, 32 / 32 x 64, 8192, 49_152, 8192, true;
    ["smollm3:3b"] ShapeKind::SmolLm3, 2048 x 36, 16 / 4 x 128, 11_008, 128_256, 65_536, true;
    ["qwen3:0.6b"] ShapeKind::Qwen3, 1024 x 28, 16 / 8 x 128, 3072, 151_936, 40_960, true;
    ["qwen3:1.7b"] ShapeKind::Qwen3, 2048 x 28, 16 / 8 x 128, 6144, 151_936, 40_960, true;
    ["qwen3:4b"] ShapeKind::Qwen3, 2560 x 36, 32 / 8 x 128, 9728, 151_936, 40_960, true;
    ["qwen3:8b"] ShapeKind::Qwen3, 4096 x 36, 32 / 8 x 128, 12_288, 151_936, 40_960, false;
    ["deepseek-r1:8b"] ShapeKind::Qwen3, 4096 x 36, 32 / 8 x 128, 12_288, 151_936, 131_072, false;
    ["qwen3:14b"] ShapeKind::Qwen3, 5120 x 40, 40 / 8 x 128, 17_408, 151_936, 40_960, false;
    ["qwen3:32b"] ShapeKind::Qwen3, 5120 x 64, 64 / 8 x 128, 25_600, 151_936, 40_960, false;
    ["qwen3:30b-a3b"] ShapeKind::Qwen3Moe(768), 2048 x 48, 32 / 4 x 128, 6144, 151_936, 40_960, false;
    ["qwen3-coder:30b"] ShapeKind::Qwen3Moe(768), 2048 x 48, 32 / 4 x 128, 6144, 151_936, 262_144, false;
    ["qwen2.5:0.5b", "qwen2.5-coder:0.5b"] ShapeKind::Qwen2, 896 x 24, 14 / 2 x 64, 4864, 151_936, 32_768, true;
    ["qwen2.5:1.5b", "qwen2.5-coder:1.5b"] ShapeKind::Qwen2, 1536 x 28, 12 / 2 x 128, 8960, 151_936, 32_768, true;
    ["deepseek-r1:1.5b"] ShapeKind::Qwen2, 1536 x 28, 12 / 2 x 128, 8960, 151_936, 131_072, false;
    ["qwen2.5:3b"] ShapeKind::Qwen2, 2048 x 36, 16 / 2 x 128, 11_008, 151_936, 32_768, true;
    ["qwen2.5:7b", "qwen2.5-coder:7b"] ShapeKind::Qwen2, 3584 x 28, 28 / 4 x 128, 18_944, 152_064, 32_768, false;
    ["deepseek-r1:7b"] ShapeKind::Qwen2, 3584 x 28, 28 / 4 x 128, 18_944, 152_064, 131_072, false;
    ["qwen2.5:14b", "qwen2.5-coder:14b"] ShapeKind::Qwen2, 5120 x 48, 40 / 8 x 128, 13_824, 152_064, 32_768, false;
    ["deepseek-r1:14b"] ShapeKind::Qwen2, 5120 x 48, 40 / 8 x 128, 13_824, 152_064, 131_072, false;
    ["qwen2.5:32b", "qwen2.5-coder:32b"] ShapeKind::Qwen2, 5120 x 64, 40 / 8 x 128, 27_648, 152_064, 32_768, false;
    ["deepseek-r1:32b"] ShapeKind::Qwen2, 5120 x 64, 40 / 8 x 128, 27_648, 152_064, 131_072, false;
    ["llama3.2:1b"] ShapeKind::Llama, 2048 x 16, 32 / 8 x 64, 8192, 128_256, 131_072, true;
    ["llama3.2:3b"] ShapeKind::Llama, 3072 x 28, 24 / 8 x 128, 8192, 128_256, 131_072, true;
    ["llama3.1:8b"] ShapeKind::Llama, 4096 x 32, 32 / 8 x 128, 14_336, 128_256, 131_072, false;
    ["llama3.1:70b", "llama3.3:70b"] ShapeKind::Llama, 8192 x 80, 64 / 8 x 128, 28_672, 128_256, 131_072, false;
    ["gemma3:270m"] ShapeKind::Gemma3(512), 640 x 18, 4 / 1 x 256, 2048, 262_144, 32_768, true;
    ["gemma3:1b"] ShapeKind::Gemma3(512), 1152 x 26, 4 / 1 x 256, 6912, 262_144, 32_768, true;
    ["gemma3:4b"] ShapeKind::Gemma3(1024), 2560 x 34, 8 / 4 x 256, 10_240, 262_208, 131_072, true;
    ["gemma3:12b"] ShapeKind::Gemma3(1024), 3840 x 48, 16 / 8 x 256, 15_360, 262_208, 131_072, true;
    ["gemma3:27b"] ShapeKind::Gemma3(1024), 5376 x 62, 32 / 16 x 128, 21_504, 262_208, 131_072, true;
    ["phi4:14b"] ShapeKind::Phi3(1.0), 5120 x 40, 40 / 10 x 128, 17_920, 100_352, 16_384, false;
    ["phi4-mini:3.8b"] ShapeKind::Phi3(0.75), 3072 x 32, 24 / 8 x 128, 8192, 200_064, 131_072, true;
    ["mistral:7b"] ShapeKind::Mistral, 4096 x 32, 32 / 8 x 128, 14_336, 32_768, 32_768, false;
    ["mistral-nemo:12b"] ShapeKind::Mistral, 5120 x 40, 32 / 8 x 128, 14_336, 131_072, 131_072, false;
    ["mistral-small:24b"] ShapeKind::Mistral, 5120 x 40, 32 / 8 x 128, 32_768, 131_072, 32_768, false;
    ["olmo2:7b"] ShapeKind::Olmo2, 4096 x 32, 32 / 32 x 128, 11_008, 100_352, 4096, false;
    ["starcoder2:3b"] ShapeKind::StarCoder2, 3072 x 30, 24 / 2 x 128, 12_288, 49_152, 16_384, true;
    ["gpt-oss:20b"] ShapeKind::GptOss(32), 2880 x 24, 64 / 8 x 64, 2880, 201_088, 131_072, false;
    ["gpt-oss:120b"] ShapeKind::GptOss(128), 2880 x 36, 64 / 8 x 64, 2880, 201_088, 131_072, false;
];

impl Shape {
    fn named(name: &str) -> Option<&'static Self> {
        SHAPES.iter().find(|shape| shape.names.contains(&name))
    }

    /// A `config.json` that says as much.
    fn config(&self) -> Value {
        let mut config = json!({
            "hidden_size": self.hidden, "num_hidden_layers": self.layers, "num_attention_heads": self.heads[0],
            "num_key_value_heads": self.heads[1], "head_dim": self.head_dim, "intermediate_size": self.ffn,
            "vocab_size": self.vocabulary, "max_position_embeddings": self.context, "tie_word_embeddings": self.is_tied,
            "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 1_000_000.0,
        });
        let kinds = |period: usize| -> Vec<&str> {
            let kind = |layer: usize| {
                if (layer + 1).is_multiple_of(period) { "full_attention" } else { "sliding_attention" }
            };
            (0..self.layers).map(kind).collect()
        };
        let more = match self.kind {
            ShapeKind::Llama => json!({"model_type": "llama"}),
            ShapeKind::Mistral => json!({"model_type": "mistral"}),
            ShapeKind::Qwen2 => json!({"model_type": "qwen2"}),
            ShapeKind::Qwen3 => json!({"model_type": "qwen3"}),
            ShapeKind::Qwen3Moe(width) => json!({
                "model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": width,
                "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": []
            }),
            ShapeKind::Gemma3(window) => json!({
                "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "sliding_window": window,
                "layer_types": kinds(6), "query_pre_attn_scalar": self.head_dim, "rope_local_base_freq": 10_000.0
            }),
            ShapeKind::Phi3(part) => json!({"model_type": "phi3", "partial_rotary_factor": part,
                "original_max_position_embeddings": self.context}),
            ShapeKind::SmolLm3 => json!({"model_type": "smollm3", "no_rope_layer_interval": 4}),
            ShapeKind::Olmo2 => json!({"model_type": "olmo2"}),
            ShapeKind::StarCoder2 => json!({
                "model_type": "starcoder2", "hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5, "use_bias": true,
                "sliding_window": 4096
            }),
            ShapeKind::GptOss(experts) => json!({
                "model_type": "gpt_oss", "num_local_experts": experts, "num_experts_per_tok": 4, "layer_types": kinds(2),
                "sliding_window": 128, "swiglu_limit": 7.0, "attention_bias": true
            }),
        };
        if let (Value::Object(config), Value::Object(more)) = (&mut config, more) {
            config.extend(more);
        }
        config
    }
}

/// The type that most weights of a quantisation have. `_M` mixes have wider ones too, and take a twelfth more.
fn weights_of(quant: &str) -> DType {
    let quant = quant.to_ascii_lowercase();
    let kinds =
        [("q8_0", DType::Q8_0), ("mxfp4", DType::MXFP4), ("q6_k", DType::Q6_K), ("q5_k", DType::Q5_K)];
    kinds.into_iter().find(|(name, _)| quant.contains(name)).map_or(DType::Q4_K, |(_, dtype)| dtype)
}

/// What describes a model that has not been downloaded, by its short name, and the type its weights are taken to be of; nothing where its sizes are
/// not known.
pub fn described(name: &ModelName, weights: Option<DType>) -> Result<Option<(Checkpoint, DType)>, Failure> {
    let known = name.known().map(|known| (known.short.to_owned(), known.file));
    let short = || name.short().map(|short| (short.name(), short.quant));
    let Some((name, quant)) = known.or_else(short) else { return Ok(None) };
    let Some(shape) = Shape::named(&name) else { return Ok(None) };
    let dtype = weights.unwrap_or_else(|| weights_of(quant));
    Ok(Some((Checkpoint::from_config(shape.config(), dtype)?, dtype)))
}

/// A model with a short name, and what it takes in so much memory.
pub struct Candidate {
    pub name: String,
    pub parameters: u64,
    pub weights: u64,
    /// The longest context that fits, up to the model's own.
    pub context: usize,
}

/// Tokens that a model has to hold to be of use.
const USEFUL: usize = 8192;

/// Models with short names that fit into so many bytes with a context of some use, the largest first.
pub fn that_fit(memory: u64, threads: usize, on_device: bool) -> Result<Vec<Candidate>, Failure> {
    let pinned = KNOWN.iter().map(|known| known.short.to_owned());
    let mut found = Vec::new();
    for name in pinned.chain(SHORT_NAMES.iter().map(kvant_hub::ShortName::name)) {
        let Some((checkpoint, _)) = described(&ModelName::parse(&name)?, None)? else { continue };
        let description = Description::of(&checkpoint)?;
        let policy = FamilyDefault::of(&description).policy();
        let own = default_context(&description);
        let run = RunConfig { on_device, ..RunConfig::answer(&policy, own, threads) };
        let context = MemoryEstimate::longest_within(memory, &checkpoint, &description, &run)?;
        let Some(context) = context.filter(|context| *context >= USEFUL.min(own)) else { continue };
        let mut parameters = 0;
        for tensor in checkpoint.names() {
            parameters += checkpoint.tensor(tensor)?.len() as u64;
        }
        found.push(Candidate { name, parameters, weights: weight_bytes(&checkpoint, None)?, context });
    }
    found.sort_by_key(|candidate| std::cmp::Reverse(candidate.parameters));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Billions of parameters that a name promises.
    fn promised(name: &str) -> Option<f64> {
        let tag =
            name.rsplit([':', '-']).find(|part| part.starts_with(|letter: char| letter.is_ascii_digit()))?;
        let tag = if name.contains("30b-a3b") { "30b" } else { tag };
        match tag.strip_suffix('b') {
            Some(billions) => billions.parse().ok(),
            None => tag.strip_suffix('m')?.parse::<f64>().ok().map(|millions| millions / 1000.0),
        }
    }

    #[test]
    fn every_shape_is_a_model_of_the_size_that_its_name_says() {
        for shape in SHAPES {
            for name in shape.names {
                let (checkpoint, _) = described(&ModelName::parse(name).unwrap(), None).unwrap().unwrap();
                Description::of(&checkpoint).unwrap();
                let count: usize =
                    checkpoint.names().map(|tensor| checkpoint.tensor(tensor).unwrap().len()).sum();
                let ratio = count as f64 / 1e9 / promised(name).unwrap();
                assert!((0.85..1.3).contains(&ratio), "{name}: {count} parameters");
            }
        }
    }

    #[test]
    fn the_largest_that_fits_comes_first() {
        let names = |memory: u64| -> Vec<String> {
            that_fit(memory, 4, false).unwrap().into_iter().map(|candidate| candidate.name).collect()
        };
        assert_eq!(names(64 << 20), Vec::<String>::new());
        let some = names(6 << 30);
        assert!(
            some.contains(&"qwen3:4b".to_owned()) && !some.contains(&"llama3.1:70b".to_owned()),
            "{some:?}"
        );
        assert_eq!(names(200 << 30)[0], "gpt-oss:120b");
    }
}
