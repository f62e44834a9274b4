//! The rules. Each looks at one file and says which lines break it.

use super::Offence;
use super::reader;

/// A longer file has more than one reason to change.
const LONGEST_FILE: usize = 600;

/// Files that people write and read line by line.
const SOURCES: &[&str] = &["rs", "py", "sh", "js", "ts", "css", "html", "wgsl", "cu", "c", "cpp", "h"];

/// Made by programs of ours: as long as what they are made of.
const MADE: &[&str] = &["include/kvant.h"];

/// Where somebody's own files live. In two pieces each, or this list would break its own rule.
const MACHINE_FOLDERS: &[&str] = &[
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/tm", "p/"),
    concat!("/Us", "ers/"),
    concat!(r"C:\Us", r"ers\"),
];

/// What a newcomer reads first, and the most words of it; tables, code and pictures do not count.
const FIRST_PAGE: &str = "README.md";
const FIRST_PAGE_WORDS: usize = 600;

/// Identifiers that were renamed to the field's words, with their new names. Ordinary words in prose stay free.
const RETIRED: &[(&str, &str)] = &[
    ("CLASSES", "BUCKETS"),
    ("Card", "CudaGpu"),
    ("Deal", "PageSwizzle"),
    ("Ear", "ChannelSink"),
    ("Enough", "AcceptTopK"),
    ("Errand", "DiskJob"),
    ("FAREWELL", "SHUTDOWN_GRACE"),
    ("Findings", "SideCalibration"),
    ("Hyper", "ModelConfig"),
    ("Joined", "MixedWidth"),
    ("Lent", "TensorView"),
    ("Lessons", "LearnedTransforms"),
    ("Opened", "LoadedModel"),
    ("PATIENCE", "a name ending in TIMEOUT"),
    ("Placed", "DeviceModel"),
    ("STRETCH", "MAX_SLOWDOWN, or a name ending in LEN"),
    ("Seats", "BlockTables"),
    ("Soften", "SoftmaxWeights"),
    ("Stretch", "SegmentPages"),
    ("Trained", "LearnedTransform"),
    ("Undertaking", "RunConfig"),
    ("Unkept", "NullState"),
    ("Visibility", "ExactWindow"),
    ("complain", "print_error, or on_error"),
    ("harvest", "sample_tokens"),
    ("hurry", "yield_requested"),
    ("patience", "timeouts"),
    ("perceptron", "mlp"),
    ("set_aside", "preemptions"),
    ("soften", "softmax_weights"),
    ("sparing", "release_table_pages"),
    ("strangers", "unusable_files"),
    ("surprise", "nll"),
    ("surprises", "token_nll"),
    ("take_in", "process_segment"),
    ("turned_scores", "row_major_scores"),
];

/// What is wrong with this file.
pub fn offences(path: &str, text: &str) -> Vec<Offence> {
    let mut found: Vec<(usize, String)> = machine_paths(text);
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    if SOURCES.contains(&extension) && !MADE.contains(&path) {
        found.extend(too_long(text));
    }
    if path == FIRST_PAGE {
        found.extend(too_wordy(text));
    }
    if extension == "rs" {
        let parts = reader::split(text);
        found.extend(unfinished(&parts.code));
        found.extend(retired(&parts.code));
        found.extend(switched_off(&parts.code, &parts.comments));
        found.extend(marks(&parts.comments));
        found.extend(undocumented(path, &parts.code));
    }
    found.sort();
    found.into_iter().map(|(line, message)| Offence { path: path.to_string(), line, message }).collect()
}

fn too_long(text: &str) -> Option<(usize, String)> {
    let lines = text.lines().count();
    (lines > LONGEST_FILE)
        .then(|| (lines, format!("the file has {lines} lines, {LONGEST_FILE} at most: split it by topic")))
}

fn too_wordy(text: &str) -> Option<(usize, String)> {
    let mut in_code = false;
    let mut words = 0;
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("```") {
            in_code = !in_code;
        } else if !in_code && !["|", "![", "<!--"].iter().any(|start| line.starts_with(start)) {
            words += line.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count();
        }
    }
    (words > FIRST_PAGE_WORDS).then(|| {
        (
            1,
            format!(
                "{words} words, {FIRST_PAGE_WORDS} at most: what is not for a first look belongs in docs/"
            ),
        )
    })
}

fn machine_paths(text: &str) -> Vec<(usize, String)> {
    let names_one = |line: &str, folder: &str| {
        line.match_indices(folder).any(|(at, _)| {
            // `docs/…` and `$DIR/…` merely contain the name.
            !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-~$}>/".contains(c))
        })
    };
    lines_where(text, |line| {
        let folder = MACHINE_FOLDERS.iter().find(|folder| names_one(line, folder))?;
        Some(format!("`{folder}` is a path of one machine: use a relative path or a temporary folder"))
    })
}

fn unfinished(code: &str) -> Vec<(usize, String)> {
    lines_where(code, |line| {
        let name = ["todo!", "unimplemented!"].into_iter().find(|name| has_word(line, name))?;
        Some(format!("`{name}` is unfinished code: write it, or return an error that says what is missing"))
    })
}

fn retired(code: &str) -> Vec<(usize, String)> {
    lines_where(code, |line| {
        let (old, new) = RETIRED.iter().find(|(old, _)| has_word(line, old))?;
        Some(format!("`{old}` is a retired name: use {new}"))
    })
}

