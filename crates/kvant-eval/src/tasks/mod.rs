//! Tasks: does a model still find, choose and write what it did with an exact cache?
//!
//! Divergence says how far predictions move; tasks say whether it matters. Each runs the same cases with the exact cache and
//! with every cache in question, and reports two figures: the share of cases that were right, and the share that came out as
//! with the exact cache. The second is the one to look at with small models, which are often wrong whatever the cache. Two caches
//! are told apart by [pairs](Paired): cases that one has right and the other has not.
//!
//! | task | a case | right when |
//! |---|---|---|
//! | [`lines`] | a line out of a long record of them, in the style of LongEval | every token of the number is the most likely one |
//! | [`needle`] | a sentence hidden in a novel, or many of them | the same |
//! | [`variables`] | a value that variables of a text have from one another | every token of their list is the most likely one |
//! | [`words`] | the most frequent words of a list | every token of the word is the most likely one |
//! | [`choice`] | a question with several endings, from a file | the right ending is the most likely |
//! | [`trajectory`] | some hundred tokens that continue a text, always the most likely | nothing: how far they agree is the figure |
//! | [`json`] | a request for a JSON object, tool calls among them | the answer is one, with the keys and types asked for |
//! | [`calls`] | a tool call by an agent, deep in a transcript | name and arguments are right |
//! | [`code`] | a function to complete, from a file | its unit tests pass, in a sandbox |
//!
//! Greedy generation yields an answer exactly when each of its tokens is the most likely one given those before, so
//! retrieval needs no generation: one pass over prompt and answer tells, and gives the answer's nll too.

mod answer;
pub mod calls;
pub mod choice;
pub mod code;
pub mod json;
pub mod lines;
pub mod needle;
mod random;
mod report;
pub mod trajectory;
pub mod variables;
pub mod words;

pub use answer::Answer;
pub use report::{Paired, Score, TaskRow};

use kvant_engine::Policy;

/// Where a task stands after a case.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Cases done, over all caches.
    pub done: usize,
    /// Cases in all.
    pub total: usize,
}

/// The exact cache, whose answers the others are held against.
pub fn exact() -> Policy {
    "f32".parse().expect("a spec of the grammar")
}
