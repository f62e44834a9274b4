//! Heads that guess further tokens: the CPU against the oracle, in any chunks, and after guesses of its own.

#[path = "../../../../crates/kvant-model/tests/support/mtp.rs"]
mod support;

use crate::support::Differences;
use kvant_attention::KvCache;
use kvant_cpu::LoadOptions;
use kvant_model::description::Mtp;
use kvant_model::safetensors::Safetensors;
use kvant_model::{Checkpoint, Chunk, Description, Model, Rows};
use kvant_oracle::Oracle;
use serde_json::Value;
use std::fs;
use std::path::Path;
use support::with_head;

/// Models that get a head, where it lies, and what it shares with the model.
const MODELS: [(&str, &str, &[&str]); 8] = [
    ("qwen3_next", "mtp.", &[TABLE]),
    ("qwen3_5", "mtp.", &[TABLE]),
    ("glm4_moe", "model.layers.2.", &[]),
    ("glm4_moe_lite", "model.layers.2.", &[TABLE]),
    ("deepseek_v3", "model.layers.2.", &[TABLE]),
    ("mimo", "model.mtp_layers.0.", &[TABLE]),
    ("mimo_v2_flash", "model.mtp.layers.0.", &[TABLE]),
    ("minimax_m2", "model.mtp_layers.0.", &[TABLE, "model.norm.weight"]),
];
const TABLE: &str = "model.embed_tokens.weight";

fn checkpoint(name: &str) -> Checkpoint {
    let (bytes, config) = files(name);
    Checkpoint::from_safetensors(Safetensors::from_bytes(bytes).unwrap(), config)
}

fn files(name: &str) -> (Vec<u8>, Value) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/kvant-model/tests/fixtures");
    let read = |name: &str, file: &str| fs::read(folder.join(name).join(file)).unwrap();
    // MiMo-7B is a Qwen 2.
    let from = if name == "mimo" { "qwen2" } else { name };
    let mut config: Value = serde_json::from_slice(&read(from, "config.json")).unwrap();
    if name == "mimo" {
        config["model_type"] = name.into();
    }
    with_head(&read(from, "model.safetensors"), &config)
}

fn head(description: &Description) -> &Mtp {
    description.mtp.as_ref().expect("the file has a head").as_ref().unwrap()
}

/// What the head makes of these rows, in chunks of these sizes: logits and what the next guess gets.
fn guesses(model: &Model, told: &[u32], left: &[Vec<f64>], size: usize) -> (Vec<f32>, Vec<f32>) {
    let mut cache = KvCache::reference(&model.mtp().unwrap().slots, 64).unwrap();
    let (mut logits, mut handed_on) = (Vec::new(), Vec::new());
    for (ids, rows) in told.chunks(size).zip(left.chunks(size)) {
        let rows: Vec<f32> = rows.iter().flatten().map(|x| *x as f32).collect();
        let rows = Rows::from_vec(rows, model.description().hidden);
        let found =
            model.guess(&[Chunk::new(ids, 0..ids.len())], &rows, &mut [cache.sequence_mut()]).unwrap();
        logits.extend_from_slice(found.logits.data());
        handed_on.extend_from_slice(found.hidden.data());
    }
    (logits, handed_on)
}

