//! Memory, or a folder that processes share.
//!
//! A folder has one file for each entry, under the name of its first block; further blocks of the entry are hard links to it, so that any
//! process finds any block by its name alone. Files are written beside their place and renamed: a name leads to a whole file or to none.
//! They are not flushed to the disk one by one. What a power cut tears does not match its checksum, and is a miss.

use crate::entry::{Header, MOST_HEADER, Name};
use crate::error::TierError;
use crate::index::Known;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const EXTENSION: &str = ".kvtier";
const PART: &str = ".part";

/// Where entries lie.
#[derive(Debug)]
pub struct Place(Kind);

#[derive(Debug)]
enum Kind {
    /// In the memory of this process.
    Memory(Mutex<HashMap<Name, Arc<Vec<u8>>>>),
    /// In a folder.
    Folder(PathBuf),
}

/// What a folder has under a name.
pub enum Seen {
    /// Nothing.
    Nothing,
    /// An entry, by the name of its first block.
    Entry(Name, Known),
    /// A file that is of no use.
    Useless(Known),
}

impl Place {
    /// Memory.
    pub fn memory() -> Place {
        Place(Kind::Memory(Mutex::default()))
    }

    /// A folder, which is made if it is not there.
    ///
    /// # Errors
    /// When it cannot be made, or nothing can be written to it.
    pub fn folder(path: &Path) -> Result<Place, TierError> {
        let refused = |doing| move |source| TierError::Io { path: path.to_owned(), doing, source };
        fs::create_dir_all(path).map_err(refused("make this folder"))?;
        drop(Part::create(path).map_err(refused("make a file in this folder"))?);
        Ok(Place(Kind::Folder(path.to_owned())))
    }

    /// Whether processes share it.
    pub fn is_shared(&self) -> bool {
        matches!(self.0, Kind::Folder(_))
    }

    pub(crate) fn write(&self, names: &[Name], bytes: Vec<u8>) -> Result<(), TierError> {
        let Kind::Folder(folder) = &self.0 else {
            self.memory_lock().insert(names[0], Arc::new(bytes));
            return Ok(());
        };
        let refused = |doing| move |source| TierError::Io { path: folder.clone(), doing, source };
        let mut part = Part::create(folder).map_err(refused("make a file in this folder"))?;
        part.file.write_all(&bytes).map_err(refused("write a file in this folder"))?;
        for name in &names[1..] {
            let link = part.link(folder);
            let link = link
                .map_err(refused("make a hard link in this folder, which blocks smaller than a page need"))?;
            link.rename(&path_of(folder, name)).map_err(refused("rename a file into place"))?;
        }
        part.rename(&path_of(folder, &names[0])).map_err(refused("rename a file into place"))
    }

    /// The bytes of the entry with this block.
    pub(crate) fn read(&self, entry: &Name, block: &Name) -> Result<Arc<Vec<u8>>, TierError> {
        let folder = match &self.0 {
            Kind::Folder(folder) => folder,
            Kind::Memory(_) => {
                let bytes = self.memory_lock().get(entry).map(Arc::clone);
                return bytes.ok_or(TierError::Entry("the entry is gone"));
            }
        };
        let path = path_of(folder, block);
        let bytes =
            fs::read(&path).map_err(|source| TierError::Io { path, doing: "read this file", source })?;
        Ok(Arc::new(bytes))
    }

    /// Removes an entry under all its names; what cannot be removed does no harm.
    pub(crate) fn remove(&self, entry: &Name, names: &[Name]) {
        match &self.0 {
            Kind::Memory(_) => {
                self.memory_lock().remove(entry);
            }
            Kind::Folder(folder) => {
                for name in names.iter().chain([entry]) {
                    let _ = fs::remove_file(path_of(folder, name));
                }
            }
        }
    }

