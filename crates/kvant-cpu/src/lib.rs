//! The CPU backend: models on the processor's own kernels.
//!
//! [`Cpu`] compiles a [`kvant_model::Description`] into blocks over packed weights; products are in `kvant-weights`,
//! attention in `kvant-attention`, state in [`kvant_cache::Sequence`]s. What is left here is the arithmetic between them, and the order in
//! which it is done.
//!
//! ```no_run
//! use kvant_cpu::LoadOptions;
//! use kvant_model::Checkpoint;
//!
//! let model = kvant_cpu::load(&Checkpoint::open("model.gguf")?, LoadOptions::default())?;
//! println!("{} token ids", model.vocabulary());
//! # Ok::<(), kvant_model::LoadError>(())
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `compile` | from a description and weights to blocks |
//! | `network` | embedding, layers and head in a pass |
//! | `pass` | which tokens of which sequences, and their rotations |
//! | `blocks` | linear layers, norms, attention, feed-forward layers and experts |
//! | `drivers` | attention drivers that passes take and give back |
//! | `reference` | attention with sums in one order, to caches that others are compared with |
//!
//! **Invariant:** a row of the output depends on its own input and state alone, bit for bit: not on the other rows of a pass,
//! and not on the number of threads.
#![deny(missing_docs)]

mod blocks;
mod compile;
mod drivers;
mod network;
mod options;
mod pass;
mod reference;

pub use blocks::{ROWS_KEPT, WeightKernel};
pub use options::{ActivationType, LoadOptions};

use kvant_model::error::{LoadError, Result};
use kvant_model::{Backend, Checkpoint, Description, InputObserver, Model, Network};
use kvant_simd::Tier;
use std::sync::Arc;

/// The processor, with choices about how weights are kept.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    options: LoadOptions,
    tier: Tier,
}

impl Cpu {
    /// With the best instruction set of this machine.
    ///
    /// # Errors
    /// If one that was forced by `KVANT_SIMD` cannot run here.
    pub fn new(options: LoadOptions) -> Result<Self> {
        let tier = Tier::select().map_err(|e| LoadError::unsupported(e.to_string()))?;
        Ok(Self { options, tier })
    }
}

impl Backend for Cpu {
    fn name(&self) -> &str {
        "cpu"
    }

    fn compile(&self, description: &Description, checkpoint: &Checkpoint) -> Result<Box<dyn Network>> {
        let mut weights = compile::Weights::new(checkpoint, self.options, self.tier);
        compile::compiled(description, &mut weights)
    }

    fn runs_encoders(&self) -> bool {
        true
    }
}

/// Describes a checkpoint and compiles it for this machine.
///
/// # Errors
/// If it cannot be described, its weights cannot be read, or a forced instruction set cannot run here.
pub fn load(checkpoint: &Checkpoint, options: LoadOptions) -> Result<Model> {
    Model::load(&Cpu::new(options)?, checkpoint)
}

/// The same, with somebody who sees what every linear layer is multiplied with: for calibration.
///
/// # Errors
/// As [`load`].
pub fn load_observed(
    checkpoint: &Checkpoint,
    options: LoadOptions,
    observer: Arc<dyn InputObserver>,
) -> Result<Model> {
    Model::load(&Observing { cpu: Cpu::new(options)?, observer }, checkpoint)
}

struct Observing {
    cpu: Cpu,
    observer: Arc<dyn InputObserver>,
}

impl Backend for Observing {
    fn name(&self) -> &str {
        self.cpu.name()
    }

    fn compile(&self, description: &Description, checkpoint: &Checkpoint) -> Result<Box<dyn Network>> {
        let weights = compile::Weights::new(checkpoint, self.cpu.options, self.cpu.tier);
        let mut weights = weights.observed_by(Arc::clone(&self.observer));
        compile::compiled(description, &mut weights)
    }

    fn runs_encoders(&self) -> bool {
        true
    }
}