#[test]
fn heads_agree_with_the_oracle_in_any_chunks() {
    for (name, place, shares) in MODELS {
        let checkpoint = checkpoint(name);
        let model =
            kvant_cpu::load(&checkpoint, LoadOptions { mtp: true, ..LoadOptions::AS_STORED }).unwrap();
        let description = model.description();
        let others: Vec<&str> = description
            .mtp_tensors()
            .iter()
            .map(|tensor| &*tensor.name)
            .filter(|name| !name.starts_with(place))
            .collect();
        assert_eq!(others, shares, "{name}");
        assert_eq!(head(description).layer.output.is_some(), name == "glm4_moe", "{name}");

        let text: Vec<u32> = (0..23).map(|i| (i * i * 5 + 3 * i) % 250).collect();
        let oracle = Oracle::new(description, &checkpoint).unwrap();
        let trace = oracle.run(&text, 64);
        let sees_normed = head(description).layer.sees_normed;
        assert_eq!(sees_normed, !name.starts_with("mimo"), "{name}");
        let all = if sees_normed { trace.hidden.last().unwrap() } else { &trace.stream };
        let left = &all[..text.len() - 1];
        let (logits, handed_on) = oracle.guess(&text[1..], left, 64).unwrap();
        let whole = guesses(&model, &text[1..], left, 22);
        let mut found = Differences::default();
        found.compare("logits", &logits.concat(), &whole.0);
        found.compare("handed on", &handed_on.concat(), &whole.1);
        assert!(found.largest() < 2e-4, "{name}: {}", found.line());
        for size in [1, 5] {
            assert_eq!(guesses(&model, &text[1..], left, size), whole, "{name} in chunks of {size}");
        }
        // The head sees what the model left, and the order of the two matters.
        let mut turned = left.to_vec();
        turned.rotate_left(1);
        assert_ne!(guesses(&model, &text[1..], &turned, 22).0, whole.0, "{name}");
    }
}

#[test]
fn a_head_that_is_not_asked_for_or_broken_leaves_the_model_as_it_was() {
    let checkpoint = checkpoint("qwen3_5");
    let model = kvant_cpu::load(&checkpoint, LoadOptions::AS_STORED).unwrap();
    assert!(model.mtp().is_none() && model.description().mtp.is_some());
    let rows = Rows::from_vec(vec![0.0; model.description().hidden], model.description().hidden);
    let mut cache = KvCache::reference(&head(model.description()).slots, 8).unwrap();
    let error = model.guess(&[Chunk::new(&[1], 0..1)], &rows, &mut [cache.sequence_mut()]).unwrap_err();
    assert!(error.to_string().contains("a head that guesses further tokens (MTP)"), "{error}");

    let (mut bytes, config) = files("qwen3_5");
    // As long, and unknown.
    let (known, other) = (b"\"mtp.pre_fc_norm_hidden.weight\"", b"\"mtp.pre_fc_norm_hiddem.weight\"");
    let at = bytes.windows(known.len()).position(|part| part == known).unwrap();
    bytes[at..at + other.len()].copy_from_slice(other);
    let broken = Checkpoint::from_safetensors(Safetensors::from_bytes(bytes).unwrap(), config);
    let options = LoadOptions { mtp: true, ..LoadOptions::AS_STORED };
    let model = kvant_cpu::load(&broken, options).unwrap();
    let why = model.description().mtp.as_ref().unwrap().as_ref().unwrap_err();
    assert!(why.contains("mtp.pre_fc_norm_hidden.weight") && model.mtp().is_none(), "{why}");
}

#[test]
fn heads_refuse_rows_ids_and_sequences_that_do_not_fit() {
    let model = kvant_cpu::load(&checkpoint("glm4_moe"), LoadOptions { mtp: true, ..LoadOptions::AS_STORED })
        .unwrap();
    let (hidden, slots) = (model.description().hidden, &model.mtp().unwrap().slots);
    let mut cache = KvCache::reference(slots, 8).unwrap();
    let rows = |count: usize| Rows::from_vec(vec![0.1; count * hidden], hidden);
    let mut fails = |ids: &[u32], rows: &Rows, part: &str| {
        let error = model.guess(&[Chunk::new(ids, 0..1)], rows, &mut [cache.sequence_mut()]).unwrap_err();
        assert!(error.to_string().contains(part) && cache.is_empty(), "{error}");
    };
    fails(&[1, 2], &rows(1), "rows");
    fails(&[9999], &rows(1), "outside the vocabulary");
    fails(&[1; 9], &rows(9), "9");
    let error = model.guess(&[Chunk::new(&[1], 0..1)], &rows(1), &mut []).unwrap_err();
    assert!(error.to_string().contains("0 sequences"), "{error}");
}
