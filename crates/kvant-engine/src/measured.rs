//! Models without tokenizer and chat template, on the CPU: for measurements and calibration.

use kvant_cpu::{ActivationType, LoadOptions};
use kvant_model::{Checkpoint, InputObserver, LoadError, Model};
use std::sync::Arc;

fn options(activations: ActivationType) -> LoadOptions {
    LoadOptions { activations, ..LoadOptions::default() }
}

/// A model whose activations are rounded like this, or not.
///
/// # Errors
/// If it cannot be read, or does not run here.
pub fn load_model(checkpoint: &Checkpoint, activations: ActivationType) -> Result<Model, LoadError> {
    kvant_cpu::load(checkpoint, options(activations))
}

/// The same with exact activations, and somebody who sees what every linear layer is multiplied with.
///
/// # Errors
/// As [`load_model`].
pub fn load_observed(checkpoint: &Checkpoint, observer: Arc<dyn InputObserver>) -> Result<Model, LoadError> {
    kvant_cpu::load_observed(checkpoint, options(ActivationType::F32), observer)
}
