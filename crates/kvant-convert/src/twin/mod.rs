//! The GGUF file of a Hugging Face checkpoint.
//!
//! Metadata come first. With them the architecture describes the file that does not exist yet, under GGUF's names and in its
//! layouts, where presence of optional tensors is that of their Hugging Face counterparts ([`Checkpoint::gguf_twin`]). Walking
//! both descriptions then tells where every tensor comes from.
//!
//! **Invariant:** every number in the two descriptions agrees, or the file is refused with the name of the one that does not.

mod metadata;
mod vocabulary;

use crate::error::{ConvertError, Result};
use crate::importance::Importance;
use crate::parts::{Part, Parts, Stored};
use crate::recipe::Weights;
use crate::rows::{Made, Order, Rows, Source, vector};
use crate::source::state_types;
use kvant_model::arch::REGISTRY;
use kvant_model::gguf::{Gguf, Writer};
use kvant_model::{Checkpoint, DType, Description};
use serde_json::Value;

/// Architectures whose GGUF files go by another's name.
const OTHER_NAMES: [(&str, &str); 3] = [("mistral", "llama"), ("mixtral", "llama"), ("olmo3", "olmo2")];
/// The most by which numbers may differ, relative to the larger: metadata are f32.
const TOLERANCE: f64 = 1e-5;

/// A GGUF file: what it says, and its tensors.
pub(crate) struct Twin {
    pub writer: Writer,
    pub tensors: Vec<Made>,
    pub notes: Vec<String>,
}

pub(crate) fn of(
    checkpoint: &Checkpoint,
    config: &Value,
    weights: Weights,
    importance: Option<&Importance>,
) -> Result<Twin> {
    let ours = Description::of(checkpoint)?;
    let architecture = gguf_name(ours.architecture)?;
    let mut writer = metadata::of(&ours, config, architecture, &name_of(checkpoint))?;
    let twin = checkpoint.gguf_twin(Gguf::from_bytes(writer.to_bytes()?)?)?;
    // What an architecture asks of a GGUF file, and the metadata above do not say.
    let theirs =
        Description::of(&twin).map_err(|e| not_written(ours.architecture, &format!(" yet ({e})")))?;
    let (from, to) = (Parts::of(&ours), Parts::of(&theirs));
    agree(&from, &to, architecture)?;
    let tensors = tensors(&from.list, &to.list, checkpoint, weights, importance, architecture)?;
    state_types(&mut writer, weights);
    let mut notes = Vec::new();
    if let Some(left_out) = ours.left_out.first() {
        notes.push(format!("the {left_out} side of the checkpoint is not converted"));
    }
    vocabulary::write(&mut writer, checkpoint, ours.vocabulary, &mut notes)?;
    Ok(Twin { writer, tensors, notes })
}

fn gguf_name(config_name: &str) -> Result<&'static str> {
    let other = OTHER_NAMES.iter().find(|(own, _)| *own == config_name).map(|(_, gguf)| *gguf);
    let own = || REGISTRY.iter().find(|known| known.config_name == config_name).map(|known| known.gguf_name);
    other
        .or_else(own)
        .filter(|name| !name.is_empty() && !name.contains('|'))
        .ok_or_else(|| not_written(config_name, ""))
}

fn not_written(config_name: &str, why: &str) -> ConvertError {
    ConvertError::Refused(format!(
        "GGUF files of {config_name} are not written{why}; write safetensors (--to safetensors)"
    ))
}

/// The folder's name.
fn name_of(checkpoint: &Checkpoint) -> String {
    let folder = checkpoint.path().canonicalize().ok();
    let name = folder.as_deref().and_then(|path| path.parent()?.file_name()?.to_str().map(str::to_owned));
    name.unwrap_or_else(|| "model".to_owned())
}

fn refused(architecture: &str, what: &str) -> ConvertError {
    ConvertError::Refused(format!(
        "a GGUF file of {architecture} cannot say what this model is: {what}; write safetensors (--to safetensors)"
    ))
}

/// Refuses two descriptions that differ in a number.
fn agree(from: &Parts, to: &Parts, architecture: &str) -> Result<()> {
    for ((what, ours), (other, theirs)) in from.numbers.iter().zip(&to.numbers) {
        let room = TOLERANCE * ours.abs().max(theirs.abs());
        if what != other || (ours - theirs).abs() > room {
            return Err(refused(architecture, &format!("{what} is {ours}, and would be read as {theirs}")));
        }
    }
    if from.numbers.len() != to.numbers.len() || from.list.len() != to.list.len() {
        return Err(refused(architecture, "its parts are others"));
    }
    Ok(())
}

/// Every tensor of the file, in the order in which the description names them.
fn tensors(
    from: &[Part],
    to: &[Part],
    checkpoint: &Checkpoint,
    weights: Weights,
    importance: Option<&Importance>,
    architecture: &str,
) -> Result<Vec<Made>> {
    let mut groups: Vec<(&str, Vec<(&Part, &Part)>)> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for pair in from.iter().zip(to) {
        let name = pair.1.tensor().name.as_str();
        let place = *places.entry(name).or_insert_with(|| {
            groups.push((name, Vec::new()));
            groups.len() - 1
        });
        groups[place].1.push(pair);
    }
    let made = |(name, pairs): (&str, Vec<(&Part, &Part)>)| {
        let layout = || refused(architecture, &format!("tensor {name:?} has another layout"));
        let first = pairs[0].1;
        let shape = first.tensor().shape.clone();
        let is_stack = first.expert().is_some();
        // Parts of a tensor lie in it one after another.
        let in_order = pairs.iter().enumerate().all(|(i, (_, to))| to.expert().is_none_or(|e| e == i));
        if !in_order || pairs.len() > 1 && !is_stack {
            return Err(layout());
        }
        if matches!(first.stored, Stored::Vector(_)) {
            let mut numbers = Vec::new();
            for (from, to) in pairs {
                numbers.extend(vector(from, to, checkpoint)?.ok_or_else(layout)?);
            }
            if numbers.len() != shape.iter().product::<usize>() {
                return Err(layout());
            }
            let rows = Rows::Numbers(numbers);
            return Ok(Made { name: name.to_owned(), dtype: DType::F32, shape, rows });
        }
        let mut sources = Vec::new();
        for (from, to) in pairs {
            let (Stored::Matrix(source), Stored::Matrix(wanted)) = (&from.stored, &to.stored) else {
                return Err(layout());
            };
            let order =
                Order::between(from.layout, to.layout, wanted.outputs()).filter(|_| !wanted.transposed);
            let same = (source.outputs(), source.inputs()) == (wanted.outputs(), wanted.inputs());
            let order = order.filter(|_| same && wanted.rows.is_none()).ok_or_else(layout)?;
            let weight = importance.and_then(|all| all.of(source));
            sources.push(Source::of(source, order, checkpoint, weight)?);
        }
        let dtype = weights.gguf_type(first.role, shape.last().copied().unwrap_or(1));
        Ok(Made { name: name.to_owned(), dtype, shape, rows: Rows::Matrices(sources) })
    };
    groups.into_iter().map(made).collect()
}
