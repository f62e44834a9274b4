//! What was typed in earlier conversations: a file of JSON strings, one to a line, the newest last.
//!
//! A line is appended when it is entered, so that two conversations at a time lose nothing of each other's. The file lies in the
//! cache folder and is its owner's alone; `KVANT_HISTORY=off` keeps none.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

/// The variable that turns it off.
const VARIABLE: &str = "KVANT_HISTORY";
/// Entries that are brought back.
const KEPT: usize = 1000;
/// Longer entries are not kept: nobody recalls a pasted book.
const LONGEST: usize = 16 << 10;

/// The file.
pub struct History(Option<PathBuf>);

impl History {
    /// That of this user.
    pub fn of_user() -> Self {
        let is_off = std::env::var_os(VARIABLE).is_some_and(|value| value == "off" || value == "0");
        Self(kvant_hub::cache_folder().ok().filter(|_| !is_off).map(|folder| folder.join("history.jsonl")))
    }

    /// Entries, the newest last. A file that has grown to twice what is brought back is cut.
    pub fn read(&self) -> Vec<String> {
        let Some(path) = &self.0 else { return Vec::new() };
        let text = fs::read_to_string(path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let kept = &lines[lines.len().saturating_sub(KEPT)..];
        if lines.len() > 2 * KEPT {
            // Without it the file is longer than need be.
            let _ = self.replace(kept);
        }
        kept.iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Keeps an entry. A conversation goes on without its history.
    pub fn add(&self, entry: &str) {
        if entry.len() <= LONGEST {
            let _ = self.append(entry);
        }
    }

    fn append(&self, entry: &str) -> io::Result<()> {
        let Some(path) = &self.0 else { return Ok(()) };
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let line = serde_json::to_string(entry)? + "\n";
        options.open(path)?.write_all(line.as_bytes())
    }

    fn replace(&self, lines: &[&str]) -> io::Result<()> {
        let Some(path) = &self.0 else { return Ok(()) };
        let part = path.with_extension(format!("{}.part", std::process::id()));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(&part)?.write_all((lines.join("\n") + "\n").as_bytes())?;
        fs::rename(part, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_several_lines_come_back_whole_and_old_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        let history = History(Some(folder.path().join("deep/history.jsonl")));
        assert!(history.read().is_empty());
        history.add("one");
        history.add("two\nlines");
        history.add(&"x".repeat(LONGEST + 1));
        assert_eq!(history.read(), ["one", "two\nlines"]);
        (0..2 * KEPT).for_each(|number| history.add(&number.to_string()));
        let kept = history.read();
        assert_eq!((kept.len(), kept.last().unwrap().as_str()), (KEPT, "1999"));
        assert_eq!(
            fs::read_to_string(folder.path().join("deep/history.jsonl")).unwrap().lines().count(),
            KEPT
        );
        assert!(History(None).read().is_empty());
    }
}
