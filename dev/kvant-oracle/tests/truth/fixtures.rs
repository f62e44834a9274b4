//! The oracle against Hugging Face transformers, and the CPU backend against the oracle, on every fixture.
//!
//! Reads every folder under `KVANT_FIXTURES` (by default the project's own) and prints a line for each.

use crate::support::{Differences, Fixture, compare_backend};
use kvant_cpu::{Cpu, LoadOptions};
use kvant_model::arch::{Architecture, Scope};
use kvant_model::error::LoadErrorKind;
use kvant_model::{Backend, Checkpoint, Description, LoadError};
use kvant_oracle::Oracle;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Largest absolute difference from the reference, which computes in single precision: what the fixtures allow an engine. Of
/// this only the reference's own noise is left, at most 3e-5 on most of the project's fixtures.
fn tolerance(description: &Description) -> f64 {
    match description.architecture {
        "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text" => 1e-3,
        "granitemoehybrid" | "nemotron_h" | "falcon_h1" | "gemma3n_text" => 5e-4,
        _ => 2e-4,
    }
}
/// Largest absolute difference of the CPU backend with f32 activations from the oracle: half of what the reference may differ
/// by. It is 2e-5 on fixtures without recurrent state, 1.1e-4 on gated DeltaNets.
fn cpu_bound(description: &Description) -> f64 {
    tolerance(description) / 2.0
}

/// What a configuration describes; the name of its architecture when that is unknown.
fn describe(checkpoint: &Checkpoint) -> Result<Result<Description, String>, LoadError> {
    let scope = Scope::new(checkpoint)?;
    match Architecture::of(scope.config()) {
        Err(e) if e.kind() == LoadErrorKind::Unsupported => {
            Ok(Err(scope.config().architecture()?.to_owned()))
        }
        _ => Description::of(checkpoint).map(Ok),
    }
}

/// Runs `check` on every fixture under each of its configurations and holds what it finds against `bound`.
fn for_every_fixture(
    bound: impl Fn(&Description) -> f64,
    check: impl Fn(&Fixture, &Description, &Checkpoint) -> Result<Differences, LoadError>,
) {
    let root = std::env::var_os("KVANT_FIXTURES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/kvant-model/tests/fixtures"),
        PathBuf::from,
    );
    let mut wrong = Vec::new();
    let mut worst: f64 = 0.0;
    // Written past the test harness, which would swallow the lines of a test that passes.
    let mut out = std::io::stdout();
    writeln!(out).unwrap();
    for fixture in Fixture::all(&root) {
        for config in fixture.configs() {
            let name = &fixture.name;
            let checkpoint = fixture.checkpoint(config).unwrap();
            let found = describe(&checkpoint).and_then(|description| match description {
                Ok(description) => {
                    check(&fixture, &description, &checkpoint).map(|found| Ok((found, bound(&description))))
                }
                Err(architecture) => Ok(Err(architecture)),
            });
            let (right, line) = match found {
                Ok(Ok((found, bound))) => {
                    worst = worst.max(found.largest());
                    (found.largest() <= bound && found.greedy_agrees, found.line())
                }
                Ok(Err(architecture)) => {
                    writeln!(out, "{name:16} {config:18} unsupported architecture: {architecture}").unwrap();
                    continue;
                }
                Err(e) => (false, format!("does not load: {e}")),
            };
            writeln!(out, "{name:16} {config:18} {} {line}", if right { "ok   " } else { "WRONG" }).unwrap();
            if !right {
                wrong.push(format!("{name}/{config}"));
            }
        }
    }
    writeln!(out, "largest difference {worst:.1e}").unwrap();
    assert!(wrong.is_empty(), "off: {}", wrong.join(", "));
}

#[test]
fn the_oracle_agrees_with_the_reference() {
    for_every_fixture(tolerance, |fixture, description, checkpoint| {
        let oracle = Oracle::new(description, checkpoint)?;
        let mut found = Differences::default();
        for index in 0..fixture.prompts.len() {
            let trace = oracle.run(&fixture.sequence(index), fixture.capacity());
            fixture.compare(&trace, description, index, &mut found);
        }
        Ok(found)
    });
}

#[test]
fn the_cpu_backend_agrees_with_the_oracle() {
    for_every_fixture(cpu_bound, |fixture, description, checkpoint| {
        let tokens = fixture.sequence(0);
        let truth = Oracle::new(description, checkpoint)?.run(&tokens, fixture.capacity());
        let network = Cpu::new(LoadOptions::AS_STORED)?.compile(description, checkpoint)?;
        // The prompt at once, then token by token.
        let chunks: Vec<usize> = [fixture.prompt()].into_iter().chain([1; 16]).collect();
        Ok(compare_backend(&*network, &description.slots, &tokens, &chunks, fixture.capacity(), &truth))
    });
}
