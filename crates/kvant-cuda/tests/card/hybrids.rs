//! Models whose layers are of several kinds: recurrent state beside attention, blocks side by side, views of another layer's keys.
//!
//! Their configurations are those of the fixtures, with heads that there are kernels for.

use crate::models::{count, described, is_short, tokens};
use crate::{Loaded, cache, card, distance, load, on_cpu, read, same_choice};
use kvant_attention::KvCache;
use kvant_cache::PageStore;
use kvant_cache::snapshot::{self, Record, Snapshot};
use kvant_model::{Checkpoint, Chunk, Description, Model, Pass};
use kvant_oracle::Oracle;
use serde_json::{Value, json};

/// What all of them have, with what is peculiar to one.
fn model(kind: &'static str, own: Value) -> (&'static str, Checkpoint) {
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
fn attending() -> Vec<(&'static str, Checkpoint)> {
    let rope = |own: Value| json!({"full_attention": own, "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}});
    let proportional =
        rope(json!({"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"}));
    let mut models = vec![
        model("olmo2", json!({})),
        model(
            "gpt_neox",
            json!({
                "num_attention_heads": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-5, "use_parallel_residual": true,
                "attention_bias": true, "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type": "default"}
            }),
        ),
        // Views of other layers' keys, inputs of each layer's own, normed values, a multiplier of the stream.
        model(
            "gemma4_text",
            json!({
                "head_dim": 64, "num_hidden_layers": 4, "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 64,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"], "sliding_window": 14,
                "num_kv_shared_layers": 2, "use_double_wide_mlp": true, "per_layer_config": {"1": {"head_dim": 128}, "3": {"head_dim": 128}},
                "vocab_size_per_layer_input": 250, "attention_k_eq_v": false, "final_logit_softcapping": 3.0, "tie_word_embeddings": true,
                "rope_parameters": proportional, "enable_moe_block": false
            }),
        ),
        model("hunyuan_v1_dense", json!({"head_dim": 64, "tie_word_embeddings": true})),
        // Experts without a gate in a narrower space, beside a shared one in the full width.
        model(
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
    if !is_short() {
        models.extend([
            model("gpt2", json!({
                "n_embd": 128, "n_head": 2, "num_key_value_heads": 2, "n_layer": 2, "n_positions": 300, "activation_function": "gelu_new",
                "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true
            })),
            model("starcoder2", json!({
                "hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5, "use_bias": true, "sliding_window": 18
            })),
            model("exaone4", json!({
                "num_hidden_layers": 4, "sliding_window": 12, "sliding_window_pattern": "LLLG", "head_dim": 64,
                "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
            })),
            model("ministral3", json!({
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
fn recurrent() -> Vec<(&'static str, Checkpoint)> {
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
        model(
            "lfm2",
            json!({
                "layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "conv_bias": false, "norm_eps": 1e-5,
                "block_auto_adjust_ff_dim": false, "tie_word_embeddings": true
            }),
        ),
        model(
            "qwen3_next",
            with(json!({
                "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
                "linear_num_key_heads": 2, "linear_num_value_heads": 4, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": []
            })),
        ),
        model(
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
    if !is_short() {
        models.extend([
            model("qwen3_5_text", with(json!({"linear_num_value_heads": 4}))),
            model("granitemoehybrid", json!({
                "layer_types": ["mamba", "attention"], "mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 64,
                "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 4, "mamba_proj_bias": false, "num_local_experts": 0,
                "num_experts_per_tok": 0, "shared_intermediate_size": 64, "position_embedding_type": "nope", "attention_multiplier": 0.15,
                "embedding_multiplier": 1.6, "logits_scaling": 1.3, "residual_multiplier": 0.75
            })),
            model("nemotron_h", json!({
                "head_dim": 64, "layers_block_type": ["mamba", "mlp", "attention", "mamba"], "num_hidden_layers": 4, "mamba_head_dim": 32,
                "mamba_num_heads": 4, "n_groups": 2, "ssm_state_size": 32, "conv_kernel": 4, "expand": 1, "mlp_hidden_act": "relu2",
                "mamba_hidden_act": "silu", "layer_norm_epsilon": 1e-5, "use_conv_bias": true, "mamba_proj_bias": false, "use_bias": false
            })),
        ]);
    }
    models
}

/// The oracle's logits, and by how much a model on the card is off them; the same bits in chunks.
fn agree(models: Vec<(&'static str, Checkpoint)>, bound: f64) {
    let card = card();
    let mut wrong = Vec::new();
    for (name, checkpoint) in models {
        let Loaded { backend, model } = load(&card, &checkpoint);
        let ids = tokens(count(200, 75), model.vocabulary());
        let oracle = Oracle::new(&Description::of(&checkpoint).unwrap(), &checkpoint).unwrap();
        let truth: Vec<f32> = oracle.run(&ids, 256).logits.iter().flatten().map(|x| *x as f32).collect();
        let open = || cache(&model, "f16", Some(backend.store()), 256);
        let found = read(&model, &mut open(), &ids, &[ids.len()]);
        let width = model.vocabulary();
        let rows = found.chunks_exact(width).zip(truth.chunks_exact(width));
        let mut offs: Vec<f64> = rows.map(|(found, truth)| distance(found, truth)).collect();
        offs.sort_by(f64::total_cmp);
        let (median, most) = (offs[offs.len() / 2], offs[offs.len() - 1]);
        let same = same_choice(&found, &truth, width);
        let chunks = read(&model, &mut open(), &ids, &[9, 50, 1]) == found;
        println!(
            "{name:20} off by {median:.1e}, at most {most:.1e}, same choice {same} %, same bits in chunks {chunks}"
        );
        if median > bound || same < 95 || !chunks {
            wrong.push(format!("{name} {median:.1e} {same} {chunks}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn other_attention_agrees_with_the_oracle() {
    agree(attending(), 3e-3);
}

#[test]
fn recurrent_state_agrees_with_the_oracle() {
    agree(recurrent(), 3e-3);
}

#[test]
fn recurrent_state_has_the_same_bits_in_batches_after_going_back_and_in_forks() {
    let card = card();
    for (name, checkpoint) in recurrent() {
        let Loaded { backend, model } = load(&card, &checkpoint);
        let width = model.vocabulary();
        let ids = tokens(count(300, 150), width);
        let open = || cache(&model, "int8", Some(backend.store()), 320);
        let mut cache = open();
        let whole = read(&model, &mut cache, &ids, &[count(140, 70), 64, 1]);
        for len in [ids.len() - 1, ids.len() - 20, 66, 3] {
            let left = cache.truncate(len);
            assert_eq!(
                read(&model, &mut cache, &ids[left..], &[31]),
                whole[left * width..],
                "{name}: back to {len}"
            );
        }
        // Two sequences in one pass: a fork that has gone on, and another.
        let mut one = open();
        read(&model, &mut one, &ids[..25], &[25]);
        let forked = |of: &KvCache| of.over(of.sequence().fork().unwrap());
        let (mut other, mut fork) = (forked(&one), forked(&one));
        read(&model, &mut one, &ids[25..60], &[35]);
        let chunks = [Chunk::new(&ids[60..70], 0..10), Chunk::new(&ids[25..40], 0..15)];
        let out = model.forward(Pass::new(&chunks), &mut [one.sequence_mut(), fork.sequence_mut()]).unwrap();
        let both = [&whole[60 * width..70 * width], &whole[25 * width..40 * width]].concat();
        assert_eq!(out.into_logits().data(), both, "{name}: a batch");
        let alone = read(&model, &mut other, &ids[25..40], &[15]);
        assert_eq!(alone, whole[25 * width..40 * width], "{name}: a fork");
        drop((cache, one, other, fork));
        assert_eq!(backend.pages().usage().used, 0, "{name}: memory is given back");
    }
}

#[test]
fn recurrent_state_moves_between_the_card_and_the_cpu() {
    let card = card();
    for (name, checkpoint) in recurrent().into_iter().take(count(3, 2)) {
        let Loaded { backend, model } = load(&card, &checkpoint);
        let host = on_cpu(&checkpoint);
        let ids = tokens(90, model.vocabulary());
        let open = |model: &Model, on_card: bool| cache(model, "f16", on_card.then(|| backend.store()), 128);
        let save = |cache: &KvCache| {
            let record = Record {
                signature: [1; 32],
                numerics: [2; 32],
                policy: "f16",
                tokens: &ids[..80],
                note: b"",
            };
            let mut bytes = Vec::new();
            snapshot::write(cache.sequence(), &record, &mut bytes).unwrap();
            bytes
        };
        let restored = |bytes: &[u8], model: &Model, on_card| {
            let mut fresh = open(model, on_card);
            fresh.restore(&Snapshot::from_bytes(bytes.to_vec()).unwrap(), &[1; 32]).unwrap();
            fresh
        };
        let (mut here, mut there) = (open(&model, true), open(&host, false));
        read(&model, &mut here, &ids[..80], &[80]);
        read(&host, &mut there, &ids[..80], &[80]);
        let (from_card, from_host) = (save(&here), save(&there));
        assert_eq!(from_card.len(), from_host.len(), "{name}");
        let mut again = restored(&from_card, &model, true);
        assert_eq!(save(&again), from_card, "{name}: saved before anything was read");
        let on = read(&model, &mut here, &ids[80..], &[1]);
        assert_eq!(on, read(&model, &mut again, &ids[80..], &[3]), "{name}: resumed on the card");
        let moved = read(&host, &mut restored(&from_card, &host, false), &ids[80..], &[1]);
        let brought = read(&model, &mut restored(&from_host, &model, true), &ids[80..], &[1]);
        let stayed = read(&host, &mut there, &ids[80..], &[1]);
        let offs = [distance(&moved, &on), distance(&brought, &stayed), distance(&on, &stayed)];
        println!(
            "{name}: card to CPU {:.1e}, CPU to card {:.1e}; apart from the start {:.1e}",
            offs[0], offs[1], offs[2]
        );
        assert!(offs.iter().all(|off| *off < 1e-2), "{name}: {offs:?}");
    }
}
