//! `kvant bench --summary`: what phones and small computers are compared by.
//!
//! A row for each precision of the weights: how fast a prompt of 1,024 tokens is read, how fast 100 tokens are generated after it, when
//! the first of them is there, and how much memory all that took. Every precision has a process of its own, so that its memory is its own.

use super::runs_each;
use crate::failure::Failure;
use crate::open;
use crate::options::{Caches, Weights};
use crate::progress;
use crate::table::Column::{Left, Right};
use crate::table::Table;
use clap::ValueEnum;
use kvant_codec::Tier;
use kvant_engine::device::DeviceModel;
use kvant_engine::memory::{Memory, bytes};
use kvant_engine::open::Plans;
use kvant_engine::{DeviceChoice, LoadOptions, SparseV, StateType};
use kvant_eval::Machine;
use kvant_eval::speed::{self, Plan, Test};
use kvant_model::{Checkpoint, DType};
use kvant_threads::Pool;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Tokens of the prompt, as others take them.
pub const PROMPT: usize = 1024;
/// Tokens that are generated after it.
pub const GENERATE: usize = 100;
/// The cache: the default of `kvant run`.
pub const KV: &str = "int4";

/// What is measured.
pub struct Asked<'a> {
    pub path: &'a str,
    pub prompt: usize,
    pub generate: usize,
    pub kv: Caches,
    /// The only precision, where one is named.
    pub weights: Option<Weights>,
    pub device: DeviceChoice,
    pub sparse_v: Option<SparseV>,
    pub state: Option<StateType>,
    pub threads: Option<usize>,
    pub repetitions: usize,
    pub is_json: bool,
}

/// One precision.
#[derive(Serialize, Deserialize)]
struct Row {
    /// The type that most of the weights have.
    weights: String,
    prompt: usize,
    prompt_tok_s: Option<f64>,
    generated: usize,
    tok_s: Option<f64>,
    first_token_ms: Option<f64>,
    load_ms: f64,
    /// The most that the process has held, pages of the mapped file included.
    memory_bytes: Option<u64>,
    kv: String,
    threads: usize,
    device: String,
    instructions: String,
    repetitions: usize,
    model: String,
    architecture: String,
    version: String,
    machine: serde_json::Value,
}

/// Measures and prints a table, or one JSON object per row.
pub fn run(checkpoint: &Checkpoint, asked: &Asked<'_>) -> Result<(), Failure> {
    let stored = most_common(checkpoint)?;
    let mut rows = vec![measure(checkpoint, asked, stored)?];
    let is_plain = matches!(stored, DType::F32 | DType::F16 | DType::BF16);
    if asked.weights.is_none() && is_plain {
        for weights in Weights::value_variants() {
            rows.push(in_own_process(*weights, asked.is_json)?);
        }
    }
    let mut out = crate::shown::stdout();
    if asked.is_json {
        for row in &rows {
            serde_json::to_writer(&mut out, row).map_err(io::Error::from)?;
            writeln!(out)?;
        }
        return Ok(());
    }
    write_table(&mut out, &rows)?;
    let [Row { kv, threads, device, instructions, architecture, version, .. }, ..] = &rows[..] else {
        return Ok(());
    };
    let runs = runs_each(asked.repetitions);
    writeln!(out, "\n{} ({architecture}), cache {kv}, {runs}, the best", asked.path)?;
    let Machine { cpu, cores, os, arch } = Machine::this();
    let on = if device == "cpu" { String::new() } else { format!("{device}; ") };
    writeln!(
        out,
        "{on}{cpu} with {cores} cores, {threads} used, {instructions}, {os} {arch}, kvant {version}"
    )?;
    Ok(())
}

/// The type that most bytes of matrices have.
fn most_common(checkpoint: &Checkpoint) -> Result<DType, Failure> {
    let mut found: BTreeMap<String, (usize, DType)> = BTreeMap::new();
    for name in checkpoint.names() {
        let Some(tensor) = checkpoint.get(name).map_err(|error| Failure::new(error.to_string()))? else {
            continue;
        };
        if tensor.shape().len() > 1 {
            let count = found.entry(tensor.dtype().to_string()).or_insert((0, tensor.dtype()));
            count.0 += tensor.shape().iter().product::<usize>();
        }
    }
    let most = found.into_values().max_by_key(|(count, _)| *count);
    most.map(|(_, dtype)| dtype).ok_or_else(|| Failure::new("the model has no weights to measure"))
}

