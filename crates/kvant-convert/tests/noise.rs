//! GGUF files of random weights: every structure that is known, in the type that was asked for, the same file for the same seed.

use kvant_convert::{Weights, noise};
use kvant_model::gguf::Gguf;
use kvant_model::synth::KNOWN;
use kvant_model::{Checkpoint, DType, Description};

#[test]
fn every_known_structure_can_be_written() {
    for known in KNOWN {
        let folder = tempfile::tempdir().unwrap();
        let mut config = known.config();
        // Layers repeat, and vocabularies are long.
        let fewer = config["num_hidden_layers"].as_u64().unwrap().min(8);
        config["num_hidden_layers"] = fewer.into();
        config["vocab_size"] = 1000.into();
        if let Some(kinds) = config["layer_types"].as_array_mut() {
            kinds.truncate(fewer as usize);
        }
        let writer = noise(config.clone(), Weights::Int4, 1, folder.path())
            .unwrap_or_else(|e| panic!("{}: {e}", known.name));
        assert!(writer.tensor_bytes() > 0, "{}", known.name);
        let outline = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(Description::of(&outline).unwrap().layers.len() as u64, fewer, "{}", known.name);
    }
}

#[test]
fn a_file_of_noise_loads_and_is_the_same_again() {
    let config = serde_json::json!({
        "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64,
        "moe_intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
        "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": true, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "max_position_embeddings": 4096, "vocab_size": 300,
        "tie_word_embeddings": false
    });
    for (weights, dtype) in [
        (Weights::Int4, DType::Q4_0),
        (Weights::Int8, DType::Q8_0),
        (Weights::Mxfp4, DType::MXFP4),
        (Weights::F16, DType::F16),
    ] {
        let made = |seed| {
            let folder = tempfile::tempdir().unwrap();
            noise(config.clone(), weights, seed, folder.path()).unwrap().to_bytes().unwrap()
        };
        let bytes = made(1);
        assert!(bytes == made(1) && bytes != made(2), "{weights}");
        let checkpoint = Checkpoint::from_gguf(Gguf::from_bytes(bytes).unwrap());
        assert_eq!(checkpoint.tensor("blk.1.ffn_gate_exps.weight").unwrap().dtype(), dtype);
        let norm = checkpoint.tensor("blk.0.attn_norm.weight").unwrap().to_f32().unwrap();
        assert!(norm.iter().all(|x| *x == 1.0), "{weights}");
        Description::of(&checkpoint).unwrap();
    }
}
