//! `--session`: what is left off goes on as if it never had been.

use crate::support::{Home, Run, model_bytes};
use serde_json::Value;
use std::process::Stdio;

/// Long enough for encoded pages.
fn opening() -> String {
    "the sea and the land and ".repeat(8)
}

fn tokens(run: &Value) -> Vec<u64> {
    run["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn a_text_goes_on_as_if_it_had_not_been_interrupted() {
    let home = Home::new();
    let model = home.model();
    for (number, kv) in ["int4", "f16", "k8v4;sinks=0;recent=50", "int4;layers 0:f32"].iter().enumerate() {
        let run = |count: &str, more: &[&str]| {
            let usual = ["run", "--json", "--raw", "--greedy", "-m", &model, "--kv", kv, "-n", count];
            home.run(&[&usual[..], more].concat()).json()
        };
        let whole = tokens(&run("90", &[&opening()]));
        let file = home.path(&format!("text-{number}")).display().to_string();
        let mut parts = tokens(&run("20", &["--session", &file, &opening()]));
        for count in ["1", "40", "29"] {
            let part = run(count, &["--session", &file, ""]);
            assert_eq!(part["prefill"]["tokens"], 1, "{kv}: only the token that was chosen last is read");
            parts.extend(tokens(&part));
        }
        assert_eq!(parts, whole, "{kv}");
    }
}

#[test]
fn a_conversation_goes_on_in_another_process() {
    let home = Home::new();
    let model = home.model();
    let file = home.path("talk.kvant").display().to_string();
    let usual = ["chat", "-m", &model, "--seed", "5", "-n", "30", "--system", "speak of the sea"];
    let lines = [format!("{}\n", opening()), "and then\n".to_owned(), "and now\n".to_owned()];
    let whole = home.run_with_input(&usual, lines.concat().as_bytes()).ok();
    let mut parts = String::new();
    for (number, line) in lines.iter().enumerate() {
        // The instructions are part of what was saved.
        let arguments = if number == 0 { &usual[..] } else { &usual[..7] };
        let run = home.run_with_input(&[arguments, &["--session", &file]].concat(), line.as_bytes());
        assert_eq!(number > 0, run.err.contains("held"), "{}", run.err);
        parts += &run.ok();
    }
    assert_eq!(parts, whole);
    // `run` takes the same turn of the same conversation.
    let line = "and at last";
    let saved = std::fs::read(&file).unwrap();
    let chat = home.run_with_input(
        &["chat", "-q", "-m", &model, "--greedy", "-n", "9", "--session", &file],
        line.as_bytes(),
    );
    let chat = chat.ok();
    std::fs::write(&file, saved).unwrap();
    let run = home.run(&["run", "-q", "-m", &model, "--greedy", "-n", "9", "--session", &file, line]).ok();
    assert_eq!(run, chat);
}

fn saved(home: &Home, model: &str, name: &str) -> (String, Vec<u8>) {
    let file = home.path(name).display().to_string();
    home.run(&["run", "-m", model, "--greedy", "-n", "5", "--session", &file, &opening()]).ok();
    let bytes = std::fs::read(&file).unwrap();
    (file, bytes)
}

#[test]
fn a_session_of_something_else_is_refused_and_left_alone() {
    let home = Home::new();
    let model = home.model();
    let (file, bytes) = saved(&home, &model, "talk.kvant");
    let go_on =
        |more: &[&str]| home.run(&[&["run", "--session", &file, "--greedy", "-n", "5"], more].concat());
    go_on(&["-m", &model, "--kv", "int8", "hi"]).fails(1, &["talk.kvant", "another model", "int4"]);
    go_on(&["-m", &model, "--weights", "int8", "hi"]).fails(1, &["another model"]);
    go_on(&["-m", &model, "--rope-freq-base", "500", "hi"]).fails(1, &["other settings"]);
    let other = home.write("other.gguf", &model_bytes(false));
    go_on(&["-m", &other, "--raw", "hi"]).fails(1, &["another model"]);
    go_on(&["-m", &model, "--ctx", "64", "hi"]).fails(1, &["talk.kvant", "the context is 64"]);
    go_on(&["-m", &model, "--raw", "hi"]).fails(2, &["leave out --raw"]);
    assert_eq!(std::fs::read(&file).unwrap(), bytes);
    go_on(&["-m", &model, "hi"]).ok();

    let refused = |bytes: &[u8], words: &[&str]| {
        std::fs::write(&file, bytes).unwrap();
        go_on(&["-m", &model, "hi"]).fails(1, words);
        home.run(&["chat", "-m", &model, "--session", &file]).fails(1, words);
        assert_eq!(std::fs::read(&file).unwrap(), bytes);
    };
    refused(b"a shopping list", &["talk.kvant", "not a kvant session file"]);
    refused(&bytes[..bytes.len() - 1], &["cut off"]);
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 4;
    refused(&flipped, &["damaged"]);
    let mut newer = bytes.clone();
    newer[8] = 9;
    refused(&newer, &["version 9"]);
}

#[test]
fn a_session_that_cannot_be_saved_is_said_before_the_answer() {
    let home = Home::new();
    let model = home.model();
    for place in ["/nonexistent/a.kvant", "no/such/folder.kvant", "."] {
        let words = ["cannot be saved there"];
        home.run(&["run", "-m", &model, "--session", place, "hi"]).fails(1, &words);
        home.run_with_input(&["chat", "-m", &model, "--session", place], b"hi\n").fails(1, &words);
    }
    let left: Vec<_> = std::fs::read_dir(home.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().ends_with(".check")), "{left:?}");
}

