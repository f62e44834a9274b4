//! From a path or a name to a model's file, and models of random weights.

use crate::error::{bad_value, failed};
use crate::work::{Progress, detached};
use kvant_hub::{Hub, ModelName, Progress as Download};
use kvant_model::synth::Described;
use kvant_threads::Pool;
use pyo3::exceptions::PyFileNotFoundError;
use pyo3::prelude::*;
use std::path::{Path, PathBuf};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(synth, module)?)?;
    module.add_function(wrap_pyfunction!(find, module)?)
}

/// Endings of files, by which a path that is not there is told from a name.
const ENDINGS: [&str; 3] = [".gguf", ".safetensors", ".json"];

/// The file or folder of a model, by path or by name; fetched where it is not here.
#[pyfunction]
#[pyo3(signature = (model, progress=None))]
fn find(py: Python<'_>, model: String, progress: Option<Py<PyAny>>) -> PyResult<PathBuf> {
    let progress = Progress::new(progress);
    detached(py, move || locate(&model, &progress))
}

/// The same, without the GIL.
pub fn locate(model: &str, progress: &Progress) -> PyResult<PathBuf> {
    let path = Path::new(model);
    if path.exists() {
        return Ok(path.to_path_buf());
    }
    let is_path = path.is_absolute()
        || model.starts_with("./")
        || model.starts_with("../")
        || (!model.contains(':') && ENDINGS.iter().any(|ending| model.ends_with(ending)));
    if is_path {
        return Err(PyFileNotFoundError::new_err(format!("{model}: no such file or folder")));
    }
    let name = ModelName::parse(model).map_err(bad_value)?;
    let hub = Hub::from_env().map_err(failed)?;
    if let Some(path) = hub.find(&name) {
        return Ok(path);
    }
    let mut report = |download: Download<'_>| {
        if let Download::File { done, total, .. } = download {
            progress.tell_or_leave(done, total.unwrap_or(0));
        }
    };
    hub.pull(&name, &mut report).map_err(failed)
}

/// Writes a folder with a model of random weights, as the text of a config.json describes it.
#[pyfunction]
#[pyo3(signature = (path, config, seed=0))]
fn synth(py: Python<'_>, path: PathBuf, config: String, seed: u64) -> PyResult<()> {
    detached(py, move || {
        let config = serde_json::from_str(&config).map_err(bad_value)?;
        let model = Described::new(config, seed).map_err(bad_value)?;
        Pool::default().install(|| model.write(&path, &mut |_| ())).map_err(failed)
    })
}
