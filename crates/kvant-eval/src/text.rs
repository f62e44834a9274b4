//! Texts to predict: those that come with kvant, and files.

use crate::error::EvalError;
use std::fs;
use std::path::Path;

/// About 100 kB of English prose to calibrate on. It shares no passage with [`test()`].
pub fn calibration() -> &'static str {
    include_str!("../text/calibration.txt")
}

/// About 100 kB of English prose to measure on, from another book than [`calibration()`].
pub fn test() -> &'static str {
    include_str!("../text/test.txt")
}

/// What plans call [`calibration()`], where others name a file.
pub const CALIBRATION_NAME: &str = "built-in text (War and Peace)";

/// What reports call [`test()`], where others name a file.
pub const TEST_NAME: &str = "built-in text (Pride and Prejudice)";

/// The whole of a UTF-8 file, byte for byte: no newline is translated or trimmed.
///
/// # Errors
/// If it cannot be read or is not UTF-8.
pub fn read(path: &Path) -> Result<String, EvalError> {
    let bytes =
        fs::read(path).map_err(|source| EvalError::Unreadable { path: path.to_path_buf(), source })?;
    String::from_utf8(bytes).map_err(|error| EvalError::NotText {
        path: path.to_path_buf(),
        byte: error.utf8_error().valid_up_to(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Every run of eight words.
    fn passages(text: &str) -> HashSet<Vec<&str>> {
        let words: Vec<&str> = text.split_whitespace().collect();
        words.windows(8).map(<[&str]>::to_vec).collect()
    }

    #[test]
    fn calibration_and_test_never_mix() {
        let (calibration, test) = (passages(calibration()), passages(test()));
        assert!(calibration.len() > 15_000 && test.len() > 15_000);
        let both: Vec<_> = calibration.intersection(&test).collect();
        assert!(both.is_empty(), "{both:?}");
    }

    #[test]
    fn texts_are_prose_of_about_the_size_promised() {
        for text in [calibration(), test()] {
            assert!((95_000..105_000).contains(&text.len()), "{}", text.len());
            assert!(text.ends_with('\n') && !text.contains("\n\n\n") && !text.contains("Gutenberg"));
        }
    }
}
