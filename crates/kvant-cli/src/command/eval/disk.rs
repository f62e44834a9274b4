//! What `kvant eval` keeps on disk.

use super::Eval;
use kvant_eval::Windows;
use kvant_eval::kept::{Kept, Key};
use kvant_model::{Checkpoint, Model};
use sha2::{Digest, Sha256};
use std::error::Error;
use std::fs::File;
use std::io;

impl Eval {
    /// The folder of this measurement. Where there can be none, a note says so and nothing is kept.
    pub(super) fn open_kept(
        &self,
        checkpoint: &Checkpoint,
        model: &Model,
        windows: &Windows,
    ) -> Option<Kept> {
        if self.no_keep {
            return None;
        }
        let kept = self.try_open_kept(checkpoint, model, windows);
        kept.inspect_err(|e| eprintln!("note: results cannot be stored for later runs: {e}")).ok()
    }

    fn try_open_kept(
        &self,
        checkpoint: &Checkpoint,
        model: &Model,
        windows: &Windows,
    ) -> Result<Kept, Box<dyn Error>> {
        let root = kvant_hub::cache_folder()?.join("eval");
        let key = Key {
            program: program()?,
            model: checkpoint.signature().0,
            about: format!("Results of kvant eval for {}. Safe to delete.\n", self.model),
        };
        let needed = Kept::reference_bytes(windows.chunks(), windows.targets().len(), model.vocabulary());
        Ok(Kept::open(&root, &key, self.keep.0 as u64, needed)?)
    }
}

/// SHA-256 of the running program.
fn program() -> io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    io::copy(&mut File::open(std::env::current_exe()?)?, &mut hash)?;
    Ok(hash.finalize().into())
}
