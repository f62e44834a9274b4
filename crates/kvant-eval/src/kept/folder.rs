//! The folder of a measurement, and the others beside it.

use super::comparisons::{self, WindowResult};
use super::file::Digest;
use super::reference::{self, Reader, Writer};
use sha2::{Digest as _, Sha256};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Bytes that all measurements together may keep.
pub const DEFAULT_LIMIT: u64 = 4 << 30;

/// The endings of the files that are ours.
const REFERENCE: &str = "kvref";
const COMPARISONS: &str = "kvcmp";
const PART: &str = "part";
/// Written whenever a folder is used: its date says when that was, its text what the folder is.
const ABOUT: &str = "about.txt";

/// What a measurement depends on besides the window and the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The program, to the byte: another build may compute otherwise, and old results must not pass for its own.
    pub program: Digest,
    /// The model.
    pub model: Digest,
    /// Words for people who find the folder.
    pub about: String,
}

/// What is kept of one model by one program.
#[derive(Debug)]
pub struct Kept {
    folder: PathBuf,
    key: Digest,
    about: String,
    /// Bytes that may still be written.
    room: u64,
    notes: Vec<String>,
}

impl Kept {
    /// Opens the folder of a key below `root`, where no more than `limit` bytes are kept. Folders that were unused for
    /// longest are removed while `needed` bytes do not fit.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn open(root: &Path, key: &Key, limit: u64, needed: u64) -> io::Result<Self> {
        let mut hash = Sha256::new();
        hash.update(b"kvant eval 1\0");
        hash.update(key.program);
        hash.update(key.model);
        let digest: Digest = hash.finalize().into();
        let folder = root.join(hex(&digest[..8]));
        make_folder(&folder, &key.about)?;
        let room = make_room(root, &folder, limit, needed);
        Ok(Self { folder, key: digest, about: key.about.clone(), room, notes: Vec::new() })
    }

    /// Makes the folder again where another measurement, which needed room, has removed it since.
    fn still_there(&self) -> io::Result<()> {
        if self.folder.join(ABOUT).exists() { Ok(()) } else { make_folder(&self.folder, &self.about) }
    }

    /// What had to be said, in the order it happened; afterwards nothing.
    pub fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Bytes of the references of windows like these: what to ask room for.
    pub fn reference_bytes(windows: usize, positions: usize, vocabulary: usize) -> u64 {
        windows as u64 * reference::file_bytes(positions, vocabulary)
    }

    fn note(&mut self, path: &Path, what: &str) {
        self.notes.push(format!("{}: {what}", path.display()));
    }

    fn path(&self, digest: &Digest, ending: &str) -> PathBuf {
        self.folder.join(hex(&digest[..8])).with_extension(ending)
    }

    fn window_digest(&self, window: &[u32], first_target: usize) -> Digest {
        let mut hash = Sha256::new();
        hash.update(self.key);
        hash.update((first_target as u64).to_le_bytes());
        window.iter().for_each(|id| hash.update(id.to_le_bytes()));
        hash.finalize().into()
    }

    fn result_digest(&self, window: &[u32], first_target: usize, subject: &str) -> Digest {
        let mut hash = Sha256::new();
        hash.update(self.window_digest(window, first_target));
        hash.update(subject);
        hash.finalize().into()
    }

    /// The reference of a window whose tokens from `first_target` on are scored.
    pub(crate) fn reference(
        &mut self,
        window: &[u32],
        first_target: usize,
        vocabulary: usize,
    ) -> Option<Reader> {
        let digest = self.window_digest(window, first_target);
        let path = self.path(&digest, REFERENCE);
        Reader::open(&path, &digest, window.len() - first_target, vocabulary).unwrap_or_else(|reason| {
            self.note(&path, &format!("{reason}; it is computed anew"));
            None
        })
    }

    /// Begins to keep a reference, if there is room for it.
    pub(crate) fn keep_reference(
        &mut self,
        window: &[u32],
        first_target: usize,
        vocabulary: usize,
    ) -> Option<Writer> {
        let size = reference::file_bytes(window.len() - first_target, vocabulary);
        let left = self.room.checked_sub(size)?;
        let digest = self.window_digest(window, first_target);
        let path = self.path(&digest, REFERENCE);
        match self.still_there().and_then(|()| Writer::new(&path, &digest)) {
            Ok(writer) => {
                self.room = left;
                Some(writer)
            }
            Err(error) => {
                self.not_kept(&path, &error);
                None
            }
        }
    }

    /// A write failed: nothing more is kept of references.
    pub(crate) fn give_up(&mut self, error: &io::Error) {
        let folder = self.folder.clone();
        self.not_kept(&folder, error);
    }

    fn not_kept(&mut self, path: &Path, error: &io::Error) {
        self.room = 0;
        self.note(path, &format!("predictions are not kept ({error})"));
    }

    /// What `subject` (a cache and how it is run, in words that tell it from all others) showed in a window.
    pub(crate) fn result(
        &mut self,
        window: &[u32],
        first_target: usize,
        subject: &str,
    ) -> Option<WindowResult> {
        let digest = self.result_digest(window, first_target, subject);
        let path = self.path(&digest, COMPARISONS);
        WindowResult::load(&path, &digest, window.len() - first_target).unwrap_or_else(|reason| {
            self.note(&path, &format!("{reason}; it is computed anew"));
            None
        })
    }

    /// Keeps it.
    pub(crate) fn keep_result(
        &mut self,
        window: &[u32],
        first_target: usize,
        subject: &str,
        result: &WindowResult,
    ) {
        let size = comparisons::file_bytes(window.len() - first_target);
        let digest = self.result_digest(window, first_target, subject);
        let path = self.path(&digest, COMPARISONS);
        if let Err(error) = self.still_there().and_then(|()| result.save(&path, &digest)) {
            self.note(&path, &format!("a result is not kept ({error})"));
        }
        self.room = self.room.saturating_sub(size);
    }
}

fn make_folder(folder: &Path, about: &str) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join(ABOUT), about)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Our files in a folder, with their sizes.
fn ours(folder: &Path) -> Vec<(PathBuf, u64)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let is_ours = |path: &Path| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        path.file_name().is_some_and(|name| name == ABOUT)
            || ending.is_some_and(|ending| [REFERENCE, COMPARISONS, PART].contains(&ending))
    };
    entries
        .flatten()
        .filter(|entry| is_ours(&entry.path()))
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok().filter(|data| data.is_file())?.len())))
        .collect()
}

fn size(folder: &Path) -> u64 {
    ours(folder).iter().map(|(_, size)| size).sum()
}

/// Removes folders unused for longest until `needed` bytes fit beside `own`, and returns the bytes that may be written.
fn make_room(root: &Path, own: &Path, limit: u64, needed: u64) -> u64 {
    let mut others: Vec<(SystemTime, PathBuf, u64)> = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path != own)
        .filter_map(|path| {
            Some((fs::metadata(path.join(ABOUT)).ok()?.modified().ok()?, path.clone(), size(&path)))
        })
        .collect();
    others.sort();
    let held = size(own);
    // What is there already need not be written again.
    let needed = needed.saturating_sub(held);
    let mut total = held + others.iter().map(|(.., size)| size).sum::<u64>();
    for (_, folder, size) in others {
        if total.saturating_add(needed) <= limit {
            break;
        }
        // Only what is ours is removed: the folder stays if somebody else put something there.
        for (path, _) in ours(&folder) {
            let _ = fs::remove_file(path);
        }
        let _ = fs::remove_dir(&folder);
        total -= size;
    }
    limit.saturating_sub(total)
}
