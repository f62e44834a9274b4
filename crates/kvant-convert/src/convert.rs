//! A conversion: decided as a whole before the first byte is written.

use crate::error::{ConvertError, Result};
use crate::importance::Importance;
use crate::output::Output;
use crate::packed::{self, Folder};
use crate::recipe::Weights;
use crate::rows::{Made, Rows};
use crate::{source, to_folder, to_gguf};
use kvant_model::checkpoint::ConfigSource;
use kvant_model::gguf::Writer;
use kvant_model::{Checkpoint, LoadError};
use std::cell::Cell;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The kind of file to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One GGUF file.
    Gguf,
    /// One safetensors file, with `config.json` and the tokenizer's files beside it.
    Safetensors,
}

/// Is told bytes written and bytes in all, and says whether to go on.
pub type Progress<'p> = dyn FnMut(u64, u64) -> ControlFlow<()> + 'p;

/// A converted model, not written yet.
pub struct Conversion {
    content: Content,
    notes: Vec<String>,
}

enum Content {
    Gguf { writer: Writer, tensors: Vec<Arc<Made>>, failure: Arc<Mutex<Option<LoadError>>> },
    Safetensors { tensors: Vec<Made>, folder: Folder },
}

impl Conversion {
    /// Decides what becomes of every tensor. With `importance` rounding is weighed by it.
    ///
    /// # Errors
    /// If the model cannot be described, the format has no such type, or a GGUF file could not say what the folder says.
    pub fn new(
        checkpoint: &Checkpoint,
        weights: Weights,
        format: Format,
        importance: Option<&Importance>,
    ) -> Result<Self> {
        if !checkpoint.has_weights() {
            return Err(ConvertError::Refused("there are no weights to convert, only a description".into()));
        }
        match (checkpoint.config(), format) {
            (_, Format::Gguf) if !weights.in_gguf_files() => Err(weights.not_in_gguf()),
            _ if importance.is_some() && !weights.in_gguf_files() => Err(ConvertError::Refused(format!(
                "{weights} is rounded plainly; weighed rounding has groups of 32 (int4, int8)"
            ))),
            (ConfigSource::Gguf(metadata), Format::Gguf) => {
                let tensors = source::requantised(checkpoint, weights, importance)?;
                let writer = source::copied_metadata(metadata, weights)?;
                Self::gguf(writer, tensors, Vec::new())
            }
            (ConfigSource::Config(config), Format::Gguf) => {
                let twin = to_gguf::of(checkpoint, config, weights, importance)?;
                Self::gguf(twin.writer, twin.tensors, twin.notes)
            }
            (_, Format::Safetensors) if !weights.in_safetensors() => Err(ConvertError::Refused(format!(
                "{weights} is a type of GGUF files; safetensors can hold int4 and int8 (also in groups of 16 and 64), f16 and f32"
            ))),
            (ConfigSource::Config(config), Format::Safetensors) => {
                let tensors = source::repacked(checkpoint, weights, importance)?;
                let folder = Folder::new(checkpoint, config, &tensors)?;
                Ok(Self { content: Content::Safetensors { tensors, folder }, notes: Vec::new() })
            }
            (ConfigSource::Gguf(metadata), Format::Safetensors) => {
                let twin = to_folder::of(checkpoint, metadata, weights, importance)?;
                let content = Content::Safetensors { tensors: twin.tensors, folder: twin.folder };
                Ok(Self { content, notes: twin.notes })
            }
        }
    }

    fn gguf(mut writer: Writer, tensors: Vec<Made>, notes: Vec<String>) -> Result<Self> {
        let failure = Arc::new(Mutex::new(None));
        let tensors: Vec<Arc<Made>> = tensors.into_iter().map(Arc::new).collect();
        for made in &tensors {
            if let Rows::Same(tensor) = &made.rows {
                writer.tensor(tensor.clone());
                continue;
            }
            let (own, failure) = (Arc::clone(made), Arc::clone(&failure));
            writer.made(&made.name, made.dtype, &made.shape, move |row, bytes| {
                if let Err(error) = own.store(row, &mut Vec::new(), bytes) {
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            })?;
        }
        Ok(Self { content: Content::Gguf { writer, tensors, failure }, notes })
    }

    /// What a person should know about the result.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Bytes of all tensors, without what aligns them.
    pub fn tensor_bytes(&self) -> u64 {
        match &self.content {
            Content::Gguf { writer, .. } => writer.tensor_bytes(),
            Content::Safetensors { tensors, .. } => packed::tensor_bytes(tensors),
        }
    }

    /// Every tensor with the name of its type and its shape, in the order of the file.
    pub fn tensors(&self) -> Vec<(&str, &'static str, &[usize])> {
        fn of(made: &Made) -> (&str, &'static str, &[usize]) {
            (&made.name, made.dtype.name(), &made.shape)
        }
        match &self.content {
            Content::Gguf { tensors, .. } => tensors.iter().map(|made| of(made)).collect(),
            Content::Safetensors { tensors, .. } => tensors.iter().map(of).collect(),
        }
    }

    /// Writes the file; rows are encoded by the pool that the caller has entered.
    ///
    /// # Errors
    /// If a weight is not finite or too large for its type, the system cannot write the file, or `progress` says to stop.
    /// Nothing is left behind then.
    pub fn write(&self, path: &Path, progress: &mut Progress<'_>) -> Result<()> {
        let total = self.tensor_bytes();
        let mut output = Output::create(path)?;
        match &self.content {
            Content::Gguf { writer, tensors, failure } => {
                self.write_gguf(writer, tensors, failure, &mut output, path, progress)?;
            }
            Content::Safetensors { tensors, folder } => {
                packed::write(tensors, &mut output, path, progress)?;
                folder.write(path)?;
            }
        }
        output.finish().map_err(|e| ConvertError::output(path.to_path_buf(), total, &e))
    }

    fn write_gguf(
        &self,
        writer: &Writer,
        tensors: &[Arc<Made>],
        failure: &Mutex<Option<LoadError>>,
        output: &mut Output,
        path: &Path,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let total = writer.tensor_bytes();
        let stopped = Cell::new(false);
        let taken = || failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        let failed = || failure.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let mut waiting = tensors.iter();
        let mut current = waiting.next();
        let mut end = current.map_or(Ok(0), |made| made.bytes())? as u64;
        let mut guarded = Guarded { to: output.writer(), stops: || stopped.get() || failed() };
        let written = writer.write_with(&mut guarded, &mut |done| {
            while let Some(made) = current.filter(|_| done >= end) {
                made.release();
                current = waiting.next();
                end += current.and_then(|made| made.bytes().ok()).unwrap_or(0) as u64;
            }
            if progress(done, total).is_break() {
                stopped.set(true);
            }
        });
        if let Some(error) = taken() {
            return Err(error.into());
        }
        if stopped.get() {
            return Err(ConvertError::Interrupted);
        }
        written.map_err(|e| ConvertError::Output { path: path.to_path_buf(), what: e.to_string() })
    }
}

/// A writer that refuses to go on once it is told to stop.
pub(crate) struct Guarded<'w, W, S> {
    pub to: &'w mut W,
    pub stops: S,
}

impl<W: Write, S: Fn() -> bool> Write for Guarded<'_, W, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.stops)() {
            return Err(io::Error::other("stopped"));
        }
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
