//! Numbers in a file that its tensors contradict. Whoever ignored them would run another model than the file describes.

use super::Scope;
use crate::checkpoint::Checkpoint;
use crate::config::{Dims, Key};
use crate::description::Description;
use crate::error::Result;
use kvant_cache::SlotKind;

/// Refuses a description that leaves out layers of the file, or has other sizes than the file says.
pub(super) fn refuse(scope: &Scope<'_>, checkpoint: &Checkpoint, description: &Description) -> Result<()> {
    let config = scope.config();
    let prefix = if config.is_gguf() { "blk." } else { "model.layers." };
    // Layers that predict further tokens stand behind the others. GGUF counts them, Hugging Face does not.
    let predicting = config.count(Key("num_nextn_predict_layers", ""))?.unwrap_or(0);
    let number = |name: &str| name.strip_prefix(prefix)?.split_once('.')?.0.parse::<usize>().ok();
    let last = checkpoint.names().filter_map(number).max();
    if let (Some(layers), Some(last)) = (config.size_if(Dims::LAYERS)?, last)
        && last >= layers.saturating_add(predicting)
    {
        let why = format!("{layers} layers, but the file has tensors of layer {last}");
        return Err(config.refused(Dims::LAYERS, why));
    }
    if !config.is_gguf() {
        return Ok(());
    }
    const VOCABULARY: Key = Key("", "vocab_size");
    if let Some(said) = config.size_if(VOCABULARY)?.filter(|&said| said != description.vocabulary) {
        let why = format!("{said} tokens, but the file has embeddings of {}", description.vocabulary);
        return Err(config.refused(VOCABULARY, why));
    }
    const VALUES: Key = Key("", "attention.value_length");
    let mut widths = Vec::new();
    for (_, slot) in description.slots.iter() {
        match slot.kind {
            SlotKind::KeysValues(shape) => widths.push(shape.value_dim),
            SlotKind::Recurrent(_) => {}
            // What these keep says nothing about the width of values.
            SlotKind::View(_) | SlotKind::Latent(_) => return Ok(()),
        }
    }
    let Some(&first) = widths.first() else { return Ok(()) };
    match config.size_if(VALUES)? {
        Some(said) if !widths.contains(&said) => {
            Err(config.refused(VALUES, format!("values of {said} channels, but its tensors have {first}")))
        }
        _ => Ok(()),
    }
}
