//! Where models come from.

use kvant_engine::scheduler::Handle;
use std::thread::JoinHandle;

/// A model that has just been loaded.
pub struct ServedModel {
    /// Its scheduler.
    pub handle: Handle,
    /// The thread that the scheduler runs on. It ends when the scheduler is told to stop.
    pub worker: JoinHandle<()>,
    /// The most bytes that it takes from now on: weights, and keys and values as far as they may grow.
    pub bytes: u64,
}

/// Brings models into memory.
pub trait ModelLoader: Send + Sync {
    /// What clients call them.
    fn names(&self) -> Vec<String>;

    /// Tokens of the context that a model would have; none where its files would have to be fetched first to know, or cannot be read.
    fn context(&self, name: &str) -> Option<usize>;

    /// The fewest bytes that a model takes: its weights, and keys and values of one whole context. May take a while, where its
    /// files have to be fetched first.
    ///
    /// # Errors
    /// If it cannot be loaded, in words for those who asked.
    fn size(&self, name: &str) -> Result<u64, String>;

    /// Loads one of them, which may take `room` bytes. Takes a while.
    ///
    /// # Errors
    /// As [`ModelLoader::size`].
    fn load(&self, name: &str, room: Option<u64>) -> Result<ServedModel, String>;
}
