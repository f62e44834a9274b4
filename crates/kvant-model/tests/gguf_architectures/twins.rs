//! Every converted file against its safetensors twin.

use crate::{config, converted, difference, gguf, logits, safetensors};
use kvant_model::{Checkpoint, Description};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Largest absolute difference of logits. The same numbers meet in another order at most, so it is small in all architectures;
/// folded multipliers and rates round once more.
const TOLERANCE: f32 = 1e-4;

/// Fixtures that use what the converter leaves out of files, whose readers take what was released.
const LEFT_OUT: [&str; 8] = [
    "falcon_h1_norm",
    "gemma2",
    "gemma3",
    "gpt_oss",
    "granitemoehybrid_dense",
    "mistral",
    "mistral4",
    "starcoder2",
];

/// The configuration as files say it.
fn as_files_say(name: &str, mut config: Value) -> Value {
    match name {
        // The embedding's multiplier is in the table, which is the output too.
        "falcon_h1_norm" => config["lm_head_multiplier"] = config["embedding_multiplier"].clone(),
        // The multiplier of scores.
        "gemma2" => config["query_pre_attn_scalar"] = config["head_dim"].clone(),
        // That, and which layers slide: all but every sixth.
        "gemma3" => {
            config["query_pre_attn_scalar"] = config["head_dim"].clone();
            let kind = |layer: u64| if layer % 6 == 5 { "full_attention" } else { "sliding_attention" };
            let layers = config["num_hidden_layers"].as_u64().unwrap();
            config["layer_types"] = (0..layers).map(kind).collect();
        }
        // The bound of the clamp.
        "gpt_oss" => config["swiglu_limit"] = json!(7.0),
        // Only models without Mamba-2 layers are written with positions.
        "granitemoehybrid_dense" => config["position_embedding_type"] = json!("nope"),
        // The window.
        "mistral" | "starcoder2" => config["sliding_window"] = Value::Null,
        // How queries grow with their position.
        "mistral4" => {
            config["rope_parameters"].as_object_mut().unwrap().remove("llama_4_scaling_beta").unwrap();
        }
        _ => assert!(!LEFT_OUT.contains(&name), "{name}"),
    }
    config
}

#[test]
fn converted_files_give_the_logits_of_their_fixtures() {
    let mut wrong = Vec::new();
    for name in converted() {
        let expected = logits(&name, &safetensors(&name, as_files_say(&name, config(&name))));
        let worst = difference(&logits(&name, &Checkpoint::from_gguf(gguf(&name))), &expected);
        println!("{name:24} {worst:.1e}");
        if worst > TOLERANCE {
            wrong.push(format!("{name}: off by {worst}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("; "));
}

/// What files cannot say matters in these fixtures, so that the test above would notice if one could.
#[test]
fn what_files_leave_out_changes_the_logits() {
    for name in LEFT_OUT {
        let whole = logits(name, &safetensors(name, config(name)));
        let as_said = logits(name, &safetensors(name, as_files_say(name, config(name))));
        assert!(difference(&whole, &as_said) > 1e-3, "{name}");
    }
}

/// No weight is left unread: all tensors but the rotary divisors, which are no weights, are in the description.
#[test]
fn every_tensor_of_a_converted_file_is_used() {
    for name in converted() {
        let file = gguf(&name);
        let there: BTreeSet<String> = file.tensors().map(|tensor| tensor.name.clone()).collect();
        let description = Description::of(&Checkpoint::from_gguf(file)).unwrap();
        let used: BTreeSet<&str> = description.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        let unused: Vec<&String> = there
            .iter()
            .filter(|tensor| !used.contains(tensor.as_str()) && !tensor.starts_with("rope_f"))
            .collect();
        assert!(unused.is_empty(), "{name}: {unused:?}");
    }
}
