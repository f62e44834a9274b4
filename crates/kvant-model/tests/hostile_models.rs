//! Checkpoints whose configuration or tensors are wrong: refused by the name of what is wrong, never a panic.

use kvant_attention::KvCache;
use kvant_cache::{CacheFull, StateError};
use kvant_cpu::LoadOptions;
use kvant_model::gguf::{Gguf, Writer, WriterValue};
use kvant_model::safetensors::Safetensors;
use kvant_model::{Checkpoint, Chunk, ForwardError, Model, Pass, Tensor};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn config(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(folder(name).join("config.json")).unwrap()).unwrap()
}

fn load(name: &str, config: Value) -> Result<Model, String> {
    let tensors = Safetensors::open(&folder(name).join("model.safetensors")).unwrap();
    kvant_cpu::load(&Checkpoint::from_safetensors(tensors, config), LoadOptions::default())
        .map_err(|e| e.to_string())
}

/// The fixture with one key changed (or, for null, removed) must be refused with a message that holds `named`.
fn refused(fixture: &str, key: &str, value: Value, named: &str) {
    let mut config = config(fixture);
    let object = config.as_object_mut().unwrap();
    match value {
        Value::Null => object.remove(key),
        value => object.insert(key.to_owned(), value),
    };
    match load(fixture, config.clone()) {
        Ok(_) => panic!("{fixture} with {key} = {:?} was loaded", config.get(key)),
        Err(error) => assert!(error.contains(named), "{fixture}, {key}: {error}"),
    }
}

#[test]
fn a_bad_hyper_parameter_is_named() {
    refused("llama", "model_type", Value::Null, "model_type");
    refused("llama", "hidden_size", Value::Null, "hidden_size");
    refused("llama", "num_attention_heads", json!(0), "num_attention_heads");
    refused("llama", "num_hidden_layers", json!(1e300), "num_hidden_layers");
    refused("llama", "num_key_value_heads", json!(3), "num_key_value_heads");
    refused("llama", "intermediate_size", json!(-88), "intermediate_size");
    refused("llama", "rms_norm_eps", json!("NaN"), "rms_norm_eps");
    refused("llama", "rms_norm_eps", json!(0.0), "rms_norm_eps");
    refused("llama", "hidden_act", json!("mystery"), "mystery");
    refused("llama", "tie_word_embeddings", json!("yes"), "tie_word_embeddings");
    refused("llama", "rope_parameters", json!([1]), "rope_parameters");
    refused("llama", "rope_parameters", json!({"rope_type": "spiral"}), "spiral");
    refused("llama", "rope_parameters", json!({"rope_type": "linear"}), "factor");
    refused("llama", "rope_parameters", json!({"rope_theta": 0.5}), "rope_theta");
    refused("llama", "rope_parameters", json!({"partial_rotary_factor": 1.5}), "partial_rotary_factor");
    refused("llama", "rope_parameters", json!({"partial_rotary_factor": 0.01}), "rotary");
    refused(
        "phi3",
        "rope_parameters",
        json!({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}),
        "divisors",
    );
    refused("gemma3", "layer_types", json!(["full_attention"]), "layer_types");
    refused("gemma3", "layer_types", json!(vec!["chunked_attention"; 6]), "chunked_attention");
    refused("gemma3", "sliding_window", Value::Null, "sliding_window");
    refused("gemma3", "use_bidirectional_attention", json!(true), "use_bidirectional_attention");
    refused("mixtral", "num_experts_per_tok", json!(5), "num_experts_per_tok");
    refused("smollm3", "no_rope_layers", json!([1, 0]), "no_rope_layers");
    refused("qwen3_moe", "moe_intermediate_size", Value::Null, "moe_intermediate_size");
}

#[test]
fn a_missing_or_misshapen_tensor_is_named_with_both_shapes() {
    refused("llama", "num_hidden_layers", json!(4), "model.layers.3.");
    refused("llama", "vocab_size", json!(300), "model.embed_tokens.weight");
    refused("llama", "intermediate_size", json!(96), "[96, 64]");
    refused("llama", "intermediate_size", json!(96), "[88, 64]");
    refused("llama", "attention_bias", json!(true), "q_proj.bias");
    refused("llama_tied", "tie_word_embeddings", json!(false), "lm_head.weight");
    refused("mixtral", "num_local_experts", json!(6), "block_sparse_moe.gate.weight");
    refused("gpt2", "n_positions", json!(81), "transformer.wpe.weight");
    refused("qwen3", "head_dim", json!(16), "self_attn.q_proj.weight");
}

