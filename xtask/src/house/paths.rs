//! The guide to the tree names files and folders. Each of them has to be there.

use super::Offence;

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
