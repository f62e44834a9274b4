//! The backend: descriptions compiled for a card.

use crate::buffer::download;
use crate::cache::{CacheUnsupported, LayoutPages};
use crate::compile::{Compiler, Source};
use crate::device::{CudaGpu, OpenError};
use crate::matrix::on_card;
use crate::network::{CudaNetwork, PassOptions};
use crate::pages::CudaPages;
use crate::upload::{RowOrder, Uploader};
use crate::weights::WeightType;
use kvant_cache::{CacheLayout, PageStore, Store};
use kvant_device::LoadProgress;
use kvant_model::error::Result;
use kvant_model::{Backend, Checkpoint, DType, Description, Network, Tensor};
use std::sync::Arc;

/// A card that models are compiled for, and the store that their sequences take pages from.
pub struct CudaBackend {
    card: Arc<CudaGpu>,
    label: String,
    pages: Arc<CudaPages>,
    weights: Option<DType>,
    options: PassOptions,
    heard: Option<LoadProgress>,
}

/// A matrix as it lies on a card.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedWeights {
    /// The type of its blocks.
    pub kind: WeightType,
    /// What its numbers are multiplied by.
    pub scale: f32,
    /// Its blocks.
    pub bytes: Vec<u8>,
}

impl CudaBackend {
    /// Of an open card. Weights are as the file has them, and pages may take the whole card.
    ///
    /// # Errors
    /// When the driver gives no addresses for pages.
    pub fn new(card: &Arc<CudaGpu>) -> Result<CudaBackend, OpenError> {
        let (pages, options) = (CudaPages::new(card, None)?, PassOptions::default());
        Ok(CudaBackend {
            card: Arc::clone(card),
            label: card.label(),
            pages,
            weights: None,
            options,
            heard: None,
        })
    }

    /// The same, whose pages may take this many bytes.
    ///
    /// # Errors
    /// As [`CudaBackend::new`].
    pub fn with_cap(self, cap: Option<usize>) -> Result<CudaBackend, OpenError> {
        Ok(CudaBackend { pages: CudaPages::new(&self.card, cap)?, ..self })
    }

    /// The same, that packs weights which the file holds as plain numbers.
    #[must_use]
    pub fn with_weights(self, weights: Option<DType>) -> CudaBackend {
        CudaBackend { weights, ..self }
    }

    /// The same, that says how much of the weights it has read.
    #[must_use]
    pub fn with_progress(self, heard: Option<LoadProgress>) -> CudaBackend {
        CudaBackend { heard, ..self }
    }

    /// What becomes of a matrix on its way to the card: [`WeightType::pack`] says what it should be.
    ///
    /// # Errors
    /// When products do not read it, or the card has not enough memory.
    pub fn packed_weights(&self, tensor: &Tensor) -> Result<PackedWeights> {
        let matrix =
            Uploader::new(&self.card, 0, None)?.matrix(std::slice::from_ref(tensor), RowOrder::Stored)?;
        let mut bytes = vec![0; matrix.kind.packed_bytes(matrix.rows, matrix.channels)];
        // SAFETY: the matrix has that many bytes.
        unsafe { download(&self.card, matrix.address(), &mut bytes) }.map_err(on_card)?;
        Ok(PackedWeights { kind: matrix.kind, scale: matrix.scale, bytes })
    }

    /// The same, that puts kernels on the card in another way.
    #[must_use]
    pub fn with_options(self, options: PassOptions) -> CudaBackend {
        CudaBackend { options, ..self }
    }

    /// Its card.
    pub fn card(&self) -> &Arc<CudaGpu> {
        &self.card
    }

    /// Its pages.
    pub fn pages(&self) -> &Arc<CudaPages> {
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
        LayoutPages::new(&self.card, &self.pages, layout).map(drop)
    }

    /// Whether a card runs every block of a model. Types of weights are looked at when they are read.
    ///
    /// # Errors
    /// Names the first block that it does not run.
    pub fn check_model(card: &Arc<CudaGpu>, description: &Description) -> Result<()> {
        Compiler::check_model(card, description)
    }

    /// Compiles a model, as [`Backend::compile`] does.
    ///
    /// # Errors
    /// As there.
    pub fn network(&self, description: &Description, checkpoint: &Checkpoint) -> Result<CudaNetwork> {
        self.compile_from(description, Source::File(checkpoint, self.weights))
    }

    /// A model of that description whose weights mean nothing, for measuring speed without a file: codes of this type are made on the
    /// way, norms are ones and biases zeros.
    ///
    /// # Errors
    /// If the description has a block that this backend does not run, or the card has not enough memory.
    pub fn noise(&self, description: &Description, weights: WeightType) -> Result<CudaNetwork> {
        self.compile_from(description, Source::Noise(weights))
    }

    fn compile_from(&self, description: &Description, source: Source<'_>) -> Result<CudaNetwork> {
        let program = Compiler::program(&self.card, description, source, (self.heard, self.options.fused))?;
        let (ropes, slots) = (description.ropes.clone(), description.slots.clone());
        Ok(CudaNetwork::new(&self.card, &self.pages, program, ropes, slots, self.options))
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &str {
        &self.label
    }

    fn compile(&self, description: &Description, checkpoint: &Checkpoint) -> Result<Box<dyn Network>> {
        Ok(Box::new(self.network(description, checkpoint)?))
    }
}