fn switched_off(code: &str, comments: &str) -> Vec<(usize, String)> {
    let mut found = lines_where(code, |line| {
        line.contains("#[ignore")
            .then(|| "an ignored test proves nothing: make it run here or move it to a bench".to_string())
    });
    found.extend(lines_where(comments, |line| {
        let mark = line.trim_start().trim_start_matches(['/', '!', '*']).trim_start();
        mark.starts_with("```ignore").then(|| "an ignored example may be wrong: let it compile".to_string())
    }));
    found.extend(lines_where(code, |line| {
        line.contains("#![allow(").then(|| {
            "a blanket `allow` hides the next mistake: put it on the item, with a reason".to_string()
        })
    }));
    found
}

fn marks(comments: &str) -> Vec<(usize, String)> {
    lines_where(comments, |line| {
        let mark = ["TODO", "FIXME", "XXX"].into_iter().find(|mark| has_word(line, mark))?;
        Some(format!("`{mark}`: do it now, or write it where plans are kept"))
    })
}

fn undocumented(path: &str, code: &str) -> Option<(usize, String)> {
    let is_library = path.starts_with("crates/") && path.ends_with("/src/lib.rs");
    (is_library && !code.contains("#![deny(missing_docs)]"))
        .then(|| (1, "a library crate starts with `#![deny(missing_docs)]`".to_string()))
}

fn lines_where(text: &str, judge: impl Fn(&str) -> Option<String>) -> Vec<(usize, String)> {
    text.lines().enumerate().filter_map(|(at, line)| Some((at + 1, judge(line)?))).collect()
}

/// True when the word stands in the line and is not the end or the beginning of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let in_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(in_name) && !line[at + word.len()..].starts_with(in_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    /// The lines with an offence in a file of that name.
    fn lines(path: &str, text: &str) -> Vec<usize> {
        offences(path, text).into_iter().map(|offence| offence.line).collect()
    }

    #[test]
    fn retired_identifiers_are_refused_and_prose_is_free() {
        assert_eq!(
            lines("crates/a/src/b.rs", "// A surprise, set aside.\nlet surprise = \"soften\";\n"),
            [2]
        );
    }

    #[test]
    fn clean_code_passes() {
        let text = "//! A page.\n#![deny(missing_docs)]\n/// Its bytes.\npub struct Page;\n";
        assert_eq!(offences("crates/kvant-codec/src/lib.rs", text), []);
    }

    #[test]
    fn long_sources_are_refused_and_long_data_is_not() {
        let text = "x\n".repeat(LONGEST_FILE + 1);
        assert_eq!(lines("a.rs", &text), [LONGEST_FILE + 1]);
        assert_eq!(lines("a.py", &text), [LONGEST_FILE + 1]);
        assert_eq!(lines("Cargo.lock", &text), NONE);
        assert_eq!(lines("include/kvant.h", &text), NONE);
        assert_eq!(lines("a.rs", &"x\n".repeat(LONGEST_FILE)), NONE);
    }

    #[test]
    fn the_first_page_has_few_words() {
        let most = "word ".repeat(FIRST_PAGE_WORDS);
        let beside = "\n```sh\nsome code\n```\n| a | table |\n![a picture](x)\n<!-- a mark -->\n- – |\n";
        assert_eq!(lines("README.md", &format!("{most}{beside}")), NONE);
        assert_eq!(lines("README.md", &format!("{beside}{most}more")), [1]);
        assert_eq!(lines("docs/README.md", &format!("{most}more")), NONE);
    }

    #[test]
    fn unfinished_code_is_refused() {
        assert_eq!(lines("a.rs", "fn f() {\n    todo!()\n}\nfn g() { unimplemented!(\"later\") }"), [2, 4]);
        assert_eq!(lines("a.rs", "// todo!() in words\nlet s = \"todo!()\"; my_todo!();"), NONE);
    }

    #[test]
    fn ignored_tests_and_examples_are_refused() {
        assert_eq!(lines("a.rs", "#[test]\n#[ignore]\nfn f() {}\n#[ignore = \"slow\"]"), [2, 4]);
        assert_eq!(lines("a.rs", "/// ```ignore\n/// x\n/// ```\n//! ```ignore,edition2024"), [1, 4]);
        assert_eq!(lines("a.rs", "#[cfg_attr(miri, ignore)]\n/// ```text\n/// ignore\n/// ```"), NONE);
    }

    #[test]
    fn marks_and_blanket_allows_are_refused() {
        assert_eq!(lines("a.rs", "#![allow(dead_code)]\nx // TODO: y\n/* FIXME */"), [1, 2, 3]);
        assert_eq!(lines("a.rs", "const TODO: &str = \"TODO\"; // TODOS\n#[allow(clippy::x)]"), NONE);
    }

    #[test]
    fn machine_paths_are_refused_in_every_file() {
        for folder in MACHINE_FOLDERS {
            assert_eq!(lines("README.md", &format!("ok\nsee {folder}x")), [2], "{folder}");
            assert_eq!(lines("a.rs", &format!("open(\"{folder}x\")")), [1], "{folder}");
        }
        let inside = MACHINE_FOLDERS[0];
        for prefix in ["docs", "$ROOT", "~", "https:/", "${X}"] {
            assert_eq!(lines("README.md", &format!("{prefix}{inside}x")), NONE, "{prefix}");
        }
    }

    #[test]
    fn a_library_denies_missing_docs() {
        assert_eq!(lines("crates/kvant-codec/src/lib.rs", "//! Codecs.\n"), [1]);
        assert_eq!(lines("crates/kvant-codec/src/lib.rs", "// #![deny(missing_docs)]\n"), [1]);
        assert_eq!(lines("xtask/src/lib.rs", "//! Chores.\n"), NONE);
    }
}
