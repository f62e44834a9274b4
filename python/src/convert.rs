//! Models with other weights, as `kvant convert` writes them.

use crate::error::{bad_value, failed};
use crate::evaluate::pool;
use crate::models;
use crate::work::{Progress, detached};
use kvant_convert::{Conversion, ConvertError, Format, Weights};
use kvant_model::Checkpoint;
use pyo3::exceptions::PyFileExistsError;
use pyo3::prelude::*;
use serde_json::json;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(convert, module)?)
}

/// Writes a model with its weights in another type; a JSON object about the file.
#[pyfunction]
#[pyo3(signature = (model, output, weights, force, threads, progress=None))]
fn convert(
    py: Python<'_>,
    model: String,
    output: PathBuf,
    weights: &str,
    force: bool,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let weights: Weights = weights.parse().map_err(bad_value)?;
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
    if output.exists() && !force {
        let name = output.display();
        return Err(PyFileExistsError::new_err(format!("{name}: is there already; force=True replaces it")));
    }
    let progress = Progress::new(progress);
    detached(py, move || {
        let checkpoint = Checkpoint::open(models::locate(&model, &progress)?).map_err(failed)?;
        let conversion = Conversion::new(&checkpoint, weights, format, None).map_err(|e| refused(&e))?;
        pool(threads)?.install(|| write(&conversion, &output, &progress))?;
        Ok(about(&conversion, &output))
    })
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
