//! Heads that guess further tokens, put into fixtures that have none: a copy of a layer that attends, with norms and a matrix before it.
//!
//! The matrix hands the token's embedding on nearly as it is, so the head is a shallow twin of the model, and guesses right now and then.

use kvant_model::Tensor;
use kvant_model::safetensors::Safetensors;
use serde_json::{Map, Value, json};

/// The head's matrix, `(hidden, 2 hidden)`, over a table of embeddings: powers of two, which every precision keeps.
pub fn combine(table: &Tensor) -> Vec<f32> {
    let (values, hidden) = (table.to_f32().unwrap(), table.columns());
    let mean_square = values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32;
    let scale = mean_square.sqrt().log2().round().exp2();
    let weight = |output: usize, input: usize| match input.checked_sub(hidden) {
        None if input == output => scale,
        None => 0.0,
        Some(input) if (output * 7 + input * 13).is_multiple_of(5) => {
            scale / if (output + input).is_multiple_of(2) { 16.0 } else { -16.0 }
        }
        Some(_) => 0.0,
    };
    (0..hidden)
        .flat_map(|output| (0..2 * hidden).map(move |input| (output, input)))
        .map(|(o, i)| weight(o, i))
        .collect()
}

/// A Hugging Face checkpoint with a head, by the names of its family, and its configuration.
pub fn with_head(bytes: &[u8], config: &Value) -> (Vec<u8>, Value) {
    let tensors = Safetensors::from_bytes(bytes.to_vec()).unwrap();
    let layers = config["num_hidden_layers"].as_u64().unwrap() as usize;
    let is_qwen = config["model_type"].as_str().unwrap().starts_with("qwen");
    let (place, layer) = match is_qwen {
        true => ("mtp".to_owned(), "mtp.layers.0".to_owned()),
        false => (format!("model.layers.{layers}"), format!("model.layers.{layers}")),
    };
    let attends = |layer: &usize| {
        tensors.names().any(|name| name.starts_with(&format!("model.layers.{layer}.self_attn")))
    };
    let from = (0..layers).rev().find(attends).unwrap();
    let names = match is_qwen {
        true => ["fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"],
        false => ["eh_proj", "enorm", "hnorm", "shared_head.norm"],
    };
    // By name, what is copied.
    let mut all: Vec<(String, String)> =
        tensors.names().map(|name| (name.to_owned(), name.to_owned())).collect();
    let copied: Vec<(String, String)> = all
        .iter()
        .filter_map(|(name, _)| {
            Some((format!("{layer}.{}", name.strip_prefix(&format!("model.layers.{from}."))?), name.clone()))
        })
        .chain(
            names[1..].iter().map(|norm| (format!("{place}.{norm}.weight"), "model.norm.weight".to_owned())),
        )
        .collect();
    all.extend(copied);
    if config["model_type"] == "glm4_moe" {
        all.push((format!("{place}.shared_head.head.weight"), "lm_head.weight".to_owned()));
        all.push((format!("{place}.embed_tokens.weight"), "model.embed_tokens.weight".to_owned()));
    }
    let (mut header, mut data) = (Map::new(), Vec::new());
    let mut add = |name: &str, dtype: &str, shape: &[usize], bytes: &[u8]| {
        let begin = data.len();
        data.extend_from_slice(bytes);
        header.insert(
            name.to_owned(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()]}),
        );
    };
    for (name, source) in &all {
        let entry = tensors.entry(source).unwrap();
        add(name, entry.dtype.as_str(), &entry.shape, &bytes[entry.range.clone()]);
    }
    let table = tensors.tensor("model.embed_tokens.weight").unwrap().unwrap();
    let matrix: Vec<u8> = combine(&table).iter().flat_map(|weight| weight.to_le_bytes()).collect();
    let hidden = table.columns();
    add(&format!("{place}.{}.weight", names[0]), "F32", &[hidden, 2 * hidden], &matrix);
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut config = config.clone();
    if !is_qwen {
        config["num_nextn_predict_layers"] = 1.into();
    }
    ([&(header.len() as u64).to_le_bytes()[..], &header, &data].concat(), config)
}
