//! Replacing a file as a whole, or not at all.

use super::SnapshotError;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Makes `bytes` the contents of `path`, as [`replace`] does.
pub(crate) fn replace_bytes(path: &Path, bytes: &[u8]) -> Result<(), SnapshotError> {
    replace(path, |file| file.write_all(bytes).map_err(SnapshotError::io("write the file")))
}

/// Fills a new file beside `path`, flushes it to the disk and renames it. If anything fails, `path` is as before.
pub(super) fn replace<T>(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<T, SnapshotError>,
) -> Result<T, SnapshotError> {
    // A link stays a link: it is the file behind it that is replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let Some(name) = path.file_name() else {
        return Err(SnapshotError::io("save under this name")(io::ErrorKind::InvalidInput.into()));
    };
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let prefix = format!(".{}.", name.to_string_lossy());
    sweep(folder, &prefix);
    put(folder, &prefix, &path, fill)
}

/// Makes `bytes` the contents of the file `name` in a folder. What killed writers have left there
/// is the caller's to remove: see [`is_leftover`].
pub(crate) fn put_bytes(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), SnapshotError> {
    put(folder, &format!(".{name}."), &folder.join(name), |file| {
        file.write_all(bytes).map_err(SnapshotError::io("write the file"))
    })
}

/// Whether a writer of the file `name` has left a file of this name, or is about to rename it.
pub(crate) fn is_leftover(file: &str, is_name: impl Fn(&str) -> bool) -> bool {
    let inner = file.strip_prefix('.').and_then(|file| file.strip_suffix(SUFFIX));
    inner.and_then(|inner| inner.rsplit_once('.')).is_some_and(|(name, _)| is_name(name))
}

/// Makes a file in a folder and takes it away again.
pub(crate) fn check_writable(folder: &Path) -> io::Result<()> {
    NewFile::create(folder, ".kvant.").map(drop)
}

fn put<T>(
    folder: &Path,
    prefix: &str,
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<T, SnapshotError>,
) -> Result<T, SnapshotError> {
    let mut new = NewFile::create(folder, prefix).map_err(SnapshotError::io("make a file in this folder"))?;
    let mut buffered = BufWriter::with_capacity(1 << 20, &mut new.file);
    let result = fill(&mut buffered)?;
    buffered.flush().map_err(SnapshotError::io("write the file"))?;
    drop(buffered);
    new.file.sync_all().map_err(SnapshotError::io("write the file to disk"))?;
    new.rename(path).map_err(SnapshotError::io("rename the file into place"))?;
    // That the new name itself is on the disk; where folders cannot be flushed, either file is a whole one.
    #[cfg(unix)]
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(result)
}

const SUFFIX: &str = ".part";

/// A file that goes away unless it is renamed. Its lock tells that its writer is alive.
struct NewFile {
    path: PathBuf,
    file: File,
    renamed: bool,
}

impl NewFile {
    fn create(folder: &Path, prefix: &str) -> io::Result<NewFile> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        // What people say to a model is theirs to show.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let (path, file) = loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!("{prefix}{}-{count}{SUFFIX}", std::process::id()));
            match options.open(&path) {
                // A process of the same number on another machine, or one that was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                opened => break (path, opened?),
            }
        };
        let new = NewFile { path, file, renamed: false };
        match new.file.try_lock() {
            Err(fs::TryLockError::Error(error)) if error.kind() != io::ErrorKind::Unsupported => Err(error),
            _ => Ok(new),
        }
    }

    fn rename(&mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.renamed {
            // The reason why it was given up is what the caller hears.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes what killed writers have left: files that nobody has locked. What cannot be removed does no harm.
fn sweep(folder: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_left = name.to_str().is_some_and(|name| name.starts_with(prefix) && name.ends_with(SUFFIX));
        if is_left && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::replace_bytes as put;
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_failed_save_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("talk");
        put(&path, b"old").unwrap();
        for written in [0, 1, 3 << 20] {
            let result: Result<(), _> = replace(&path, |file| {
                file.write_all(&vec![7; written]).unwrap();
                Err(SnapshotError::io("write the file")(io::ErrorKind::StorageFull.into()))
            });
            assert!(result.unwrap_err().to_string().starts_with("cannot write the file: "));
            assert_eq!(
                (fs::read(&path).unwrap(), names(folder.path())),
                (b"old".to_vec(), vec!["talk".into()])
            );
        }
        put(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn leftovers_are_swept_and_files_in_work_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("talk");
        fs::write(folder.path().join(".talk.1-0.part"), b"half").unwrap();
        fs::write(folder.path().join(".other.1-0.part"), b"half").unwrap();
        let alive = NewFile::create(folder.path(), ".talk.").unwrap();
        put(&path, b"new").unwrap();
        let kept = alive.path.file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(names(folder.path()), [".other.1-0.part".to_owned(), kept, "talk".into()]);
        drop(alive);
        assert_eq!(names(folder.path()), [".other.1-0.part", "talk"]);
    }

    #[test]
    fn a_name_that_cannot_be_written_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(put(&folder.path().join("no/such/folder/talk"), b"x").is_err());
        assert!(put(folder.path(), b"x").is_err());
        assert!(put(Path::new("/"), b"x").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_strangers_cannot_read() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        put(&real, b"old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        put(&link, b"new").unwrap();
        assert_eq!(fs::read(&real).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o077, 0);
    }
}
