//! `kvant synth`, and what its files are good for.

use crate::support::Home;

const TINY: &[&str] = &[
    "--layers",
    "2",
    "--hidden",
    "64",
    "--heads",
    "4",
    "--kv-heads",
    "2",
    "--head-dim",
    "32",
    "--ffn",
    "96",
    "--vocab",
    "300",
    "--ctx",
    "256",
];

fn synth(home: &Home, name: &str, more: &[&str]) -> String {
    home.run(&[&["synth", name], TINY, more].concat()).ok()
}

#[test]
fn a_synthetic_model_runs_like_any_other() {
    let home = Home::new();
    for (weights, untied) in [("int4", false), ("int8", true), ("f16", false)] {
        let name = format!("{weights}.gguf");
        let more = if untied { &["--weights", weights, "--untied"][..] } else { &["--weights", weights] };
        let said = synth(&home, &name, more);
        assert!(said.starts_with(&name) && said.contains("million random weights"), "{said}");
        let reply =
            home.run(&["run", "-m", &name, "--json", "--greedy", "-n", "8", "It was the best"]).json();
        assert!(reply["decode"]["tokens"].as_u64().unwrap() > 0);
        assert_eq!(reply["context"]["size"], 256);
        let about = home.run(&["inspect", &name]).ok();
        assert!(about.contains("llama"), "{about}");
    }
}

#[test]
fn other_architectures_are_files_in_the_type_that_was_asked_for() {
    let home = Home::new();
    let config = r#"{"model_type": "gpt_oss", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "num_local_experts": 4,
        "num_experts_per_tok": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16,
        "hidden_act": "silu", "swiglu_limit": 7.0, "attention_bias": true, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": 4096, "vocab_size": 300, "tie_word_embeddings": false}"#;
    home.write("config.json", config.as_bytes());
    for weights in ["int4", "int8", "mxfp4", "f16"] {
        let name = format!("{weights}.gguf");
        let said = home.run(&["synth", &name, "--config", "config.json", "--weights", weights]).ok();
        assert!(said.starts_with(&name) && said.contains("million random weights"), "{said}");
        let reply = home.run(&["run", "-m", &name, "--json", "--greedy", "-n", "4", "It was"]).json();
        assert!(reply["decode"]["tokens"].as_u64().unwrap() > 0, "{weights}");
    }
    let about = home.run(&["inspect", "mxfp4.gguf"]).ok();
    assert!(about.contains("MXFP4") && about.contains("gpt-oss"), "{about}");
    assert!(!home.path("mxfp4.gguf.outline").exists());
    home.run(&["synth", "folder", "--config", "config.json"]).ok();
    assert!(home.path("folder/model.safetensors").exists());
    home.run(&["synth", "other", "--config", "config.json", "--weights", "int4"]).fails(2, &["other.gguf"]);
}

#[test]
fn a_file_that_is_there_is_replaced_only_by_force() {
    let home = Home::new();
    home.write("model.gguf", b"precious");
    home.run(&[&["synth", "model.gguf"], TINY].concat()).fails(1, &["model.gguf: already exists", "--force"]);
    assert_eq!(std::fs::read(home.path("model.gguf")).unwrap(), b"precious");
    synth(&home, "model.gguf", &["--force", "--seed", "1"]);
    let first = std::fs::read(home.path("model.gguf")).unwrap();
    synth(&home, "again.gguf", &["--seed", "1"]);
    synth(&home, "other.gguf", &["--seed", "2"]);
    assert!(first == std::fs::read(home.path("again.gguf")).unwrap());
    assert!(first != std::fs::read(home.path("other.gguf")).unwrap());
}

#[test]
fn mistakes_leave_nothing_behind() {
    let home = Home::new();
    let files = || std::fs::read_dir(home.path("")).unwrap().count();
    let before = files();
    home.run(&["synth", "odd.gguf", "--kv-heads", "3"]).fails(1, &["3 kv heads do not divide 32 heads"]);
    home.run(&["synth", "odd.gguf", "--hidden", "100"]).fails(1, &["whole blocks of 32"]);
    home.run(&["synth", "nowhere/odd.gguf"]).fails(1, &["nowhere", "cannot create the file"]);
    home.run(&["synth", "odd.gguf", "--like", "gpt-5"]).fails(2, &["smollm2-135m"]);
    assert_eq!(files(), before);
}
