//! The GGUF file of a Hugging Face checkpoint.
//!
//! Metadata come first. With them the architecture describes the file that does not exist yet, under GGUF's names and in its
//! layouts, where presence of optional tensors is that of their Hugging Face counterparts ([`Checkpoint::gguf_twin`]). Walking
//! both descriptions then tells where every tensor comes from.

mod metadata;
mod rope;
mod vocabulary;

pub(crate) use metadata::Mixers;
pub(crate) use rope::llama3_divisors;
pub(crate) use vocabulary::same_tokens;

use crate::assemble::Assembly;
use crate::error::{ConvertError, Result};
use crate::importance::Importance;
use crate::keys::still_pairing;
use crate::parts::Parts;
use crate::recipe::{Place, Weights, layers_of};
use crate::rows::Made;
use crate::source::{described, state_types};
use kvant_model::arch::REGISTRY;
use kvant_model::description::Pairing;
use kvant_model::gguf::{Gguf, Writer};
use kvant_model::{Checkpoint, Description};
use serde_json::Value;

/// Architectures whose GGUF files go by another's name.
const OTHER_NAMES: [(&str, &str); 6] = [
    ("deepseek_v3", "deepseek2"),
    ("glm4_moe_lite", "deepseek2"),
    ("mimo", "qwen2"),
    ("mistral", "llama"),
    ("mixtral", "llama"),
    ("olmo3", "olmo2"),
];

/// A GGUF file: what it says, and its tensors.
pub(crate) struct GgufTwin {
    pub writer: Writer,
    pub tensors: Vec<Made>,
    pub notes: Vec<String>,
}

pub(crate) fn of(
    checkpoint: &Checkpoint,
    config: &Value,
    weights: Weights,
    importance: Option<&Importance>,
) -> Result<GgufTwin> {
    let ours = described(checkpoint)?;
    refuse_streams(&ours)?;
    let architecture = gguf_name(&ours)?;
    let mut writer = metadata::of(&ours, config, architecture, &name_of(checkpoint))?;
    let twin = checkpoint.gguf_twin(Gguf::from_bytes(writer.to_bytes()?)?)?;
    // What an architecture asks of a GGUF file, and the metadata above do not say.
    let theirs =
        Description::of(&twin).map_err(|e| not_written(ours.architecture, &format!(" yet ({e})")))?;
    let from = Parts::of(&ours, Pairing::Halves);
    let to = Parts::of(&theirs, still_pairing(architecture));
    let layers = layers_of(to.list.iter().map(|part| part.tensor.name.as_str()));
    let assembly = Assembly {
        checkpoint,
        importance,
        what: format!("a GGUF file of {}", ours.architecture),
        output_name: Some("output.weight"),
    };
    let tensors = assembly
        .tensors(&from, &to, |role, columns, name| weights.gguf_type(role, columns, Place { name, layers }))
        .map_err(ConvertError::or_safetensors)?;
    state_types(&mut writer, weights);
    let mut notes = Vec::new();
    if let Some(left_out) = ours.left_out.first() {
        notes.push(format!("the {left_out} side of the checkpoint is not converted"));
    }
    vocabulary::write(&mut writer, checkpoint, ours.vocabulary, &mut notes)?;
    Ok(GgufTwin { writer, tensors, notes })
}

/// GGUF's names for Gemma 3n's streams are those of a model with four of them, three of which are opened and joined as one tensor.
fn refuse_streams(description: &Description) -> Result<()> {
    if description.embedding.streams.is_none() {
        return Ok(());
    }
    Err(not_written(
        description.architecture,
        ": its files are for exactly four AltUp inputs, whose projections lie in one tensor",
    ))
}

fn gguf_name(description: &Description) -> Result<&'static str> {
    let config_name = description.architecture;
    let other = OTHER_NAMES.iter().find(|(own, _)| *own == config_name).map(|(_, gguf)| *gguf);
    let own = || REGISTRY.iter().find(|known| known.config_name == config_name).map(|known| known.gguf_name);
    // Of two names the second is for models with experts.
    let has_experts = !Mixers::of(&description.layers).experts.is_empty();
    let choose = |names: &'static str| match names.split_once('|') {
        Some((_, with_experts)) if has_experts => with_experts,
        Some((without, _)) => without,
        None => names,
    };
    let found = other.or_else(own).map(choose);
    found.filter(|name| !name.is_empty()).ok_or_else(|| not_written(config_name, ""))
}

fn not_written(config_name: &str, why: &str) -> ConvertError {
    ConvertError::Refused(format!("GGUF files of {config_name} are not written{why}")).or_safetensors()
}

/// The folder's name.
fn name_of(checkpoint: &Checkpoint) -> String {
    let folder = checkpoint.path().canonicalize().ok();
    let name = folder.as_deref().and_then(|path| path.parent()?.file_name()?.to_str().map(str::to_owned));
    name.unwrap_or_else(|| "model".to_owned())
}
