//! Converted files against llama.cpp itself (`data/gguf/run_llama.py`), which computes in its own way: some of its functions come from
//! tables in half precision.

use crate::{config, converted, difference, gguf, logits, safetensors, tests};
use kvant_model::Checkpoint;
use kvant_model::safetensors::Safetensors;
use serde_json::{Value, json};

/// Largest absolute difference of logits after a prompt.
const TOLERANCE: f32 = 5e-3;

/// Where llama.cpp computes something else than the reference, the configuration that does the same.
fn as_peer_reads(name: &str, mut config: Value) -> Option<Value> {
    match name {
        // It knows a window only in the model of 64 layers.
        "exaone4" => {
            config["sliding_window"] = Value::Null;
            config["layer_types"] = json!(vec!["full_attention"; 4]);
        }
        // It ends YaRN's ramp at whole pairs, and the clamp is not in the file.
        "gpt_oss" => {
            config["rope_parameters"]["truncate"] = json!(true);
            config["swiglu_limit"] = json!(7.0);
        }
        _ => return None,
    }
    Some(config)
}

#[test]
fn converted_files_give_the_logits_of_llama_cpp() {
    let peer = Safetensors::open(&tests().join("data/gguf/llama_logits.safetensors")).unwrap();
    let mut wrong = Vec::new();
    let mut compared = 0;
    for name in converted() {
        let Some(expected) = peer.tensor(&name).unwrap() else { continue };
        let expected = expected.to_f32().unwrap();
        let found = match as_peer_reads(&name, config(&name)) {
            Some(config) => logits(&name, &safetensors(&name, config)),
            None => logits(&name, &Checkpoint::from_gguf(gguf(&name))),
        };
        let worst = difference(&found[found.len() - expected.len()..], &expected);
        let size = expected.iter().fold(0.0f32, |size, x| size.max(x.abs()));
        println!("{name:24} {worst:.1e} of {size:.1}");
        compared += 1;
        if worst > TOLERANCE {
            wrong.push(format!("{name}: off by {worst}"));
        }
    }
    assert!(wrong.is_empty() && compared >= 30, "{compared} compared; {}", wrong.join("; "));
}
