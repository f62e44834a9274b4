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

/// What a model's files say about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// Bytes of its weights, as they lie in its files.
    pub file_bytes: u64,
    /// Its architecture.
    pub family: String,
    /// How many weights it has.
    pub parameters: u64,
    /// The type of its weights, such as `Q4_K_M`.
    pub quantization: String,
    /// What its files are: `gguf` or `safetensors`.
    pub format: String,
}

/// How far the download of a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullProgress<'a> {
    /// The file.
    pub file: &'a str,
    /// Bytes that are here.
    pub done: u64,
    /// Bytes in all, where that is known.
    pub total: Option<u64>,
}

/// What a loader says that cannot change which models there are.
const FIXED: &str = "this server cannot change its models";

/// Brings models into memory.
pub trait ModelLoader: Send + Sync {
    /// What clients call them.
    fn names(&self) -> Vec<String>;

    /// Tokens of the context that a model would have; none where its files would have to be fetched first to know, or cannot be read.
    fn context(&self, name: &str) -> Option<usize>;

    /// What a model's files say; none where they would have to be fetched first, or cannot be read.
    fn facts(&self, name: &str) -> Option<ModelFacts> {
        let _ = name;
        None
    }

    /// Fetches a model, and has it among its names from then on. Takes a while.
    ///
    /// # Errors
    /// If it cannot be had, in words for those who asked.
    fn pull(&self, name: &str, report: &mut dyn FnMut(PullProgress<'_>)) -> Result<(), String> {
        let _ = (name, report);
        Err(FIXED.into())
    }

    /// Removes the files of a model that was fetched and is not loaded, and its name.
    ///
    /// # Errors
    /// As [`ModelLoader::pull`].
    fn remove(&self, name: &str) -> Result<(), String> {
        let _ = name;
        Err(FIXED.into())
    }

    /// Gives a model one more name.
    ///
    /// # Errors
    /// As [`ModelLoader::pull`].
    fn copy(&self, name: &str, other: &str) -> Result<(), String> {
        let _ = (name, other);
        Err(FIXED.into())
    }

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
