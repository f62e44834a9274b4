//! The folder: who may use it, what lies in it, and how files get in and out.

use super::DiskError;
use super::chain::{file_name, is_name_beside, parse_file_name};
use super::index::{Entry, Index, Known};
use crate::snapshot::{
    Digest, Head, Signature, Snapshot, SnapshotError, check_writable, is_leftover, put_bytes,
};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The file that whoever uses the folder has locked, together with the others. The system takes the lock away when its owner dies.
const LOCK: &str = "kvant.lock";

/// How long somebody may have the folder alone, which a server has while it opens it.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A folder that servers share: each writes whole files under names that say what is in them.
pub(super) struct Folder {
    path: PathBuf,
    lock: File,
    /// Nobody else has it open, until [`Folder::share`].
    is_alone: bool,
}

/// Files that cannot be used.
#[derive(Debug, Default)]
pub(super) struct UnusableFiles {
    pub count: usize,
    /// The first of them, and why.
    pub first: Option<(String, SnapshotError)>,
}

impl Folder {
    pub(super) fn open(path: &Path) -> Result<Folder, DiskError> {
        let refused = |doing| move |source| DiskError::Folder { folder: path.to_owned(), doing, source };
        if !fs::metadata(path).map_err(refused("open this folder"))?.is_dir() {
            return Err(refused("open this folder")(io::ErrorKind::NotADirectory.into()));
        }
        // Where folders lie on a network, a file that is locked with others has to be readable.
        let lock = File::options().read(true).write(true).create(true).truncate(false).open(path.join(LOCK));
        let lock = lock.map_err(refused("make a file in this folder"))?;
        let is_alone = match lock.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => {
                lock_with_others(&lock, path)?;
                false
            }
            Err(TryLockError::Error(source)) => return Err(refused("lock this folder")(source)),
        };
        check_writable(path).map_err(refused("make a file in this folder"))?;
        Ok(Folder { path: path.to_owned(), lock, is_alone })
    }

    /// Lets others in.
    pub(super) fn share(&mut self) -> Result<(), DiskError> {
        if std::mem::take(&mut self.is_alone) {
            let doing = "lock this folder";
            let refused = |source| DiskError::Folder { folder: self.path.clone(), doing, source };
            self.lock.unlock().map_err(refused)?;
            lock_with_others(&self.lock, &self.path)?;
        }
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Finds what can be used under this signature, from what the files say of themselves, and removes what killed writers have
    /// left, if none is alive. Whatever else is there is none of our business.
    pub(super) fn scan(&self, signature: &Signature) -> Result<(Index, UnusableFiles), DiskError> {
        let refused =
            |source| DiskError::Folder { folder: self.path.clone(), doing: "list this folder", source };
        let (mut index, mut unusable_files) = (Index::default(), UnusableFiles::default());
        for item in fs::read_dir(&self.path).map_err(refused)? {
            let item = item.map_err(refused)?;
            let Ok(file) = item.file_name().into_string() else { continue };
            if is_leftover(&file, |name| parse_file_name(name).is_some() || is_name_beside(name)) {
                if self.is_alone {
                    // What cannot be removed does no harm.
                    let _ = fs::remove_file(item.path());
                }
                continue;
            }
            let Some(name) = parse_file_name(&file) else { continue };
            let Some((entry, error)) = self.look(&name, signature) else { continue };
            if let Some(error) = error {
                unusable_files.count += 1;
                unusable_files.first.get_or_insert((file, error));
            }
            index.insert(name, entry);
        }
        index.settle();
        Ok((index, unusable_files))
    }

    /// What a file says of itself, and why it cannot be used; none if it is not there.
    pub(super) fn look(
        &self,
        name: &Digest,
        signature: &Signature,
    ) -> Option<(Entry, Option<SnapshotError>)> {
        let path = self.path.join(file_name(name));
        let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        let used = metadata.modified().map_or(0, nanoseconds);
        let (part, error) = match Head::read(&path).and_then(|head| known(head, signature, name)) {
            Ok(part) => (Some(part), None),
            // Another server has removed it just now.
            Err(error) if error.is_missing_file() => return None,
            Err(error) => (None, Some(error)),
        };
        Some((Entry { part, bytes: metadata.len(), used, is_stale: false }, error))
    }

    /// The names of all files; none where the folder cannot be listed just now.
    pub(super) fn names(&self) -> Option<Vec<Digest>> {
        let items = fs::read_dir(&self.path).ok()?.collect::<io::Result<Vec<_>>>().ok()?;
        Some(items.iter().filter_map(|item| parse_file_name(item.file_name().to_str()?)).collect())
    }

    pub(super) fn write(&self, name: &Digest, bytes: &[u8]) -> Result<(), SnapshotError> {
        put_bytes(&self.path, &file_name(name), bytes)
    }

    /// Reads a file and checks all of it. It is not mapped: a sequence must not fail because another server removes or shortens a file.
    pub(super) fn read(&self, name: &Digest) -> Result<Snapshot, SnapshotError> {
        let bytes = fs::read(self.path.join(file_name(name))).map_err(SnapshotError::io("read the file"))?;
        Snapshot::from_bytes(bytes)
    }

    /// Writes a file that is no prefix, with a checksum at its end.
    pub(super) fn write_beside(&self, name: &str, bytes: &[u8]) -> Result<(), SnapshotError> {
        let sum = crc32fast::hash(bytes).to_le_bytes();
        put_bytes(&self.path, name, &[bytes, &sum].concat())
    }

    /// The bytes of such a file, if it is whole and they are at most so many.
    pub(super) fn read_beside(&self, name: &str, most: usize) -> Option<Vec<u8>> {
        let path = self.path.join(name);
        let length = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?.len();
        let mut bytes = (length <= most as u64 + 4).then(|| fs::read(&path).ok())??;
        let sum = bytes.split_off(bytes.len().checked_sub(4)?);
        (sum == crc32fast::hash(&bytes).to_le_bytes()).then_some(bytes)
    }

    /// Removes a file; true if it is gone.
    pub(super) fn remove(&self, name: &Digest) -> bool {
        match fs::remove_file(self.path.join(file_name(name))) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Writes down when a file was used last. Where that fails, it will count as older than it is.
    pub(super) fn set_used(&self, name: &Digest, used: u64) {
        let file = File::options().write(true).open(self.path.join(file_name(name)));
        let _ = file.and_then(|file| file.set_modified(UNIX_EPOCH + Duration::from_nanos(used)));
    }
}

/// Waits until nobody has the folder alone, and keeps it from being had alone.
fn lock_with_others(lock: &File, path: &Path) -> Result<(), DiskError> {
    let start = Instant::now();
    loop {
        match lock.try_lock_shared() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if start.elapsed() < TIMEOUT => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => return Err(DiskError::InUse { folder: path.to_owned() }),
            Err(TryLockError::Error(source)) => {
                let folder = path.to_owned();
                return Err(DiskError::Folder { folder, doing: "lock this folder", source });
            }
        }
    }
}

/// What a file holds, if it belongs to this cache and is called as it should be.
fn known(head: Head, signature: &Signature, name: &Digest) -> Result<Known, SnapshotError> {
    if head.signature != *signature {
        return Err(SnapshotError::Signature { policy: head.policy });
    }
    if super::chain::name(&head.before, &head.tokens) != *name {
        return Err(SnapshotError::Part { what: "another part than its name says" });
    }
    let end = head.from + head.tokens.len();
    Ok(Known { before: head.before, end, quality: head.quality, numerics: head.numerics })
}

/// Since 1970.
pub(super) fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
