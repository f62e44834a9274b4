//! A model on disk, whatever its format: tensors by name, and the description that goes with them.

use crate::config::RopeOverride;
use crate::dtype::DType;
use crate::error::{LoadError, Result};
use crate::gguf::{Gguf, Metadata};
use crate::model_files::{choose_in_folder, is_gguf, read_json, read_text};
use crate::outline;
use crate::safetensors::Safetensors;
use crate::tensor::Tensor;
use kvant_cache::mapped::FileHealth;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Weights enter the signature by this many samples of this many bytes per tensor.
const SAMPLES: usize = 8;
const SAMPLE_BYTES: usize = 1024;

/// An opened model.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    weights: Storage,
    rope: RopeOverride,
}

#[derive(Debug)]
enum Storage {
    Gguf(Gguf),
    Safetensors {
        tensors: Safetensors,
        config: serde_json::Value,
    },
    /// The GGUF file that a Hugging Face checkpoint would be, of which only metadata exist.
    Twin {
        header: Gguf,
        original: Safetensors,
    },
    /// The Hugging Face checkpoint that a GGUF file would be, of which only the configuration exists.
    FolderTwin {
        config: serde_json::Value,
        original: Gguf,
    },
    /// Of zeros, in the shapes that the configuration asks for.
    Outline {
        tensors: BTreeMap<String, Tensor>,
        config: serde_json::Value,
    },
}

