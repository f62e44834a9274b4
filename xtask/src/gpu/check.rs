//! `cargo xtask gpu-check`: what the owner of a GPU runs to tell us how kvant fares on it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::ADAPTER;
use super::report;
use crate::cli::GpuCheckOptions;
use crate::process::{call, cargo};

/// Where the report goes, and the model of the bench.
const FOLDER: &str = "target/gpu-check";

/// What is benched: a cache, tokens of a prompt, tokens to generate, and depths.
const BENCHES: &[(&str, &str, &str, &str)] =
    &[("int4", "256", "0", "0"), ("int4", "0", "16", "0,2048"), ("f16", "0", "16", "0,2048")];

/// Runs everything on the adapter and writes the report; true if all of it passed.
pub fn check(options: &GpuCheckOptions) -> Result<bool, String> {
    let folder = PathBuf::from(FOLDER);
    fs::create_dir_all(&folder).map_err(|e| format!("cannot make {FOLDER}: {e}"))?;
    let adapters = adapters()?;
    let adapter = chosen(&adapters, options.adapter.as_deref())?;
    println!("== adapter: {}", adapter.join(", "));
    let name = adapter[0].clone();
    println!("== kernels, each against a naive loop; then whole models against the oracle");
    let (tests, built) = tests(&name)?;
    println!("== speed");
    let benches = if options.no_bench { Vec::new() } else { benches(options, &name, &folder) };
    let report = json!({
        "made_by": "cargo xtask gpu-check",
        "commit": said("git", &["rev-parse", "HEAD"]),
        "changed": said("git", &["status", "--porcelain"]).is_some_and(|text| !text.is_empty()),
        "day": crate::named::today(),
        "machine": crate::named::machine_name(),
        "system": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        "kernel": said("uname", &["-a"]),
        "rustc": said("rustc", &["--version"]),
        "adapter": adapter,
        "adapters": adapters,
        "tests_built": built,
        "tests": tests,
        "bench": benches,
    });
    let (json_file, text_file) = (folder.join("report.json"), folder.join("report.txt"));
    let text = report::text(&report);
    let write = |path: &Path, text: &str| {
        fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
    };
    write(&json_file, &(serde_json::to_string_pretty(&report).map_err(|e| e.to_string())? + "\n"))?;
    write(&text_file, &text)?;
    println!("\n{text}\nreport: {} and {}", json_file.display(), text_file.display());
    println!("please send both: docs/mac.md says where");
    Ok(report::is_well(&report))
}

/// What a program says, if it is there.
fn said(program: &str, args: &[&str]) -> Option<String> {
    call(program, args).probe().map(|text| text.trim().to_owned())
}

/// All adapters, a list of what is known for each; names first.
fn adapters() -> Result<Vec<Vec<String>>, String> {
    let example = ["run", "--quiet", "-p", "kvant-gpu", "--example", "adapters"];
    println!("$ cargo {}", example.join(" "));
    let text = cargo(example).probe().ok_or("the backend could not be built, or found no adapters")?;
    Ok(text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect())
}

/// The adapter of that name, or the first.
fn chosen(adapters: &[Vec<String>], name: Option<&str>) -> Result<Vec<String>, String> {
    let wanted = name.unwrap_or_default().to_lowercase();
    let names: Vec<&str> = adapters.iter().map(|adapter| adapter[0].as_str()).collect();
    let found = adapters.iter().find(|adapter| adapter[0].to_lowercase().contains(&wanted));
    found.cloned().ok_or_else(|| format!("no adapter is called `{wanted}`; there are: {}", names.join(", ")))
}

/// All tests of the backend: name, what became of it, and what it said if it failed.
fn tests(adapter: &str) -> Result<(Vec<Value>, bool), String> {
    let args = ["test", "-p", "kvant-gpu", "--tests", "--no-fail-fast", "--", "--test-threads=1"];
    let (lines, ended) = run("cargo", &args, adapter)?;
    let tests = report::tests(&lines);
    Ok((tests, ended || lines.iter().any(|line| line.starts_with("test result:"))))
}

/// Prompt and generation on the adapter and on the processor.
fn benches(options: &GpuCheckOptions, adapter: &str, folder: &Path) -> Vec<Value> {
    let kvant: Vec<&str> = match &options.kvant {
        Some(program) => vec![program],
        None => ["cargo", "run", "--quiet", "--release", "-p", "kvant-cli", "--"].to_vec(),
    };
    let model = folder.join("model.gguf").display().to_string();
    let synth = ["synth", &model, "--like", &options.like, "--force"];
    let started = |args: &[&str]| {
        let all: Vec<&str> = kvant[1..].iter().chain(args).copied().collect();
        run(kvant[0], &all, adapter)
    };
    let failed = |what: &[&str], why: String| vec![json!({ "command": what.join(" "), "failed": why })];
    match started(&synth) {
        Ok((_, true)) => {}
        Ok((lines, false)) => return failed(&synth, lines.join("\n")),
        Err(why) => return failed(&synth, why),
    }
    let mut rows = Vec::new();
    for device in ["gpu", "cpu"] {
        for (kv, prompt, generate, depth) in BENCHES {
            let bench = ["bench", &model, "--device", device, "--kv", kv, "-p", prompt, "-n", generate];
            let bench = [&bench[..], &["-d", depth, "-r", "2", "--json"]].concat();
            let shown = bench.join(" ").replace(&model, "model.gguf");
            match started(&bench) {
                Ok((lines, true)) => rows.extend(lines.iter().filter_map(|line| {
                    let figures: Value = serde_json::from_str(line).ok()?;
                    Some(json!({ "command": shown, "figures": figures }))
                })),
                Ok((lines, false)) => rows.push(json!({ "command": shown, "failed": lines.join("\n") })),
                Err(why) => rows.push(json!({ "command": shown, "failed": why })),
            }
        }
    }
    // Hundreds of megabytes that nobody needs any more.
    let _ = fs::remove_file(&model);
    rows
}

/// Runs a program on an adapter in the open; the lines of its standard output, and whether it ended well.
fn run(program: &str, args: &[&str], adapter: &str) -> Result<(Vec<String>, bool), String> {
    println!("$ {ADAPTER}='{adapter}' {program} {}", args.join(" "));
    let mut child = Command::new(program)
        .args(args)
        .env(ADAPTER, adapter)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot start {program}: {e}"))?;
    let mut lines = Vec::new();
    for line in child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines) {
        let line = line.map_err(|e| format!("lost what {program} says: {e}"))?;
        println!("{line}");
        lines.push(line);
    }
    let status = child.wait().map_err(|e| format!("lost track of {program}: {e}"))?;
    Ok((lines, status.success()))
}
