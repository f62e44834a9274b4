//! A fixture: a tiny checkpoint, and what Hugging Face transformers computed with it.

use kvant_model::config::parse_json;
use kvant_model::safetensors::Safetensors;
use kvant_model::{Checkpoint, LoadError};
use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../../crates/kvant-model/tests/support/expected.rs"]
mod expected;

/// A folder with a tiny checkpoint and the reference's outputs.
pub struct Fixture {
    /// The name of the folder.
    pub name: String,
    folder: PathBuf,
    /// All that the reference kept.
    pub tensors: Safetensors,
    /// Two prompts.
    pub prompts: Vec<Vec<u32>>,
    /// What the reference went on with.
    pub greedy: Vec<Vec<u32>>,
}

impl Fixture {
    /// All under `KVANT_FIXTURES`, by default the project's own, by name.
    pub fn all() -> Vec<Self> {
        let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/kvant-model/tests/fixtures");
        let root = std::env::var_os("KVANT_FIXTURES").map_or_else(own, PathBuf::from);
        let entries = fs::read_dir(&root).unwrap_or_else(|e| panic!("{}: {e}", root.display()));
        let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        folders.retain(|path| path.join("config.json").is_file());
        folders.sort();
        assert!(!folders.is_empty(), "{} holds no fixtures", root.display());
        folders.iter().map(|folder| Self::open(folder)).collect()
    }

    fn open(folder: &Path) -> Self {
        let tensors = expected::expected(folder);
        let ids = |name: &str| -> Vec<Vec<u32>> {
            let ids = tensors.tensor(name).unwrap().unwrap();
            let list = ids.to_i64().unwrap();
            list.chunks(ids.columns()).map(|row| row.iter().map(|&id| id as u32).collect()).collect()
        };
        let (prompts, greedy) = (ids("input_ids"), ids("greedy_ids"));
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        Self { name, folder: folder.to_path_buf(), prompts, greedy, tensors }
    }

    /// The names of its configurations.
    pub fn configs(&self) -> impl Iterator<Item = &'static str> {
        ["config.json", "config_legacy.json"].into_iter().filter(|config| self.folder.join(config).is_file())
    }

    /// Its weights under one of its configurations.
    ///
    /// # Errors
    /// If the weights cannot be read.
    pub fn checkpoint(&self, config: &str) -> Result<Checkpoint, LoadError> {
        let config = parse_json(&fs::read(self.folder.join(config)).unwrap()).unwrap();
        Ok(Checkpoint::from_safetensors(Safetensors::open(&self.folder.join("model.safetensors"))?, config))
    }

    /// A prompt and what the reference went on with.
    pub fn sequence(&self, index: usize) -> Vec<u32> {
        [&self.prompts[index][..], &self.greedy[index]].concat()
    }

    /// Tokens of a prompt.
    pub fn prompt(&self) -> usize {
        self.prompts[0].len()
    }

    /// Tokens of a prompt and its continuation.
    pub fn capacity(&self) -> usize {
        self.prompt() + self.greedy[0].len()
    }

    /// Part `index` of a tensor along its first extent, or all of it.
    pub fn expected(&self, name: &str, index: Option<usize>) -> Vec<f32> {
        let whole = self.tensors.tensor(name).unwrap().unwrap_or_else(|| panic!("{name} is expected"));
        match index {
            Some(index) => whole.index(index).unwrap().to_f32().unwrap(),
            None => whole.to_f32().unwrap(),
        }
    }

    /// Whether the reference kept this.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.tensor(name).unwrap().is_some()
    }

    /// The reference's logits of [`sequence`](Self::sequence) `index`.
    pub fn logits(&self, index: usize) -> Vec<f32> {
        let part = |name| self.expected(name, Some(index));
        [part("prefill_logits"), part("step_logits")].concat()
    }
}

/// The largest difference from the reference that an engine may have, by architecture: the reference computes in f32, and sums over long
/// states differ more.
pub fn reference_tolerance(architecture: &str) -> f64 {
    match architecture {
        "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text" => 1e-3,
        "granitemoehybrid" | "nemotron_h" | "falcon_h1" | "gemma3n_text" => 5e-4,
        _ => 2e-4,
    }
}
