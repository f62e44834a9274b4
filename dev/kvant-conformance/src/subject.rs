//! A backend as its tests declare it.

use kvant_attention::KvCache;
use kvant_cache::{Arena, CacheLayout, Policy, Store};
use kvant_device::{BackendOptions, Device};
use kvant_model::{Checkpoint, Description, Model};
use std::sync::Arc;

/// What a backend runs on, how exact it is, and what it refuses.
pub struct Subject {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The models it is held to.
    pub models: ModelSet,
    /// Fewer tokens, caches and wide models: for a device in software.
    pub short: bool,
    /// How far it may be off.
    pub bounds: Bounds,
    /// All that it does not run.
    pub refuses: &'static [Refused],
}

/// The models that a backend is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelSet {
    /// Every fixture.
    Fixtures,
    /// The [`wide`](crate::wide) models: for backends without kernels for the fixtures' narrow heads.
    Wide,
}

/// How far a backend may be off.
#[derive(Debug, Clone, Copy)]
pub enum Bounds {
    /// Activations in f32: the largest difference from the oracle's logits, by architecture. On compressed caches a share of the codec's
    /// own error.
    F32(fn(&str) -> f64),
    /// Activations in f16: 2⁻¹¹ a rounding, some tens of them.
    F16,
}

/// Models and caches that do not run, and words that the refusal has to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Words of the message.
    pub because: &'static str,
    /// Names of fixtures, or specs of caches.
    pub names: &'static [&'static str],
}

/// A model on the device under test.
pub(crate) struct Loaded {
    pub model: Model,
    pub store: Store,
}

impl Loaded {
    /// An empty cache of the device.
    pub fn cache(&self, policy: &Policy, capacity: usize) -> KvCache {
        KvCache::in_arena(policy.clone(), self.model.slots(), capacity, self.store.clone()).unwrap()
    }
}

impl Subject {
    /// Whether it is the processor, whose pages the host reads where they lie.
    pub(crate) fn is_host(&self) -> bool {
        self.device.name() == "cpu"
    }

    /// The words with which something of that name is refused, where it is declared to be.
    pub(crate) fn refusal(&self, name: &str) -> Option<&'static str> {
        self.refuses.iter().find(|refused| refused.names.contains(&name)).map(|refused| refused.because)
    }

    /// Brings a model to the device, with pages that take at most `cap` bytes.
    pub(crate) fn load_capped(&self, checkpoint: &Checkpoint, cap: Option<usize>) -> Loaded {
        let backend = self.device.backend(BackendOptions { cap, ..BackendOptions::default() });
        let model = Model::load(&*backend, checkpoint).unwrap_or_else(|e| panic!("{e}"));
        let host = || cap.map_or_else(Arena::new, Arena::with_cap).into();
        let store = model.device_store().unwrap_or_else(host);
        Loaded { model, store }
    }

    pub(crate) fn load(&self, checkpoint: &Checkpoint) -> Loaded {
        self.load_capped(checkpoint, None)
    }

    /// A cache without loss, for the oracle.
    pub(crate) fn exact(&self, on: &Loaded, capacity: usize) -> KvCache {
        match self.bounds {
            Bounds::F32(_) if self.is_host() => KvCache::reference(on.model.slots(), capacity).unwrap(),
            Bounds::F32(_) => on.cache(&"f32".parse().unwrap(), capacity),
            Bounds::F16 => on.cache(&"f16".parse().unwrap(), capacity),
        }
    }

    /// What the device says of a model, or its compiler where weights are the reason.
    pub(crate) fn model_refused(&self, checkpoint: &Checkpoint) -> Option<String> {
        let description = Description::of(checkpoint).unwrap();
        let checked = self.device.check_model(&description, checkpoint).err();
        let compiled = self.device.backend(BackendOptions::default()).compile(&description, checkpoint).err();
        assert!(
            checked.is_none() || compiled.is_some(),
            "the compiler runs what the check refuses: {checked:?}"
        );
        checked.or(compiled).map(|e| e.to_string())
    }

    /// What the device, or a layout of these slots, says of a cache.
    pub(crate) fn cache_refused(&self, policy: &Policy, model: &Model) -> Option<String> {
        match CacheLayout::new(policy, model.slots()) {
            Ok(layout) => self.device.check_cache(&layout).err(),
            Err(error) => Some(error.to_string()),
        }
    }

    /// So many tokens, or fewer on a device in software.
    pub(crate) fn count(&self, tokens: usize, short: usize) -> usize {
        if self.short { short } else { tokens }
    }
}
