//! The GGUF path of every architecture: each fixture is rewritten as its converter would, names, keys,
//! transposed weights, reordered channels and all, and must still give the reference's logits.

use kvant_cpu::{ExactCache, LoadOptions};
use kvant_model::arch::REGISTRY;
use kvant_model::config::parse_json;
use kvant_model::gguf::{Gguf, Writer, WriterValue};
use kvant_model::safetensors::Safetensors;
use kvant_model::{Checkpoint, Chunk, Tensor};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Parts of a layer, by their Hugging Face and GGUF names. Longer names stand before those they begin with.
const LAYER_NAMES: &[(&str, &str)] = &[
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.query_layernorm", "attn_q_norm"),
    ("self_attn.key_layernorm", "attn_k_norm"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("attention.query_key_value", "attn_qkv"),
    ("attention.dense", "attn_output"),
    ("input_layernorm", "attn_norm"),
    ("ln_1", "attn_norm"),
    ("ln_2", "ffn_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
    ("mlp.dense_h_to_4h", "ffn_up"),
    ("mlp.dense_4h_to_h", "ffn_down"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.router", "ffn_gate_inp"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
];
const EXPERT_NAMES: &[(&str, &str)] = &[
    ("w1", "ffn_gate_exps"),
    ("w2", "ffn_down_exps"),
    ("w3", "ffn_up_exps"),
    ("gate_proj", "ffn_gate_exps"),
    ("down_proj", "ffn_down_exps"),
    ("up_proj", "ffn_up_exps"),
];
const TOP_NAMES: &[(&str, &str)] = &[
    ("model.embed_tokens", "token_embd"),
    ("model.language_model.embed_tokens", "token_embd"),
    ("model.language_model.norm", "output_norm"),
    ("transformer.wte", "token_embd"),
    ("gpt_neox.embed_in", "token_embd"),
    ("transformer.wpe", "position_embd"),
    ("model.norm", "output_norm"),
    ("transformer.ln_f", "output_norm"),
    ("gpt_neox.final_layer_norm", "output_norm"),
    ("lm_head", "output"),
    ("embed_out", "output"),
];
/// Hyper-parameters that are only renamed.
const KEYS: &[(&str, &str)] = &[
    ("max_position_embeddings", "context_length"),
    ("n_positions", "context_length"),
    ("hidden_size", "embedding_length"),
    ("n_embd", "embedding_length"),
    ("num_hidden_layers", "block_count"),
    ("n_layer", "block_count"),
    ("intermediate_size", "feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("n_head", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("norm_epsilon", "attention.layer_norm_epsilon"),
    ("layer_norm_eps", "attention.layer_norm_epsilon"),
    ("layer_norm_epsilon", "attention.layer_norm_epsilon"),
    ("rope_theta", "rope.freq_base"),
    ("rotary_emb_base", "rope.freq_base"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("sliding_window", "attention.sliding_window"),
    ("sliding_window_pattern", "attention.sliding_window_pattern"),
    ("embedding_multiplier", "embedding_scale"),
    ("residual_multiplier", "residual_scale"),
    ("attention_multiplier", "attention.scale"),
    ("logits_scaling", "logit_scale"),
    ("num_local_experts", "expert_count"),
    ("num_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
    ("moe_k", "expert_used_count"),
    ("moe_num_experts", "expert_count"),
    ("n_routed_experts", "expert_count"),
    ("moe_num_shared_experts", "expert_shared_count"),
    ("n_shared_experts", "expert_shared_count"),
    ("moe_layer_start_index", "leading_dense_block_count"),
    ("first_k_dense_replace", "leading_dense_block_count"),
    ("moe_layer_interval", "interleave_moe_layer_step"),
    ("routed_scaling_factor", "expert_weights_scale"),
    ("norm_topk_prob", "expert_weights_norm"),
    ("rotary_dim", "rope.dimension_count"),
    ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
    ("use_parallel_residual", "use_parallel_residual"),
];
/// GGUF architectures whose queries and keys have the channels of a rotated pair side by side.
const PAIRED: [&str; 4] = ["llama", "granite", "smollm3", "mistral3"];

/// The architectures that are rewritten here, by their names in both formats.
const ARCHITECTURES: &[(&str, &str)] = &[
    ("ernie4_5", "ernie4_5"),
    ("ernie4_5_moe", "ernie4_5-moe"),
    ("exaone4", "exaone4"),
    ("gemma", "gemma"),
    ("gemma2", "gemma2"),
    ("gemma3_text", "gemma3"),
    ("glm4_moe", "glm4moe"),
    ("gpt2", "gpt2"),
    ("gpt_neox", "gptneox"),
    ("gpt_oss", "gpt-oss"),
    ("granite", "granite"),
    ("hunyuan_v1_dense", "hunyuan-dense"),
    ("llama", "llama"),
    ("minimax_m2", "minimax-m2"),
    ("mistral", "llama"),
    ("mixtral", "llama"),
    ("olmo2", "olmo2"),
    ("olmo3", "olmo2"),
    ("phi3", "phi3"),
    ("qwen2", "qwen2"),
    ("qwen2_moe", "qwen2moe"),
    ("qwen3", "qwen3"),
    ("qwen3_moe", "qwen3moe"),
    ("qwen3_vl", "qwen3vl"),
    ("seed_oss", "seed_oss"),
    ("smollm3", "smollm3"),
    ("starcoder2", "starcoder2"),
];
/// Fixtures of these that are held against the reference: 24 of the first architectures, and ten.
const FIXTURES: usize = 34;

struct Source {
    tensors: Safetensors,
    config: Value,
    architecture: &'static str,
    /// Experts as the first GGUF files had them: a tensor for each.
    experts_apart: bool,
    /// More metadata, under the architecture's prefix.
    extra: Vec<(&'static str, WriterValue)>,
}

impl Source {
    /// The fixture, where its architecture is one that is rewritten here.
    fn open(folder: &Path) -> Option<Self> {
        let mut config: Value =
            serde_json::from_str(&fs::read_to_string(folder.join("config_legacy.json")).unwrap()).unwrap();
        let name = config["model_type"].as_str().unwrap();
        let architecture = ARCHITECTURES.iter().find(|(own, _)| *own == name)?.1;
        // Converters flatten the text side of a multimodal configuration.
        if config["text_config"].is_object() {
            config = config["text_config"].take();
        }
        let tensors = Safetensors::open(&folder.join("model.safetensors")).unwrap();
        Some(Self { tensors, config, architecture, experts_apart: false, extra: Vec::new() })
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.config[key].as_f64()
    }

    fn heads(&self) -> usize {
        self.number("num_attention_heads").or(self.number("n_head")).unwrap() as usize
    }

    fn head_dim(&self) -> usize {
        let shared = || self.number("hidden_size").unwrap() / self.heads() as f64;
        self.number("head_dim").unwrap_or_else(shared) as usize
    }

    /// The whole checkpoint as a GGUF file.
    fn write(&self) -> Vec<u8> {
        let mut writer = Writer::new(self.architecture);
        let key = |name: &str| format!("{}.{name}", self.architecture);
        for (from, to) in KEYS {
            match &self.config[*from] {
                Value::Bool(flag) => {
                    writer.set(&key(to), WriterValue::Bool(*flag));
                }
                Value::Number(n) if n.is_u64() && *from != "rotary_emb_base" => {
                    writer.set(&key(to), WriterValue::U32(n.as_u64().unwrap() as u32));
                }
                Value::Number(n) => {
                    writer.set(&key(to), WriterValue::F32(n.as_f64().unwrap() as f32));
                }
                _ => {}
            }
        }
        if let Some(share) = self.number("rotary_pct").or(self.number("partial_rotary_factor")) {
            let head_dim = self.head_dim() as f64;
            writer.set(&key("rope.dimension_count"), WriterValue::U32((head_dim * share) as u32));
        }
        if let Some(scalar) = self.number("query_pre_attn_scalar") {
            writer.set(&key("attention.scale"), WriterValue::F32((1.0 / scalar.sqrt()) as f32));
        }
        self.write_rope_scaling(&mut writer, key);
        for (name, value) in &self.extra {
            writer.set(&key(name), value.clone());
        }
        for (name, parts) in self.converted() {
            if self.experts_apart && parts.len() > 1 {
                for (expert, part) in parts.into_iter().enumerate() {
                    let name = name.replace("_exps", &format!(".{expert}"));
                    writer.tensor(Tensor::from_f32(name, part.shape, &part.values).unwrap());
                }
                continue;
            }
            let shape = if parts.len() == 1 { vec![] } else { vec![parts.len()] };
            let shape: Vec<usize> = shape.into_iter().chain(parts[0].shape.iter().copied()).collect();
            let values: Vec<f32> = parts.into_iter().flat_map(|part| part.values).collect();
            writer.tensor(Tensor::from_f32(name, shape, &values).unwrap());
        }
        writer.to_bytes().unwrap()
    }

    fn write_rope_scaling(&self, writer: &mut Writer, key: impl Fn(&str) -> String) {
        let scaling = &self.config["rope_scaling"];
        let number = |name: &str| scaling[name].as_f64().unwrap();
        let list = |name: &str| -> Vec<f32> {
            scaling[name].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
        };
        match scaling["rope_type"].as_str().or(scaling["type"].as_str()) {
            None | Some("default") => {}
            // Converters write the larger base.
            Some("dynamic") => {
                let (theta, dims) = (self.number("rope_theta").unwrap(), self.head_dim() as f64);
                let theta = theta * number("alpha").powf(dims / (dims - 2.0));
                writer.set(&key("rope.freq_base"), WriterValue::F32(theta as f32));
            }
            Some("longrope") => {
                let original = self.number("original_max_position_embeddings").unwrap();
                let stretch = self.number("max_position_embeddings").unwrap() / original;
                let amplitude = (1.0 + stretch.ln() / original.ln()).sqrt();
                writer.set(&key("rope.scaling.original_context_length"), WriterValue::U32(original as u32));
                writer.set(&key("rope.scaling.attn_factor"), WriterValue::F32(amplitude as f32));
                for (name, from) in [
                    ("rope_factors_long.weight", "long_factor"),
                    ("rope_factors_short.weight", "short_factor"),
                ] {
                    let list = list(from);
                    writer.tensor(Tensor::from_f32(name, vec![list.len()], &list).unwrap());
                }
            }
            Some("llama3") => {
                let dims = self.head_dim();
                let divisors: Vec<f32> = (0..dims / 2)
                    .map(|i| {
                        let frequency =
                            self.number("rope_theta").unwrap().powf(-2.0 * i as f64 / dims as f64);
                        let wavelength = 2.0 * std::f64::consts::PI / frequency;
                        let original = number("original_max_position_embeddings");
                        let (low, high, factor) =
                            (number("low_freq_factor"), number("high_freq_factor"), number("factor"));
                        if wavelength < original / high {
                            1.0
                        } else if wavelength > original / low {
                            factor as f32
                        } else {
                            let smooth = (original / wavelength - low) / (high - low);
                            (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
                        }
                    })
                    .collect();
                writer.tensor(Tensor::from_f32("rope_freqs.weight", vec![dims / 2], &divisors).unwrap());
            }
            Some(kind) => {
                writer.set(&key("rope.scaling.type"), WriterValue::String(kind.to_owned()));
                writer.set(&key("rope.scaling.factor"), WriterValue::F32(number("factor") as f32));
                if let Some(original) = scaling["original_max_position_embeddings"].as_u64() {
                    let original = WriterValue::U32(original as u32);
                    writer.set(&key("rope.scaling.original_context_length"), original);
                }
            }
        }
    }

    /// All tensors under their GGUF names; experts are gathered in order.
    fn converted(&self) -> BTreeMap<String, Vec<Part>> {
        let mut converted: BTreeMap<String, Vec<Part>> = BTreeMap::new();
        let mut names: Vec<&str> = self.tensors.names().collect();
        names.sort_by_key(|name| {
            (name.split('.').filter_map(|s| s.parse::<usize>().ok()).collect::<Vec<_>>(), *name)
        });
        for name in names.into_iter().filter(|name| !name.starts_with("model.visual.")) {
            let tensor = self.tensors.tensor(name).unwrap().unwrap();
            let part = Part { shape: tensor.shape().to_vec(), values: tensor.to_f32().unwrap() };
            if self.architecture == "gpt-oss" && name.contains(".experts.") {
                converted.extend(gpt_oss_experts(name, part));
                continue;
            }
            let new_name = self.new_name(name);
            let part = self.rewritten(&new_name, name, part);
            converted.entry(new_name).or_default().push(part);
        }
        converted
    }

    fn new_name(&self, name: &str) -> String {
        let (stem, suffix) = name.rsplit_once('.').unwrap();
        if let Some((_, new)) = TOP_NAMES.iter().find(|(old, _)| *old == stem) {
            return format!("{new}.{suffix}");
        }
        let inside = ["model.layers.", "model.language_model.layers.", "transformer.h.", "gpt_neox.layers."]
            .iter()
            .find_map(|prefix| stem.strip_prefix(prefix))
            .unwrap_or_else(|| panic!("{name}"));
        let (layer, part) = inside.split_once('.').unwrap();
        let new = if suffix == "e_score_correction_bias" {
            return format!("blk.{layer}.exp_probs_b.bias");
        } else if suffix == "sinks" {
            return format!("blk.{layer}.attn_sinks.weight");
        } else if let Some((_, expert)) = part.split_once(".experts.") {
            let matrix = expert.split_once('.').unwrap().1;
            EXPERT_NAMES.iter().find(|(old, _)| *old == matrix).unwrap().1
        } else if part == "post_attention_layernorm" {
            let sandwich = ["gemma2", "gemma3", "olmo2", "exaone4", "seed_oss", "glm4moe", "gpt-oss"]
                .contains(&self.architecture);
            if sandwich { "post_attention_norm" } else { "ffn_norm" }
        } else {
            LAYER_NAMES.iter().find(|(old, _)| *old == part).unwrap_or_else(|| panic!("{name}")).1
        };
        format!("blk.{layer}.{new}.{suffix}")
    }

    fn rewritten(&self, new_name: &str, name: &str, mut part: Part) -> Part {
        if self.architecture.starts_with("gemma") && new_name.ends_with("norm.weight") {
            part.values.iter_mut().for_each(|w| *w += 1.0);
        }
        if self.architecture == "gpt2" && name.contains(".c_") && part.shape.len() == 2 {
            let [inputs, outputs] = part.shape[..] else { unreachable!() };
            let rows = (0..outputs).flat_map(|o| part.values.iter().skip(o).step_by(outputs).copied());
            part = Part { values: rows.collect(), shape: vec![outputs, inputs] };
        }
        if PAIRED.contains(&self.architecture) && (name.contains("q_proj") || name.contains("k_proj")) {
            let heads = if name.contains("k_proj") {
                self.number("num_key_value_heads").unwrap() as usize
            } else {
                self.heads()
            };
            let dim = part.shape[0] / heads;
            // Channel 2i of a head was channel i, channel 2i + 1 was i + dim/2.
            part = part.with_rows(|row| row / dim * dim + row % dim / 2 + row % 2 * (dim / 2));
        }
        if self.architecture == "gptneox" && name.contains("query_key_value") {
            let dim = part.shape[0] / 3 / self.heads();
            let all = self.heads() * dim;
            part = part.with_rows(|row| {
                let (kind, head, channel) = (row / all, row % all / dim, row % dim);
                (head * 3 + kind) * dim + channel
            });
        }
        if name.ends_with("shared_expert_gate.weight")
            || name.ends_with("moe_statics.e_score_correction_bias")
        {
            part.shape.remove(0);
        }
        part
    }
}

/// The experts of gpt-oss, `(experts, inputs, outputs)` with gate and up interleaved, as tensors `(experts, outputs, inputs)`
/// for gate, up and down; of biases the outputs alone.
fn gpt_oss_experts(name: &str, part: Part) -> Vec<(String, Vec<Part>)> {
    let layer = name.split('.').nth(2).unwrap();
    let (kind, is_bias) = (name.rsplit_once('.').unwrap().1, name.ends_with("_bias"));
    let [experts, inputs, outputs] = match part.shape[..] {
        [experts, outputs] => [experts, 1, outputs],
        ref shape => shape.try_into().unwrap(),
    };
    let (names, step): (&[&str], usize) = if kind.starts_with("down") {
        (&["ffn_down_exps"], 1)
    } else {
        (&["ffn_gate_exps", "ffn_up_exps"], 2)
    };
    let one = |(first, new): (usize, &&str)| {
        let expert = |expert: usize| {
            let own = &part.values[expert * inputs * outputs..][..inputs * outputs];
            let row = |output: usize| own[output..].iter().step_by(outputs).copied();
            let values = (first..outputs).step_by(step).flat_map(row).collect();
            let rows = outputs / step;
            Part { values, shape: if is_bias { vec![rows] } else { vec![rows, inputs] } }
        };
        let suffix = if is_bias { "bias" } else { "weight" };
        (format!("blk.{layer}.{new}.{suffix}"), (0..experts).map(expert).collect())
    };
    names.iter().enumerate().map(one).collect()
}

struct Part {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Part {
    /// Row `i` of the result is row `from(i)` of `self`.
    fn with_rows(self, from: impl Fn(usize) -> usize) -> Self {
        let width = self.values.len() / self.shape[0];
        let values =
            (0..self.shape[0]).flat_map(|row| self.values[from(row) * width..][..width].to_vec()).collect();
        Self { values, shape: self.shape }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Logits of the fixture's first prompt.
fn logits(folder: &Path, checkpoint: &Checkpoint) -> Vec<f32> {
    let model = kvant_cpu::load(checkpoint, LoadOptions::default())
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let expected = Safetensors::open(&folder.join("expected.safetensors")).unwrap();
    let ids = expected.tensor("input_ids").unwrap().unwrap().index(0).unwrap().to_i64().unwrap();
    let ids: Vec<u32> = ids.into_iter().map(|id| id as u32).collect();
    let mut cache = ExactCache::<f32>::new(model.slots(), ids.len() + 16);
    let chunk = Chunk { tokens: &ids, wanted: 0..ids.len() };
    model.forward(&[chunk], &mut cache).unwrap().data().to_vec()
}

/// The largest difference of the rewritten checkpoint's logits from others.
fn difference_from(folder: &Path, source: &Source, expected: &[f32]) -> f32 {
    let found = logits(folder, &Checkpoint::from_gguf(Gguf::from_bytes(source.write()).unwrap()));
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The same from those of the reference.
fn difference(folder: &Path, source: &Source) -> f32 {
    let expected = Safetensors::open(&folder.join("expected.safetensors")).unwrap();
    let expected = expected.tensor("prefill_logits").unwrap().unwrap().index(0).unwrap();
    difference_from(folder, source, &expected.to_f32().unwrap())
}

fn check(folder: &Path, source: &Source) {
    let worst = difference(folder, source);
    assert!(worst < 2e-4, "{}: off by {worst}", folder.display());
}

/// Architectures that are read from Hugging Face folders alone.
const WITHOUT_GGUF: [&str; 12] = [
    "deepseek_v2",
    "deepseek_v3",
    "falcon_h1",
    "glm4_moe_lite",
    "granitemoehybrid",
    "lfm2",
    "lfm2_moe",
    "mistral4",
    "nemotron_h",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_next",
];

fn without_gguf(folder: &Path) -> bool {
    let config: Value = parse_json(&fs::read(folder.join("config_legacy.json")).unwrap()).unwrap();
    WITHOUT_GGUF.contains(&config["model_type"].as_str().unwrap())
}

#[test]
fn architectures_without_gguf_are_refused_by_name() {
    for name in WITHOUT_GGUF {
        let known = REGISTRY.iter().find(|known| known.config_name == name).unwrap();
        assert_eq!(known.gguf_name, "", "{name} can be read from GGUF: give it a rule here");
        let gguf = Gguf::from_bytes(Writer::new(name).to_bytes().unwrap()).unwrap();
        let refused = kvant_cpu::load(&Checkpoint::from_gguf(gguf), LoadOptions::default()).err().unwrap();
        assert!(refused.to_string().contains(&format!("{name:?}")), "{refused}");
    }
}

#[test]
fn every_fixture_gives_the_same_logits_as_gguf() {
    let mut checked = 0;
    for entry in fs::read_dir(root()).unwrap() {
        let folder = entry.unwrap().path();
        // Configurations that GGUF files cannot be read for yet have no rule here.
        if folder.join("config_legacy.json").is_file() && !without_gguf(&folder) {
            let Some(source) = Source::open(&folder) else { continue };
            // GGUF does not have the bound of its clamp.
            if source.architecture == "gpt-oss" {
                continue;
            }
            check(&folder, &source);
            checked += 1;
        }
    }
    assert!(checked >= FIXTURES, "only {checked} fixtures were checked");
}

/// The fixture clamps at 2, GGUF files at what was released.
#[test]
fn gpt_oss_as_gguf_clamps_at_seven() {
    let folder = root().join("gpt_oss");
    let source = Source::open(&folder).unwrap();
    let clamped_at = |limit: f64| {
        let mut config = source.config.clone();
        config["swiglu_limit"] = limit.into();
        let tensors = Safetensors::open(&folder.join("model.safetensors")).unwrap();
        logits(&folder, &Checkpoint::from_safetensors(tensors, config))
    };
    assert!(difference_from(&folder, &source, &clamped_at(7.0)) < 2e-4);
    assert!(difference_from(&folder, &source, &clamped_at(2.0)) > 1e-2);
}

#[test]
fn a_mixture_with_a_tensor_for_each_expert_loads() {
    let folder = root().join("mixtral");
    check(&folder, &Source { experts_apart: true, ..Source::open(&folder).unwrap() });
}

#[test]
fn ministral3_is_llama_within_its_first_context() {
    let folder = root().join("llama_hd");
    let mut source = Source { architecture: "mistral3", ..Source::open(&folder).unwrap() };
    check(&folder, &source);
    // Queries grow from the original context on: the fixture's are shorter.
    source.extra = vec![
        ("attention.temperature_scale", WriterValue::F32(0.1)),
        ("rope.scaling.original_context_length", WriterValue::U32(4096)),
    ];
    check(&folder, &source);
    source.extra[1].1 = WriterValue::U32(2);
    assert!(difference(&folder, &source) > 1e-3, "an original context of two tokens changes the logits");
}
