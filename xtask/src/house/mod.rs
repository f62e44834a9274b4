//! The house rules that no linter knows, checked over every file of the repository.
//!
//! The files are those git tracks or would track, less test data (any folder named `fixtures` or `seeds`),
//! which is as its makers left it.

mod paths;
mod reader;
mod rules;

use std::fmt;
use std::fs;
use std::path::Path;

use crate::process::call;
use crate::step::{Outcome, Trouble};
use crate::tally::Tally;

/// A line that breaks a rule.
#[derive(Debug, PartialEq)]
struct Offence {
    path: String,
    /// From 1.
    line: usize,
    /// What is wrong and what to do instead.
    message: String,
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Prints every offence and fails if there is one.
pub fn check() -> Outcome {
    let files = files()?;
    let mut offences: Vec<Offence> =
        files.iter().filter_map(|path| beside_its_folder(path, &files)).collect();
    let mut read = 0;
    for path in &files {
        let Ok(bytes) = fs::read(path) else { continue };
        // What is not text has no lines to judge.
        if let Ok(text) = String::from_utf8(bytes) {
            offences.extend(rules::offences(path, &text));
            offences.extend(paths::dead_links(path, &text, Path::exists));
            if path == paths::GUIDE {
                offences.extend(paths::missing(&text, &files));
            }
            read += 1;
        }
    }
    println!("{read} text files read");
    for offence in &offences {
        println!("{offence}");
    }
    match offences.len() {
        0 => Ok(Tally::default()),
        n => Err(Trouble::failed(format!("{n} offences against the house rules"))),
    }
}

/// A module whose parts have a folder is that folder's `mod.rs`.
fn beside_its_folder(path: &str, files: &[String]) -> Option<Offence> {
    let folder = format!("{}/", path.strip_suffix(".rs").filter(|path| path.contains("/src/"))?);
    let is_part = |other: &String| other.starts_with(&folder) && other.ends_with(".rs");
    let message = format!("a module with a folder is its mod.rs: move it to {folder}mod.rs");
    files.iter().any(is_part).then(|| Offence { path: path.to_owned(), line: 1, message })
}

fn files() -> Result<Vec<String>, Trouble> {
    // The checkout of a CI machine may belong to another user, which git refuses unless told.
    let git = ["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let list = call("git", git).probe().ok_or_else(|| {
        Trouble::not_run("git does not know this folder (a clone has the house rules checked)")
    })?;
    Ok(list.split('\0').filter(|path| is_ours(path) && is_plain_file(path)).map(str::to_string).collect())
}

fn is_ours(path: &str) -> bool {
    !path.is_empty() && !path.split('/').any(|part| part == "fixtures" || part == "seeds")
}

/// Links are left out, and so are files deleted but not yet committed as such.
fn is_plain_file(path: &str) -> bool {
    Path::new(path).symlink_metadata().is_ok_and(|data| data.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_data_is_left_alone() {
        assert!(is_ours("crates/kvant-codec/src/lib.rs"));
        assert!(!is_ours("crates/kvant-model/tests/fixtures/llama/config.json"));
        assert!(!is_ours("fuzz/seeds/spec/int4"));
        assert!(!is_ours(""));
    }

    #[test]
    fn a_module_with_a_folder_is_its_mod_rs() {
        let files =
            ["a/src/b.rs", "a/src/b/c.rs", "a/src/d.rs", "a/tests/e.rs", "a/tests/e/f.rs"].map(String::from);
        let beside: Vec<&String> =
            files.iter().filter(|path| beside_its_folder(path, &files).is_some()).collect();
        assert_eq!(beside, ["a/src/b.rs"]);
    }

    #[test]
    fn an_offence_prints_so_that_editors_can_jump_to_it() {
        let offence = Offence { path: "a/b.rs".into(), line: 3, message: "wrong".into() };
        assert_eq!(offence.to_string(), "a/b.rs:3: wrong");
    }
}
