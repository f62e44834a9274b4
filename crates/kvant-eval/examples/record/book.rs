//! The file: one line for each thing that is recorded, by instruction set.

use crate::Failure;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// What was computed just now.
pub struct Lines {
    tier: &'static str,
    found: BTreeMap<String, String>,
}

impl Lines {
    pub fn new(tier: &'static str) -> Lines {
        Lines { tier, found: BTreeMap::new() }
    }

    pub fn put(&mut self, key: &str, value: String) {
        self.found.insert(format!("{} {key}", self.tier), value);
    }

    /// The instruction set, and the words that say what was computed: every fixture, every session, one model.
    fn group(key: &str) -> Vec<&str> {
        let words: Vec<&str> = key.split(' ').take(3).collect();
        if words.get(1) == Some(&"model") { words } else { words.into_iter().take(2).collect() }
    }

    fn covers(&self, key: &str) -> bool {
        self.found.keys().any(|found| Self::group(found) == Self::group(key))
    }
}

/// What was recorded: everything ever computed, by key.
pub struct Book(BTreeMap<String, String>);

impl Book {
    pub fn read(path: &Path) -> Result<Book, Failure> {
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Book(serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?))
    }

    /// The file, or an empty one where there is none yet.
    pub fn open(path: &Path) -> Result<Book, Failure> {
        if path.exists() { Self::read(path) } else { Ok(Book(BTreeMap::new())) }
    }

    /// Puts what was computed in the place of what was recorded of the same things.
    pub fn replace(&mut self, lines: Lines) {
        self.0.retain(|key, _| !lines.covers(key));
        self.0.extend(lines.found);
    }

    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(&self.0)?;
        fs::write(path, text + "\n").map_err(|e| format!("{}: {e}", path.display()).into())
    }

    /// How many lines were compared, and every difference in words.
    pub fn compare(&self, lines: &Lines) -> (usize, Vec<String>) {
        let mut differences = Vec::new();
        for (key, found) in &lines.found {
            match self.0.get(key) {
                Some(recorded) if recorded == found => {}
                Some(recorded) => differences.push(format!("{key}: {found}, recorded {recorded}")),
                None => differences.push(format!("{key}: {found}, which is not recorded")),
            }
        }
        for key in self.0.keys().filter(|key| lines.covers(key) && !lines.found.contains_key(*key)) {
            differences.push(format!("{key}: recorded, and not found any more"));
        }
        let compared = lines.found.keys().filter(|key| self.0.contains_key(*key)).count();
        (compared, differences)
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
