//! Adapters in GGUF files.

use super::{Pair, Side, joined};
use crate::error::{LoadError, Result};
use crate::gguf::Gguf;
use std::path::Path;

/// The updates of a file, for a base of this architecture.
pub(super) fn pairs(path: &Path, architecture: &str) -> Result<Vec<Pair>> {
    let gguf = Gguf::open(path)?;
    let metadata = gguf.metadata();
    match metadata.get::<&str>("general.type")? {
        Some("adapter") => {}
        found => {
            return Err(LoadError::mismatch(format!(
                "is not a LoRA adapter: general.type is {:?}, not \"adapter\"",
                found.unwrap_or("missing")
            )));
        }
    }
    let kind: &str = metadata.need("adapter.type")?;
    if kind != "lora" {
        return Err(LoadError::unsupported(format!(
            "is an adapter of type {kind:?}; kvant applies \"lora\" alone"
        )));
    }
    if metadata.value("adapter.alora.invocation_tokens").is_some() {
        return Err(LoadError::unsupported(
            "is an activated LoRA (aLoRA), which begins in the middle of a text; kvant applies adapters to whole texts",
        ));
    }
    let made_for = metadata.architecture()?;
    if made_for != architecture {
        return Err(LoadError::mismatch(format!(
            "was made for a model of architecture {made_for:?}, and this one is {architecture:?}"
        )));
    }
    // As llama.cpp has it: without an alpha, or with 0, what is stored is added as it is.
    let alpha = f64::from(metadata.get_or::<f32>("adapter.lora.alpha", 0.0)?);
    let names = gguf.tensors().map(|info| info.name.as_str());
    let tensors = names.map(|name| {
        let sides = [(".lora_a", Side::A), (".lora_b", Side::B)];
        let found = sides.into_iter().find_map(|(end, side)| Some((name.strip_suffix(end)?, side)));
        let (target, side) = found.ok_or_else(|| {
            LoadError::unsupported(format!("tensor {name:?} is neither a .lora_a nor a .lora_b"))
        })?;
        let tensor = gguf
            .tensor(name)
            .ok_or_else(|| LoadError::malformed(format!("tensor {name:?} cannot be read")))?;
        Ok((target.to_owned(), side, tensor))
    });
    joined(tensors, |rank| if alpha == 0.0 { 1.0 } else { alpha / rank as f64 })
}
