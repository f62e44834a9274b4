//! Models from their configuration alone have the tensors that they have in their files.

use kvant_model::{Checkpoint, DType, Description};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Every checkpoint of the fixtures that has a configuration.
fn checkpoints() -> Vec<PathBuf> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let folders = std::fs::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = folders
        .filter(|f| f.join("config.json").is_file() && f.join("model.safetensors").is_file())
        .collect();
    found.sort();
    found
}

fn config(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap()
}

#[test]
fn every_architecture_has_the_tensors_and_the_caches_of_its_file() {
    let folders = checkpoints();
    assert!(folders.len() > 10, "{folders:?}");
    for folder in folders {
        let real = Checkpoint::open(&folder).unwrap();
        let outline = Checkpoint::from_config(config(&folder), DType::F32).unwrap();
        assert!(real.has_weights() && !outline.has_weights());
        for name in outline.names() {
            // The first releases of GPT-2 leave out the first part of names; a matrix may be stored turned.
            let stored =
                real.get(name).unwrap().or_else(|| real.get(&format!("transformer.{name}")).unwrap());
            let stored = stored.unwrap_or_else(|| panic!("{}: {name}", folder.display()));
            assert_eq!(outline.tensor(name).unwrap().len(), stored.len(), "{}: {name}", folder.display());
        }
        let [of_file, of_outline] = [&real, &outline].map(|one| Description::of(one).unwrap());
        assert_eq!(of_file.slots, of_outline.slots);
        assert_eq!(of_file.vocabulary, of_outline.vocabulary);
        // Of checkpoints with pictures only the text side is described.
        let is_text = |name: &&str| !name.starts_with("model.visual.");
        let values = |c: &Checkpoint| {
            c.names().filter(is_text).map(|name| c.tensor(name).unwrap().len()).sum::<usize>()
        };
        assert_eq!(values(&outline), values(&real), "{}", folder.display());
    }
}

#[test]
fn matrices_are_of_the_type_asked_for_where_it_divides_their_rows() {
    let config = json!({"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 1, "num_attention_heads": 8,
        "intermediate_size": 1000, "vocab_size": 100, "rms_norm_eps": 1e-5, "hidden_act": "silu"});
    let outline = Checkpoint::from_config(config, DType::Q4_K).unwrap();
    let dtype = |name: &str| outline.tensor(name).unwrap().dtype();
    assert_eq!(dtype("model.layers.0.self_attn.q_proj.weight"), DType::Q4_K);
    assert_eq!(dtype("model.layers.0.mlp.down_proj.weight"), DType::F16);
    assert_eq!(dtype("model.norm.weight"), DType::F32);
    assert!(outline.get("lm_head.weight").unwrap().is_none(), "the output is the token table once more");
}

#[test]
fn a_configuration_that_asks_for_the_impossible_is_refused() {
    let folder = checkpoints().into_iter().find(|f| f.ends_with("qwen2")).unwrap();
    let good = config(&folder);
    for (key, value, words) in [
        ("num_hidden_layers", json!(16_777_216), "more than any model has"),
        ("hidden_size", json!(16_777_216), "more than"),
        ("vocab_size", Value::Null, "embed_tokens"),
        ("model_type", json!("nonsense"), "nonsense"),
    ] {
        let mut bad = good.clone();
        bad[key] = value;
        if key == "hidden_size" {
            bad["head_dim"] = json!(16);
            bad["num_hidden_layers"] = json!(1000);
        }
        let error = Checkpoint::from_config(bad, DType::Q4_0).unwrap_err().to_string();
        assert!(error.contains(words), "{key}: {error}");
    }
}
