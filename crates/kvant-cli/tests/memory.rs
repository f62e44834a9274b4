//! What `kvant inspect` foretells is what a run takes. This file holds one test, because it is about whole processes.
#![cfg(target_os = "linux")]

use serde_json::Value;
use std::process::{Command, Stdio};

const MODEL: &[&str] = &[
    "--layers",
    "12",
    "--hidden",
    "512",
    "--heads",
    "16",
    "--kv-heads",
    "8",
    "--head-dim",
    "64",
    "--ffn",
    "1536",
    "--vocab",
    "20000",
    "--ctx",
    "16384",
    "--weights",
    "int4",
];

fn kvant(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvant"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// The most memory that this command or an earlier one had at any time, in bytes: so the smaller ones come first.
fn peak(arguments: &[&str]) -> f64 {
    assert!(kvant(arguments).status().unwrap().success(), "{arguments:?}");
    // SAFETY: all-zero bytes are an rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is that of a live variable.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) }, 0);
    usage.ru_maxrss as f64 * 1024.0
}

#[test]
fn a_run_takes_what_inspect_foretells() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf").display().to_string();
    // The program under test is not the one that is released: its own size is measured.
    let program = peak(&["--version"]);
    let mut before = peak(&[&["synth", &model], MODEL].concat());
    for (spec, context) in [("int4", "9000"), ("int8", "7000"), ("f16", "5000")] {
        let mut inspect = kvant(&["inspect", &model, "--json", "--ctx", context, "--kv", spec]);
        let output = inspect.stdout(Stdio::piped()).output().unwrap();
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        let told = &told["memory"]["bench_fill"];
        let number = |name: &str| told[name].as_f64().unwrap();
        let foretold = number("peak") - number("program") + program;
        assert!(number("kv") > 0.25 * foretold, "the cache is most of it: {told}");
        let runs = ["--fill", "-n", "2", "-p", "0", "-r", "1", "--threads", "2", "-d", context, "--kv", spec];
        let taken = peak(&[&["bench", &model], &runs[..]].concat());
        assert!(taken > before, "{spec}: an earlier command took more");
        before = taken;
        let (off, allowed) = ((taken - foretold).abs() / 1e6, 0.02 * taken / 1e6 + 16.0);
        assert!(off < allowed, "{spec}: {:.1} MB taken, {:.1} foretold", taken / 1e6, foretold / 1e6);
    }
}
