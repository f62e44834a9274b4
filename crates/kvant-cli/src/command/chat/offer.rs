//! The first conversation: the default model is small, so a better one is offered, once.

use crate::config::{self, DEFAULT_MODEL};
use crate::failure::Failure;
use crate::shapes::{self, Candidate};
use kvant_engine::memory::{Memory, bytes};
use kvant_hub::Hub;
use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

/// What is offered: the first of these that fits.
const BETTER: [&str; 3] = ["qwen3:4b", "qwen3:1.7b", "qwen3:0.6b"];
/// Of the memory there is, what a model may take.
const PART: u64 = 2;

/// How long the hub may take to answer: where it does not, nothing can be fetched, and there is nothing to ask.
const REACH_TIMEOUT: Duration = Duration::from_secs(2);

/// Asks which model to use where nobody ever named one; nothing where there is nobody to ask, nothing better to offer, or no way to fetch it.
pub fn model(named: &str) -> Result<Option<String>, Failure> {
    let is_person = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !cfg!(feature = "hub") || named != DEFAULT_MODEL || !is_person || config::was_asked() {
        return Ok(None);
    }
    let Some(memory) = Memory::read() else { return Ok(None) };
    let fitting = shapes::that_fit(memory.available / PART, kvant_threads::threads(), false)?;
    let better = BETTER.iter().find_map(|name| fitting.iter().find(|candidate| candidate.name == *name));
    let Some(Candidate { name, weights, .. }) = better else { return Ok(None) };
    if !Hub::from_env()?.is_reachable(REACH_TIMEOUT) {
        return Ok(None);
    }
    let size = bytes(*weights);
    let question = format!(
        "The default model, {DEFAULT_MODEL} (98 MB), is small and often wrong.\n  1  use it now\n  2  fetch {name} (about {size}) \
         and use it from now on\nWhich one? [1] "
    );
    // Nobody need see it; then the answer is the usual one.
    let _ = write!(io::stderr(), "{question}").and_then(|()| io::stderr().flush());
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    let chosen = if ["2", name.as_str()].contains(&answer.trim()) { name } else { DEFAULT_MODEL };
    config::remember_model(chosen);
    Ok(Some(chosen.to_owned()))
}
