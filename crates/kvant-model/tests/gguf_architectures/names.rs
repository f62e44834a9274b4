//! Names held against the tensor map of the gguf package, which `make.py` wrote to `tensor_names.json`.

use crate::{converted, gguf, tests};
use kvant_model::arch::REGISTRY;
use kvant_model::{Checkpoint, Description};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;

fn known_names() -> Value {
    let text = fs::read_to_string(tests().join("data/gguf/tensor_names.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A tensor's name with `{}` for the layer and without what says which part of it a tensor is.
fn stem(name: &str) -> String {
    let stem = [".weight", ".bias", ".scale"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
    match stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((layer, part)) if layer.parse::<usize>().is_ok() => format!("blk.{{}}.{part}"),
        _ => stem.to_owned(),
    }
}

#[test]
fn stems_of_names() {
    assert_eq!(stem("blk.12.attn_q.weight"), "blk.{}.attn_q");
    assert_eq!(stem("blk.0.ssm_a"), "blk.{}.ssm_a");
    assert_eq!(stem("token_embd.weight"), "token_embd");
}

#[test]
fn descriptions_name_tensors_as_the_gguf_package_does() {
    let known = known_names();
    for name in converted() {
        let file = gguf(&name);
        let architecture = file.metadata().architecture().unwrap().to_owned();
        let known: BTreeSet<&str> = known[&architecture]
            .as_array()
            .unwrap_or_else(|| panic!("{name}: no names for {architecture:?}"))
            .iter()
            .map(|name| name.as_str().unwrap())
            .collect();
        let description = Description::of(&Checkpoint::from_gguf(file)).unwrap();
        for tensor in description.tensors() {
            assert!(known.contains(stem(&tensor.name).as_str()), "{name}: {:?}", tensor.name);
        }
    }
}

/// Every GGUF architecture that can be read was read from a file of the converter's, or is named here with the reason.
#[test]
fn no_architecture_is_read_that_no_converter_wrote() {
    // A text model of its own in no fixture, which `variants.rs` reads from a Llama; and one whose converter insists on four streams,
    // of which the fixture has three.
    const UNSEEN: [&str; 2] = ["mistral3", "gemma3n"];
    let seen: BTreeSet<String> =
        converted().iter().map(|name| gguf(name).metadata().architecture().unwrap().to_owned()).collect();
    for name in REGISTRY.iter().flat_map(|known| known.gguf_name.split('|')).filter(|name| !name.is_empty()) {
        assert!(seen.contains(name) || UNSEEN.contains(&name), "{name}");
        assert!(known_names()[name].is_array(), "{name} is no architecture of the gguf package");
    }
}