    /// What a folder has under a name that this process does not know.
    pub(crate) fn look(&self, name: &Name) -> Seen {
        let Kind::Folder(folder) = &self.0 else { return Seen::Nothing };
        let path = path_of(folder, name);
        let Ok(file) = File::open(&path) else { return Seen::Nothing };
        let Ok(metadata) = file.metadata() else { return Seen::Nothing };
        let used = metadata.modified().map_or(0, nanoseconds);
        let known =
            |names, is_useless| Known { names, bytes: metadata.len(), used, is_stale: false, is_useless };
        let mut start = Vec::new();
        let read = file.take(MOST_HEADER as u64).read_to_end(&mut start);
        match read.ok().and_then(|_| Header::read(&start).ok()) {
            Some((header, before)) if header.names().contains(name) => {
                let names = header.names();
                let is_short = metadata.len() < (before + header.payload) as u64;
                Seen::Entry(names[0], known(names, is_short))
            }
            _ => Seen::Useless(known(vec![*name], true)),
        }
    }

    /// The names of all blocks in a folder; none where it cannot be listed just now.
    pub(crate) fn names(&self) -> Option<Vec<Name>> {
        let Kind::Folder(folder) = &self.0 else { return None };
        let items = fs::read_dir(folder).ok()?.collect::<io::Result<Vec<_>>>().ok()?;
        Some(items.iter().filter_map(|item| parse(item.file_name().to_str()?)).collect())
    }

    /// Removes what killed writers have left: files that nobody has locked.
    pub(crate) fn sweep(&self) {
        let Kind::Folder(folder) = &self.0 else { return };
        for item in fs::read_dir(folder).into_iter().flatten().flatten() {
            let is_part =
                item.file_name().to_str().is_some_and(|name| name.starts_with('.') && name.ends_with(PART));
            if is_part && File::open(item.path()).is_ok_and(|file| file.try_lock().is_ok()) {
                let _ = fs::remove_file(item.path());
            }
        }
    }

    /// Writes down when an entry was used last. Where that fails, it will count as older than it is.
    pub(crate) fn set_used(&self, entry: &Name, used: u64) {
        if let Kind::Folder(folder) = &self.0 {
            let file = OpenOptions::new().write(true).open(path_of(folder, entry));
            let _ = file.and_then(|file| file.set_modified(UNIX_EPOCH + Duration::from_nanos(used)));
        }
    }

    fn memory_lock(&self) -> MutexGuard<'_, HashMap<Name, Arc<Vec<u8>>>> {
        match &self.0 {
            Kind::Memory(entries) => entries.lock().unwrap_or_else(PoisonError::into_inner),
            Kind::Folder(_) => unreachable!("a folder has no entries in memory"),
        }
    }
}

/// A file that goes away unless it is renamed. Its lock tells that its writer is alive.
struct Part {
    path: PathBuf,
    file: File,
    is_renamed: bool,
}

impl Part {
    fn free(folder: &Path) -> PathBuf {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        folder.join(format!(".{}-{count}{PART}", std::process::id()))
    }

    fn create(folder: &Path) -> io::Result<Part> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        // What people say to a model is theirs to show.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let (path, file) = loop {
            let path = Part::free(folder);
            match options.open(&path) {
                // A process of the same number on another machine, or one that was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                opened => break (path, opened?),
            }
        };
        let part = Part { path, file, is_renamed: false };
        match part.file.try_lock() {
            Err(TryLockError::Error(error)) if error.kind() != io::ErrorKind::Unsupported => Err(error),
            _ => Ok(part),
        }
    }

    /// Another name of the same file.
    fn link(&self, folder: &Path) -> io::Result<Part> {
        let path = loop {
            let path = Part::free(folder);
            match fs::hard_link(&self.path, &path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                linked => {
                    linked?;
                    break path;
                }
            }
        };
        Ok(Part { path, file: self.file.try_clone()?, is_renamed: false })
    }

    fn rename(mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.is_renamed = true;
        // Renaming a link over another link of the same file leaves both names.
        let _ = fs::remove_file(&self.path);
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_renamed {
            // The reason why it was given up is what the caller hears.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn path_of(folder: &Path, name: &Name) -> PathBuf {
    let mut text: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    text.push_str(EXTENSION);
    folder.join(text)
}

fn parse(text: &str) -> Option<Name> {
    let hex = text.strip_suffix(EXTENSION).filter(|hex| hex.len() == 64 && hex.is_ascii())?;
    let mut name = [0; 32];
    for (at, place) in name.iter_mut().enumerate() {
        *place = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(name)
}

/// Since 1970.
pub fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
