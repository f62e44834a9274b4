//! LoRA adapters: low-rank updates of a model's linear layers, applied while it runs.
//!
//! An adapter has for some weights W two small matrices: A, `(rank, inputs)`, and B, `(outputs, rank)`. A sequence that runs with
//! it gets `y = W x + scale · B (A x)` where others get `y = W x`; W itself stays as it is, packed or not, so one loaded model serves
//! many adapters, and sequences with different ones share a pass ([`Chunk::adapters`](crate::Chunk::adapters)).
//!
//! Two formats are read, each for a base of the same kind, because names and the order of channels differ between them:
//!
//! | format | base | weights are called |
//! |---|---|---|
//! | GGUF, as llama.cpp's converter writes it | GGUF | `blk.0.attn_q.weight.lora_a`, `.lora_b` |
//! | a PEFT folder: `adapter_config.json`, `adapter_model.safetensors` | Hugging Face | `base_model.model.….q_proj.lora_A.weight`, `.lora_B.weight` |
//!
//! What may be adapted are the projections of softmax attention and dense feed-forward layers. Experts, latent attention (MLA), recurrent
//! mixers, embeddings and the output layer are refused by name. Everything is checked when an adapter is opened: a pass cannot fail
//! because of its numbers.
//!
//! **Invariant:** a sequence without adapters has the same bits whatever adapters others in its pass have.

mod gguf;
mod mix;
mod peft;

pub use mix::{AdapterMix, AppliedAdapter};

use crate::checkpoint::{Checkpoint, ConfigSource};
use crate::description::{Description, Ffn, Inner, Linear, Mixer, Projection};
use crate::error::{LoadError, Result};
use crate::model_files::is_gguf;
use crate::tensor::Tensor;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

/// The update of one weight.
#[derive(Debug, Clone)]
pub struct LowRank {
    a: Tensor,  // (rank, inputs), f32
    b: Tensor,  // (outputs, rank), f32
    scale: f32, // alpha / rank, or what the file says
}

impl LowRank {
    /// `(rank, inputs)` in f32, what inputs are multiplied with first.
    pub fn a(&self) -> &Tensor {
        &self.a
    }

    /// `(outputs, rank)` in f32.
    pub fn b(&self) -> &Tensor {
        &self.b
    }

    /// Multiplier of `B (A x)`, before that of whoever applies the adapter.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Inner width.
    pub fn rank(&self) -> usize {
        self.a.rows()
    }
}

/// An adapter that fits one model.
pub struct Adapter {
    name: String,
    /// By the names of the tensors that they update.
    updates: BTreeMap<String, LowRank>,
    /// Of the model that it was checked against.
    base: [u8; 32],
    /// Over names, shapes, scales and all numbers.
    digest: [u8; 32],
}

impl Adapter {
    /// Opens a GGUF adapter, a PEFT folder, or the `adapter_model.safetensors` in one, for the model that `description` was made of
    /// `base` for. All its numbers are read.
    ///
    /// # Errors
    /// If it is damaged or no LoRA adapter, updates a tensor that the model does not have or that cannot be adapted, has matrices of
    /// other shapes or numbers that are not finite. The message names the file and the tensor.
    pub fn open(path: impl AsRef<Path>, base: &Checkpoint, description: &Description) -> Result<Self> {
        let path = path.as_ref();
        Self::read(path, base, description).map_err(|e| e.in_file(path))
    }

    fn read(path: &Path, base: &Checkpoint, description: &Description) -> Result<Self> {
        let pairs = if path.is_file() && is_gguf(path)? {
            let ConfigSource::Gguf(metadata) = base.config() else {
                return Err(LoadError::mismatch(
                    "is a GGUF adapter, and the model is a Hugging Face checkpoint: give the PEFT folder that it was made from",
                ));
            };
            gguf::pairs(path, metadata.architecture()?)?
        } else {
            let folder = peft::Folder::at(path)?;
            if let ConfigSource::Gguf(_) = base.config() {
                return Err(LoadError::mismatch(
                    "is a PEFT adapter, and the model is a GGUF file, which has other names and another order of channels: convert \
                     the adapter with llama.cpp's convert_lora_to_gguf.py, or use the model's Hugging Face checkpoint",
                ));
            }
            folder.pairs()?
        };
        let targets = Targets::of(description);
        let mut updates = BTreeMap::new();
        for pair in pairs {
            let (name, update) = targets.checked(pair)?;
            if updates.insert(name.clone(), update).is_some() {
                return Err(LoadError::malformed(format!("has two updates of tensor {name:?}")));
            }
        }
        if updates.is_empty() {
            return Err(LoadError::missing("updates no tensor"));
        }
        let digest = digest(&updates);
        Ok(Self { name: name_of(path), updates, base: description.tensor_digest(), digest })
    }

