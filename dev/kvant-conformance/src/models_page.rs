//! The table of backends in docs/models.md, held to what backends say of every architecture.
//!
//! Every fixture's configuration is given to the backend's check, with widths that real models have: what a row says of a backend, "yes" or
//! "no: why", is what it must say. A row names model types that have a fixture, or are made of others', and every one of them stands in one row.

use kvant_model::config::parse_json;
use kvant_model::{Checkpoint, DType, Description, LoadError};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Holds a column of the table to a backend's check.
///
/// # Panics
/// Where they disagree, or a model type stands in no row or in two.
pub fn models_page(column: &str, check: impl Fn(&Description, &Checkpoint) -> Result<(), LoadError>) {
    let page = fs::read_to_string(root().join("docs/models.md")).unwrap();
    let (rows, mut wrong) = (rows(&page, column), Vec::new());
    let cases = cases();
    for (label, config) in &cases {
        let outline = Checkpoint::from_config(config.clone(), DType::F16);
        let checkpoint = outline.unwrap_or_else(|e| panic!("{label}: {e}"));
        let description = Description::of(&checkpoint).unwrap_or_else(|e| panic!("{label}: {e}"));
        let found = check(&description, &checkpoint).err().map(|refused| refused.to_string());
        let said: Vec<&str> =
            rows.iter().filter(|(labels, _)| labels.contains(label)).map(|(_, said)| said.as_str()).collect();
        let agrees = match (&said[..], &found) {
            ([said], None) => said.starts_with("yes"),
            ([said], Some(found)) => said.strip_prefix("no: ").is_some_and(|why| found.contains(why)),
            _ => false,
        };
        if !agrees {
            wrong.push(format!("{label}: the table says {said:?}, the backend {found:?}"));
        }
    }
    for label in rows.iter().flat_map(|(labels, _)| labels) {
        if !cases.iter().any(|(own, _)| own == label) {
            wrong.push(format!("{label} stands in the table and has no fixture"));
        }
    }
    assert!(wrong.is_empty(), "docs/models.md, column {column}: {wrong:#?}");
}

/// The rows of the table: what their first cell lists, and what the column says of it.
fn rows(page: &str, column: &str) -> Vec<(Vec<String>, String)> {
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let heading = |line: &str| line.starts_with("| model type |") && cells(line).iter().any(|c| c == column);
    let mut lines = page.lines().skip_while(|line| !heading(line));
    let head = cells(lines.next().unwrap_or_else(|| panic!("no table with a column {column}")));
    let place = head.iter().position(|cell| cell == column).unwrap();
    let body = lines.skip(1).take_while(|line| line.starts_with('|'));
    body.map(|line| {
        let cells = cells(line);
        (cells[0].split(", ").map(str::to_owned).collect(), cells[place].clone())
    })
    .collect()
}

