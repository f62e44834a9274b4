//! `kvant check`: whether a file is sound, told without running it.

use crate::failure::Failure;
use crate::open;
use crate::progress;
use clap::Args;
use kvant_cache::{Plan, Snapshot};
use kvant_engine::memory::bytes;
use kvant_model::Checkpoint;
use kvant_threads::Pool;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

const EXAMPLES: &str = "\
Examples:
  kvant check model.gguf
  kvant check ./Qwen3-0.6B                a folder with safetensors
  kvant check talk.session notes.kvplan

A file is sound if its sizes and offsets lie within it, its tensors fit the
configuration, and no value is NaN or infinite. Whether a model answers well is
not checked. Exit codes: 0 sound, 1 not sound.";

/// Arguments of `kvant check`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Check {
    /// Model files or folders, names of models in the cache, sessions, plans
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,

    /// Print one JSON object for each file
    #[arg(long)]
    json: bool,
}

/// What was found out about a file.
struct Verdict {
    kind: &'static str,
    /// What it holds, in words.
    about: String,
    /// What is wrong: where, and what.
    faults: Vec<(String, String)>,
    /// What kvant cannot use, though it is not wrong.
    notes: Vec<(String, String)>,
}

impl Check {
    /// Checks one after another; fails if one is not sound.
    pub fn execute(self) -> Result<(), Failure> {
        let mut unsound = 0;
        for name in &self.files {
            let verdict = check(name);
            unsound += usize::from(!verdict.faults.is_empty());
            let mut out = crate::shown::stdout();
            match self.json {
                true => writeln!(out, "{}", verdict.json(name))?,
                false => verdict.write(name, &mut out)?,
            }
        }
        match unsound {
            0 => Ok(()),
            1 => Err(Failure::new("1 file is not sound: do not use it; download or create it again")),
            many => Err(Failure::new(format!(
                "{many} files are not sound: do not use them; download or create them again"
            ))),
        }
    }
}

impl Verdict {
    fn refused(kind: &'static str, why: impl std::fmt::Display) -> Self {
        Self { kind, about: String::new(), faults: vec![("file".into(), why.to_string())], notes: Vec::new() }
    }

    fn sound(kind: &'static str, about: String) -> Self {
        Self { kind, about, faults: Vec::new(), notes: Vec::new() }
    }

    fn write(&self, name: &str, out: &mut dyn Write) -> std::io::Result<()> {
        let about = if self.about.is_empty() { String::new() } else { format!(", {}", self.about) };
        let verdict = if self.faults.is_empty() { "sound" } else { "not sound" };
        writeln!(out, "{name}: {verdict} ({}{about})", self.kind)?;
        self.faults.iter().try_for_each(|(place, what)| writeln!(out, "  fault: {place}: {what}"))?;
        self.notes.iter().try_for_each(|(place, what)| writeln!(out, "  note: {place}: {what}"))
    }

    fn json(&self, name: &str) -> Value {
        let list = |list: &[(String, String)]| -> Vec<Value> {
            list.iter().map(|(place, what)| json!({"place": place, "what": what})).collect()
        };
        json!({"file": name, "kind": self.kind, "sound": self.faults.is_empty(), "about": self.about,
               "faults": list(&self.faults), "notes": list(&self.notes)})
    }
}

fn check(name: &str) -> Verdict {
    let path = match open::find(name) {
        Ok(path) => path,
        Err(Failure::Message(why) | Failure::Usage(why)) => return Verdict::refused("missing", why),
        Err(_) => return Verdict::refused("missing", "cannot be opened"),
    };
    let mut magic = [0; 8];
    // A folder has no first bytes.
    let _ = File::open(&path).and_then(|mut file| file.read_exact(&mut magic));
    match &magic {
        b"KVANTSEQ" => match Snapshot::open(&path) {
            Ok(saved) => Verdict::sound(
                "session",
                format!("{} tokens, cache {}", saved.tokens().len(), saved.policy()),
            ),
            Err(why) => Verdict::refused("session", why),
        },
        b"KVANTPLN" => match Plan::open(&path) {
            Ok(plan) => Verdict::sound("plan", format!("{}, made as {}", plan.policy(), plan.made())),
            Err(why) => Verdict::refused("plan", why),
        },
        _ => model(&path),
    }
}

fn model(path: &Path) -> Verdict {
    let checkpoint = match Checkpoint::open(path) {
        Ok(checkpoint) => checkpoint,
        Err(why) => return Verdict::refused("model", why),
    };
    let tensors = checkpoint.names().count();
    let size: u64 = checkpoint
        .names()
        .filter_map(|name| checkpoint.tensor(name).ok())
        .map(|t| t.bytes().len() as u64)
        .sum();
    let bar = progress::bar("checking [{bar:30}] {bytes} of {total_bytes}");
    bar.set_length(size);
    let mut findings = kvant_text::soundness::findings(&checkpoint);
    findings.extend(checkpoint.findings(Pool::default().threads(), &|read| bar.inc(read)));
    bar.finish_and_clear();
    let (faults, notes): (Vec<_>, Vec<_>) = findings.into_iter().partition(|finding| finding.is_fault);
    let words =
        |list: Vec<kvant_model::soundness::Finding>| list.into_iter().map(|f| (f.place, f.what)).collect();
    let about = format!("{tensors} tensors, {}", bytes(size));
    Verdict { kind: "model", about, faults: words(faults), notes: words(notes) }
}