/// How a checkpoint describes its model.
#[derive(Debug, Clone, Copy)]
pub enum ConfigSource<'a> {
    /// GGUF metadata, tokenizer included.
    Gguf(&'a Metadata),
    /// The `config.json` of a Hugging Face folder.
    Config(&'a serde_json::Value),
}

/// A fingerprint of a model's weights and description; see [`Checkpoint::signature`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signature(pub [u8; 32]);

impl Checkpoint {
    fn of(path: PathBuf, weights: Storage) -> Self {
        Self { path, weights, rope: RopeOverride::default() }
    }

    /// The same model with other rotary settings, which are checked when it is described.
    pub fn with_rope(self, rope: RopeOverride) -> Self {
        Self { rope, ..self }
    }

    /// What takes the place of the file's rotary settings.
    pub fn rope_override(&self) -> &RopeOverride {
        &self.rope
    }

    /// Opens a GGUF file (or any part of a split one), a `.safetensors` file with `config.json` beside it, an
    /// index of shards, or a folder that holds one of these.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let kind = fs::metadata(path).map_err(|e| LoadError::io("open the model", path, e))?;
        let file = if kind.is_dir() { choose_in_folder(path)? } else { path.to_path_buf() };
        let weights = if is_gguf(&file)? {
            Storage::Gguf(Gguf::open(&file)?)
        } else {
            let tensors = match file.extension().and_then(|e| e.to_str()) {
                Some("safetensors") => Safetensors::open(&file)?,
                Some("json") => Safetensors::open_index(&file)?,
                _ => {
                    return Err(LoadError::unsupported(
                        "is neither a GGUF file, a .safetensors file nor a .safetensors.index.json",
                    )
                    .in_file(&file));
                }
            };
            let config = read_json(&file.with_file_name("config.json"))?;
            Storage::Safetensors { tensors: tensors.with_scale_block(&config), config }
        };
        Ok(Self::of(file, weights))
    }

    /// Opens what describes a model, to tell what it would take: anything that [`Checkpoint::open`] opens, the beginning of
    /// a GGUF file, or a `config.json` without weights, whose matrices are then taken to be of the type `weights`. Where
    /// weights are not here they read as zeros; see [`Checkpoint::has_weights`].
    pub fn open_description(path: impl AsRef<Path>, weights: DType) -> Result<Self> {
        let path = path.as_ref();
        let lone = if path.is_dir() { path.join("config.json") } else { path.to_path_buf() };
        let name = lone.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // Under any name but that of an index: people keep several of them in a folder.
        let is_config = name.ends_with(".json") && !name.ends_with(".index.json") && lone.is_file();
        if is_config && (lone == path || choose_in_folder(path).is_err()) {
            let config = read_json(&lone)?;
            let outlined = Self::from_config(config, weights).map_err(|e| e.in_file(&lone))?;
            return Ok(Self { path: lone, ..outlined });
        }
        if path.is_file() && is_gguf(path)? {
            let weights = Storage::Gguf(Gguf::open_beginning(path)?);
            return Ok(Self::of(path.to_path_buf(), weights));
        }
        Self::open(path)
    }

    /// What a configuration describes, without weights: its matrices are of the type `weights` (of half precision where
    /// that does not divide their rows), and all zeros.
    pub fn from_config(config: serde_json::Value, weights: DType) -> Result<Self> {
        let bare = Storage::Outline { tensors: BTreeMap::new(), config: config.clone() };
        let bare = Self::of(PathBuf::new(), bare);
        let tensors = outline::tensors(&bare, weights)?;
        Ok(Self { weights: Storage::Outline { tensors, config }, ..bare })
    }

    /// Whether the weights are here; where not, tensors are zeros.
    pub fn has_weights(&self) -> bool {
        match &self.weights {
            Storage::Gguf(gguf) => gguf.has_weights(),
            Storage::Safetensors { .. } => true,
            Storage::Twin { .. } | Storage::FolderTwin { .. } | Storage::Outline { .. } => false,
        }
    }

    /// The GGUF file that this Hugging Face checkpoint would be under the metadata of `header`: it can be described and not run.
    /// An optional tensor counts as present where its counterpart is here.
    ///
    /// # Errors
    /// If this is a GGUF file, or has no weights.
    pub fn gguf_twin(&self, header: Gguf) -> Result<Self> {
        let Storage::Safetensors { tensors, .. } = &self.weights else {
            return Err(LoadError::unsupported("only a Hugging Face checkpoint has a GGUF twin"));
        };
        let weights = Storage::Twin { header, original: tensors.clone() };
        Ok(Self::of(self.path.clone(), weights))
    }

    /// The Hugging Face checkpoint that this GGUF file would be under the configuration `config`, likewise.
    ///
    /// # Errors
    /// If this is not a GGUF file.
    pub fn folder_twin(&self, config: serde_json::Value) -> Result<Self> {
        let Storage::Gguf(gguf) = &self.weights else {
            return Err(LoadError::unsupported("only a GGUF file has a Hugging Face twin"));
        };
        let weights = Storage::FolderTwin { config, original: gguf.clone() };
        Ok(Self::of(self.path.clone(), weights))
    }

    /// A tensor by its name in a Hugging Face checkpoint and in GGUF, in what a twin was made from; `None` where this is no twin.
    pub(crate) fn counterpart(&self, hf: &str, gguf: &str) -> Option<Result<Option<Tensor>>> {
        match &self.weights {
            Storage::Twin { original, .. } => Some(original.tensor(hf)),
            Storage::FolderTwin { original, .. } => Some(Ok(original.tensor(gguf))),
            Storage::Gguf(_) | Storage::Safetensors { .. } | Storage::Outline { .. } => None,
        }
    }

    /// Whether it is made of a configuration alone, to be sized.
    pub(crate) fn is_outline(&self) -> bool {
        match &self.weights {
            Storage::Outline { .. } => true,
            Storage::Gguf(_)
            | Storage::Safetensors { .. }
            | Storage::Twin { .. }
            | Storage::FolderTwin { .. } => false,
        }
    }

    /// Whether there is nothing but a configuration: no directory of tensors to hold a description against.
    pub(crate) fn is_bare(&self) -> bool {
        match &self.weights {
            Storage::Twin { .. } | Storage::FolderTwin { .. } => true,
            Storage::Outline { tensors, .. } => tensors.is_empty(),
            Storage::Gguf(_) | Storage::Safetensors { .. } => false,
        }
    }

    /// A checkpoint over a GGUF model that is already open or was made in memory.
    pub fn from_gguf(gguf: Gguf) -> Self {
        Self::of(PathBuf::new(), Storage::Gguf(gguf))
    }

    /// A checkpoint over safetensors and a config that are already in memory.
    pub fn from_safetensors(tensors: Safetensors, config: serde_json::Value) -> Self {
        let tensors = tensors.with_scale_block(&config);
        Self::of(PathBuf::new(), Storage::Safetensors { tensors, config })
    }

    /// The mapped files that hold its tensors.
    pub(crate) fn files(&self) -> Vec<Arc<FileHealth>> {
        let mut files: Vec<Arc<FileHealth>> = Vec::new();
        for tensor in self.names().filter_map(|name| self.tensor(name).ok()) {
            if let Some(file) =
                tensor.bytes().health().filter(|file| !files.iter().any(|f| Arc::ptr_eq(f, file)))
            {
                files.push(file.clone());
            }
        }
        files
    }

    /// Whether all that was read so far was really there.
    ///
    /// # Errors
    /// If a file was truncated while it was mapped, or its disk failed; what was read from the missing part are zeros.
    pub fn intact(&self) -> Result<()> {
        match self.files().iter().find(|file| file.is_damaged()) {
            Some(file) => Err(LoadError::malformed(
                "the file was truncated or cannot be read any more: fetch it again, and load the model anew",
            )
            .in_file(file.path())),
            None => Ok(()),
        }
    }

    /// The file that was opened: the GGUF file, the single safetensors file or the index.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How the model describes itself.
    pub fn config(&self) -> ConfigSource<'_> {
        match &self.weights {
            Storage::Gguf(gguf) | Storage::Twin { header: gguf, .. } => ConfigSource::Gguf(gguf.metadata()),
            Storage::Safetensors { config, .. }
            | Storage::FolderTwin { config, .. }
            | Storage::Outline { config, .. } => ConfigSource::Config(config),
        }
    }

    /// A file beside the weights, such as `tokenizer.json`, when it is there.
    pub fn companion(&self, name: &str) -> Option<PathBuf> {
        if self.path.as_os_str().is_empty() {
            return None;
        }
        Some(self.path.with_file_name(name)).filter(|path| path.is_file())
    }

    /// The text of a file beside the weights, when it is there.
    pub fn companion_text(&self, name: &str) -> Result<Option<String>> {
        self.companion(name).map(|path| read_text(&path)).transpose()
    }

    /// All tensor names: in file order for GGUF, sorted for safetensors.
    pub fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        match &self.weights {
            Storage::Gguf(gguf) | Storage::Twin { header: gguf, .. } => {
                Box::new(gguf.tensors().map(|t| t.name.as_str()))
            }
            Storage::Safetensors { tensors, .. } => Box::new(tensors.names()),
            Storage::FolderTwin { .. } => Box::new(std::iter::empty()),
            Storage::Outline { tensors, .. } => Box::new(tensors.keys().map(String::as_str)),
        }
    }

    /// A tensor that may be absent (a bias, an untied output). Its bytes are shared with the file.
    pub fn get(&self, name: &str) -> Result<Option<Tensor>> {
        match &self.weights {
            Storage::Gguf(gguf) | Storage::Twin { header: gguf, .. } => Ok(gguf.tensor(name)),
            Storage::Safetensors { tensors, .. } => tensors.tensor(name).map_err(|e| e.in_file(&self.path)),
            Storage::FolderTwin { .. } => Ok(None),
            Storage::Outline { tensors, .. } => Ok(tensors.get(name).cloned()),
        }
    }

    /// A tensor that must be there.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        self.get(name)?.ok_or_else(|| {
            let error = LoadError::missing(format!(
                "tensor {name:?} is missing; the file is incomplete or of another architecture than it says"
            ));
            if self.path.as_os_str().is_empty() { error } else { error.in_file(&self.path) }
        })
    }

    /// SHA-256 over the description, the complete tensor directory and *samples* of the weights: per tensor its
    /// first and last kilobyte and six kilobytes evenly between, or all of it when it is smaller than that. Other rotary
    /// settings than the file's count too.
    ///
    /// It tells models, quantisations and fine-tunes apart in milliseconds; it does not detect a few flipped
    /// bits in a large tensor. (Whole files are checked against a full SHA-256 when they are downloaded.)
    pub fn signature(&self) -> Signature {
        self.signature_with(&self.rope)
    }

    /// The signature that it has without other rotary settings.
    pub fn file_signature(&self) -> Signature {
        self.signature_with(&RopeOverride::default())
    }

    fn signature_with(&self, rope: &RopeOverride) -> Signature {
        let mut hash = Sha256::new();
        hash.update(b"kvant checkpoint signature 1\0");
        let mut field = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        match &self.weights {
            Storage::Gguf(gguf) | Storage::Twin { header: gguf, .. } => {
                gguf.header_bytes().for_each(&mut field);
            }
            Storage::Safetensors { tensors, config } => {
                field(sorted_json(config).as_bytes());
                tensors.header_bytes().for_each(&mut field);
            }
            Storage::FolderTwin { config, .. } | Storage::Outline { config, .. } => {
                field(sorted_json(config).as_bytes())
            }
        }
        for name in self.names() {
            // A tensor of a type we do not read still counts through the directory above.
            if let Ok(Some(tensor)) = self.get(name) {
                field(name.as_bytes());
                for sample in samples(tensor.bytes()) {
                    field(sample);
                }
            }
        }
        // Last and only where there is one, so that everything else keeps its signature.
        if !rope.is_empty() {
            field(format!("rope {rope}").as_bytes());
        }
        Signature(hash.finalize().into())
    }
}

/// JSON text with sorted keys, so that the signature depends neither on spacing nor on the order of keys.
fn sorted_json(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Object(map) => {
            let sorted: BTreeMap<&String, &serde_json::Value> = map.iter().collect();
            let fields: Vec<String> = sorted
                .into_iter()
                .map(|(key, value)| {
                    format!("{}:{}", serde_json::Value::from(key.as_str()), sorted_json(value))
                })
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        serde_json::Value::Array(items) => {
            format!("[{}]", items.iter().map(sorted_json).collect::<Vec<_>>().join(","))
        }
        plain => plain.to_string(),
    }
}

fn samples(bytes: &[u8]) -> Vec<&[u8]> {
    if bytes.len() <= SAMPLES * SAMPLE_BYTES {
        return vec![bytes];
    }
    let last = bytes.len() - SAMPLE_BYTES;
    let start = |i: usize| (last as u64 * i as u64 / (SAMPLES as u64 - 1)) as usize;
    (0..SAMPLES).map(|i| &bytes[start(i)..][..SAMPLE_BYTES]).collect()
}

impl std::fmt::Display for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Signature({self})")
    }
}
