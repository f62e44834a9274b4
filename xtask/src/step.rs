//! A step: something with a name that passes, fails, or cannot run here.

use std::time::{Duration, Instant};

use crate::summary;
use crate::tally::Tally;

/// Why a step did not pass.
#[derive(Debug)]
pub enum Trouble {
    /// It ran and something is wrong.
    Failed { reason: String, tests: Tally },
    /// It could not run on this machine.
    NotRun { reason: String },
}

impl Trouble {
    /// It ran, and this is what is wrong.
    pub fn failed(reason: impl Into<String>) -> Trouble {
        Trouble::Failed { reason: reason.into(), tests: Tally::default() }
    }

    /// It could not run, for this reason.
    pub fn not_run(reason: impl Into<String>) -> Trouble {
        Trouble::NotRun { reason: reason.into() }
    }
}

/// The tests a step ran (none for a check such as formatting), or why it did not pass.
pub type Outcome = Result<Tally, Trouble>;

/// Something to run.
pub struct Step {
    name: String,
    about: String,
    run: Box<dyn FnOnce() -> Outcome>,
}

impl Step {
    /// A step from its name, a few words for its heading, and what it does.
    pub fn new(name: &str, about: &str, run: impl FnOnce() -> Outcome + 'static) -> Step {
        Step { name: name.to_string(), about: about.to_string(), run: Box::new(run) }
    }
}

/// What became of a step.
pub struct Record {
    pub name: String,
    pub outcome: Outcome,
    pub elapsed: Duration,
}

/// Runs every step, whatever became of the ones before, and prints the closing table.
/// True when all is well; with `strict`, a step that could not run is not well.
pub fn run_all(steps: Vec<Step>, strict: bool) -> bool {
    run_all_and_say(steps, strict, String::new)
}

/// As [`run_all`], with more to say below the table, once all steps have run.
pub fn run_all_and_say(steps: Vec<Step>, strict: bool, say: impl FnOnce() -> String) -> bool {
    let records: Vec<Record> = steps.into_iter().map(run_one).collect();
    print!("\n{}", summary::table(&records));
    print!("{}", say());
    let tally = summary::total(&records, strict);
    println!("{} passed, {} failed", tally.passed, tally.failed);
    tally.failed == 0
}

fn run_one(step: Step) -> Record {
    println!("\n== {}: {}", step.name, step.about);
    let start = Instant::now();
    let outcome = (step.run)();
    let elapsed = start.elapsed();
    println!("== {}: {} after {:.1} s", step.name, summary::word(&outcome), elapsed.as_secs_f64());
    Record { name: step.name, outcome, elapsed }
}
