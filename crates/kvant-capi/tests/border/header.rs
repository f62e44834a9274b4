//! `include/kvant.h` is what the crate says.

use std::path::{Path, PathBuf};

/// Files with something to export.
const SOURCES: [&str; 16] = [
    "lib", "status", "engine", "embed", "message", "session", "generate", "sampler", "reply", "pool", "rows",
    "cache", "sequence", "pass", "codec", "matrix",
];

/// Functions by the beginning of their names, in the order of the header.
const SECTIONS: [(&str, &str); 12] = [
    ("kvant_abi_version", "Versions"),
    ("kvant_version", ""),
    ("kvant_error", "Errors"),
    ("kvant_engine_", "The engine: a model and its words"),
    ("kvant_session_", "Sessions of a model"),
    ("kvant_sampler_", "Choosing tokens from logits"),
    ("kvant_reply_", "What came of a generation"),
    ("kvant_cache_", "The compressed cache, for an engine of one's own"),
    ("kvant_sequence_", "Sequences of a cache"),
    ("kvant_pass_", "Forward passes over sequences"),
    ("kvant_codec_", "Page codecs: rows to pages, and attention's inner loops on them"),
    ("kvant_", "Threads, and products with packed weights"),
];

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn header() -> PathBuf {
    folder().join("../../include/kvant.h")
}

/// The header as it should be.
fn made() -> String {
    let config = cbindgen::Config::from_file(folder().join("cbindgen.toml")).unwrap();
    let builder = SOURCES.iter().fold(cbindgen::Builder::new().with_config(config), |builder, name| {
        builder.with_src(folder().join("src").join(name).with_extension("rs"))
    });
    let mut bytes = Vec::new();
    builder.generate().unwrap().write(&mut bytes);
    in_sections(&without_safety(&String::from_utf8(bytes).unwrap()))
}

/// Functions where people look for them, each once: cbindgen has them by the names of files, and once more by those of modules.
fn in_sections(text: &str) -> String {
    let (before, rest) =
        text.split_once("extern \"C\" {\n#endif // __cplusplus\n").expect("where functions begin");
    let (functions, after) = rest.split_once("#ifdef __cplusplus").expect("where they end");
    let mut left: Vec<&str> = functions.trim().split("\n\n").collect();
    let mut ordered = String::new();
    for (prefix, title) in SECTIONS {
        let is_here = |item: &&str| {
            let code = item.lines().find(|line| !line.starts_with("//")).unwrap_or_default();
            code.split([' ', '*']).any(|word| word.starts_with(prefix) && word.contains('('))
        };
        let (here, later): (Vec<&str>, Vec<&str>) = left.into_iter().partition(is_here);
        left = later;
        let once = here.iter().enumerate().filter(|(index, item)| !here[index + 1..].contains(item));
        if !title.is_empty() {
            ordered += &format!("\n/* {title} */\n");
        }
        once.for_each(|(_, item)| ordered += &format!("\n{item}\n"));
    }
    assert!(left.is_empty(), "functions of no section: {left:?}");
    format!("{before}extern \"C\" {{\n#endif // __cplusplus\n{ordered}\n#ifdef __cplusplus{after}")
}

/// What Rust wants said of every function is said once, at the top.
fn without_safety(text: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.trim() == "// # Safety" {
            inside = true;
            // The empty line before it.
            lines.pop_if(|last| last.trim() == "//");
        }
        inside &= line.trim_start().starts_with("//");
        if !inside {
            lines.push(line);
        }
    }
    lines.join("\n") + "\n"
}

#[test]
fn the_header_is_up_to_date() {
    let (made, path) = (made(), header());
    if std::env::var_os("KVANT_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = made.lines().zip(found.lines()).position(|(made, found)| made != found);
    assert!(
        made == found,
        "include/kvant.h is not what the crate says, from line {} on: \
         KVANT_WRITE_HEADER=1 cargo test -p kvant-capi --test border header",
        differs.unwrap_or(made.lines().count().min(found.lines().count())) + 1
    );
}

#[test]
fn every_exported_function_is_in_the_header() {
    let text = std::fs::read_to_string(header()).unwrap();
    let mut functions = 0;
    for name in SOURCES {
        let source = std::fs::read_to_string(folder().join("src").join(name).with_extension("rs")).unwrap();
        for line in source.lines().filter(|line| line.contains("extern \"C\" fn kvant_")) {
            let name = line.split("fn ").nth(1).and_then(|rest| rest.split('(').next()).unwrap();
            let is_comment = |line: &str| line.trim_start().starts_with(['/', '*']);
            let declared =
                text.lines().filter(|line| !is_comment(line) && line.contains(&format!("{name}(")));
            assert_eq!(declared.count(), 1, "{name}");
            functions += 1;
        }
    }
    let sources = std::fs::read_dir(folder().join("src")).unwrap().count();
    // `memory` exports nothing.
    assert_eq!(sources, SOURCES.len() + 1, "a file is missing from the list");
    assert!(functions > 40, "{functions}");
}
