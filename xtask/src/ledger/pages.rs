//! Markdown files with tables in them.

use super::results::{FOLDER, Results};
use super::{chart, limits, stale};
use std::fs;

const OPEN: &str = "<!-- ledger: ";
const CLOSE: &str = "<!-- /ledger -->";
/// Files whose tables stand among words of their own.
const WRITTEN: [&str; 3] = ["README.md", INDEX, "docs/memory.md"];
/// The file that lists every question.
const INDEX: &str = "BENCHMARKS.md";
/// What a page of results says that no file of figures stands behind.
const BY_HAND: &str = "<!-- written by hand -->";
/// Files in the folder that hold no figures: what is computed to the bit, which checks ran when, and which charts are drawn.
const NO_FIGURES: [&str; 3] = ["record", "checks", chart::NAME];

/// A file as the figures say it should be.
pub struct Fresh {
    pub path: String,
    pub text: String,
    /// Whether the file differs by more than the mark of its age.
    pub wrong: bool,
}

/// Files that are not what their JSON says, and pages whose mark of age has changed.
pub fn stale() -> Result<Vec<Fresh>, String> {
    let names = names()?;
    let charts = chart::all()?;
    let pictures: Vec<&str> = charts.iter().map(|(path, _)| path.as_str()).collect();
    let mut now = stale::Now::default();
    let mut files = Vec::new();
    for path in WRITTEN.map(str::to_owned).into_iter().chain(by_hand(&names)?) {
        let text = read(&path)?;
        if let Some(line) = unmarked(&text) {
            return Err(format!(
                "{path}, line {line}: a table of figures without a ledger mark: keep them in {FOLDER}"
            ));
        }
        files.push((refreshed(&text, &mut made).map_err(|e| format!("{path}: {e}"))?, path));
    }
    for name in &names {
        let page = Results::read(name)?.page(&mut now)?;
        // Age alone makes no page too long.
        limits::check(&stale::unmarked(&page)).map_err(|e| format!("{FOLDER}/{name}.json: {e}"))?;
        files.push((page, format!("{FOLDER}/{name}.md")));
    }
    let index = &files.iter().find(|(_, path)| path == INDEX).expect("it is a written file").0;
    if let Some(name) = names.iter().find(|name| !index.contains(&format!("({FOLDER}/{name}.md)"))) {
        return Err(format!("{INDEX} has no index of the topic of {name}.json"));
    }
    if let Some((text, _)) = files.iter().find(|(_, path)| path == "README.md") {
        limits::first_page(text)?;
    }
    for (text, path) in &files {
        limits::pictures(path, text, &pictures)?;
    }
    undeclared(&pictures)?;
    files.extend(charts.iter().map(|(path, text)| (text.clone(), path.clone())));
    let mut found = Vec::new();
    for (text, path) in files {
        let old = fs::read_to_string(&path).unwrap_or_default();
        if old != text {
            let wrong = stale::unmarked(&old) != stale::unmarked(&text);
            found.push(Fresh { path, text, wrong });
        }
    }
    Ok(found)
}

/// Fills in the hashes of new figures.
pub fn fill_hashes() -> Result<(), String> {
    names()?.iter().try_for_each(|name| stale::fill(&format!("{FOLDER}/{name}.json")))
}

/// The pages that carry a mark today.
pub fn marked() -> Result<Vec<String>, String> {
    let mut now = stale::Now::default();
    let mut marked = Vec::new();
    for name in names()? {
        if Results::read(&name)?.is_stale(&mut now) {
            marked.push(name);
        }
    }
    Ok(marked)
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))
}

/// Names in a folder that end in this, without it.
fn listed(folder: &str, end: &str) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{folder}: {e}"))?;
    let named = |entry: fs::DirEntry| Some(entry.file_name().to_str()?.strip_suffix(end)?.to_owned());
    let mut names: Vec<String> = entries.flatten().filter_map(named).collect();
    names.sort();
    Ok(names)
}

/// Pages without figures of their own, which have to say so.
fn by_hand(names: &[String]) -> Result<Vec<String>, String> {
    let mut pages = Vec::new();
    for name in listed(FOLDER, ".md")?.into_iter().filter(|name| !names.contains(name)) {
        let path = format!("{FOLDER}/{name}.md");
        if !read(&path)?.contains(BY_HAND) {
            return Err(format!("{path}: there is no {name}.json; a page without figures says `{BY_HAND}`"));
        }
        pages.push(path);
    }
    Ok(pages)
}

/// Fails for a picture that no declared chart draws.
fn undeclared(pictures: &[&str]) -> Result<(), String> {
    let drawn = listed(chart::DRAWN, "")?.into_iter().map(|file| format!("{}/{file}", chart::DRAWN));
    match drawn.into_iter().find(|path| !pictures.contains(&path.as_str())) {
        Some(path) => Err(format!("{path}: no chart of {FOLDER}/{}.json draws it", chart::NAME)),
        None => Ok(()),
    }
}

/// The names of all files of results.
fn names() -> Result<Vec<String>, String> {
    Ok(listed(FOLDER, ".json")?.into_iter().filter(|name| !NO_FIGURES.contains(&name.as_str())).collect())
}

/// What a marker asks for.
fn made(marker: &str) -> Result<String, String> {
    let (file, table) = marker.split_once('/').ok_or_else(|| format!("`{marker}` names no FILE/TABLE"))?;
    if file == "index" {
        return index(table);
    }
    let results = Results::read(file)?;
    if table == "about" { Ok(results.about()) } else { results.table(table) }
}

/// The questions of a topic, each with its answer and its page.
fn index(topic: &str) -> Result<String, String> {
    let mut found = Vec::new();
    for name in names()? {
        let results = Results::read(&name)?;
        if results.text("topic") == topic {
            let (title, answer) = (results.text("title"), results.text("answer").replace('|', "\\|"));
            found.push((results.order(), format!("| [{title}]({FOLDER}/{name}.md) | {answer} |\n")));
        }
    }
    found.sort();
    match found.is_empty() {
        true => Err(format!("no file of results has the topic `{topic}`")),
        false => Ok(found
            .into_iter()
            .fold("| question | answer |\n|---|---|\n".to_owned(), |out, (_, row)| out + &row)),
    }
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
