//! Memory of models that are not here: estimated from their configurations alone, against sums by hand and bytes counted.

use kvant_cpu::LoadOptions;
use kvant_engine::estimate::{MemoryEstimate, RunConfig};
use kvant_engine::{KvCache, Policy};
use kvant_model::synth::{Described, Known};
use kvant_model::{Checkpoint, Chunk, DType, Description, Pass};
use serde_json::Value;

/// Bytes of keys and values, state and checkpoints at `context` tokens, kept in half precision.
fn cache_bytes(name: &str, context: usize) -> u64 {
    let checkpoint = Checkpoint::from_config(Known::named(name).unwrap().config(), DType::Q4_0).unwrap();
    let description = Description::of(&checkpoint).unwrap();
    let policy: Policy = "f16".parse().unwrap();
    MemoryEstimate::new(&checkpoint, &description, &RunConfig::answer(&policy, context, 8)).unwrap().cache
}

#[track_caller]
fn near(found: u64, by_hand: u64, percent: u64) {
    let difference = found.abs_diff(by_hand);
    assert!(difference * 100 <= by_hand * percent, "{found} found, {by_hand} by hand");
}

/// Of every two-byte number.
const HALF: u64 = 2;

#[test]
fn every_structure_is_estimated_from_its_configuration_alone() {
    // MLA: a latent of 512 and a rotated part of 64, once for all heads.
    near(cache_bytes("deepseek-v3", 131_072), 61 * 576 * HALF * 131_072, 2);
    near(cache_bytes("glm-4.7-flash", 131_072), 47 * 576 * HALF * 131_072, 2);
    // Twelve layers see everything; twelve see 128 tokens, and keep a page or two more.
    let everything = 12 * 2 * 8 * 64 * HALF * 131_072;
    let found = cache_bytes("gpt-oss-20b", 131_072);
    near(found, everything, 3);
    assert!(found > everything);
    // Ten global layers with 4 heads of 512, of which values and a quarter of the keys are kept; fifty windows of 1,024.
    let global = 10 * 4 * 640 * HALF * 131_072;
    let windows = 50 * 2 * 16 * 256 * HALF * 1024;
    let found = cache_bytes("gemma-4-31b", 131_072);
    assert!(found > global + windows && found < (global + 2 * windows) * 102 / 100, "{found}");
    // Sixteen layers of attention; 48 states of 48 matrices, and checkpoints that may take as much as keys and values.
    let attention = 16 * 2 * 4 * 256 * HALF * 262_144;
    let state = 48 * (48 * 128 * 128 + 3 * 10_240) * 4;
    let found = cache_bytes("qwen3.6-27b", 262_144);
    assert!(found > 2 * attention + state && found < (2 * attention + 20 * state) * 102 / 100, "{found}");
}

/// The configuration with fewer and narrower layers, of the same structure.
fn small(name: &str) -> Value {
    let mut config = Known::named(name).unwrap().config();
    let object = config.as_object_mut().unwrap();
    let mut set = |key: &str, value: Value| {
        if object.contains_key(key) {
            object.insert(key.to_owned(), value);
        }
    };
    for (key, size) in [
        ("hidden_size", 64),
        ("intermediate_size", 64),
        ("moe_intermediate_size", 32),
        ("num_hidden_layers", 6),
        ("vocab_size", 300),
        ("q_lora_rank", 32),
        ("n_routed_experts", 8),
        ("num_local_experts", 4),
        ("num_experts_per_tok", 2),
        ("topk_group", 2),
        ("n_group", 4),
        ("first_k_dense_replace", 1),
        ("linear_num_key_heads", 2),
        ("linear_num_value_heads", 4),
        ("num_attention_heads", 4),
        ("num_key_value_heads", 2),
        ("num_global_key_value_heads", 1),
        ("sliding_window", 64),
    ] {
        set(key, size.into());
    }
    let kinds = config["layer_types"].as_array().map(|kinds| kinds[..6].to_vec());
    if let Some(kinds) = kinds {
        config["layer_types"] = kinds.into();
    }
    config
}

#[test]
fn bytes_counted_on_small_models_of_each_structure_are_within_the_estimate() {
    const TOKENS: usize = 700;
    let tokens: Vec<u32> = (0..TOKENS as u32).map(|i| i * 7 % 256).collect();
    for name in ["deepseek-v3", "gemma-4-31b", "glm-4.7-flash", "gpt-oss-20b", "lfm2-1.2b", "qwen3.5-0.8b"] {
        let folder = tempfile::tempdir().unwrap();
        Described::new(small(name), 1).unwrap().write(folder.path(), &mut |_| {}).unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let model = kvant_cpu::load(&checkpoint, LoadOptions::default()).unwrap();
        let policy: Policy = "int8".parse().unwrap();
        let mut cache = KvCache::new(policy.clone(), model.slots(), TOKENS).unwrap();
        for chunk in tokens.chunks(200) {
            let logits = model
                .forward(Pass::new(&[Chunk::new(chunk, 0..1)]), &mut [cache.sequence_mut()])
                .unwrap()
                .into_logits();
            assert!(logits.data().iter().all(|z| z.is_finite()), "{name}");
        }
        let layout = cache.sequence().layout();
        let (counted, estimated) = (cache.footprint().bytes(), layout.arena_bytes(TOKENS, 200));
        assert!(counted <= estimated, "{name}: {counted} counted, {estimated} estimated");
        // Checkpoints and the exact rows of a pass are in what is estimated, and gone when the pass is over.
        assert!(counted * 20 > estimated, "{name}: {counted} counted, {estimated} estimated");
    }
}
