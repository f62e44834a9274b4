//! `kvant fit`.

use crate::support::{Home, model_bytes};
use serde_json::Value;

/// Llama 3 70B as its publishers describe it, as far as its size depends on it, with the long context of 3.1.
const LLAMA_70B: &str = r#"{
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "hidden_act": "silu",
    "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false, "torch_dtype": "bfloat16"
}"#;

fn cache<'a>(json: &'a Value, spec: &str) -> &'a Value {
    json["caches"].as_array().unwrap().iter().find(|cache| cache["kv"] == spec).unwrap()
}

#[test]
fn a_70b_at_128k_in_64_gb_can_be_asked_about_without_its_weights() {
    let home = Home::new();
    home.write("config.json", LLAMA_70B.as_bytes());
    let asked = ["fit", "config.json", "--ram", "64G", "--ctx", "8k,128k", "--kv", "f16,int4"];
    let json = home.run(&[&asked[..], &["--json"]].concat()).json();
    assert_eq!(json["parameters"], 70_553_706_496_u64);
    assert_eq!((&json["weights_here"], &json["weights_taken_as"]), (&false.into(), &"Q4_K".into()));
    let (f16, int4) = (cache(&json, "f16"), cache(&json, "int4"));
    // Both sides of 80 layers with 8 heads of 128 channels, two bytes each.
    assert_eq!(f16["bytes_per_token"], 327_680.0);
    // The token table stays in the file, the output layer does not; every matrix takes 4.5 bits.
    let matrices = 70_553_706_496_u64 - 128_256 * 8192 - 161 * 8192;
    assert_eq!(f16["contexts"][0]["weights"], matrices * 9 / 16 + 161 * 8192 * 4);
    // 40 GiB of f16 keys and values beside 36 GiB of weights are too many, 11 GiB are not.
    let fits = |cache: &Value| {
        cache["contexts"].as_array().unwrap().iter().map(|c| c["fits"] == true).collect::<Vec<_>>()
    };
    assert_eq!((fits(f16), fits(int4)), (vec![true, false], vec![true, true]));
    assert_eq!(int4["longest"]["tokens"], 131_072);
    let longest = f16["longest"]["tokens"].as_u64().unwrap();
    assert!((70_000..80_000).contains(&longest), "{longest}");
    assert_eq!(f16["longest"]["fits"], true);

    let text = home.run(&[&asked[..], &["--html", "memory.html"]].concat()).ok();
    let page = std::fs::read_to_string(home.path("memory.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.matches("<polyline").count() == 2, "{page}");
    for words in ["60.0 GiB there are", "70.55 billion", "<td>int4</td><td>131072</td>", "GiB</td>"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    home.run(&[&asked[..], &["--html", "no/such/folder.html"]].concat()).fails(1, &["no/such/folder.html"]);
    for words in [
        "70.55 billion",
        "every matrix is assumed to be Q4_K",
        "131072 tokens",
        "64.0 GiB",
        "4.0 GiB of it left to the system",
        "too much",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let wide = home.run(&["fit", ".", "--weights", "f16", "--ram", "64G", "--kv", "int4"]).ok();
    assert!(wide.contains("129.5 GiB") && wide.contains("none"), "{wide}");
    home.run(&["fit", ".", "--weights", "q4_x"]).fails(2, &["q4_x", "Q4_K"]);
}

#[test]
fn the_beginning_of_a_file_says_what_the_whole_does_and_inspect_agrees() {
    let home = Home::new();
    let whole = model_bytes(true);
    home.write("whole.gguf", &whole);
    home.write("start.gguf", &whole[..whole.len() * 2 / 3]);
    let plan = |name: &str| {
        home.run(&["fit", name, "--ctx", "300", "--kv", "int4,f16", "--json", "--ram", "1G"]).json()
    };
    let (of_whole, of_start) = (plan("whole.gguf"), plan("start.gguf"));
    assert_eq!((&of_whole["weights_here"], &of_start["weights_here"]), (&true.into(), &false.into()));
    assert_eq!(of_whole["caches"], of_start["caches"]);
    for spec in ["int4", "f16"] {
        let told = home.run(&["inspect", "whole.gguf", "--ctx", "300", "--kv", spec, "--json"]).json();
        assert_eq!(cache(&of_whole, spec)["contexts"][0]["peak"], told["memory"]["run"]["peak"], "{spec}");
    }
    // The header itself must be there, and nothing runs on zeros.
    home.write("stub.gguf", &whole[..2000]);
    home.run(&["fit", "stub.gguf"]).fails(1, &["stub.gguf", "truncated"]);
    home.run(&["run", "-m", "start.gguf", "x"]).fails(1, &["start.gguf", "truncated"]);
    home.run(&["fit", "whole.gguf", "--weights", "q8_0"]).fails(1, &["--weights is for a config.json"]);
}

#[test]
fn caches_that_a_model_cannot_have_are_named_with_the_reason() {
    let home = Home::new();
    let model = home.model();
    let text = home.run(&["fit", &model, "--kv", "int4,klt", "--ram", "1G"]).ok();
    assert!(text.contains("klt4.25:") && text.contains("plan"), "{text}");
    let usual = home.run(&["fit", &model, "--ram", "1G", "--json"]).json();
    let specs: Vec<&str> =
        usual["caches"].as_array().unwrap().iter().filter_map(|c| c["kv"].as_str()).collect();
    assert_eq!(specs, ["f16", "int8", "k8v4", "int4", "tq3"]);
    assert_eq!(usual["caches"][3]["contexts"][0]["tokens"], 512, "the model's own context: {usual}");
    home.run(&["fit", &model, "--ctx", "many"]).fails(2, &["many", "32k"]);
    let all = home.run(&["fit", &model, "--ram", "1G", "--reserve", "512M", "--json"]).json();
    assert_eq!((&all["memory"], &all["reserved"]), (&(1 << 30).into(), &(512 << 20).into()));
}

#[test]
fn names_are_sized_without_a_download_and_none_lists_what_fits() {
    let home = Home::new();
    let text = home.run(&["fit", "llama3.1:70b", "--ram", "64G"]).ok();
    assert!(text.contains("llama3.1:70b") && text.contains("70.55 billion"), "{text}");
    let json =
        home.run(&["fit", "qwen3:8b", "--ram", "8G", "--weights", "q8_0", "--ctx", "8k", "--json"]).json();
    assert_eq!((&json["weights_taken_as"], &json["weights_here"]), (&"Q8_0".into(), &false.into()), "{json}");
    let list = home.run(&["fit", "--ram", "8G"]).ok();
    let at = |name: &str| list.find(name).unwrap_or_else(|| panic!("{name} is not in {list}"));
    assert!(at("qwen3:8b") < at("qwen3:4b") && at("qwen3:4b") < at("smollm2-135m"), "{list}");
    assert!(!list.contains("70b"), "{list}");
    let rows = home.run(&["fit", "--ram", "8G", "--json"]).json();
    assert!(rows[0]["context"].as_u64() >= Some(8192), "{rows}");
    // What has no short name is asked for at the hub, which is not there.
    home.run(&["fit", "org/other", "--ram", "8G"]).fails(1, &["org/other"]);
}

#[cfg(feature = "hub")]
#[test]
fn of_another_name_the_beginning_is_fetched_alone() {
    let home = Home::new();
    let address = crate::hub::hub(model_bytes(true));
    let fit = home.command(&["fit", "org/tiny", "--ram", "1G"]).env("HF_ENDPOINT", address).output().unwrap();
    let fit = crate::support::Run::of(fit);
    assert!(fit.ok().contains("qwen2"));
    assert!(home.run(&["models", "--json"]).json().as_array().unwrap().is_empty(), "no model is here");
}

#[test]
fn a_config_under_another_name_is_no_index_of_weights() {
    let home = Home::new();
    home.write("c70.json", LLAMA_70B.as_bytes());
    assert!(home.run(&["fit", "c70.json", "--ram", "64G"]).ok().contains("llama"));
    let layers = home.run(&["inspect", "c70.json", "--layers"]).ok();
    assert!(layers.contains("0-79") && layers.contains("assumed to be F16"), "{layers}");
    home.run(&["eval", "c70.json"]).fails(1, &["c70.json", "kvant fit"]);
    home.write("list.json", b"[1, 2]");
    let refused = home.run(&["fit", "list.json", "--ram", "64G"]);
    assert!(!refused.err.contains("weight_map"), "{refused:?}");
    refused.fails(1, &["list.json"]);
}

#[test]
fn plan_names_the_commands_it_has_become() {
    let home = Home::new();
    home.run(&["plan", "config.json", "--ram", "8G"])
        .fails(2, &["kvant fit config.json --ram 8G", "kvant tune"]);
    home.run(&["plan", "m.gguf", "--kl", "0.02"]).fails(2, &["kvant tune m.gguf --kl 0.02", "kvant fit"]);
    home.run(&["plan"]).fails(2, &["kvant fit", "kvant tune"]);
    home.run(&["tune", "m.gguf"]).fails(2, &["--kl", "--bits"]);
}

#[test]
fn a_config_json_without_hidden_act_is_sized_and_a_model_without_it_is_told_the_key_once() {
    let home = Home::new();
    let with = LLAMA_70B.replace("\"hidden_act\": \"silu\",", "");
    assert_ne!(with, LLAMA_70B);
    home.write("config.json", with.as_bytes());
    let asked = ["fit", "config.json", "--ram", "64G", "--ctx", "8k", "--kv", "int4", "--json"];
    let without = home.run(&asked).json();
    home.write("config.json", LLAMA_70B.as_bytes());
    assert_eq!(home.run(&asked).json()["caches"], without["caches"]);
    // A model that would run with it has to say which one it is.
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../kvant-model/tests/fixtures/llama");
    let config = std::fs::read_to_string(format!("{fixture}/config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config.as_object_mut().unwrap().remove("hidden_act");
    home.write("config.json", config.to_string().as_bytes());
    home.write("model.safetensors", &std::fs::read(format!("{fixture}/model.safetensors")).unwrap());
    let refused = home.run(&["inspect", "model.safetensors"]);
    let said = format!("{}{}", refused.out, refused.err);
    assert!(said.contains("\"hidden_act\"") && said.matches("config.json").count() == 1, "{refused:?}");
    // And a config.json that is wrong in itself is named once.
    home.write("config.json", LLAMA_70B.replace("\"num_hidden_layers\": 80,", "").as_bytes());
    std::fs::remove_file(home.path("model.safetensors")).unwrap();
    let refused = home.run(&["fit", "config.json"]);
    assert_eq!(refused.err.matches("config.json").count(), 1, "{refused:?}");
    refused.fails(1, &["num_hidden_layers"]);
}

/// A model most of whose layers keep recurrent state.
#[test]
fn a_narrower_state_is_part_of_the_estimate() {
    let home = Home::new();
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../kvant-model/tests/fixtures");
    let config = std::fs::read(format!("{fixtures}/qwen3_next/config.json")).unwrap();
    home.write("config.json", &config);
    let bytes = |state: &[&str]| {
        let asked = ["fit", "config.json", "--ram", "1G", "--ctx", "256", "--kv", "int4", "--json"];
        let json = home.run(&[&asked[..], state].concat()).json();
        json["caches"][0]["contexts"][0]["kv"].as_u64().unwrap_or_else(|| panic!("{json}"))
    };
    let (f32, bf16, int8) = (bytes(&[]), bytes(&["--state", "bf16"]), bytes(&["--state", "int8"]));
    assert_eq!(f32, bytes(&["--state", "f32"]));
    assert!(int8 < bf16 && bf16 < f32, "{int8}, {bf16} and {f32} bytes");
}
