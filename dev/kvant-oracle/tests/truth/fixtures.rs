//! The oracle against Hugging Face transformers, on every fixture; backends are held to the oracle by `kvant-conformance`.
//!
//! Reads every folder under `KVANT_FIXTURES` (by default the project's own) and prints a line for each.

use crate::support::{Compare, Differences};
use kvant_conformance::{Fixture, reference_tolerance};
use kvant_model::arch::{Architecture, Scope};
use kvant_model::error::LoadErrorKind;
use kvant_model::{Checkpoint, Description, LoadError};
use kvant_oracle::Oracle;
use std::io::Write;

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

#[test]
fn the_oracle_agrees_with_the_reference() {
    let mut wrong = Vec::new();
    let mut worst: f64 = 0.0;
    // Written past the test harness, which would swallow the lines of a test that passes.
    let mut out = std::io::stdout();
    writeln!(out).unwrap();
    for fixture in Fixture::all() {
        for config in fixture.configs() {
            let name = &fixture.name;
            let checkpoint = fixture.checkpoint(config).unwrap();
            let (right, line) = match describe(&checkpoint) {
                Ok(Ok(description)) => {
                    let found = differences(&fixture, &description, &checkpoint);
                    worst = worst.max(found.largest());
                    let bound = reference_tolerance(description.architecture);
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

fn differences(fixture: &Fixture, description: &Description, checkpoint: &Checkpoint) -> Differences {
    let oracle = Oracle::new(description, checkpoint).unwrap();
    let mut found = Differences::default();
    for index in 0..fixture.prompts.len() {
        let trace = oracle.run(&fixture.sequence(index), fixture.capacity());
        fixture.compare(&trace, description, index, &mut found);
    }
    found
}
