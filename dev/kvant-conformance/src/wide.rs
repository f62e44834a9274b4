//! Tiny models of random weights whose heads are as wide as real ones have them: 64 channels and more.
//!
//! Their configurations are those of the fixtures but for that. Backends with kernels for some widths alone are held to these; there is
//! no reference for them but the oracle.

use kvant_model::Checkpoint;
use kvant_model::gguf::Gguf;
use kvant_model::synth::{self, Described, Shape};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is peculiar to models of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Llamas and their like, of every type of weights and width of heads.
    Dense,
    /// Experts, soft caps, sinks, multipliers.
    Families,
    /// Blocks side by side, norms of all heads, views of another layer's keys.
    Attending,
    /// Recurrent state beside attention.
    Recurrent,
    /// Attention over latents.
    Latents,
    /// Keys that are made of values.
    Folded,
}

/// All models; fewer where they are to be short.
pub fn all(short: bool) -> Vec<(Group, &'static str, Checkpoint)> {
    let of = |group: Group, models: Vec<(&'static str, Checkpoint)>| {
        models.into_iter().map(move |(name, checkpoint)| (group, name, checkpoint))
    };
    of(Group::Dense, dense(short))
        .chain(of(Group::Families, families(short)))
        .chain(of(Group::Attending, attending(short)))
        .chain(of(Group::Recurrent, recurrent(short)))
        .chain(of(Group::Latents, latents(short)))
        .chain(of(Group::Folded, folded(short)))
        .collect()
}

/// Two layers of these heads.
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

/// A Llama of a shape.
pub fn llama(shape: &Shape, weights: synth::WeightType) -> Checkpoint {
    let bytes = synth::model(shape, weights, 5).unwrap().to_bytes().unwrap();
    Checkpoint::from_gguf(Gguf::from_bytes(bytes).unwrap())
}

