//! A device as the engine sees it, and the list entry by which it finds devices of a kind.

use kvant_cache::CacheLayout;
use kvant_model::{Backend, Checkpoint, DType, Description, LoadError};
use std::sync::Arc;

/// How a backend is made for a model.
#[derive(Debug, Clone, Copy, Default)]
pub struct BackendOptions {
    /// What plain weights are packed to.
    pub weights: Option<DType>,
    /// The most bytes that pages may take.
    pub cap: Option<usize>,
    /// Is told how far the weights are.
    pub progress: Option<LoadProgress>,
}

/// Is told how many bytes of weights have been read, and of how many.
pub type LoadProgress = fn(done: u64, total: u64);

/// What was found out once of the devices of a machine, and is kept: texts by keys.
pub trait Kept {
    /// What is kept under a key.
    fn get(&self, key: &str) -> Option<String>;

    /// Keeps it; where that cannot be, it is found out again the next time.
    fn keep(&self, key: &str, found: &str);
}

/// A device that is open.
pub trait Device: Send + Sync {
    /// What it is called in messages.
    fn name(&self) -> &str;

    /// True where it is the processor in disguise: never chosen unless it is asked for.
    fn is_software(&self) -> bool;

    /// Bytes of memory of its own; `None` where it shares the host's, or does not say.
    fn memory(&self) -> Option<u64>;

    /// The same device with the kernels that are the fastest on it: as it is kept, or as it measures now and keeps. `None` where it
    /// has them already.
    fn fastest(&self, _kept: &dyn Kept) -> Option<Arc<dyn Device>> {
        None
    }

    /// Whether it runs every block of a model.
    ///
    /// # Errors
    /// Names the first that it does not run.
    fn check_model(&self, description: &Description, checkpoint: &Checkpoint) -> Result<(), LoadError>;

    /// Whether it keeps what a layout says.
    ///
    /// # Errors
    /// Names the first layer that it cannot keep, and what it could.
    fn check_cache(&self, layout: &CacheLayout) -> Result<(), String>;

    /// A backend with a page store of its own, for one model.
    fn backend(&self, options: BackendOptions) -> Box<dyn Backend + Sync>;
}

/// What is known of a device of this machine without a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceReport {
    /// What it is called.
    pub name: String,
    /// Its kind, API and driver, in words.
    pub about: String,
    /// Bytes of memory of its own, where known.
    pub memory: Option<u64>,
    /// The key under which it keeps which of its kernels are the fastest ([`Device::fastest`]), where it has a choice.
    pub choice: Option<String>,
    /// What keeps kvant from running on it.
    pub unfit: Option<String>,
    /// Whether kernels for one token and for blocks of tokens add up in the same order, so that a token's logits do not depend on
    /// what is read beside it.
    pub one_order: bool,
}

/// Devices that one backend opens. The engine has a list of these, one line each.
pub struct DeviceKind {
    /// How they are asked for: `cuda`, `gpu`.
    pub name: &'static str,
    /// Opens the one of that number, or, where there are no numbers, the best: in software, if need be. Else says why there is none.
    pub open: fn(usize) -> Result<Arc<dyn Device>, String>,
    /// Opens the one to use where nobody names a device; none in software.
    pub hardware: fn() -> Option<Arc<dyn Device>>,
    /// All of this machine.
    pub reports: fn() -> Vec<DeviceReport>,
}
