//! Tiny models of every kind that runs on a card, of random weights.

use kvant_model::Checkpoint;
use kvant_model::gguf::Gguf;
use kvant_model::synth::{self, Described, Shape};
use serde_json::json;

pub fn is_short() -> bool {
    std::env::var("KVANT_CARD_TESTS").is_ok_and(|value| value == "short")
}

/// This many tokens, or fewer where a card is only stood in for.
pub fn count(tokens: usize, short: usize) -> usize {
    if is_short() { short } else { tokens }
}

pub fn tokens(count: usize, vocabulary: usize) -> Vec<u32> {
    kvant_codec::split_mix(7).map(|n| ((n >> 33) as usize % vocabulary) as u32).take(count).collect()
}

pub fn shape(heads: usize, kv_heads: usize, head_dim: usize) -> Shape {
    Shape {
        layers: 2,
        hidden: 256,
        heads,
        kv_heads,
        head_dim,
        ffn: 320,
        vocabulary: 300,
        tied: false,
        rope_base: 10_000.0,
        context: 4096,
    }
}

/// One layer of one kv head.
pub fn tiny() -> Shape {
    Shape { layers: 1, hidden: 128, ffn: 128, ..shape(2, 1, 64) }
}

pub fn llama(shape: &Shape, weights: synth::WeightType) -> Checkpoint {
    let bytes = synth::model(shape, weights, 5).unwrap().to_bytes().unwrap();
    Checkpoint::from_gguf(Gguf::from_bytes(bytes).unwrap())
}

