//! Functions completed as HumanEval has them: is the program right that a model writes? Its unit tests say so, in a
//! [sandbox].
//!
//! A line of the file is a problem: `{"prompt": …, "test": …, "entry_point": …}`. The model goes on after the prompt, always with the
//! most likely token, until the function is over; the program, its tests and `check(entry_point)` then have to come to their end.

pub mod sandbox;

use super::answer::Asker;
use super::report::Score;
use super::{Step, exact};
use crate::error::EvalError;
use kvant_cache::Mode;
use kvant_engine::{Engine, Policy};
use kvant_text::tokenizer::EncodeOptions;
use serde::Deserialize;

/// The most tokens of a function.
const LENGTH: usize = 300;
/// What begins when a function is over.
const ENDS: [&str; 9] =
    ["\nclass ", "\ndef ", "\n#", "\n@", "\nprint", "\nif ", "\n```", "\nassert", "\nfrom "];

/// A function to complete.
#[derive(Debug, Clone, Deserialize)]
pub struct Problem {
    /// Imports, the function's head and what it is to do.
    pub prompt: String,
    /// Defines `check`.
    pub test: String,
    /// The function's name.
    pub entry_point: String,
}

/// Reads the first `most` problems of a text.
///
/// # Errors
/// Names the first line that is none.
pub fn problems(text: &str, most: usize) -> Result<Vec<Problem>, EvalError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).take(most);
    let found: Vec<Problem> = lines
        .map(|(number, line)| {
            serde_json::from_str(line)
                .map_err(|e| EvalError::NoQuestion { line: number + 1, reason: e.to_string() })
        })
        .collect::<Result<_, _>>()?;
    match found.is_empty() {
        true => Err(EvalError::NoQuestion { line: 1, reason: "there is none".to_owned() }),
        false => Ok(found),
    }
}

/// The function as far as it goes in what a model wrote.
fn body(text: &str) -> &str {
    let end = ENDS.iter().filter_map(|end| text.find(end)).min();
    &text[..end.unwrap_or(text.len())]
}

/// Solves everything with every cache; the first score is that of the exact one.
///
/// # Errors
/// If the model's keys and values cannot be kept that way, or there is no sandbox.
pub fn scores(
    engine: &Engine,
    problems: &[Problem],
    caches: &[Policy],
    progress: &mut dyn FnMut(Step),
) -> Result<Vec<Score>, EvalError> {
    let (model, tokenizer) = (engine.model(), engine.tokenizer());
    sandbox::passes("")?;
    let encode = |problem: &Problem| {
        tokenizer.encode(problem.prompt.trim_end(), EncodeOptions { add_special: true, parse_special: false })
    };
    let prompts: Vec<Vec<u32>> = problems.iter().map(encode).collect::<Result<_, _>>()?;
    let capacity = prompts.iter().map(Vec::len).max().unwrap_or(0) + LENGTH;
    let total = (caches.len() + 1) * problems.len();
    let (mut truth, mut scores, mut done): (Vec<Vec<u32>>, _, _) = (Vec::new(), Vec::new(), 0);
    for (number, cache) in [exact()].iter().chain(caches).enumerate() {
        let mut asker = Asker::new(model, cache, Mode::Deployed, capacity)?;
        let mut score = Score::default();
        for (place, (problem, prompt)) in problems.iter().zip(&prompts).enumerate() {
            let text = |found: &[u32]| tokenizer.decode(found).unwrap_or_default();
            let mut over = |found: &[u32]| {
                let last = found.last().copied().unwrap_or_default();
                let text = text(found);
                tokenizer.is_end_of_generation(last) || body(&text).len() < text.len()
            };
            let mut found = asker.continuation(prompt, LENGTH, &mut over)?;
            if found.last().is_some_and(|&last| tokenizer.is_end_of_generation(last)) {
                found.pop();
            }
            let written = text(&found);
            let Problem { prompt, test, entry_point } = problem;
            let program =
                format!("{}{}\n\n{test}\n\ncheck({entry_point})\n", prompt.trim_end(), body(&written));
            let right = sandbox::passes(&program)?;
            if number == 0 {
                truth.push(found.clone());
            }
            score.take(f64::from(u8::from(right)), found == truth[place]);
            done += 1;
            progress(Step { done, total });
        }
        scores.push(score);
    }
    Ok(scores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_ends_where_the_next_thing_begins() {
        assert_eq!(body("\n    return 1\n\n\ndef other():"), "\n    return 1\n\n");
        assert_eq!(body("\n    if x:\n        return 1\nprint(2)\n# 3"), "\n    if x:\n        return 1");
        assert_eq!(body("\n    return 1\n"), "\n    return 1\n");
    }

    #[test]
    fn lines_that_are_no_problems_are_named() {
        let good =
            r#"{"task_id": "a", "prompt": "def f():", "test": "def check(f): pass", "entry_point": "f"}"#;
        assert_eq!(problems(&[good; 3].join("\n\n"), 2).unwrap().len(), 2);
        assert!(problems(&format!("{good}\n{{}}"), 9).unwrap_err().to_string().contains("line 2"));
        assert!(problems("", 9).unwrap_err().to_string().contains("there is none"));
    }
}
