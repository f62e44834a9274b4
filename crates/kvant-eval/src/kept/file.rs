//! The beginning that all kept files share, and how they come into being.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"KVANTEVL";
const VERSION: u32 = 1;
/// Magic, version, kind, digest, checksum of these.
pub const HEADER_BYTES: u64 = 8 + 4 + 4 + 32 + 4;

/// 32 bytes that say what a file belongs to.
pub type Digest = [u8; 32];

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Predictions of one window.
    Reference = 1,
    /// Comparisons of one cache over one window.
    Comparisons = 2,
}

fn header(kind: Kind, digest: &Digest) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((kind as u32).to_le_bytes());
    bytes.extend(digest);
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

/// Reads the header of an opened file. `Err` says why the file is refused.
pub fn check(file: &mut File, kind: Kind, digest: &Digest, body: u64) -> Result<(), String> {
    let unreadable = |e: io::Error| format!("cannot be read ({e})");
    let length = file.metadata().map_err(unreadable)?.len();
    if length != HEADER_BYTES + body {
        return Err(format!("has {length} bytes where {} belong", HEADER_BYTES + body));
    }
    let mut found = vec![0; HEADER_BYTES as usize];
    file.read_exact(&mut found).map_err(unreadable)?;
    if found[..8] != *MAGIC {
        return Err("is not a file of kvant's measurements".to_owned());
    }
    if found[8..12] != VERSION.to_le_bytes() {
        return Err("has another version".to_owned());
    }
    if found != header(kind, digest) {
        return Err("belongs to another measurement".to_owned());
    }
    Ok(())
}

/// A file that gets its name when it is whole.
pub struct Draft {
    out: BufWriter<File>,
    part: PathBuf,
    path: PathBuf,
}

impl Draft {
    /// Begins a file.
    pub fn new(path: &Path, kind: Kind, digest: &Digest) -> io::Result<Self> {
        // One name for all attempts: what an interrupted one leaves is overwritten by the next. Should two programs write
        // at a time, the checksums tell.
        let part = path.with_extension("part");
        let mut out = BufWriter::with_capacity(1 << 20, File::create(&part)?);
        out.write_all(&header(kind, digest))?;
        Ok(Self { out, part, path: path.to_path_buf() })
    }

    /// Adds bytes.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    /// Gives the file its name.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.flush()?;
        fs::rename(&self.part, &self.path)
    }

    /// Takes back what was written.
    pub fn discard(self) {
        drop(self.out);
        let _ = fs::remove_file(&self.part);
    }
}