/// Every architecture as the table calls it, and a configuration of it.
fn cases() -> Vec<(String, Value)> {
    let fixtures = root().join("crates/kvant-model/tests/fixtures");
    let read = |folder: &Path| parse_json(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    let mut folders: Vec<PathBuf> = fs::read_dir(&fixtures).unwrap().map(|e| e.unwrap().path()).collect();
    folders.retain(|folder| folder.join("config.json").is_file());
    folders.sort();
    let case = |config: Value| {
        let (mut config, label) = (config.clone(), label(&config));
        widen(&mut config);
        (label, config)
    };
    let mut cases: Vec<(String, Value)> = folders.iter().map(|folder| case(read(folder))).collect();
    let mut narrow = read(&fixtures.join("nemotron_h_moe"));
    narrow["moe_latent_size"] = json!(16);
    // Ministral 3 has Mistral's layers and Mistral 4's rotation.
    let mut ministral = read(&fixtures.join("mistral"));
    ministral["model_type"] = json!("ministral3");
    ministral["rope_parameters"] = read(&fixtures.join("mistral4"))["rope_parameters"].clone();
    ministral["rope_parameters"]["partial_rotary_factor"] = json!(1.0);
    cases.extend([narrow, ministral].map(case));
    cases
}

fn label(config: &Value) -> String {
    let kind = config["model_type"].as_str().unwrap();
    let is_on = |key: &str| config[key].as_u64().unwrap_or(0) > 0;
    match kind {
        "gemma4_text" if is_on("hidden_size_per_layer_input") => format!("`{kind}` E"),
        "gemma4_text" if is_on("num_experts") => format!("`{kind}` MoE"),
        "gemma4_text" => format!("`{kind}` dense"),
        "nemotron_h" if is_on("moe_latent_size") => format!("`{kind}` with experts in a narrower space"),
        _ => format!("`{kind}`"),
    }
}

/// Widths that real models have, in place of the fixtures' narrow ones.
fn widen(config: &mut Value) {
    if let Some(text) = config.get_mut("text_config") {
        return widen(text);
    }
    let size = |config: &Value, key: &str| config[key].as_u64().filter(|size| *size > 0);
    let heads = size(config, "num_attention_heads").or(size(config, "n_head")).unwrap();
    let is_latent = size(config, "kv_lora_rank").is_some();
    let of_head = size(config, "head_dim");
    let mamba = size(config, "mamba_n_heads").unwrap_or(1);
    let before = of_head.or(size(config, "hidden_size").map(|hidden| hidden / heads)).unwrap_or(64);
    let widths = [
        ("hidden_size", 64 * heads),
        ("n_embd", 64 * heads),
        // Where there are latents a head is as wide as its rotated part, or twice as wide.
        ("head_dim", if is_latent { 8 * of_head.unwrap_or(0) } else { 64 }),
        ("intermediate_size", 192),
        ("shared_intermediate_size", 64),
        ("moe_intermediate_size", 64),
        ("shared_expert_intermediate_size", 64),
        ("moe_shared_expert_intermediate_size", 64),
        ("moe_latent_size", 64),
        ("hidden_size_per_layer_input", 64),
        ("laurel_rank", 64),
        ("kv_lora_rank", 128),
        ("q_lora_rank", 64),
        ("qk_nope_head_dim", 64),
        ("qk_rope_head_dim", 64),
        ("qk_head_dim", 128),
        ("v_head_dim", 64),
        ("linear_key_head_dim", 64),
        ("linear_value_head_dim", 32),
        ("mamba_d_head", 64),
        ("mamba_head_dim", 64),
        ("mamba_d_state", 64),
        ("ssm_state_size", 64),
        ("mamba_d_ssm", 64 * mamba),
    ];
    for (key, width) in widths {
        match config.get_mut(key) {
            Some(Value::Array(layers)) => layers.iter_mut().for_each(|layer| *layer = json!(width)),
            Some(own) if own.as_u64().is_some_and(|size| size > 0) => *own = json!(width),
            _ => {}
        }
    }
    let by_layer = config.get_mut("per_layer_config").and_then(Value::as_object_mut);
    for head in by_layer.into_iter().flat_map(|all| all.values_mut()).filter_map(|of| of.get_mut("head_dim"))
    {
        *head = json!(128);
    }
    // Lists by rotated pair grow with the head.
    let times = (64 / before).max(1) as usize;
    if let Some(rope) = config.get_mut("rope_parameters").and_then(Value::as_object_mut) {
        for (key, value) in rope.iter_mut() {
            match (key.as_str(), value) {
                ("long_factor" | "short_factor", Value::Array(factors)) => {
                    *factors = (0..times).flat_map(|_| factors.clone()).collect();
                }
                ("mrope_section", Value::Array(pairs)) => {
                    let wide = |pairs: &Value| json!(pairs.as_u64().unwrap() * times as u64);
                    *pairs = pairs.iter().map(wide).collect();
                }
                _ => {}
            }
        }
    }
}