/// A model of another architecture, f16.
pub fn described(name: &str, config: Value) -> Checkpoint {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("kvant-wide-{}-{number}-{name}", std::process::id()));
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
pub fn families(short: bool) -> Vec<(&'static str, Checkpoint)> {
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
    if !short {
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
    let model = |(kind, own): (&'static str, Value)| {
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
pub fn latents(short: bool) -> Vec<(&'static str, Checkpoint)> {
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
    if !short {
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
    let model = |(kind, own): (&'static str, Value)| {
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
pub fn folded(short: bool) -> Vec<(&'static str, Checkpoint)> {
    let global = |heads: usize, dim: usize| json!({"num_attention_heads": heads, "per_layer_config": {"1": {"head_dim": dim, "num_key_value_heads": 2}}});
    let experts =
        json!({"enable_moe_block": true, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 64});
    let mut own =
        vec![("gemma4", vec![global(4, 128)]), ("gemma4 of experts", vec![global(6, 256), experts])];
    if !short {
        own.push(("gemma4 of wide heads", vec![global(16, 512)]));
    }
    let model = |(name, own): (&'static str, Vec<Value>)| {
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

/// Llamas and their like: of every type of weights, width of heads and number of heads to a kv head.
pub fn dense(short: bool) -> Vec<(&'static str, Checkpoint)> {
    use synth::WeightType::{F16, Int4, Int8};
    let mut models = vec![
        ("llama f16 d64", llama(&shape(4, 2, 64), F16)),
        ("llama int4 d128", llama(&shape(2, 1, 128), Int4)),
        ("qwen3 f16 d64", qwen("qwen3", 2, 1, 64)),
        ("mistral f16 d64", mistral()),
        ("llama f16 d80", llama(&shape(4, 2, 80), F16)),
    ];
    if !short {
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

/// What all of them have, with what is peculiar to one.
fn layered(kind: &'static str, own: Value) -> (&'static str, Checkpoint) {
    let mut config = json!({
        "model_type": kind, "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 192,
        "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096, "vocab_size": 300, "tie_word_embeddings": false,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}
    });
    for (key, value) in own.as_object().unwrap() {
        config[key] = value.clone();
    }
    (kind, described(kind, config))
}

/// Attention and MLPs alone.
pub fn attending(short: bool) -> Vec<(&'static str, Checkpoint)> {
    let rope = |own: Value| json!({"full_attention": own, "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}});
    let proportional =
        rope(json!({"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"}));
    let mut models = vec![
        layered("olmo2", json!({})),
        layered(
            "gpt_neox",
            json!({
                "num_attention_heads": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-5, "use_parallel_residual": true,
                "attention_bias": true, "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type": "default"}
            }),
        ),
        // Views of other layers' keys, inputs of each layer's own, normed values, a multiplier of the stream.
        layered(
            "gemma4_text",
            json!({
                "head_dim": 64, "num_hidden_layers": 4, "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 64,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"], "sliding_window": 14,
                "num_kv_shared_layers": 2, "use_double_wide_mlp": true, "per_layer_config": {"1": {"head_dim": 128}, "3": {"head_dim": 128}},
                "vocab_size_per_layer_input": 250, "attention_k_eq_v": false, "final_logit_softcapping": 3.0, "tie_word_embeddings": true,
                "rope_parameters": proportional, "enable_moe_block": false
            }),
        ),
        layered("hunyuan_v1_dense", json!({"head_dim": 64, "tie_word_embeddings": true})),
        // Several residual streams, a layer of low rank beside attention, gates that are cut.
        layered(
            "gemma3n_text",
            json!({
                "head_dim": 64, "num_hidden_layers": 4, "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 64,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"], "sliding_window": 14,
                "num_kv_shared_layers": 2, "intermediate_size": [192, 192, 192, 192], "laurel_rank": 64, "altup_num_inputs": 3,
                "altup_active_idx": 1, "altup_correct_scale": true, "altup_coef_clip": 120.0, "vocab_size_per_layer_input": 250,
                "activation_sparsity_pattern": [0.8, 0.6, 0.0, 0.0], "final_logit_softcapping": 3.0, "tie_word_embeddings": true,
                "rope_parameters": rope(json!({"rope_theta": 1e6, "rope_type": "default"}))
            }),
        ),
        // Experts without a gate in a narrower space, beside a shared one in the full width.
        layered(
            "nemotron_h",
            json!({
                "head_dim": 64, "layers_block_type": ["moe", "attention"], "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu",
                "mamba_head_dim": 32, "mamba_num_heads": 4, "n_groups": 2, "ssm_state_size": 32, "conv_kernel": 4, "expand": 1,
                "layer_norm_epsilon": 1e-5, "moe_intermediate_size": 64, "moe_latent_size": 64, "moe_shared_expert_intermediate_size": 128,
                "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
                "norm_topk_prob": true, "routed_scaling_factor": 1.5
            }),
        ),
    ];
    if !short {
        models.extend([
            layered("gpt2", json!({
                "n_embd": 128, "n_head": 2, "num_key_value_heads": 2, "n_layer": 2, "n_positions": 300, "activation_function": "gelu_new",
                "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true
            })),
            layered("starcoder2", json!({
                "hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5, "use_bias": true, "sliding_window": 18
            })),
            layered("exaone4", json!({
                "num_hidden_layers": 4, "sliding_window": 12, "sliding_window_pattern": "LLLG", "head_dim": 64,
                "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
            })),
            layered("ministral3", json!({
                "head_dim": 64, "rope_parameters": {
                    "rope_theta": 10000.0, "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16,
                    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3
                }
            })),
        ]);
    }
    models
}

/// Recurrent state beside attention.
pub fn recurrent(short: bool) -> Vec<(&'static str, Checkpoint)> {
    let delta = json!({
        "head_dim": 64, "layer_types": ["linear_attention", "full_attention"], "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 64, "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_value_head_dim": 32,
        "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "default"}
    });
    let with = |own: Value| {
        let mut all = delta.clone();
        all.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        all
    };
    let mut models = vec![
        layered(
            "lfm2",
            json!({
                "layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "conv_bias": false, "norm_eps": 1e-5,
                "block_auto_adjust_ff_dim": false, "tie_word_embeddings": true
            }),
        ),
        layered(
            "qwen3_next",
            with(json!({
                "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
                "linear_num_key_heads": 2, "linear_num_value_heads": 4, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": []
            })),
        ),
        layered(
            "falcon_h1",
            json!({
                "head_dim": 64, "num_hidden_layers": 1, "key_multiplier": 0.6, "attention_in_multiplier": 1.2, "attention_out_multiplier": 0.9,
                "embedding_multiplier": 3.0, "lm_head_multiplier": 0.6, "mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_head": 64,
                "mamba_d_ssm": 128, "mamba_d_state": 32, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 2,
                "mamba_norm_before_gate": false, "mamba_rms_norm": false, "mlp_multipliers": [0.8, 0.7], "mamba_proj_bias": false,
                "ssm_in_multiplier": 1.25, "ssm_multipliers": [0.7, 1.3, 0.8, 1.2, 0.9], "ssm_out_multiplier": 0.7
            }),
        ),
    ];
    if !short {
        models.extend([
            layered("qwen3_5_text", with(json!({"linear_num_value_heads": 4}))),
            layered("granitemoehybrid", json!({
                "layer_types": ["mamba", "attention"], "mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 64,
                "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 4, "mamba_proj_bias": false, "num_local_experts": 0,
                "num_experts_per_tok": 0, "shared_intermediate_size": 64, "position_embedding_type": "nope", "attention_multiplier": 0.15,
                "embedding_multiplier": 1.6, "logits_scaling": 1.3, "residual_multiplier": 0.75
            })),
            layered("nemotron_h", json!({
                "head_dim": 64, "layers_block_type": ["mamba", "mlp", "attention", "mamba"], "num_hidden_layers": 4, "mamba_head_dim": 32,
                "mamba_num_heads": 4, "n_groups": 2, "ssm_state_size": 32, "conv_kernel": 4, "expand": 1, "mlp_hidden_act": "relu2",
                "mamba_hidden_act": "silu", "layer_norm_epsilon": 1e-5, "use_conv_bias": true, "mamba_proj_bias": false, "use_bias": false
            })),
        ]);
    }
    models
}
