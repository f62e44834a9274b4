//! Heads that guess further tokens, put into fixtures that have none: a copy of a layer that attends, with norms and a matrix before it.
//!
//! The matrix hands the token's embedding on nearly as it is, so the head is a shallow twin of the model, and guesses right now and then.

use kvant_model::Tensor;
use kvant_model::safetensors::Safetensors;
use serde_json::{Map, Value, json};

/// The head's matrix, `(hidden, 2 hidden)`, over a table of embeddings: powers of two, which every precision keeps. `hidden_first` says
/// which half of its columns comes first.
pub fn combine(table: &Tensor, hidden_first: bool) -> Vec<f32> {
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
        .map(|(o, i)| weight(o, if hidden_first { (i + hidden) % (2 * hidden) } else { i }))
        .collect()
}

/// How a family calls a head and its parts.
struct HeadNames {
    place: String,
    layer: String,
    combine: &'static str,
    norms: &'static [&'static str],
    hidden_first: bool,
}

impl HeadNames {
    fn of(model_type: &str, layers: usize) -> Self {
        let head = |place: &str, combine, norms| Self {
            place: place.to_owned(),
            layer: place.to_owned(),
            combine,
            norms,
            hidden_first: false,
        };
        match model_type {
            "mimo" => Self {
                hidden_first: true,
                ..head(
                    "model.mtp_layers.0",
                    "input_proj",
                    &["token_layernorm", "hidden_layernorm", "final_layernorm"],
                )
            },
            "mimo_v2_flash" => head("model.mtp.layers.0", "eh_proj", &["enorm", "hnorm", "final_layernorm"]),
            "minimax_m2" => Self {
                hidden_first: true,
                ..head("model.mtp_layers.0", "linear_projection", &["e_norm", "h_norm"])
            },
            qwen if qwen.starts_with("qwen") => Self {
                layer: "mtp.layers.0".to_owned(),
                ..head("mtp", "fc", &["pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"])
            },
            _ => head(&format!("model.layers.{layers}"), "eh_proj", &["enorm", "hnorm", "shared_head.norm"]),
        }
    }
}

/// A Hugging Face checkpoint with a head, by the names of its family, and its configuration.
pub fn with_head(bytes: &[u8], config: &Value) -> (Vec<u8>, Value) {
    let tensors = Safetensors::from_bytes(bytes.to_vec()).unwrap();
    let layers = config["num_hidden_layers"].as_u64().unwrap() as usize;
    let model_type = config["model_type"].as_str().unwrap();
    let HeadNames { place, layer, combine: matrix, norms, hidden_first } = HeadNames::of(model_type, layers);
    let attends = |layer: &usize| {
        tensors.names().any(|name| name.starts_with(&format!("model.layers.{layer}.self_attn")))
    };
    // MiMo-V2's slides and has an MLP, as its first layer does.
    let (is_mimo_v2, sinks) = (model_type == "mimo_v2_flash", ".self_attn.attention_sink_bias");
    let slides = |layer: &usize| tensors.names().any(|name| name == format!("model.layers.{layer}{sinks}"));
    let from = (0..layers).rev().filter(attends).find(|layer| !is_mimo_v2 || slides(layer)).unwrap();
    let part = |name: &str| {
        if !is_mimo_v2 {
            return Some(name.strip_prefix(&format!("model.layers.{from}."))?.to_owned());
        }
        match name.strip_prefix("model.layers.0.mlp.") {
            Some(part) => Some(format!("mlp.{part}")),
            None => Some(name.strip_prefix(&format!("model.layers.{from}."))?.to_owned())
                .filter(|part| !part.starts_with("mlp."))
                .map(|part| part.replace("post_attention_layernorm", "pre_mlp_layernorm")),
        }
    };
    // By name, what is copied.
    let mut all: Vec<(String, String)> =
        tensors.names().map(|name| (name.to_owned(), name.to_owned())).collect();
    let copied: Vec<(String, String)> = all
        .iter()
        .filter_map(|(name, _)| Some((format!("{layer}.{}", part(name)?), name.clone())))
        .chain(norms.iter().map(|norm| (format!("{place}.{norm}.weight"), "model.norm.weight".to_owned())))
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
    let weights: Vec<u8> =
        combine(&table, hidden_first).iter().flat_map(|weight| weight.to_le_bytes()).collect();
    let hidden = table.columns();
    add(&format!("{place}.{matrix}.weight"), "F32", &[hidden, 2 * hidden], &weights);
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut config = config.clone();
    if place.starts_with("model.layers.") {
        config["num_nextn_predict_layers"] = 1.into();
    }
    ([&(header.len() as u64).to_le_bytes()[..], &header, &data].concat(), config)
}
