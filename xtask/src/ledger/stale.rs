//! Whether the code that figures were taken from has changed since.
//!
//! A file of results names what it `covers`: paths, each with the hash it had when the figures were taken. A page whose
//! paths have other hashes today carries a mark; an empty hash is that of today, which `cargo xtask ledger` fills in. The mark is shown and never fails a test: figures are of their commit.

use crate::named::tree;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// How the line of a mark begins.
const MARK: &str = "> **Stale.** ";

/// What figures of quality cover: they change with the bits, not with the code that computes them.
const BITS: &str = "docs/results/record.json";

/// Hashes of paths as they are now.
#[derive(Default)]
pub struct Now(BTreeMap<String, Option<String>>);

impl Now {
    /// The hash of a path; none where git cannot tell.
    fn hash(&mut self, path: &str) -> Option<&str> {
        let read = || tree::hashes(Path::new("."), &[path.to_owned()]).ok()?.remove(path);
        self.0.entry(path.to_owned()).or_insert_with(read).as_deref()
    }

    /// The line that a page of these results shows; empty while nothing has changed.
    pub fn mark(&mut self, results: &Value) -> String {
        let covers = results["covers"].as_object().into_iter().flatten();
        let changed = |(path, then): (&String, &Value)| {
            let now = self.hash(path)?;
            (then != "" && then != now).then(|| match path.as_str() {
                BITS => format!("the bits that are computed (`{path}`)"),
                code => format!("`{code}`"),
            })
        };
        let changed: Vec<String> = covers.filter_map(changed).collect();
        match changed.is_empty() {
            true => String::new(),
            false => format!("{MARK}Changed since the commit below: {}.\n\n", changed.join(", ")),
        }
    }
}

/// Writes hashes into a file of results that has empty ones, which says that its figures are new.
pub fn fill(path: &str) -> Result<(), String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    let mut value: Value = serde_json::from_str(&text).map_err(|e| format!("{path}: {e}"))?;
    if value["covers"].as_object().is_some_and(|covers| covers.values().any(|hash| hash == "")) {
        value["covers"] = renewed(&value)?;
        let text = serde_json::to_string_pretty(&value).map_err(|e| e.to_string())?;
        fs::write(path, text + "\n").map_err(|e| format!("{path}: {e}"))?;
        println!("{path}: hashes of what it covers written");
    }
    Ok(())
}

/// The paths that a file of results covers, with the hashes they have now.
pub fn renewed(results: &Value) -> Result<Value, String> {
    let paths: Vec<String> =
        results["covers"].as_object().into_iter().flatten().map(|(path, _)| path.clone()).collect();
    let hashes = tree::hashes(Path::new("."), &paths)?;
    Ok(paths.iter().map(|path| (path.clone(), Value::from(hashes[path].clone()))).collect())
}

/// A page without its mark: what has to be as the figures say.
pub fn unmarked(page: &str) -> String {
    match page.split_once(MARK) {
        None => page.to_owned(),
        Some((before, after)) => before.to_owned() + after.split_once("\n\n").map_or("", |(_, rest)| rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_page_is_marked_when_what_it_covers_has_changed() {
        let hashes = [("a", Some("1")), ("b", Some("2")), ("unknown", None)];
        let mut now =
            Now(hashes.map(|(path, hash)| (path.to_owned(), hash.map(str::to_owned))).into_iter().collect());
        assert_eq!(now.mark(&json!({"covers": {"a": "1", "b": "", "unknown": "3"}})), "");
        let mark = now.mark(&json!({"covers": {"a": "0", "b": "2"}}));
        assert_eq!(mark, "> **Stale.** Changed since the commit below: `a`.\n\n");
        assert_eq!(unmarked(&format!("before\n\n{mark}after\n\nend")), "before\n\nafter\n\nend");
        assert_eq!(unmarked("no mark"), "no mark");
    }
}
