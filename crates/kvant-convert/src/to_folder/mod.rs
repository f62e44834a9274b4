//! The Hugging Face checkpoint of a GGUF file.
//!
//! The way of [`crate::to_gguf`] backwards: `config.json` is made of the metadata and of what the file describes, the architecture
//! describes the folder under it, and the two descriptions tell where every tensor comes from. The vocabulary becomes a
//! `tokenizer.json` where that reads texts as the file's own does.

mod config;
mod rope;
mod tokenizer;

use crate::assemble::Assembly;
use crate::error::{ConvertError, Result};
use crate::importance::Importance;
use crate::keys::still_pairing;
use crate::packed::Folder;
use crate::parts::Parts;
use crate::recipe::Weights;
use crate::rows::Made;
use crate::source::described;
use kvant_model::description::Pairing;
use kvant_model::gguf::Metadata;
use kvant_model::{Checkpoint, DType, Description};

/// A folder: what goes beside the weights, and its tensors.
pub(crate) struct FolderTwin {
    pub tensors: Vec<Made>,
    pub folder: Folder,
    pub notes: Vec<String>,
}

pub(crate) fn of(
    checkpoint: &Checkpoint,
    metadata: &Metadata,
    weights: Weights,
    importance: Option<&Importance>,
) -> Result<FolderTwin> {
    let ours = described(checkpoint)?;
    let from = Parts::of(&ours, still_pairing(metadata.architecture()?));
    let config = config::of(checkpoint, metadata, &ours, from.tied.is_some(), weights)?;
    let theirs = Description::of(&checkpoint.folder_twin(config.clone())?).map_err(|e| {
        ConvertError::Refused(format!("the config.json of {} would not do: {e}", ours.architecture))
    })?;
    let what = format!("a Hugging Face folder of {}", theirs.architecture);
    let assembly = Assembly { checkpoint, importance, what, output_name: None };
    let tensors = assembly.tensors(&from, &Parts::of(&theirs, Pairing::Halves), |role, columns, _| {
        weights.safetensors_type(role, columns).unwrap_or(DType::F32)
    })?;
    let (files, note) = tokenizer::of(metadata);
    let folder = Folder::made(&config, files, &tensors)?;
    let sides =
        theirs.left_out.iter().map(|side| format!("the folder has no {side} side: the file has none"));
    Ok(FolderTwin { tensors, folder, notes: note.into_iter().chain(sides).collect() })
}