#[test]
fn gguf_metadata_is_no_more_trusted() {
    let gguf = |change: &dyn Fn(&mut Writer)| {
        let mut writer = Writer::new("llama");
        for (key, value) in [
            ("embedding_length", 8),
            ("block_count", 1),
            ("feed_forward_length", 8),
            ("attention.head_count", 2),
        ] {
            writer.set(&format!("llama.{key}"), WriterValue::U32(value));
        }
        writer.set("llama.attention.layer_norm_rms_epsilon", WriterValue::F32(1e-5));
        change(&mut writer);
        let gguf = Gguf::from_bytes(writer.to_bytes().unwrap()).unwrap();
        kvant_cpu::load(&Checkpoint::from_gguf(gguf), LoadOptions::default())
            .err()
            .map(|e| e.to_string())
            .unwrap()
    };
    let eps = "llama.attention.layer_norm_rms_epsilon";
    assert!(gguf(&|_| {}).contains("blk.0."), "no tensors");
    assert!(
        gguf(&|w| {
            w.set(eps, WriterValue::F32(f32::NAN));
        })
        .contains(eps)
    );
    assert!(
        gguf(&|w| {
            w.set("llama.block_count", WriterValue::U32(u32::MAX));
        })
        .contains("llama.block_count")
    );
    assert!(
        gguf(&|w| {
            w.set("llama.attention.head_count", WriterValue::i32s([2, 3]));
        })
        .contains("head_count")
    );
    assert!(
        gguf(&|w| {
            w.set("llama.rope.scaling.type", WriterValue::String("spiral".to_owned()));
        })
        .contains("spiral")
    );
    assert!(
        gguf(&|w| {
            w.tensor(Tensor::from_f32("rope_freqs.weight", vec![2], &[1.0, 0.0]).unwrap());
        })
        .contains("divisors")
    );
    assert!(
        gguf(&|w| {
            w.set("general.architecture", WriterValue::String("mystery".to_owned()));
        })
        .contains("\"mystery\"")
    );
}

#[test]
fn a_pass_that_cannot_be_made_leaves_the_cache_as_it_was() {
    let model = load("gpt2", config("gpt2")).unwrap();
    let mut cache = KvCache::reference(model.slots(), 100).unwrap();
    let mut pass = |tokens: &[u32], wanted| {
        model
            .forward(Pass::new(&[Chunk::new(tokens, wanted)]), &mut [cache.sequence_mut()])
            .map(|outputs| outputs.rows())
    };
    assert_eq!(pass(&[1, 2, 3], 2..3), Ok(1));
    assert_eq!(pass(&[], 0..0), Err(ForwardError::BadChunk { tokens: 0, wanted: 0..0 }));
    assert_eq!(pass(&[1], 0..2), Err(ForwardError::BadChunk { tokens: 1, wanted: 0..2 }));
    assert_eq!(pass(&[256], 0..1), Err(ForwardError::UnknownToken { id: 256, vocabulary: 256 }));
    assert_eq!(pass(&[1; 78], 0..0), Err(ForwardError::BeyondPositions { position: 80, limit: 80 }));
    assert_eq!(pass(&[1; 77], 0..0), Ok(0));

    let model = load("llama", config("llama")).unwrap();
    let mut cache = KvCache::reference(model.slots(), 4).unwrap();
    let mut pass = |tokens: &[u32]| {
        model
            .forward(Pass::new(&[Chunk::new(tokens, 0..0)]), &mut [cache.sequence_mut()])
            .map(|outputs| outputs.rows())
    };
    assert_eq!(pass(&[1, 2, 3]), Ok(0));
    let full = StateError::new(0, CacheFull { held: 3, asked: 2, capacity: 4 });
    assert_eq!(pass(&[1, 2]), Err(ForwardError::State(full)));
    assert_eq!(pass(&[1]), Ok(0));
}