/// A model of another architecture, f16.
pub fn described(name: &str, config: serde_json::Value) -> Checkpoint {
    let folder = std::env::temp_dir().join(format!("kvant-cuda-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    Described::new(config, 3).unwrap().write(&folder, &mut |_| {}).unwrap();
    let checkpoint = Checkpoint::open(&folder).unwrap();
    std::fs::remove_dir_all(&folder).ok(); // the file stays mapped
    checkpoint
}

fn qwen(kind: &str, heads: usize, kv_heads: usize, head_dim: usize) -> Checkpoint {
    let config = json!({
        "model_type": kind, "hidden_size": heads * head_dim, "num_hidden_layers": 2, "intermediate_size": 192,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "max_position_embeddings": 4096, "vocab_size": 300,
        "tie_word_embeddings": true, "attention_bias": kind == "qwen2"
    });
    described(kind, config)
}

/// A model with a window on every layer.
fn mistral() -> Checkpoint {
    let config = json!({
        "model_type": "mistral", "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 192,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "max_position_embeddings": 4096, "vocab_size": 300,
        "sliding_window": 70, "tie_word_embeddings": false
    });
    described("mistral", config)
}

/// Models of attention and MLPs or experts of every kind that runs: what is peculiar to each, over what they share.
pub fn families() -> Vec<(&'static str, Checkpoint)> {
    let mut families = vec![
        ("qwen3_moe", json!({"num_experts": 8, "norm_topk_prob": true})),
        ("qwen2_moe", json!({"num_experts": 6, "shared_expert_intermediate_size": 64, "qkv_bias": true})),
        (
            "gpt_oss",
            json!({
                "num_local_experts": 4, "attention_bias": true, "sliding_window": 11, "swiglu_alpha": 1.702, "swiglu_limit": 2.0,
                "layer_types": ["sliding_attention", "full_attention"], "intermediate_size": 64
            }),
        ),
        (
            "gemma2",
            json!({
                "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 2.5, "final_logit_softcapping": 3.0,
                "query_pre_attn_scalar": 24, "sliding_window": 12, "tie_word_embeddings": true,
                "layer_types": ["sliding_attention", "full_attention"]
            }),
        ),
    ];
    if !is_short() {
        families.extend([
            ("mixtral", json!({"num_local_experts": 4, "intermediate_size": 64})),
            ("glm4_moe", json!({
                "first_k_dense_replace": 1, "n_routed_experts": 8, "n_shared_experts": 1, "norm_topk_prob": true,
                "n_group": 2, "topk_group": 1, "routed_scaling_factor": 1.5, "use_qk_norm": true, "attention_bias": true,
                "partial_rotary_factor": 0.5
            })),
            ("granite", json!({
                "attention_multiplier": 0.11, "embedding_multiplier": 6.0, "logits_scaling": 1.7,
                "residual_multiplier": 0.4
            })),
        ]);
    }
    let model = |(kind, own): (&'static str, serde_json::Value)| {
        let mut config = json!({
            "model_type": kind, "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 192,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "hidden_act": "silu",
            "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "max_position_embeddings": 4096, "vocab_size": 300,
            "moe_intermediate_size": 64, "num_experts_per_tok": 2
        });
        for (key, value) in own.as_object().unwrap() {
            config[key] = value.clone();
        }
        (kind, described(kind, config))
    };
    families.into_iter().map(model).collect()
}

/// Models of attention over latents: a query of one layer and through a narrow space, routers of every kind, queries that grow.
pub fn latents() -> Vec<(&'static str, Checkpoint)> {
    let mut own = vec![
        ("deepseek_v2", json!({"q_lora_rank": null, "topk_method": "greedy", "norm_topk_prob": false})),
        (
            "mistral4",
            json!({
                "kv_lora_rank": 512, "qk_rope_head_dim": 64, "first_k_dense_replace": 0, "num_attention_heads": 5,
                "rope_parameters": {
                    "beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.3, "max_position_embeddings": 512,
                    "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 16, "partial_rotary_factor": 0.5,
                    "rope_theta": 10000.0, "rope_type": "yarn"
                }
            }),
        ),
    ];
    if !is_short() {
        own.extend([
            (
                "deepseek_v3",
                json!({"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "num_attention_heads": 20, "v_head_dim": 48}),
            ),
            ("glm4_moe_lite", json!({
                "kv_lora_rank": 256, "qk_nope_head_dim": 192, "mlp_layer_types": ["dense", "sparse"], "num_attention_heads": 36
            })),
        ]);
    }
    let model = |(kind, own): (&'static str, serde_json::Value)| {
        let mut config = json!({
            "model_type": kind, "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 192, "num_attention_heads": 4,
            "kv_lora_rank": 128, "q_lora_rank": 64, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
            "first_k_dense_replace": 1, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "norm_topk_prob": true,
            "moe_intermediate_size": 64, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "rope_interleave": true,
            "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "vocab_size": 300, "tie_word_embeddings": false,
            "attention_bias": false, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}
        });
        for (key, value) in own.as_object().unwrap() {
            config[key] = value.clone();
        }
        config["num_key_value_heads"] = config["num_attention_heads"].clone();
        (kind, described(kind, config))
    };
    own.into_iter().map(model).collect()
}

/// Gemma 4, dense and with experts: keys of global layers that are made of values, in several kv heads.
pub fn folded() -> Vec<(&'static str, Checkpoint)> {
    let global = |heads: usize, dim: usize| json!({"num_attention_heads": heads, "per_layer_config": {"1": {"head_dim": dim, "num_key_value_heads": 2}}});
    let experts =
        json!({"enable_moe_block": true, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 64});
    let mut own =
        vec![("gemma4", vec![global(4, 128)]), ("gemma4 of experts", vec![global(6, 256), experts])];
    if !is_short() {
        own.push(("gemma4 of wide heads", vec![global(16, 512)]));
    }
    let model = |(name, own): (&'static str, Vec<serde_json::Value>)| {
        let mut config = json!({
            "model_type": "gemma4_text", "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 192, "num_key_value_heads": 2,
            "head_dim": 64, "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
            "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 14, "use_double_wide_mlp": false,
            "attention_k_eq_v": true, "enable_moe_block": false, "final_logit_softcapping": 3.0, "tie_word_embeddings": true,
            "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "vocab_size": 300, "rope_parameters": {
                "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}
            }
        });
        for (key, value) in own.iter().flat_map(|own| own.as_object().unwrap()) {
            config[key] = value.clone();
        }
        (name, described(name, config))
    };
    own.into_iter().map(model).collect()
}

pub fn models() -> Vec<(&'static str, Checkpoint)> {
    use synth::WeightType::{F16, Int4, Int8};
    let mut models = vec![
        ("llama f16 d64", llama(&shape(4, 2, 64), F16)),
        ("llama int4 d128", llama(&shape(2, 1, 128), Int4)),
        ("qwen3 f16 d64", qwen("qwen3", 2, 1, 64)),
        ("mistral f16 d64", mistral()),
        ("llama f16 d80", llama(&shape(4, 2, 80), F16)),
    ];
    if !is_short() {
        models.extend([
            ("llama int8 d64", llama(&shape(12, 1, 64), Int8)),
            ("llama f16 d128", llama(&Shape { tied: true, ..shape(16, 1, 128) }, F16)),
            ("llama int4 d64", llama(&shape(8, 8, 64), Int4)),
            ("qwen2 f16 d128", qwen("qwen2", 4, 2, 128)),
            ("llama f16 d256", llama(&shape(4, 2, 256), F16)),
            ("llama f16 d192", llama(&shape(4, 2, 192), F16)),
            ("llama f16 d512", llama(&shape(4, 2, 512), F16)),
            ("llama f16 d96", llama(&shape(6, 2, 96), F16)),
        ]);
    }
    models
}
