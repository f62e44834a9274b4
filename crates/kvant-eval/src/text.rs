//! Reading the text to be predicted.

use crate::error::EvalError;
use std::fs;
use std::path::Path;

/// The whole of a UTF-8 file, byte for byte: no newline is translated or trimmed.
///
/// # Errors
/// If it cannot be read or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, EvalError> {
    let bytes =
        fs::read(path).map_err(|source| EvalError::Unreadable { path: path.to_path_buf(), source })?;
    String::from_utf8(bytes).map_err(|error| EvalError::NotText {
        path: path.to_path_buf(),
        byte: error.utf8_error().valid_up_to(),
    })
}