#[test]
fn texts_and_conversations_are_not_mixed_up() {
    let home = Home::new();
    let model = home.model();
    let file = home.path("text.kvant").display().to_string();
    home.run(&["run", "--raw", "-m", &model, "-n", "3", "--session", &file, "abc"]).ok();
    home.run(&["chat", "-m", &model, "--session", &file]).fails(1, &["is a text", "kvant run --raw"]);
    home.run(&["run", "--chat", "-m", &model, "--session", &file, "x"]).fails(2, &["continue it with --raw"]);
}

/// A disk that is full, as far as the program can tell: no file may grow beyond a few kilobytes.
#[cfg(unix)]
#[test]
fn a_session_that_cannot_be_saved_leaves_the_old_one() {
    let home = Home::new();
    let model = home.model();
    let (file, bytes) = saved(&home, &model, "talk.kvant");
    let limited = |script: &str| {
        let program = env!("CARGO_BIN_EXE_kvant");
        let arguments = ["run", "-m", &model, "--greedy", "-n", "5", "--session", &file, "more"];
        let mut shell = home.command(&[]);
        let command = std::mem::replace(&mut shell, std::process::Command::new("sh"));
        shell.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
        shell.args(["-c", script, program]).args(arguments).stdin(Stdio::null());
        shell.current_dir(command.get_current_dir().unwrap());
        Run::of(shell.output().unwrap())
    };
    let full = limited("trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\"");
    assert_eq!(full.code, Some(1), "{full:?}");
    assert!(full.err.contains("talk.kvant: cannot write the file"), "{full:?}");
    assert!(!full.out.is_empty(), "the answer is there");
    // Without the trap the system kills it in the middle of the file.
    let killed = limited("ulimit -f 8; exec \"$0\" \"$@\"");
    assert_eq!(killed.code, None, "{killed:?}");
    assert_eq!(std::fs::read(&file).unwrap(), bytes);
    home.run(&["run", "-m", &model, "--greedy", "-n", "5", "--session", &file, "more"]).ok();
    let left: Vec<_> = std::fs::read_dir(home.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().ends_with(".part")), "{left:?}");
}

#[test]
fn kv_memory_is_a_limit_that_says_what_would_fit() {
    let home = Home::new();
    let model = home.model();
    let run = |memory: &str, more: &[&str]| {
        home.run(&[&["run", "--raw", "--greedy", "-m", &model, "--kv-memory", memory], more].concat())
    };
    let refused = run("100K", &["--ctx", "512", &opening()]);
    let largest = refused.err.split("--ctx ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    refused.fails(1, &["a context of 512 tokens takes", "--kv-memory allows 100.0 KiB"]);
    // A context that nobody asked for is made to fit.
    let fitted = run("100K", &["-n", "2", "abc"]);
    assert!(fitted.err.contains("more does not fit in memory"), "{fitted:?}");
    fitted.ok();
    assert!((10..400).contains(&largest.parse::<usize>().unwrap()), "{largest}");
    // What is said to fit does, to the last token.
    let filled = run("100K", &["--ctx", &largest, "-n", "1000", "abc"]);
    assert!(filled.err.contains("context of") && filled.err.contains("is full"), "{}", filled.err);
    filled.ok();
    run("10M", &["-n", "40", &opening()]).ok();
    run("lots", &["abc"]).fails(2, &["512M"]);
    let window = ["--window", "400"];
    let refused = run("100K", &[&window[..], &["hi"]].concat());
    refused.fails(1, &["a window of 400 tokens takes", "--kv-memory allows 100.0 KiB"]);
    run("4M", &[&window[..], &["-n", "2", "hi"]].concat()).ok();
}
