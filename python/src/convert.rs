//! Models with other weights, as `kvant convert` writes them.

use crate::error::{bad_value, failed};
use crate::evaluate::pool;
use crate::models;
use crate::work::{Progress, detached};
use kvant_attention::KvCache;
use kvant_convert::{Conversion, ConvertError, Format, Importance, Weights};
use kvant_engine::load_observed;
use kvant_eval::{Score, Windows, text};
use kvant_model::{Checkpoint, Chunk, Description, Pass};
use kvant_text::tokenizer::{EncodeOptions, Tokenizer};
use pyo3::exceptions::PyFileExistsError;
use pyo3::prelude::*;
use serde_json::json;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(convert, module)?)
}

/// The most tokens in a window of calibration, and in a pass: the logits of more would take much memory.
const WINDOW: usize = 512;
const PASS: usize = 128;

/// What is converted to what: a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct ConvertSettings {
    model: String,
    output: PathBuf,
    weights: String,
    /// Whether rounding is weighed by what channels are multiplied with.
    calibrated: bool,
    /// What is read for that; None for a text that comes with kvant.
    text: Option<String>,
    tokens: usize,
    force: bool,
    threads: Option<usize>,
}

/// Writes a model with its weights in another type; a JSON object about the file.
#[pyfunction]
#[pyo3(signature = (settings, progress=None))]
fn convert(py: Python<'_>, settings: ConvertSettings, progress: Option<Py<PyAny>>) -> PyResult<String> {
    let ConvertSettings { output, force, threads, .. } = &settings;
    let weights: Weights = settings.weights.parse().map_err(bad_value)?;
    let format = match output.extension().and_then(|extension| extension.to_str()) {
        Some("gguf") => Format::Gguf,
        Some("safetensors") => Format::Safetensors,
        _ => {
            let name = output.display();
            return Err(bad_value(format!(
                "{name}: end it in .gguf or .safetensors, which says what it is to be"
            )));
        }
    };
    if output.exists() && !*force {
        let name = output.display();
        return Err(PyFileExistsError::new_err(format!("{name}: is there already; force=True replaces it")));
    }
    let progress = Progress::new(progress);
    let pool = pool(*threads)?;
    detached(py, || {
        let checkpoint = Checkpoint::open(models::locate(&settings.model, &progress)?).map_err(failed)?;
        let importance = match settings.calibrated {
            true => Some(pool.install(|| observe(&checkpoint, &settings))?),
            false => None,
        };
        let conversion = Conversion::new(&checkpoint, weights, format, importance.as_deref());
        let conversion = conversion.map_err(|e| refused(&e))?;
        pool.install(|| write(&conversion, output, &progress))?;
        Ok(about(&conversion, output))
    })
}

/// Reads a text with somebody watching what the channels of every layer are multiplied with.
fn observe(checkpoint: &Checkpoint, settings: &ConvertSettings) -> PyResult<Arc<Importance>> {
    let text = match &settings.text {
        Some(text) => text.as_str(),
        None => text::calibration(),
    };
    let tokenizer = Tokenizer::of(checkpoint).map_err(failed)?;
    let context = Description::of(checkpoint).map_err(failed)?.context.unwrap_or(WINDOW);
    let window = WINDOW.min(context).min(settings.tokens);
    let held = tokenizer.encode(text, EncodeOptions::default()).map_err(bad_value)?.len() / window;
    let count = (settings.tokens / window).min(held).max(1);
    let windows = Windows::of_text(&tokenizer, text, window, count, Score::All).map_err(bad_value)?;
    let importance = Arc::new(Importance::default());
    let model = load_observed(checkpoint, Arc::clone(&importance) as _).map_err(failed)?;
    for window in windows.iter() {
        let mut cache = KvCache::reference(model.slots(), window.len()).map_err(failed)?;
        for tokens in window.chunks(PASS) {
            model
                .forward(Pass::new(&[Chunk::new(tokens, 0..tokens.len())]), &mut [cache.sequence_mut()])
                .map_err(failed)?;
        }
        Python::attach(|py| py.check_signals())?;
    }
    Ok(importance)
}

fn write(conversion: &Conversion, output: &Path, progress: &Progress) -> PyResult<()> {
    let mut stopped = None;
    let written = conversion.write(output, &mut |done, total| match progress.tell(done, total) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            stopped.get_or_insert(error);
            ControlFlow::Break(())
        }
    });
    match (written, stopped) {
        (_, Some(error)) => Err(error),
        (written, None) => written.map_err(|e| refused(&e)),
    }
}

fn refused(error: &ConvertError) -> PyErr {
    match error {
        ConvertError::Refused(_) => bad_value(error),
        error => failed(error),
    }
}

fn about(conversion: &Conversion, output: &Path) -> String {
    let tensors = conversion.tensors();
    let weights: usize = tensors.iter().map(|(_, _, shape)| shape.iter().product::<usize>()).sum();
    let bytes = conversion.tensor_bytes();
    let each: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape)| json!({"name": name, "type": dtype, "shape": shape}))
        .collect();
    json!({"path": output, "weights": weights, "bytes": bytes, "tensors": each, "notes": conversion.notes(),
           "bits_per_weight": 8.0 * bytes as f64 / weights.max(1) as f64})
    .to_string()
}
