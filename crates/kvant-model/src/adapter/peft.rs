//! Adapters as PEFT saves them: a folder with `adapter_config.json` and `adapter_model.safetensors`.

use super::{Pair, Side, joined};
use crate::error::{LoadError, Result};
use crate::model_files::read_json;
use crate::safetensors::Safetensors;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The file with the numbers.
pub(super) const WEIGHTS: &str = "adapter_model.safetensors";
const CONFIG: &str = "adapter_config.json";

/// Ways to begin training that change the base's weights too: without those the adapter is worth nothing.
const CHANGED_BASE: [&str; 4] = ["pissa", "olora", "corda", "loftq"];

/// What an adapter may be beside plain LoRA, by the key that says so.
const BEYOND: [(&str, &str); 9] = [
    ("use_dora", "DoRA (use_dora)"),
    ("lora_bias", "biases (lora_bias)"),
    ("use_qalora", "QALoRA (use_qalora)"),
    ("modules_to_save", "whole layers of its own (modules_to_save)"),
    ("alpha_pattern", "an alpha for each layer (alpha_pattern)"),
    ("layer_replication", "replicated layers (layer_replication)"),
    ("target_parameters", "parameters that are not layers (target_parameters)"),
    ("trainable_token_indices", "tokens of its own (trainable_token_indices)"),
    ("alora_invocation_tokens", "activation in the middle of a text (aLoRA)"),
];

/// An adapter's folder.
pub(super) struct Folder {
    weights: PathBuf,
    config: PathBuf,
}

impl Folder {
    /// The folder, or the one that its weights are named in.
    pub fn at(path: &Path) -> Result<Self> {
        let folder = match path.file_name() {
            Some(name) if name == WEIGHTS => path.parent().unwrap_or(Path::new(".")),
            _ => path,
        };
        let [weights, config] = [WEIGHTS, CONFIG].map(|name| folder.join(name));
        let kind = path.metadata().map_err(|e| LoadError::io("open the adapter", path, e))?;
        if !kind.is_dir() && path != weights {
            return Err(LoadError::unsupported(format!(
                "is neither a GGUF file nor a folder with {CONFIG} and {WEIGHTS}"
            )));
        }
        if !weights.is_file() && folder.join("adapter_model.bin").is_file() {
            return Err(LoadError::unsupported(format!(
                "holds adapter_model.bin, a Python pickle, which kvant does not run: save it as {WEIGHTS}"
            )));
        }
        Ok(Self { weights, config })
    }

    /// Its updates.
    pub fn pairs(&self) -> Result<Vec<Pair>> {
        let config: Value = read_json(&self.config)?;
        let config = Config::new(&config).map_err(|e| e.in_file(&self.config))?;
        let weights = Safetensors::open(&self.weights)?;
        let tensors = weights.names().map(|name| {
            let (module, side) = module(name).ok_or_else(|| {
                LoadError::unsupported(format!(
                    "tensor {name:?} is neither the lora_A nor the lora_B of a linear layer"
                ))
            })?;
            if !config.targets(module) {
                return Err(LoadError::mismatch(format!(
                    "tensor {name:?} belongs to a layer that target_modules does not name"
                )));
            }
            let tensor = weights
                .tensor(name)?
                .ok_or_else(|| LoadError::malformed(format!("tensor {name:?} cannot be read")))?;
            let rank = tensor.shape().get(if side == Side::A { 0 } else { 1 });
            if !config.has_ranks && rank != Some(&config.rank) {
                return Err(LoadError::mismatch(format!(
                    "tensor {name:?} has shape {:?}, and {CONFIG} says r is {}",
                    tensor.shape(),
                    config.rank
                )));
            }
            Ok((format!("{module}.weight"), side, tensor))
        });
        joined(tensors, |rank| config.scale(rank)).map_err(|e| e.in_file(&self.weights))
    }
}

/// The layer that a tensor belongs to, and which side it is.
fn module(tensor: &str) -> Option<(&str, Side)> {
    let name = tensor.strip_prefix("base_model.model.")?.strip_suffix(".weight")?;
    let side = |end, side| Some((name.strip_suffix(end)?, side));
    side(".lora_A", Side::A).or_else(|| side(".lora_B", Side::B))
}

/// What of a configuration decides what is computed.
struct Config<'a> {
    rank: usize,
    alpha: f64,
    /// alpha / √rank in place of alpha / rank.
    by_root: bool,
    /// Layers may have ranks of their own.
    has_ranks: bool,
    /// Ends of the names of layers; `None` where the file has a pattern for them.
    targets: Option<Vec<&'a str>>,
}

impl<'a> Config<'a> {
    fn new(config: &'a Value) -> Result<Self> {
        let kind = config.get("peft_type").and_then(Value::as_str).unwrap_or("missing");
        if kind != "LORA" {
            return Err(LoadError::unsupported(format!(
                "peft_type is {kind:?}; kvant applies \"LORA\" alone"
            )));
        }
        if let Some((_, what)) = BEYOND.into_iter().find(|(key, _)| is_set(config.get(*key))) {
            return Err(LoadError::unsupported(format!("asks for {what}, which kvant does not apply")));
        }
        if let Some(bias) = config.get("bias").and_then(Value::as_str).filter(|bias| *bias != "none") {
            return Err(LoadError::unsupported(format!(
                "bias is {bias:?}: kvant applies no biases of adapters"
            )));
        }
        let init = config.get("init_lora_weights").and_then(Value::as_str).unwrap_or_default();
        if CHANGED_BASE.iter().any(|way| init.to_ascii_lowercase().starts_with(way)) {
            return Err(LoadError::unsupported(format!(
                "init_lora_weights is {init:?}, which changes the base's weights too: convert it to plain LoRA when saving"
            )));
        }
        let rank = config.get("r").and_then(Value::as_u64).and_then(|rank| usize::try_from(rank).ok());
        let rank = rank
            .filter(|rank| *rank > 0)
            .ok_or_else(|| LoadError::mismatch("r is not a whole number above 0"))?;
        let alpha = config.get("lora_alpha").and_then(Value::as_f64).filter(|alpha| alpha.is_finite());
        let alpha = alpha.ok_or_else(|| LoadError::mismatch("lora_alpha is not a number"))?;
        let targets = match config.get("target_modules") {
            Some(Value::Array(list)) => Some(list.iter().filter_map(Value::as_str).collect()),
            _ => None,
        };
        let by_root = config.get("use_rslora").and_then(Value::as_bool).unwrap_or(false);
        Ok(Self { rank, alpha, by_root, has_ranks: is_set(config.get("rank_pattern")), targets })
    }

    fn scale(&self, rank: usize) -> f64 {
        self.alpha / if self.by_root { (rank as f64).sqrt() } else { rank as f64 }
    }

    fn targets(&self, module: &str) -> bool {
        let is_end =
            |end: &&str| module.strip_suffix(*end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        self.targets.as_ref().is_none_or(|ends| ends.iter().any(is_end))
    }
}

/// Whether a key says anything: not `null`, `false`, or an empty list or object.
fn is_set(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Array(list)) => !list.is_empty(),
        Some(Value::Object(map)) => !map.is_empty(),
        Some(_) => true,
    }
}
