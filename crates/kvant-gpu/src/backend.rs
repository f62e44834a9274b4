//! The backend: descriptions compiled for a device.

use crate::compile::Compiler;
use crate::device::Gpu;
use crate::layout::{CacheUnsupported, check_cache};
use crate::network::GpuNetwork;
use crate::pages::GpuPages;
use kvant_cache::{CacheLayout, PageStore, Store};
use kvant_model::error::Result;
use kvant_model::{Backend, Checkpoint, DType, Description, Network};
use std::sync::Arc;

/// A device that models are compiled for, and the store that their sequences take pages from.
pub struct GpuBackend {
    gpu: Gpu,
    pages: Arc<GpuPages>,
    weights: Option<DType>,
}

impl GpuBackend {
    /// Of an open device. Weights are as the file has them.
    pub fn new(gpu: &Gpu) -> GpuBackend {
        GpuBackend { gpu: gpu.clone(), pages: GpuPages::new(gpu, None), weights: None }
    }

    /// The same, whose pages may take this many bytes.
    #[must_use]
    pub fn with_cap(self, cap: Option<usize>) -> GpuBackend {
        GpuBackend { pages: GpuPages::new(&self.gpu, cap), ..self }
    }

    /// The same, that packs weights which the file holds as plain numbers.
    #[must_use]
    pub fn with_weights(self, weights: Option<DType>) -> GpuBackend {
        GpuBackend { weights, ..self }
    }

    /// Its device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Its pages.
    pub fn pages(&self) -> &Arc<GpuPages> {
        &self.pages
    }

    /// Where sequences of its models take their pages from.
    pub fn store(&self) -> Store {
        let pages: Arc<dyn PageStore> = Arc::clone(&self.pages) as _;
        pages.into()
    }

    /// Whether it can keep what a layout says.
    ///
    /// # Errors
    /// Names the first layer that it cannot keep, and why.
    pub fn check_cache(&self, layout: &CacheLayout) -> Result<(), CacheUnsupported> {
        check_cache(&self.gpu, layout)
    }

    /// Whether it runs every block of a model.
    ///
    /// # Errors
    /// Names the first block that it does not run.
    pub fn check_model(&self, description: &Description, checkpoint: &Checkpoint) -> Result<()> {
        Compiler { gpu: &self.gpu, checkpoint, weights: self.weights }.check_model(description)
    }

    /// Compiles a model, as [`Backend::compile`] does.
    ///
    /// # Errors
    /// As there.
    pub fn network(&self, description: &Description, checkpoint: &Checkpoint) -> Result<GpuNetwork> {
        let compiler = Compiler { gpu: &self.gpu, checkpoint, weights: self.weights };
        let program = compiler.program(description)?;
        let (ropes, slots) = (description.ropes.clone(), description.slots.clone());
        Ok(GpuNetwork::new(&self.gpu, Arc::clone(&self.pages), program, ropes, slots))
    }
}

impl Backend for GpuBackend {
    fn name(&self) -> &str {
        self.gpu.name()
    }

    fn arithmetic(&self) -> String {
        self.gpu.arithmetic().code()
    }

    fn compile(&self, description: &Description, checkpoint: &Checkpoint) -> Result<Box<dyn Network>> {
        Ok(Box::new(self.network(description, checkpoint)?))
    }
}
