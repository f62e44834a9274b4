//! Speculative decoding: tokens that are likely to come are read on trial, several in one pass, and the sampler decides.
//!
//! A [`Proposer`] guesses what follows. A pass reads the guess behind the last token and gives a row of logits for each. The sampler
//! goes through the rows in order, as if they had come in passes of their own: while it chooses the token that was guessed, the next row
//! is that of the next token; the first other one is the next token of the text, and the rest of the guess is taken back.
//!
//! **Invariant:** what comes out has the same bits as without: tokens, text, probabilities, and what the cache holds at the end. A
//! token's logits do not depend on how many are read with it ([`Abilities::any_rows`](kvant_model::Abilities)), and
//! the sampler draws one random number for every token of the text, none for a guess. Good guesses only save time.

mod automaton;
mod suffix;

pub use suffix::SuffixProposer;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The most tokens that are read on trial in one pass.
pub(crate) const MOST_PROPOSED: usize = 16;

/// How much may be guessed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProposalLimits {
    /// Tokens, at most.
    pub most: usize,
    /// How likely a token and all before it have to be right for its row in the pass to be worth it.
    pub least_chance: f64,
}

/// Guesses how a text goes on.
pub trait Proposer: Send {
    /// Adds tokens to `proposal` that are likely to follow `tokens`: prompt and answer so far, which grow from call to call.
    fn propose(&mut self, tokens: &[u32], limits: ProposalLimits, proposal: &mut Vec<u32>);
}

/// Makes a proposer for every text.
pub type MakeProposer = Arc<dyn Fn() -> Box<dyn Proposer> + Send + Sync>;

/// Whether to read guesses on trial, and whose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Speculate {
    /// One token a pass.
    Off,
    /// What followed when the text last read like this: [`SuffixProposer`].
    #[default]
    Suffix,
}

impl Speculate {
    /// All of them, by the names that people type.
    pub const NAMES: [&str; 2] = ["off", "suffix"];

    pub(crate) fn proposers(self) -> Option<MakeProposer> {
        match self {
            Self::Off => None,
            Self::Suffix => Some(Arc::new(|| Box::new(SuffixProposer::default()))),
        }
    }
}

impl fmt::Display for Speculate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Suffix => "suffix",
        })
    }
}

impl FromStr for Speculate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "suffix" => Ok(Self::Suffix),
            other => Err(format!("`{other}` is neither off nor suffix")),
        }
    }
}

/// What came of the guesses of a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpeculationCounts {
    /// Tokens read on trial.
    pub proposed: usize,
    /// Those of them that the sampler chose.
    pub accepted: usize,
}

impl SpeculationCounts {
    /// Those that it did not choose, or that came after one.
    pub fn rejected(&self) -> usize {
        self.proposed - self.accepted
    }
}
