//! One sequence, step by step.

use crate::arrays;
use crate::engine::Open;
use crate::error::{failed, generation, sampling};
use crate::stream::Settings;
use crate::work::{Progress, detached, lock};
use kvant_engine::{Event, Request, Sampler, Snapshot};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Session>()?;
    module.add_class::<TokenSampler>()
}

/// The session behind `kvant.Session`.
#[pyclass(frozen, module = "kvant._kvant")]
pub struct Session {
    open: Arc<Open>,
    /// Locked without the GIL only.
    sequence: Mutex<kvant_engine::Session>,
}

impl Session {
    pub fn new(open: Arc<Open>) -> PyResult<Self> {
        let sequence = open.opened.session().map_err(failed)?;
        Ok(Self { open, sequence: Mutex::new(sequence) })
    }

    /// Work on the sequence, without the GIL.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut kvant_engine::Session) -> PyResult<T> + Send,
    ) -> PyResult<T> {
        self.open.check()?;
        detached(py, || work(&mut lock(&self.sequence)))
    }

    fn logits<'py>(&self, py: Python<'py>, logits: Vec<f32>) -> PyResult<Bound<'py, PyAny>> {
        let len = logits.len();
        arrays::floats(py, logits, &[len])
    }
}

#[pymethods]
impl Session {
    /// Brings it to hold exactly these tokens, reading what it does not hold yet; the logits after the last of them. Ctrl-C stops
    /// between two chunks.
    fn prefill<'py>(&self, py: Python<'py>, prompt: Vec<u32>) -> PyResult<Bound<'py, PyAny>> {
        let logits = self.with(py, |sequence| {
            let (signals, mut stopped) = (Progress::new(None), None);
            // No token is asked for: what is left is reading, which can be told to stop.
            let request = Request { prompt, max_tokens: Some(0), ..Request::default() };
            let read = sequence.generate(&request, &mut |event| match event {
                Event::Prefill { .. } => match signals.tell(0, 0) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(error) => {
                        stopped = Some(error);
                        ControlFlow::Break(())
                    }
                },
                Event::Text(_) => ControlFlow::Continue(()),
            });
            read.map_err(|e| generation(&e))?;
            stopped.map_or_else(|| Ok(sequence.take_logits()), Err)
        })?;
        self.logits(py, logits)
    }

    /// Reads one more token; the logits after it.
    fn step<'py>(&self, py: Python<'py>, token: u32) -> PyResult<Bound<'py, PyAny>> {
        let logits = self.with(py, |sequence| {
            sequence.step(token).map_err(|e| generation(&e))?;
            Ok(sequence.take_logits())
        })?;
        self.logits(py, logits)
    }

    /// The tokens held.
    fn tokens(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        self.with(py, |sequence| Ok(sequence.tokens().to_vec()))
    }

    /// How many tokens are held.
    fn len(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |sequence| Ok(sequence.tokens().len()))
    }

    /// Bytes of keys and values.
    fn nbytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |sequence| Ok(sequence.kv().bytes()))
    }

    /// Another one that holds the same; pages are shared.
    fn fork(&self, py: Python<'_>) -> PyResult<Self> {
        let sequence = self.with(py, |sequence| sequence.fork().map_err(|e| generation(&e)))?;
        Ok(Self { open: Arc::clone(&self.open), sequence: Mutex::new(sequence) })
    }

    /// Goes back to at most so many tokens; how many are left.
    fn rollback(&self, py: Python<'_>, len: usize) -> PyResult<usize> {
        self.with(py, |sequence| Ok(sequence.rollback(len)))
    }

    /// Saves what is held, with a note; the bytes of the file.
    fn save(&self, py: Python<'_>, path: PathBuf, note: Vec<u8>) -> PyResult<u64> {
        let open = Arc::clone(&self.open);
        self.with(py, move |sequence| {
            let signature = open.signature()?;
            sequence.save(&path, signature, &note).map_err(|e| failed(format!("{}: {e}", path.display())))
        })
    }

    /// Goes on where a saved one was left; its note.
    fn resume<'py>(&self, py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyBytes>> {
        let open = Arc::clone(&self.open);
        let note = self.with(py, move |sequence| {
            let named = |why: &dyn std::fmt::Display| failed(format!("{}: {why}", path.display()));
            let saved = Snapshot::open(&path).map_err(|e| named(&e))?;
            sequence.resume(&saved, &open.signature()?).map_err(|e| named(&e))?;
            Ok(saved.note().to_vec())
        })?;
        Ok(PyBytes::new(py, &note))
    }
}

/// Chooses tokens from logits.
#[pyclass(frozen, module = "kvant._kvant")]
pub struct TokenSampler(Mutex<Sampler>);

#[pymethods]
impl TokenSampler {
    #[new]
    fn new(settings: Settings) -> PyResult<Self> {
        let sampler = Sampler::new(settings.sampling()?).map_err(|e| sampling(&e))?;
        Ok(Self(Mutex::new(sampler)))
    }

    /// The seed that repeats its choices.
    #[getter]
    fn seed(&self) -> u64 {
        lock(&self.0).seed()
    }

    /// Chooses a token, and remembers it for penalties.
    fn sample(&self, py: Python<'_>, logits: &Bound<'_, PyAny>, kind: &str) -> PyResult<u32> {
        let logits = arrays::Floats::of(logits, kind)?.expect_axes("logits", "(vocabulary,)", 1, 1)?;
        detached(py, || {
            let mut scratch = Vec::new();
            let mut sampler = lock(&self.0);
            let token = sampler.sample(logits.read(0, 1, &mut scratch)).map_err(|e| sampling(&e))?;
            sampler.accept(token);
            Ok(token)
        })
    }

    /// Remembers a token that was not chosen here, such as one of the prompt.
    fn accept(&self, token: u32) {
        lock(&self.0).accept(token);
    }
}