/// One precision in this process.
fn measure(checkpoint: &Checkpoint, asked: &Asked<'_>, stored: DType) -> Result<Row, Failure> {
    let pool = asked.threads.map_or_else(Pool::default, Pool::new);
    let options = LoadOptions { weights: asked.weights.map(Weights::dtype), ..LoadOptions::default() };
    let start = Instant::now();
    let placed = pool
        .install(|| DeviceModel::load(asked.device, checkpoint, options))
        .map_err(|error| open::failure(&error))?;
    let load_ms = start.elapsed().as_secs_f64() * 1e3;
    let model = &placed.model;
    let policies =
        asked.kv.policies(asked.sparse_v, asked.state, &Plans::new(checkpoint), model.description())?;
    let [policy] = &policies[..] else {
        return Err(Failure::Usage("--summary measures one cache: name one with --kv".into()));
    };
    placed.check(policy).map_err(|error| open::failure(&error))?;
    // The answer follows the prompt.
    let plan = |prefill, decode, depth| Plan {
        prefill,
        decode,
        depths: vec![depth],
        kv: vec![policy.clone()],
        threads: vec![pool.threads()],
        repetitions: asked.repetitions,
        fill: false,
    };
    let bar = progress::bar("{bar:30} {pos}/{len}  {msg}");
    let mut timings = Vec::new();
    for plan in [plan(asked.prompt, 0, 0), plan(0, asked.generate, asked.prompt)] {
        if plan.prefill + plan.decode > 0 || asked.prompt + asked.generate == 0 {
            timings.extend(speed::measure(model, &plan, &mut |stage| {
                bar.set_length(stage.total as u64);
                bar.set_position(stage.done as u64);
                bar.set_message(stage.now.to_string());
            })?);
        }
    }
    bar.finish_and_clear();
    let best =
        |test: Test| timings.iter().find(|timing| timing.case.test == test).map(|timing| timing.best());
    let rate = |tokens: usize, seconds: f64| tokens as f64 / seconds.max(f64::MIN_POSITIVE);
    let prompt = best(Test::Prefill);
    Ok(Row {
        weights: asked.weights.map_or(stored, Weights::dtype).to_string(),
        prompt: asked.prompt,
        prompt_tok_s: prompt.map(|seconds| rate(asked.prompt, seconds)),
        generated: asked.generate,
        tok_s: best(Test::Decode).map(|seconds| rate(asked.generate, seconds)),
        first_token_ms: prompt.map(|seconds| seconds * 1e3),
        load_ms,
        memory_bytes: Memory::peak(),
        kv: policy.to_string(),
        threads: pool.threads(),
        device: placed.name().to_owned(),
        instructions: Tier::select()?.name().to_owned(),
        repetitions: asked.repetitions,
        model: asked.path.to_owned(),
        architecture: model.description().architecture.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: serde_json::to_value(Machine::this()).map_err(io::Error::from)?,
    })
}

/// The same command with packed weights: what it holds is of this precision alone.
fn in_own_process(weights: Weights, is_json: bool) -> Result<Row, Failure> {
    let name = weights.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    arguments.extend(["--weights", &name].map(OsString::from));
    if !is_json {
        arguments.push("--json".into());
    }
    let failed = |why: &dyn std::fmt::Display| Failure::new(format!("--weights {name}: {why}"));
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let output = Command::new(program).args(arguments).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| failed(&error))?;
    if !output.status.success() {
        return Err(failed(&output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(&error))
}

fn write_table(out: &mut dyn Write, rows: &[Row]) -> io::Result<()> {
    let mut table = Table::new(&[
        Left("weights"),
        Right("prompt tok/s"),
        Right("decode tok/s"),
        Right("first token"),
        Right("load"),
        Right("memory"),
    ]);
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    for row in rows {
        table.row([
            row.weights.clone(),
            or_none(row.prompt_tok_s.map(|rate| format!("{rate:.1}"))),
            or_none(row.tok_s.map(|rate| format!("{rate:.1}"))),
            or_none(row.first_token_ms.map(|ms| format!("{ms:.0} ms"))),
            format!("{:.0} ms", row.load_ms),
            or_none(row.memory_bytes.map(bytes)),
        ]);
    }
    table.write(out, 0)
}
