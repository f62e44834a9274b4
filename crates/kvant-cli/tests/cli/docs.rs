//! Every command that README and docs/*.md show in a fenced block is run, on a tiny model.
//!
//! `<!-- not run: REASON -->` above a block exempts it, `<!-- not run: REASON: BEGINNING -->` the lines of it that begin so; the reasons are
//! [`REASONS`]. Of those lines the flags are still held to the command. Comments are for other readers of the source; a page does not show them.

use crate::support::{Home, model_bytes};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Why a command may not be run here.
const REASONS: [&str; 4] = ["needs a card", "needs a download", "takes minutes", "another test runs it"];

/// A line of a fenced block, and where it stands.
#[derive(Debug)]
struct Shown {
    place: String,
    line: String,
    /// Why it is not run.
    reason: Option<String>,
}

/// Pages for users, with their texts.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![root.join("README.md")];
    let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    files.extend(docs.filter(|path| path.extension().is_some_and(|end| end == "md")));
    files.sort();
    let named = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    files.iter().map(|path| (named(path), std::fs::read_to_string(path).unwrap())).collect()
}

/// The commands of a page.
fn shown(page: &str, text: &str) -> Vec<Shown> {
    let mut found = Vec::new();
    let mut markers: Vec<(String, Option<String>)> = Vec::new();
    let (mut is_inside, mut is_shell) = (false, false);
    for (number, line) in text.lines().enumerate() {
        let place = format!("{page}:{}", number + 1);
        if let Some(marker) = line.strip_prefix("<!-- not run: ").and_then(|rest| rest.strip_suffix(" -->")) {
            let (reason, beginning) = match marker.split_once(": ") {
                Some((reason, beginning)) => (reason, Some(beginning.to_owned())),
                None => (marker, None),
            };
            assert!(REASONS.contains(&reason), "{place}: {reason:?} is none of {REASONS:?}");
            markers.push((reason.to_owned(), beginning));
        } else if let Some(kind) = line.strip_prefix("```") {
            is_inside = !is_inside;
            is_shell = is_inside && ["sh", "bash", "console"].contains(&kind);
            if !is_inside {
                // A marker of a whole block ends with it; one of a line was taken by that line.
                markers.retain(|(_, beginning)| beginning.is_some());
                assert!(markers.is_empty(), "{place}: no line begins as a marker says: {markers:?}");
            }
        } else if is_shell && !line.trim().is_empty() {
            let applies = |(_, beginning): &(String, Option<String>)| {
                beginning.as_ref().is_none_or(|beginning| line.starts_with(beginning.as_str()))
            };
            let marker = markers.iter().position(applies);
            let reason = marker.map(|at| markers[at].0.clone());
            if let Some(at) = marker.filter(|at| markers[*at].1.is_some()) {
                markers.remove(at);
            }
            found.push(Shown { place, line: line.to_owned(), reason });
        }
    }
    found
}

/// A folder with all that the pages name: models, a text, `jq`, and kvant itself on the path.
fn place() -> Home {
    let home = Home::new();
    let model = long_model();
    for name in ["model.gguf", "MODEL", "small.gguf", "large.gguf"] {
        home.write(name, &model);
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
    assert!(all.len() > 15, "the pages show commands: {all:?}");
    for Shown { place, line, reason } in &all {
        let is_kvant = line.starts_with("kvant ");
        if reason.is_some() {
            if is_kvant {
                let output = shell(&home, &format!("{} --help", alone(line))).output().unwrap();
                let err = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{place}: {line}\n{err}");
            }
            continue;
        }
        assert!(is_kvant, "{place}: `{line}` is not run by this test; say why: <!-- not run: REASON -->");
        if line.starts_with("kvant serve") {
            let mut served = shell(&home, &format!("exec {} --port 0", alone(line)));
            let mut child = served.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
            let mut address = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
            // SAFETY: a signal to a child that has not been waited for.
            unsafe { libc::kill(i32::try_from(child.id()).unwrap(), libc::SIGTERM) };
            let status = child.wait().unwrap();
            assert!(
                address.starts_with("http://127.0.0.1:") && status.success(),
                "{place}: {line}: {status}"
            );
            continue;
        }
        let output = shell(&home, line).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{place}: {line}\n{err}");
    }
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
