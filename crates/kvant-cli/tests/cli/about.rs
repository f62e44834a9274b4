//! `kvant inspect`, `doctor`, `completions`, `man` and the help.

use crate::support::Home;
use kvant_model::Tensor;
use kvant_model::gguf::{Writer, WriterValue};

#[test]
fn inspect_shows_shapes_types_and_what_a_token_costs() {
    let home = Home::new();
    let model = home.model();
    let text = home.run(&["inspect", &model]).ok();
    for words in ["qwen2", "2 of width 64", "4 of 16 channels, 2 with", "256 tokens", "512 tokens", "F32"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    for (name, words) in
        [("quantisation", "F32"), ("chat template", "yes"), ("tools", "no"), ("thinking", "no")]
    {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        assert!(line.contains(words), "{name} {words}: {text}");
    }
    assert!(!text.contains("blk.1.attn_q.weight"));
    let listed = home.run(&["inspect", "--tensors", &model]).ok();
    assert!(listed.contains("blk.1.attn_q.weight") && listed.contains("256 x 64"), "{listed}");

    let json = home.run(&["inspect", "--json", &model]).json();
    assert_eq!((&json["layers"], &json["head_dim"], &json["kv_heads"]), (&2.into(), &16.into(), &2.into()));
    let cost = |spec: &str| {
        let entry = json["kv"].as_array().unwrap().iter().find(|entry| entry["spec"] == spec).unwrap();
        entry["bytes_per_token"].as_f64()
    };
    assert_eq!(cost("f16"), Some(256.0));
    assert_eq!(cost("f32"), Some(512.0));
    let types: u64 = json["types"].as_array().unwrap().iter().map(|t| t["bytes"].as_u64().unwrap()).sum();
    assert_eq!(json["bytes"].as_u64().unwrap(), types);
    home.run(&["inspect", "nowhere.gguf"]).fails(1, &["nowhere.gguf"]);
}

#[test]
fn doctor_names_the_kernels_and_complains_in_words() {
    let home = Home::new();
    let model = home.model();
    let text = home.run(&["doctor", "-m", &model]).ok();
    for words in ["kernels", "threads", "memory", "Models in", "attn_q", "F32", "16 + 16", "slow"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    for words in
        ["scores over √d, keys as projected", "int4, the family's own, measured: mean KL", "SmolLM2-135M"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    let asked = home.run(&["doctor", &model, "--kv", "int8"]).ok();
    assert!(asked.contains("int8, asked for; the family's own is int4"), "{asked}");
    let output = home.command(&["doctor"]).env("KVANT_SIMD", "scalar").output().unwrap();
    let forced = String::from_utf8(output.stdout).unwrap();
    assert!(forced.contains("scalar"), "{forced}");
    let slow = forced.split("This would make kvant slow:").nth(1).unwrap_or_default();
    assert!(slow.contains("KVANT_SIMD=scalar is set") && slow.contains("unset it"), "{forced}");
}

#[test]
fn kv_list_prints_names_bits_and_measured_divergence() {
    let home = Home::new();
    let list = home.run(&["run", "--kv", "list"]).ok();
    for words in ["int4", "4.50", "0.00292", "per-channel keys", "q4_0", "kivi2", "KL"] {
        assert!(list.contains(words), "{words}: {list}");
    }
    assert_eq!(home.run(&["bench", "--kv=list"]).ok(), list);
    let model = home.model();
    home.run(&["run", "-m", &model, "--kv", "itn4", "hi"]).fails(2, &["did you mean int4?", "--kv list"]);
    home.run(&["fit", &model, "--kv", "itn8"]).fails(2, &["did you mean int8?"]);
}

#[test]
fn help_completions_and_manual_cover_every_command() {
    let home = Home::new();
    let help = home.run(&["--help"]).ok();
    let commands = [
        "run",
        "chat",
        "serve",
        "pull",
        "models",
        "inspect",
        "rm",
        "ps",
        "fit",
        "calibrate",
        "tune",
        "convert",
        "eval",
        "synth",
        "bench",
        "doctor",
        "completions",
        "man",
    ];
    for command in commands {
        assert!(help.contains(command), "{command}");
        let help = home.run(&[command, "--help"]).ok();
        assert!(help.contains("Usage: kvant"), "{command}");
        let wide: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{command}: {wide:?}");
    }
    assert!(help.contains("Examples:") && help.lines().all(|line| line.chars().count() <= 80), "{help}");
    for (alias, command) in [("list", "models"), ("ls", "models"), ("show", "inspect")] {
        assert_eq!(home.run(&[alias, "--help"]).ok(), home.run(&[command, "--help"]).ok(), "{alias}");
    }
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(home.run(&["completions", shell]).ok().contains("kvant"), "{shell}");
    }
    assert!(home.run(&["man"]).ok().starts_with(".ie"));
    let pages = home.path("pages");
    std::fs::create_dir(&pages).unwrap();
    home.run(&["man", "--folder", &pages.display().to_string()]).ok();
    assert!(pages.join("kvant-run.1").is_file());
    home.run(&["nonsense"]).fails(2, &["nonsense"]);
    assert_eq!(home.run(&[]).code, Some(2));
    assert!(home.run(&["--version"]).ok().starts_with("kvant "));
}

#[test]
fn inspect_says_why_a_template_is_refused() {
    let home = Home::new();
    let mut writer = Writer::new("llama");
    let bomb = format!("{{{{ {}1 }}}}", "not ".repeat(20_000));
    writer.set("tokenizer.chat_template", WriterValue::String(bomb));
    writer.tensor(Tensor::from_f32("w", vec![1, 32], &[1.0; 32]).unwrap());
    let path = home.write("bomb.gguf", &writer.to_bytes().unwrap());
    let text = home.run(&["inspect", &path]).ok();
    let line = text.lines().find(|line| line.starts_with("chat template")).unwrap_or_default();
    assert!(line.contains("refused: ") && line.len() > 40, "{text}");
    let about = home.run(&["inspect", "--json", &path]).json()["about"].clone();
    assert_eq!(about["chat_template"], false);
    assert!(about["chat_template_error"].is_string(), "{about}");
}
