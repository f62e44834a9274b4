//! Configurations of the size and structure of models people know: to tell their memory, and to measure their speed.

use serde_json::{Value, json};

/// A structure that a model people know has.
pub struct Known {
    /// The name it goes by.
    pub name: &'static str,
    /// Its structure in a few words.
    pub about: &'static str,
    config: fn() -> Value,
}

impl Known {
    /// The one of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        KNOWN.iter().find(|known| known.name == name)
    }

    /// A `config.json` of that size and structure.
    pub fn config(&self) -> Value {
        (self.config)()
    }
}

/// All of them.
pub const KNOWN: &[Known] = &[
    Known { name: "deepseek-v3", about: "MLA, 256 experts", config: deepseek_v3 },
    Known {
        name: "gemma-4-31b",
        about: "windows, global layers whose keys equal their values",
        config: gemma_4_31b,
    },
    Known { name: "glm-4.7-flash", about: "MLA, 64 experts", config: glm_4_7_flash },
    Known { name: "gpt-oss-20b", about: "windows on every other layer, 32 experts", config: gpt_oss_20b },
    Known { name: "lfm2-1.2b", about: "short convolutions, 6 layers of attention", config: lfm2_1_2b },
    Known { name: "qwen3-30b-a3b", about: "128 experts", config: qwen3_30b_a3b },
    Known {
        name: "qwen3.5-0.8b",
        about: "three gated DeltaNets to one layer of attention",
        config: qwen3_5_0_8b,
    },
    Known {
        name: "qwen3.6-27b",
        about: "three gated DeltaNets to one layer of attention",
        config: qwen3_6_27b,
    },
];

fn qwen3_30b_a3b() -> Value {
    json!({
        "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "intermediate_size": 6144,
        "moe_intermediate_size": 768, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
        "max_position_embeddings": 40_960, "vocab_size": 151_936, "tie_word_embeddings": false
    })
}

fn qwen3_5_0_8b() -> Value {
    json!({
        "model_type": "qwen3_5_text", "hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 3584,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "full_attention_interval": 4, "linear_num_key_heads": 16,
        "linear_num_value_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "partial_rotary_factor": 0.25, "rope_theta": 10_000_000.0,
        "max_position_embeddings": 262_144, "vocab_size": 248_320, "tie_word_embeddings": true
    })
}

fn qwen3_6_27b() -> Value {
    json!({
        "model_type": "qwen3_5_text", "hidden_size": 5120, "num_hidden_layers": 64, "intermediate_size": 17_408,
        "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "full_attention_interval": 4, "linear_num_key_heads": 16,
        "linear_num_value_heads": 48, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "partial_rotary_factor": 0.25, "rope_theta": 10_000_000.0,
        "max_position_embeddings": 262_144, "vocab_size": 248_320, "tie_word_embeddings": false
    })
}

fn gemma_4_31b() -> Value {
    let kind = |layer: usize| if layer % 6 == 5 { "full_attention" } else { "sliding_attention" };
    let kinds: Vec<&str> = (0..60).map(kind).collect();
    json!({
        "model_type": "gemma4_text", "hidden_size": 5376, "num_hidden_layers": 60, "intermediate_size": 21_504,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 256, "global_head_dim": 512,
        "num_global_key_value_heads": 4, "attention_k_eq_v": true, "layer_types": kinds, "sliding_window": 1024,
        "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "final_logit_softcapping": 30.0,
        "rope_parameters": {
            "full_attention": {
                "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0, "rope_type": "proportional"
            },
            "sliding_attention": {"rope_theta": 10_000.0, "rope_type": "default"}
        },
        "max_position_embeddings": 262_144, "vocab_size": 262_144, "tie_word_embeddings": true
    })
}

fn gpt_oss_20b() -> Value {
    let kind = |layer: usize| if layer.is_multiple_of(2) { "sliding_attention" } else { "full_attention" };
    let kinds: Vec<&str> = (0..24).map(kind).collect();
    json!({
        "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24, "intermediate_size": 2880,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32,
        "num_experts_per_tok": 4, "layer_types": kinds, "sliding_window": 128, "hidden_act": "silu",
        "swiglu_limit": 7.0, "attention_bias": true, "rms_norm_eps": 1e-5, "rope_theta": 150_000.0,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
            "original_max_position_embeddings": 4096
        },
        "max_position_embeddings": 131_072, "vocab_size": 201_088, "tie_word_embeddings": false
    })
}

fn glm_4_7_flash() -> Value {
    json!({
        "model_type": "glm4_moe_lite", "hidden_size": 2048, "num_hidden_layers": 47, "intermediate_size": 10_240,
        "moe_intermediate_size": 1536, "num_attention_heads": 20, "num_key_value_heads": 20, "q_lora_rank": 768,
        "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
        "n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 4, "first_k_dense_replace": 1,
        "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 1.8,
        "topk_method": "noaux_tc", "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0,
        "max_position_embeddings": 202_752, "vocab_size": 154_880, "tie_word_embeddings": false
    })
}

fn deepseek_v3() -> Value {
    json!({
        "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "intermediate_size": 18_432,
        "moe_intermediate_size": 2048, "num_attention_heads": 128, "num_key_value_heads": 128,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
        "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4, "norm_topk_prob": true,
        "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
        "rope_scaling": {
            "type": "yarn", "factor": 40.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096
        },
        "max_position_embeddings": 163_840, "vocab_size": 129_280, "tie_word_embeddings": false
    })
}

fn lfm2_1_2b() -> Value {
    let attends = [2, 5, 8, 10, 12, 14];
    let kind = |layer: usize| if attends.contains(&layer) { "full_attention" } else { "conv" };
    let kinds: Vec<&str> = (0..16).map(kind).collect();
    json!({
        "model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 12_288,
        "block_auto_adjust_ff_dim": true, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256,
        "num_attention_heads": 32, "num_key_value_heads": 8, "layer_types": kinds, "conv_L_cache": 3,
        "conv_bias": false, "norm_eps": 1e-5, "rope_theta": 1_000_000.0, "max_position_embeddings": 128_000,
        "vocab_size": 65_536, "tie_word_embeddings": true
    })
}