    /// What people call it: its file's name without the extension, or its folder's, unless it was given [another](Adapter::called).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same adapter under another name.
    #[must_use]
    pub fn called(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// The update of the weight that is called `tensor`.
    pub fn update(&self, tensor: &str) -> Option<&LowRank> {
        self.updates.get(tensor)
    }

    /// All updates, by the names of tensors.
    pub fn updates(&self) -> impl Iterator<Item = (&str, &LowRank)> {
        self.updates.iter().map(|(name, update)| (name.as_str(), update))
    }

    /// Bytes that it takes in memory.
    pub fn bytes(&self) -> usize {
        self.updates.values().map(|of| of.a.bytes().len() + of.b.bytes().len()).sum()
    }

    /// SHA-256 over all that it computes with; the name is no part of it.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Whether it was opened for a model with these tensors.
    pub(crate) fn fits(&self, tensor_digest: &[u8; 32]) -> bool {
        self.base == *tensor_digest
    }
}

impl std::fmt::Debug for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Adapter({:?}, {} tensors)", self.name, self.updates.len())
    }
}

fn name_of(path: &Path) -> String {
    let path = match path.file_name() {
        Some(name) if name == peft::WEIGHTS => path.parent().unwrap_or(path),
        _ => path,
    };
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    name.unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn digest(updates: &BTreeMap<String, LowRank>) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"kvant adapter 1\0");
    for (name, LowRank { a, b, scale }) in updates {
        for part in
            [name.as_bytes(), &scale.to_le_bytes(), &(a.rows() as u64).to_le_bytes(), a.bytes(), b.bytes()]
        {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    hash.finalize().into()
}

/// Two matrices of a file, before they are held against a model.
struct Pair {
    /// The weight they update, as the base calls it.
    target: String,
    a: Tensor,
    b: Tensor,
    scale: f64,
}

/// Which of the two a tensor of a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    A,
    B,
}

/// Joins the two sides of every update.
///
/// `tensors` are the weights' names, which side it is, and the tensor.
fn joined(
    tensors: impl Iterator<Item = Result<(String, Side, Tensor)>>,
    scale: impl Fn(usize) -> f64,
) -> Result<Vec<Pair>> {
    let mut sides: BTreeMap<String, [Option<Tensor>; 2]> = BTreeMap::new();
    for tensor in tensors {
        let (target, side, tensor) = tensor?;
        let name = tensor.name().to_owned();
        if sides.entry(target).or_default()[side as usize].replace(tensor).is_some() {
            return Err(LoadError::malformed(format!("tensor {name:?} has a twin under another name")));
        }
    }
    let pair = |(target, sides): (String, [Option<Tensor>; 2])| match sides {
        [Some(a), Some(b)] => {
            let scale = scale(a.shape().first().copied().unwrap_or(0));
            Ok(Pair { target, a, b, scale })
        }
        [a, b] => {
            let alone = a.or(b);
            let alone = alone.as_ref().map_or(target.as_str(), Tensor::name);
            Err(LoadError::missing(format!(
                "tensor {alone:?} has no counterpart: an update needs A and B; the file is incomplete"
            )))
        }
    };
    sides.into_iter().map(pair).collect()
}

/// The weights of a model that can be adapted, and those that cannot.
struct Targets<'d> {
    description: &'d Description,
    adaptable: BTreeMap<&'d str, (usize, usize)>, // (outputs, inputs)
}

impl<'d> Targets<'d> {
    fn of(description: &'d Description) -> Self {
        let linears = description.layers.iter().flat_map(|layer| layer.mixers()).flat_map(linears);
        let whole =
            linears.map(|linear| &linear.weight).filter(|of| of.expert.is_none() && of.rows.is_none());
        let adaptable = whole.map(|of| (of.tensor.name.as_str(), (of.outputs(), of.inputs()))).collect();
        Self { description, adaptable }
    }

