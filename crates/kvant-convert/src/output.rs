//! A file that is there as a whole or not at all.

use crate::error::{ConvertError, Result};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file under another name until it is complete.
pub(crate) struct Output {
    path: PathBuf,
    unfinished: PathBuf,
    file: Option<BufWriter<File>>,
}

impl Output {
    /// Begins beside `path`.
    pub fn create(path: &Path) -> Result<Self> {
        let unfinished = path.with_added_extension("part");
        let file = File::create(&unfinished).map_err(|e| ConvertError::output(unfinished.clone(), 0, &e))?;
        let file = Some(BufWriter::with_capacity(1 << 20, file));
        Ok(Self { path: path.to_path_buf(), unfinished, file })
    }

    /// Where to write.
    pub fn writer(&mut self) -> &mut impl Write {
        self.file.as_mut().expect("only finish takes it away")
    }

    /// Everything of it is on disk under its own name.
    pub fn finish(mut self) -> io::Result<()> {
        let file = self.file.take().expect("it is finished once");
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&self.unfinished, &self.path)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // Nothing is there any more after `finish`. Otherwise best effort: whatever went wrong is told elsewhere.
        drop(self.file.take());
        let _ = fs::remove_file(&self.unfinished);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_when_it_is_finished_and_leaves_nothing_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.gguf");
        let mut output = Output::create(&path).unwrap();
        output.writer().write_all(b"half").unwrap();
        assert!(!path.exists());
        drop(output);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let mut output = Output::create(&path).unwrap();
        output.writer().write_all(b"whole").unwrap();
        output.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
