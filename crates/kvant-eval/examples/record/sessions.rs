//! Sequences that were saved long ago: files of old versions must load, and go on with the same logits.

use crate::Failure;
use crate::book::{Lines, hex};
use crate::fixtures::tokens;
use crate::modes::Run;
use crate::subject::{Kind, Subject};
use std::fs;
use std::path::Path;

/// Fixtures and caches whose sequences are kept as files; one has a sliding window.
const SESSIONS: [(&str, &str); 2] = [("qwen2", "int4"), ("mistral", "int4")];
/// The fixture whose whole pages are kept as a folder of parts.
const PARTS: (&str, &str) = ("qwen3", "int4");
/// Tokens that are held: two whole pages and a tail.
const HELD: usize = 150;
/// Tokens after them.
const STEPS: usize = 4;
const CAPACITY: usize = HELD + 1 + STEPS;

/// Writes the files, in the formats of this program.
pub fn write(fixtures: &Path, folder: &Path) -> Result<(), Failure> {
    for (fixture, policy) in SESSIONS {
        let (subject, kind) = (Subject::open(&fixtures.join(fixture))?, Kind::new(policy, None)?);
        let prompt = tokens(&subject, 0, HELD);
        let mut run = Run::new(&subject, &prompt, HELD, subject.empty(&kind, CAPACITY)?);
        run.advance(HELD, usize::MAX)?;
        subject.save(&kind, &run.held, &folder.join(format!("{fixture}-{policy}.kvant")))?;
    }
    let (fixture, policy) = PARTS;
    let (subject, kind) = (Subject::open(&fixtures.join(fixture))?, Kind::new(policy, None)?);
    let prompt = tokens(&subject, 0, HELD);
    let mut run = Run::new(&subject, &prompt, HELD, subject.empty(&kind, CAPACITY)?);
    run.advance(HELD, usize::MAX)?;
    let parts = folder.join(format!("{fixture}-{policy}.parts"));
    fs::create_dir_all(&parts)?;
    subject.save_parts(&kind, &run.held, &parts)?;
    fs::remove_file(parts.join("kvant.lock"))?;
    Ok(())
}

/// Loads every file and records how it goes on.
pub fn record(fixtures: &Path, folder: &Path, scratch: &Path, lines: &mut Lines) -> Result<(), Failure> {
    for (fixture, policy) in SESSIONS {
        let (subject, kind) = (Subject::open(&fixtures.join(fixture))?, Kind::new(policy, None)?);
        let file = folder.join(format!("{fixture}-{policy}.kvant"));
        let held = subject.resume(&kind, CAPACITY, &file).map_err(|e| format!("{}: {e}", file.display()))?;
        let prompt = tokens(&subject, 0, HELD + 1);
        if held.tokens != prompt[..HELD] {
            return Err(format!("{}: holds other tokens", file.display()).into());
        }
        let mut run = Run::new(&subject, &prompt, HELD, held);
        run.advance(CAPACITY, usize::MAX)?;
        lines.put(&format!("session {fixture}-{policy}.kvant logits"), hex(&run.outcome().logits));
        lines.put(&format!("session {fixture}-{policy}.kvant pages"), hex(&run.outcome().pages));
    }
    let (fixture, policy) = PARTS;
    let (subject, kind) = (Subject::open(&fixtures.join(fixture))?, Kind::new(policy, None)?);
    // Opening a folder writes to it.
    let parts = scratch.join("parts");
    fs::create_dir_all(&parts)?;
    for file in fs::read_dir(folder.join(format!("{fixture}-{policy}.parts")))? {
        let file = file?;
        fs::copy(file.path(), parts.join(file.file_name()))?;
    }
    let prompt = tokens(&subject, 0, HELD + 1);
    let held = subject.load_parts(&kind, CAPACITY, &parts, &prompt)?;
    lines.put(&format!("session {fixture}-{policy}.parts tokens"), held.tokens.len().to_string());
    let mut run = Run::new(&subject, &prompt, HELD, held);
    run.advance(CAPACITY, usize::MAX)?;
    lines.put(&format!("session {fixture}-{policy}.parts logits"), hex(&run.outcome().logits));
    lines.put(&format!("session {fixture}-{policy}.parts pages"), hex(&run.outcome().pages));
    Ok(())
}
