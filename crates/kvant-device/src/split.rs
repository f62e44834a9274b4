//! Partial offload: the first layers of a model on a device, the rest in another place, the processor usually.
//!
//! A device whose memory does not hold all weights runs as many layers as it holds. Each half is a model of its own to its backend; rows of
//! the residual stream go from one to the other, once for a pass. Pages of every layer lie where the layer runs, in one sequence
//! ([`SplitStore`]), so sessions, forks, prefixes and files know nothing of it.
//!
//! **Invariant:** what a token gets depends on the cut as it depends on devices: by rounding. It does not depend on what is beside it more
//! than it does on either device.

use crate::device::{BackendOptions, Device, Kept};
use kvant_cache::{Arena, CacheLayout, KvSlot, Sequence, SplitStore, StateError, StateErrorKind, Store};
use kvant_model::{
    Abilities, Backend, Checkpoint, Chunk, Description, Form, Input, LayerObserver, LoadError, Network,
    Outputs, Pass, Rows,
};
use std::sync::Arc;

/// Makes the backend of the layers that are not on the device.
pub type RestBackend = dyn Fn(BackendOptions) -> Result<Box<dyn Backend + Sync>, LoadError> + Send + Sync;

/// A device that has the first layers of a model, and what runs the others.
pub struct SplitDevice {
    device: Arc<dyn Device>,
    rest: Arc<RestBackend>,
    layers: usize,
    name: String,
}

impl SplitDevice {
    /// The first `layers` layers on `device`, the others by what `rest` makes.
    pub fn new(device: Arc<dyn Device>, rest: Arc<RestBackend>, layers: usize) -> SplitDevice {
        let name = format!("{}, {layers} layers; the rest on the CPU", device.name());
        SplitDevice { device, rest, layers, name }
    }
}

impl Device for SplitDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_software(&self) -> bool {
        self.device.is_software()
    }

    /// The host's memory counts: it has some of the weights and pages.
    fn memory(&self) -> Option<u64> {
        None
    }

    fn fastest(&self, kept: &dyn Kept) -> Option<Arc<dyn Device>> {
        let device = self.device.fastest(kept)?;
        Some(Arc::new(SplitDevice::new(device, Arc::clone(&self.rest), self.layers)))
    }

    fn check_model(&self, description: &Description, checkpoint: &Checkpoint) -> Result<(), LoadError> {
        let (first, _) = description.halves(self.layers)?;
        self.device.check_model(&first, checkpoint)
    }

    fn check_cache(&self, layout: &CacheLayout) -> Result<(), String> {
        self.device.check_cache(layout)
    }

    fn backend(&self, options: BackendOptions) -> Box<dyn Backend + Sync> {
        Box::new(SplitBackend {
            first: self.device.backend(options),
            rest: Arc::clone(&self.rest),
            layers: self.layers,
            name: self.name.clone(),
            options,
        })
    }
}

struct SplitBackend {
    first: Box<dyn Backend + Sync>,
    rest: Arc<RestBackend>,
    layers: usize,
    name: String,
    options: BackendOptions,
}

impl Backend for SplitBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn arithmetic(&self) -> String {
        self.first.arithmetic()
    }

    fn compile(
        &self,
        description: &Description,
        checkpoint: &Checkpoint,
    ) -> Result<Box<dyn Network>, LoadError> {
        let (first, rest) = description.halves(self.layers)?;
        let first = self.first.compile(&first, checkpoint)?;
        let rest = (self.rest)(self.options)?.compile(&rest, checkpoint)?;
        if !first.abilities().stream_observer || !rest.abilities().embeddings {
            let message = format!("{} does not give what its last layer has left", self.name);
            return Err(LoadError::unsupported(message));
        }
        let arena = || self.options.cap.map_or_else(Arena::new, Arena::with_cap).into();
        let stores = (first.store().unwrap_or_else(arena), rest.store().unwrap_or_else(arena));
        let store = SplitStore::new(stores.0, stores.1, self.layers).into();
        Ok(Box::new(SplitNetwork { first, rest, layers: self.layers, store }))
    }
}

/// A model in two places.
struct SplitNetwork {
    first: Box<dyn Network>,
    rest: Box<dyn Network>,
    layers: usize,
    store: Store,
}

impl SplitNetwork {
    /// What the first layers leave of all rows; their inputs are shown to `layers`.
    fn first_half(
        &self,
        chunks: &[Chunk<'_>],
        layers: Option<&mut LayerObserver<'_>>,
        sequences: &mut [&mut Sequence],
    ) -> Result<Rows, StateError> {
        let mut left = None;
        let mut keep = |rows: Rows| left = Some(rows);
        match layers {
            None => self.first.forward(Pass::new(chunks).streamed(&mut keep), sequences)?,
            Some(layers) => {
                let mut shown = |layer: usize, x: &Rows| {
                    if layer < self.layers {
                        layers(layer, x);
                    }
                };
                let pass = Pass::new(chunks).observed(&mut shown).streamed(&mut keep);
                self.first.forward(pass, sequences)?
            }
        };
        left.ok_or_else(|| {
            StateError::new(0, StateErrorKind::Pass { what: "the first layers gave no rows to go on with" })
        })
    }
}

impl Network for SplitNetwork {
    fn forward(&self, pass: Pass<'_>, sequences: &mut [&mut Sequence]) -> Result<Outputs, StateError> {
        let Pass { chunks, accept, observer, .. } = pass;
        let mut layers = observer.layers;
        let mut first = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            first.push(Chunk { wanted: 0..0, form: Form::Logits, ..chunk.clone() });
        }
        let mut shown = layers.as_mut().map(|layers| |layer: usize, x: &Rows| layers(layer, x));
        let shown = shown.as_mut().map(|shown| shown as &mut LayerObserver<'_>);
        let stream = self.first_half(&first, shown, sequences)?;
        let width = stream.width();
        let mut row = 0;
        let rows_of = |chunk: &Chunk<'_>| {
            let range = row * width..(row + chunk.tokens()) * width;
            row += chunk.tokens();
            Rows::from_vec(stream.data()[range].to_vec(), width)
        };
        let rows: Vec<Rows> = chunks.iter().map(rows_of).collect();
        let mut rest = Vec::with_capacity(rows.len());
        for (chunk, rows) in chunks.iter().zip(&rows) {
            rest.push(Chunk { input: Input::Embeddings(rows), ..chunk.clone() });
        }
        let rest = Pass::new(&rest).accept(accept);
        match layers {
            None => self.rest.forward(rest, sequences),
            Some(layers) => {
                let mut shown = |layer: usize, x: &Rows| layers(layer + self.layers, x);
                self.rest.forward(rest.observed(&mut shown), sequences)
            }
        }
    }

    fn abilities(&self) -> Abilities {
        let any_rows = self.first.abilities().any_rows && self.rest.abilities().any_rows;
        Abilities { any_rows, ..Abilities::default() }
    }

    fn output_weights(&self, slot: KvSlot) -> Vec<Rows> {
        let first = self.first.output_weights(slot);
        first.into_iter().chain(self.rest.output_weights(slot)).collect()
    }

    fn store(&self) -> Option<Store> {
        Some(self.store.clone())
    }
}
