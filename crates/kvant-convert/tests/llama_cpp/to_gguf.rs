//! A folder as GGUF: names, shapes, numbers and metadata as llama.cpp's converter writes them.

use crate::{config, converted, gguf, safetensors};
use kvant_convert::{Conversion, Format, Weights};
use kvant_model::gguf::{Gguf, Metadata};
use serde_json::json;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Keys that the converter gives another value, or that ours does not write.
const OTHERWISE: [(&str, &[&str]); 7] = [
    // Width of one shared expert, where the tensors are of all of them; llama.cpp refuses its file.
    ("ernie4_5_moe", &["expert_shared_feed_forward_length"]),
    // A context that configurations do not have, and a rotation that nothing turns by.
    ("granitemoehybrid", &["context_length", "rope.dimension_count", "rope.freq_base"]),
    // The same; positions, which its configuration has, are switched off in all hybrids.
    ("granitemoehybrid_dense", &["context_length", "rope.scaling.finetuned"]),
    // Also groups of experts, though it has none, at which llama.cpp ends.
    (
        "nemotron_h",
        &["context_length", "rope.dimension_count", "expert_group_count", "expert_group_used_count"],
    ),
    ("nemotron_h_moe", &["context_length", "rope.dimension_count"]),
    // The converter always counts three heads for further tokens as layers; this folder has none.
    (
        "mimo_v2_flash",
        &[
            "attention.head_count_kv",
            "attention.sliding_window_pattern",
            "block_count",
            "nextn_predict_layers",
        ],
    ),
    // A context that configurations do not have, and the scaling it is after.
    (
        "hunyuan_v1_dense",
        &[
            "context_length",
            "rope.scaling.type",
            "rope.scaling.factor",
            "rope.scaling.original_context_length",
        ],
    ),
];

/// Tensors of ours that the converter does not write.
const ADDED: [(&str, &str); 1] = [
    // Tied, yet with a multiplier of its own, which the converter loses.
    ("falcon_h1_norm", "output.weight"),
];

fn ours(name: &str, file: &str, weights: Weights) -> Result<Gguf, String> {
    let mut config = config(name, file);
    if name == "gpt_oss" {
        // The bound of the clamp is not in the file; what was released is meant.
        config["swiglu_limit"] = json!(7.0);
    }
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.gguf");
    let conversion = Conversion::new(&safetensors(name, config), weights, Format::Gguf, None);
    let conversion = conversion.map_err(|e| e.to_string())?;
    conversion.write(&path, &mut |_, _| ControlFlow::Continue(())).map_err(|e| e.to_string())?;
    Gguf::from_bytes(std::fs::read(path).unwrap()).map_err(|e| e.to_string())
}

fn shapes(gguf: &Gguf) -> BTreeMap<String, Vec<usize>> {
    gguf.tensors().map(|t| (t.name.clone(), gguf.tensor(&t.name).unwrap().shape().to_vec())).collect()
}

fn values(metadata: &Metadata) -> BTreeMap<String, String> {
    let own = |key: &str| !["general.", "tokenizer."].iter().any(|prefix| key.starts_with(prefix));
    metadata
        .iter()
        .filter(|(key, _)| own(key))
        .map(|(key, value)| (key.to_owned(), format!("{value:?}")))
        .collect()
}

#[test]
fn tensors_and_metadata_are_those_of_llama_cpp() {
    let mut wrong = Vec::new();
    for name in converted() {
        let theirs = gguf(&name);
        for file in ["config.json", "config_legacy.json"] {
            let ours = match ours(&name, file, Weights::F32) {
                Ok(ours) => ours,
                Err(why) => {
                    wrong.push(format!("{name} ({file}): {why}"));
                    continue;
                }
            };
            let (mut found, expected) = (shapes(&ours), shapes(&theirs));
            ADDED
                .iter()
                .filter(|(of, _)| *of == name)
                .for_each(|(_, tensor)| assert!(found.remove(*tensor).is_some()));
            for (tensor, shape) in &expected {
                match found.remove(tensor) {
                    None => wrong.push(format!("{name} ({file}): {tensor} is missing")),
                    Some(own) if own != *shape => {
                        wrong.push(format!("{name} ({file}): {tensor} is {own:?}, not {shape:?}"))
                    }
                    Some(_) => {
                        let numbers = |gguf: &Gguf| gguf.tensor(tensor).unwrap().to_f32().unwrap();
                        let (a, b) = (numbers(&ours), numbers(&theirs));
                        // Folded multipliers and rates round once more.
                        let near = |(a, b): (&f32, &f32)| {
                            a.to_bits() == b.to_bits() || (a - b).abs() <= 4e-7 * b.abs()
                        };
                        let bad = a.iter().zip(&b).filter(|pair| !near(*pair)).count();
                        if bad > 0 {
                            wrong.push(format!("{name} ({file}): {bad} of {} in {tensor} differ", a.len()));
                        }
                    }
                }
            }
            wrong.extend(found.keys().map(|tensor| format!("{name} ({file}): {tensor} is too much")));
            let (own, expected) = (values(ours.metadata()), values(theirs.metadata()));
            for (key, value) in expected {
                let of = OTHERWISE.iter().filter(|(of, _)| *of == name).flat_map(|(_, ends)| *ends);
                let known = of.into_iter().any(|end| key.ends_with(&format!(".{end}")));
                match own.get(&key) {
                    _ if known => {}
                    Some(own) if *own == value => {}
                    other => wrong.push(format!("{name} ({file}): {key} is {other:?}, not {value}")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
