//! kvant's errors as Python's exceptions: the words are kvant's own, the type says what to do.

use kvant_engine::{GenerateError, SampleError};
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::fmt::Display;

pyo3::create_exception!(kvant, KvantError, PyException, "What kvant could not do, in its own words.");

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("KvantError", module.py().get_type::<KvantError>())
}

/// Something that could not be done.
pub fn failed(error: impl Display) -> PyErr {
    KvantError::new_err(error.to_string())
}

/// An argument whose value cannot be.
pub fn bad_value(error: impl Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// An argument of another type than can be used.
pub fn bad_type(error: impl Display) -> PyErr {
    PyTypeError::new_err(error.to_string())
}

/// A generation that could not go on; what the caller can mend is a `ValueError`.
pub fn generation(error: &GenerateError) -> PyErr {
    match error {
        GenerateError::EmptyPrompt | GenerateError::PromptTooLong { .. } => bad_value(error),
        GenerateError::Sample(error) => sampling(error),
        error => failed(error),
    }
}

/// A token that could not be chosen; settings out of range are a `ValueError`.
pub fn sampling(error: &SampleError) -> PyErr {
    match error {
        SampleError::BadSetting { .. } | SampleError::BiasOutside { .. } => bad_value(error),
        error => failed(error),
    }
}