    /// The name of a weight and its update, held against the model.
    fn checked(&self, Pair { target, a, b, scale }: Pair) -> Result<(String, LowRank)> {
        let (name, &(outputs, inputs)) = self.find(&target)?;
        let wrong = |tensor: &Tensor, wanted: String| {
            LoadError::mismatch(format!(
                "tensor {:?} has shape {:?}, and the model's {name:?} ({outputs} outputs, {inputs} inputs) needs {wanted}: the adapter \
                 was made for another model",
                tensor.name(),
                tensor.shape()
            ))
        };
        let &[rank, columns] = a.shape() else { return Err(wrong(&a, format!("(rank, {inputs})"))) };
        if rank == 0 || columns != inputs {
            return Err(wrong(&a, format!("(rank, {inputs})")));
        }
        if b.shape() != [outputs, rank] {
            return Err(wrong(&b, format!("({outputs}, {rank})")));
        }
        let scale = scale as f32;
        if !scale.is_finite() {
            return Err(LoadError::malformed(format!(
                "the scale of tensor {target:?} is not a finite number"
            )));
        }
        Ok((name.to_owned(), LowRank { a: plain(&a)?, b: plain(&b)?, scale }))
    }

    /// The weight under its own name, or without the first part of it: some checkpoints leave out the name of the body.
    fn find(&self, target: &str) -> Result<(&'d str, &(usize, usize))> {
        let inner = target.split_once('.').map(|(_, rest)| rest);
        for name in [Some(target), inner].into_iter().flatten() {
            if let Some((name, shape)) = self.adaptable.get_key_value(name) {
                return Ok((name, shape));
            }
        }
        let is_there = self.description.tensors().iter().any(|tensor| tensor.name == target);
        Err(match is_there {
            true => LoadError::unsupported(format!(
                "updates tensor {target:?}, which kvant does not adapt: adapters change the projections of attention and dense \
                 feed-forward layers, not experts, latent attention, recurrent layers, embeddings or the output layer. Merge it \
                 into the weights"
            )),
            false => LoadError::mismatch(format!(
                "updates tensor {target:?}, which the model does not have: the adapter was made for another model"
            )),
        })
    }
}

/// The linear layers of a mixer that adapters may update.
fn linears(mixer: &Mixer) -> Vec<&Linear> {
    match mixer {
        Mixer::Attention(of) => {
            let mut all = match &of.projection {
                Projection::Apart { q, k, v } => vec![q, k, v],
                Projection::Fused(all) | Projection::FusedByHead(all) => vec![all],
                Projection::Shared { q } => vec![q],
                Projection::Equal { q, kv } => vec![q, kv],
            };
            all.push(&of.output);
            all
        }
        Mixer::Ffn(Ffn::Dense(mlp)) => {
            let mut all = match &mlp.inner {
                Inner::Gated { gate, up } => vec![gate, up],
                Inner::GatedFused(both) => vec![both],
                Inner::Plain(up) => vec![up],
            };
            all.push(&mlp.down);
            all
        }
        Mixer::Ffn(Ffn::Experts(_))
        | Mixer::LatentAttention(_)
        | Mixer::ShortConv(_)
        | Mixer::Mamba2(_)
        | Mixer::GatedDeltaNet(_)
        | Mixer::PerLayerInput(_)
        | Mixer::Laurel(_) => Vec::new(),
    }
}

/// The same numbers in f32, in memory of their own: an adapter outlives its file.
fn plain(tensor: &Tensor) -> Result<Tensor> {
    let values = tensor.to_f32()?;
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        return Err(LoadError::malformed(format!(
            "tensor {:?} holds {} in row {}: the adapter is damaged",
            tensor.name(),
            values[at],
            at / tensor.columns().max(1)
        )));
    }
    if let Some(file) = tensor.bytes().health().filter(|file| file.is_damaged()) {
        return Err(LoadError::malformed("was truncated while it was read").in_file(file.path()));
    }
    tensor.bytes().release();
    Tensor::from_f32(tensor.name(), tensor.shape().to_vec(), &values)
}
