//! Every command that README and docs/*.md show in a fenced block is run, on a tiny model.
//!
//! Three comments above a block say otherwise; they are for other readers of the source, a page does not show them:
//!
//! - `<!-- not run: REASON -->` exempts the block, `<!-- not run: REASON: BEGINNING -->` the lines of it that begin so; the reasons are
//!   [`REASONS`]. Their flags are still held to the command.
//! - `<!-- run by FILE -->` names another test, which has to name the page.

use crate::lora::adapter_bytes;
use crate::support::{Home, model_bytes};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Why a command may not be run here.
const REASONS: [&str; 4] = ["needs a card", "needs a Mac", "needs a download", "takes minutes"];

/// Blocks of a shell's commands.
const SHELLS: [&str; 3] = ["sh", "bash", "console"];

/// A line of a fenced block, and where it stands.
#[derive(Debug)]
struct Shown {
    place: String,
    line: String,
    /// What kind of block it stands in.
    kind: String,
    /// Why it is not run here.
    reason: Option<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A comment above a block.
#[derive(Debug)]
struct Marker {
    reason: String,
    /// How the lines begin that it is for; all of the block where it does not say.
    beginning: Option<String>,
}

impl Marker {
    /// Reads a line of a page: `None` if it is no marker.
    fn read(place: &str, page: &str, line: &str) -> Option<Self> {
        let comment = line.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
        if let Some(file) = comment.strip_prefix("run by ") {
            let test = std::fs::read_to_string(root().join(file)).unwrap_or_default();
            assert!(test.contains(page), "{place}: {file} does not name {page}");
            return Some(Self { reason: comment.to_owned(), beginning: None });
        }
        let marker = comment.strip_prefix("not run: ")?;
        let (reason, beginning) = match marker.split_once(": ") {
            Some((reason, beginning)) => (reason, Some(beginning.to_owned())),
            None => (marker, None),
        };
        assert!(REASONS.contains(&reason), "{place}: {reason:?} is none of {REASONS:?}");
        Some(Self { reason: reason.to_owned(), beginning })
    }
}

/// Pages for users, with their texts.
fn pages() -> Vec<(String, String)> {
    let mut files = vec![root().join("README.md")];
    let docs = std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    files.extend(docs.filter(|path| path.extension().is_some_and(|end| end == "md")));
    files.sort();
    let named = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    files.iter().map(|path| (named(path), std::fs::read_to_string(path).unwrap())).collect()
}

/// The lines of all blocks of a page but those of plain text.
fn shown(page: &str, text: &str) -> Vec<Shown> {
    let mut found = Vec::new();
    let mut markers: Vec<Marker> = Vec::new();
    let mut block: Option<&str> = None;
    for (number, line) in text.lines().enumerate() {
        let place = format!("{page}:{}", number + 1);
        if let Some(kind) = line.strip_prefix("```") {
            if block.is_none() {
                assert!(!kind.is_empty(), "{place}: say what this block is: sh, python, c, toml or text");
                block = Some(kind);
                continue;
            }
            block = None;
            // A marker of a whole block ends with it; one of a line was taken by that line.
            markers.retain(|marker| marker.beginning.is_some());
            assert!(markers.is_empty(), "{place}: no line begins as a marker says: {markers:?}");
        } else if let Some(marker) = Marker::read(&place, page, line) {
            markers.push(marker);
        } else if let Some(kind) = block.filter(|kind| *kind != "text" && !line.trim().is_empty()) {
            let applies = |marker: &Marker| {
                marker.beginning.as_ref().is_none_or(|beginning| line.starts_with(beginning.as_str()))
            };
            let at = markers.iter().position(applies);
            let reason = at.map(|at| markers[at].reason.clone());
            if let Some(at) = at.filter(|at| markers[*at].beginning.is_some()) {
                markers.remove(at);
            }
            found.push(Shown { place, line: line.to_owned(), kind: kind.to_owned(), reason });
        }
    }
    assert!(block.is_none(), "{page}: a block does not end");
    found
}

/// A folder with all that the pages name: models, a text, `jq`, and kvant itself on the path.
fn place() -> Home {
    let home = Home::new();
    let model = long_model();
    for name in ["model.gguf", "MODEL", "small.gguf", "large.gguf"] {
        home.write(name, &model);
    }
    for (seed, name) in ["style", "tone", "sql", "french"].into_iter().enumerate() {
        home.write(&format!("{name}.gguf"), &adapter_bytes(seed));
    }
    std::fs::create_dir_all(home.path("models")).unwrap();
    home.write("models/a.gguf", &model);
    home.write("mine.txt", "the sea and the land, and what lies between them. ".repeat(500).as_bytes());
    std::fs::create_dir_all(home.path("bin")).unwrap();
    let jq = home.write("bin/jq", b"#!/bin/sh\ncat\n");
    std::fs::set_permissions(jq, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_kvant"), home.path("bin/kvant")).unwrap();
    home
}

/// The tiny model with a context that the pages' lengths fit into.
fn long_model() -> Vec<u8> {
    const KEY: &[u8] = b"qwen2.context_length";
    let mut model = model_bytes(true);
    let key = model.windows(KEY.len()).position(|bytes| bytes == KEY).unwrap();
    // After the key comes the type of its value, in four bytes.
    let value = key + KEY.len() + 4;
    model[value..value + 4].copy_from_slice(&16_384u32.to_le_bytes());
    model
}

/// A command without what the shell does with it, and without a comment.
fn alone(line: &str) -> String {
    let end = [" | ", "; ", " > ", " # ", "  #"]
        .iter()
        .filter_map(|mark| line.find(mark))
        .min()
        .unwrap_or(line.len());
    line[..end].replace('…', "x").trim().to_owned()
}

/// A shell in that folder.
fn shell(home: &Home, line: &str) -> Command {
    let usual = home.command(&[]);
    let mut shell = Command::new("sh");
    shell.envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let path = format!("{}:{}", home.path("bin").display(), std::env::var("PATH").unwrap_or_default());
    shell.env("PATH", path).env("HOME", home.path("")).env("KVANT_MODEL", "model.gguf");
    shell.args(["-e", "-c", line]).current_dir(home.path("")).stdin(Stdio::null());
    shell
}

#[test]
fn every_fenced_command_of_the_documentation_runs() {
    let home = place();
    let all: Vec<Shown> = pages().iter().flat_map(|(page, text)| shown(page, text)).collect();
    assert!(all.len() > 40, "the pages show commands: {all:?}");
    let mut settings = String::new();
    for Shown { place, line, kind, reason } in &all {
        if reason.is_none() && kind == "toml" {
            settings += &format!("{line}\n");
            continue;
        }
        let is_kvant = SHELLS.contains(&kind.as_str()) && line.starts_with("kvant ");
        if reason.is_some() {
            if is_kvant {
                understood(&home, place, line);
            }
            continue;
        }
        assert!(
            is_kvant,
            "{place}: `{line}` is not run by this test; say why above the block: <!-- not run: REASON -->, or which test \
             runs it: <!-- run by FILE -->"
        );
        let started = std::time::Instant::now();
        if line.starts_with("kvant serve") {
            served(&home, place, line);
        } else {
            let output = shell(&home, line).output().unwrap();
            let err = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{place}: {line}\n{err}");
        }
        println!("{place}: {:.1?}: {line}", started.elapsed());
    }
    a_preset_answers(&home, &settings);
}

/// Flags and values of a command that is not run: `--help` comes after them, and whatever is wrong before it is an error.
fn understood(home: &Home, place: &str, line: &str) {
    let output = shell(home, &format!("{} --help", alone(line))).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{place}: {line}\n{err}");
}

/// A server starts, tells its address and ends when it is told to.
fn served(home: &Home, place: &str, line: &str) {
    let mut served = shell(home, &format!("exec {} --port 0", alone(line)));
    let mut child = served.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
    let mut address = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
    // SAFETY: a signal to a child that has not been waited for.
    unsafe { libc::kill(i32::try_from(child.id()).unwrap(), libc::SIGTERM) };
    let status = child.wait().unwrap();
    assert!(address.starts_with("http://127.0.0.1:") && status.success(), "{place}: {line}: {status}");
}

/// The configuration file that the pages show: its preset is used, with the model of this place.
fn a_preset_answers(home: &Home, settings: &str) {
    let name = settings.split("[presets.").nth(1).and_then(|rest| rest.split(']').next()).unwrap();
    home.write("config.toml", settings.as_bytes());
    let run = home.run(&["run", "--preset", name, "-m", "model.gguf", "-n", "2", "hi"]);
    assert_eq!(run.code, Some(0), "{settings}: {run:?}");
}

/// The names of the subcommands, as the help has them.
fn subcommands(home: &Home) -> BTreeSet<String> {
    let help = home.run(&["--help"]).ok();
    let listed = help.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let indented = listed.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = indented.filter_map(|line| line.split_whitespace().next().map(str::to_owned));
    names.chain(["list", "ls", "show"].map(str::to_owned)).collect()
}

#[test]
fn commands_that_the_documentation_names_exist() {
    let known = subcommands(&Home::new());
    assert!(known.contains("run") && known.contains("help"), "{known:?}");
    for (page, text) in pages() {
        for rest in text.split("`kvant ").skip(1) {
            let word: String =
                rest.chars().take_while(|letter| letter.is_ascii_lowercase() || *letter == '-').collect();
            let is_command = !word.is_empty() && !word.starts_with('-');
            assert!(
                !is_command || known.contains(&word),
                "{page} names `kvant {word}`, which does not exist"
            );
        }
    }
}

/// What stands in the place of these words where a page names a command in a sentence.
const WORDS: [(&str, &str); 4] = [("B", "3"), ("N", "4"), ("NAME", "smollm2-135m"), ("TYPE", "q8_0")];

#[test]
fn commands_within_sentences_are_understood() {
    let home = place();
    let mut count = 0;
    for (page, text) in pages() {
        for command in text.split('`').skip(1).step_by(2).filter(|code| code.starts_with("kvant ")) {
            let word = |word: &str| {
                let known = WORDS.iter().find(|(name, _)| *name == word);
                known.map_or(word, |(_, meant)| *meant).to_owned()
            };
            let words: Vec<String> = command.split_whitespace().map(word).collect();
            understood(&home, &page, &words.join(" "));
            count += 1;
        }
    }
    assert!(count > 30, "{count} commands");
}

#[test]
fn every_example_of_the_help_is_understood() {
    let home = place();
    home.write("report.txt", b"a report");
    for name in subcommands(&home) {
        let help = home.run(&["help", &name]).ok();
        let Some(examples) = help.split("Examples:\n").nth(1) else { continue };
        for line in examples.lines().take_while(|line| line.starts_with("  ")) {
            let Some(at) = line.find("kvant ").filter(|_| !line.starts_with("      ")) else { continue };
            // A description follows after two spaces.
            let command = alone(line[at..].split("  ").next().unwrap());
            let output = shell(&home, &format!("{command} --help")).output().unwrap();
            let err = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "kvant help {name}: {line}\n{err}");
        }
    }
}
