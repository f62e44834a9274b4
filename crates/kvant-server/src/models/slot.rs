//! One of the models that are served: where it is, what it takes, and whether it is at work.

use super::{KeepAlive, ModelFacts, ModelLoader, Served};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where a model is.
pub(super) enum Place {
    Away,
    /// On its way; whoever asks for it waits.
    Coming,
    Here {
        served: Arc<Served>,
        worker: Option<JoinHandle<()>>,
        /// When somebody last asked for it, or was still being answered.
        used: Instant,
        /// How long it stays then, where a request has said so.
        keep: Option<KeepAlive>,
    },
}

/// A model that is served, wherever it is.
pub(super) struct Slot {
    pub name: String,
    /// What it takes, or will at least.
    pub bytes: u64,
    /// Tokens of its context, where that is known.
    pub context: Option<usize>,
    /// What its LoRA adapters are called, since it was first loaded.
    pub adapters: Vec<String>,
    /// What its files say, where they are here.
    pub facts: Option<ModelFacts>,
    pub place: Place,
}

impl Place {
    /// In memory, and asked for just now.
    pub fn here(served: Arc<Served>, worker: Option<JoinHandle<()>>) -> Self {
        Self::Here { served, worker, used: Instant::now(), keep: None }
    }
}

/// How long a model stays that nobody uses.
pub(super) fn limit(keep: Option<KeepAlive>, idle: Option<Duration>) -> Option<Duration> {
    keep.map_or(idle, KeepAlive::limit)
}

impl Slot {
    /// A model that is not loaded.
    pub fn away(loader: &dyn ModelLoader, name: String) -> Self {
        let (context, facts) = (loader.context(&name), loader.facts(&name));
        Self { name, bytes: 0, context, adapters: Vec::new(), facts, place: Place::Away }
    }

    /// Bytes it takes now, or is about to.
    pub fn taken(&self) -> u64 {
        match self.place {
            Place::Away => 0,
            Place::Coming | Place::Here { .. } => self.bytes,
        }
    }

    /// Loaded, and nobody waits for it or is about to.
    pub fn is_idle(&self) -> bool {
        match &self.place {
            Place::Here { served, .. } => {
                let counters = served.handle.counters();
                Arc::strong_count(served) == 1 && counters.running + counters.waiting == 0
            }
            Place::Away | Place::Coming => false,
        }
    }

    /// When somebody last asked for it, while it is loaded.
    pub fn used(&self) -> Option<Instant> {
        match &self.place {
            Place::Here { used, .. } => Some(*used),
            Place::Away | Place::Coming => None,
        }
    }
}
