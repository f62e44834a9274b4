//! Markdown files with tables in them.

use super::chart;
use super::results::{FOLDER, Results};
use std::fs;

const OPEN: &str = "<!-- ledger: ";
const CLOSE: &str = "<!-- /ledger -->";
/// Files whose tables stand among words of their own.
const WRITTEN: [&str; 2] = ["README.md", "BENCHMARKS.md"];
/// Files in the folder that hold no figures: what is computed to the bit, which checks ran when, and which charts are drawn.
const NO_FIGURES: [&str; 3] = ["record", "checks", chart::NAME];

/// Files that are not what their JSON says, with what they should be.
pub fn stale() -> Result<Vec<(String, String)>, String> {
    let mut stale = Vec::new();
    for path in WRITTEN {
        let text = fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
        if let Some(line) = unmarked(&text) {
            return Err(format!(
                "{path}, line {line}: a table of figures without a ledger mark: keep them in {FOLDER}"
            ));
        }
        let fresh = refreshed(&text, &mut made).map_err(|e| format!("{path}: {e}"))?;
        if fresh != text {
            stale.push((path.to_owned(), fresh));
        }
    }
    for name in names()? {
        let path = format!("{FOLDER}/{name}.md");
        let fresh = Results::read(&name)?.page()?;
        if fs::read_to_string(&path).ok().as_ref() != Some(&fresh) {
            stale.push((path, fresh));
        }
    }
    for (path, fresh) in chart::all()? {
        if fs::read_to_string(&path).ok().as_ref() != Some(&fresh) {
            stale.push((path, fresh));
        }
    }
    Ok(stale)
}

/// The names of all files of results.
fn names() -> Result<Vec<String>, String> {
    let entries = fs::read_dir(FOLDER).map_err(|e| format!("{FOLDER}: {e}"))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".json")?.to_owned()))
        .filter(|name| !NO_FIGURES.contains(&name.as_str()))
        .collect();
    names.sort();
    Ok(names)
}

/// What a marker asks for.
fn made(marker: &str) -> Result<String, String> {
    let (file, table) = marker.split_once('/').ok_or_else(|| format!("`{marker}` names no FILE/TABLE"))?;
    let results = Results::read(file)?;
    if table == "about" { Ok(results.about()) } else { results.table(table) }
}

/// The text with everything between markers made anew.
fn refreshed(text: &str, make: &mut dyn FnMut(&str) -> Result<String, String>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(OPEN) {
        let after = &rest[start + OPEN.len()..];
        let end = after.find(" -->").ok_or("a ledger marker has no end")?;
        let marker = &after[..end];
        let close = after.find(CLOSE).ok_or_else(|| format!("`{marker}` is never closed by {CLOSE}"))?;
        out += &rest[..start + OPEN.len() + end + " -->".len()];
        out += &format!("\n\n{}\n{CLOSE}", make(marker)?);
        rest = &after[close + CLOSE.len()..];
    }
    Ok(out + rest)
}

/// The line of the first table with figures that stands between no marks. Figures are what stands to the right; a table of
/// words needs no ledger.
fn unmarked(text: &str) -> Option<usize> {
    let mut marked = false;
    for (number, line) in text.lines().enumerate() {
        if line.starts_with(OPEN) || line.starts_with(CLOSE) {
            marked = line.starts_with(OPEN);
        } else if !marked && line.starts_with('|') && line.contains("-:|") {
            return Some(number + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_figures_without_marks_are_found() {
        let marked = "<!-- ledger: a/b -->\n| a |\n|--:|\n| 1 |\n<!-- /ledger -->\n";
        let words = "| path | what |\n|---|---|\n| a | b |\n";
        assert_eq!(unmarked(&format!("{words}\n{marked}\nend")), None);
        assert_eq!(unmarked(&format!("{marked}\n| a | b |\n|---|--:|\n| x | 1 |\n")), Some(8));
    }

    #[test]
    fn what_stands_between_markers_is_made_and_the_rest_is_left() {
        let text = "before\n<!-- ledger: a/b -->\nold\n<!-- /ledger -->\nafter <!-- ledger: c/about --><!-- /ledger -->";
        let fresh = refreshed(text, &mut |marker| Ok(format!("[{marker}]\n"))).unwrap();
        assert_eq!(
            fresh,
            "before\n<!-- ledger: a/b -->\n\n[a/b]\n\n<!-- /ledger -->\nafter <!-- ledger: c/about -->\n\n[c/about]\n\n<!-- /ledger -->"
        );
        assert_eq!(refreshed(&fresh, &mut |marker| Ok(format!("[{marker}]\n"))).unwrap(), fresh);
        assert!(
            refreshed("<!-- ledger: a/b -->", &mut |_| Ok(String::new()))
                .unwrap_err()
                .contains("never closed")
        );
        assert_eq!(refreshed("no marker", &mut |_| Err(String::new())).unwrap(), "no marker");
    }
}
