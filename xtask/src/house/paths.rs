//! The guide to the tree names files and folders, and pages link to each other. All of them have to be there.

use super::Offence;
use std::path::Path;

/// The file whose paths are checked.
pub const GUIDE: &str = "ARCHITECTURE.md";

/// How the names of files end that a reader would look for.
const FILES: &[&str] = &[".rs", ".md", ".py", ".cu", ".cuh", ".cpp", ".wgsl", ".json", ".h", ".toml"];

/// Paths in backquotes that no file of the repository has, or ends in.
pub fn missing(text: &str, files: &[String]) -> Vec<Offence> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for path in line.split('`').skip(1).step_by(2).filter(|quoted| is_path(quoted)) {
            if !files.iter().any(|file| holds(file, path.trim_end_matches('/'))) {
                let message = format!("there is no `{path}`: say where it is now");
                found.push(Offence { path: GUIDE.to_string(), line: at + 1, message });
            }
        }
    }
    found
}

/// Links of a page to files that are not there. Pages inside crates are part of rustdoc, which checks its own.
pub fn dead_links(page: &str, text: &str, exists: impl Fn(&Path) -> bool) -> Vec<Offence> {
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    let mut found = Vec::new();
    if !page.ends_with(".md") || page.starts_with("crates/") {
        return found;
    }
    for (at, line) in text.lines().enumerate() {
        let targets =
            line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
        for target in targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")) {
            let file = target.split('#').next().unwrap_or_default();
            if !file.is_empty() && !exists(&folder.join(file)) {
                let message = format!("the link to `{target}` leads nowhere");
                found.push(Offence { path: page.to_string(), line: at + 1, message });
            }
        }
    }
    found
}

/// Routes (`/set`), patterns and code are no paths.
fn is_path(quoted: &str) -> bool {
    let plain = !quoted.starts_with('/') && !quoted.contains([' ', '*', '(', ':']);
    plain && (quoted.contains('/') || FILES.iter().any(|end| quoted.ends_with(end)))
}

/// Whether the file is this one, or lies in this folder, at any depth.
fn holds(file: &str, path: &str) -> bool {
    file.match_indices(path).any(|(at, _)| {
        let (before, after) = (&file[..at], &file[at + path.len()..]);
        (before.is_empty() || before.ends_with('/')) && (after.is_empty() || after.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_somewhere() {
        let exists = |path: &Path| path == Path::new("docs/../README.md") || path == Path::new("docs/a.md");
        let text =
            "[a](a.md#part) [b](../README.md) [c](https://x.y/z) [d](#below)\n[e](gone.md) and [f](a.md)";
        let lines = |page: &str| -> Vec<usize> {
            dead_links(page, text, exists).into_iter().map(|offence| offence.line).collect()
        };
        assert_eq!(lines("docs/b.md"), [2]);
        assert!(lines("crates/a/docs/b.md").is_empty() && lines("docs/b.txt").is_empty());
    }

    #[test]
    fn a_path_that_moved_is_found() {
        let files = ["crates/a/src/page.rs", "crates/a/src/kernel/scores.rs"].map(str::to_string);
        let text = "`page.rs`, `kernel/`, `a/src/kernel` and `src/kernel/scores.rs`\nserve `/set`, `python/*.py`, `A/B c`\n\
                    `a/page.rs` and `age.rs`, `kernel/score`";
        let lines: Vec<(usize, String)> =
            missing(text, &files).into_iter().map(|offence| (offence.line, offence.message)).collect();
        let named: Vec<&str> = lines.iter().map(|(_, message)| message.split('`').nth(1).unwrap()).collect();
        assert_eq!(named, ["a/page.rs", "age.rs", "kernel/score"]);
        assert!(lines.iter().all(|(line, _)| *line == 3));
    }
}
