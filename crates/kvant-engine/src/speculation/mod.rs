//! Speculative decoding: tokens that are likely to come are read on trial, several in one pass, and the sampler decides.
//!
//! A [`Proposer`] guesses what follows. A pass reads the guess behind the last token and gives a row of logits for each. The sampler
//! goes through the rows in order, as if they had come in passes of their own: while it chooses the token that was guessed, the next row
//! is that of the next token; the first other one is the next token of the text, and the rest of the guess is taken back.
//!
//! **Invariant:** what comes out has the same bits as without: tokens, text, probabilities, and what the cache holds at the end. A
//! token's logits do not depend on how many are read with it ([`Abilities::any_rows`](kvant_model::Abilities)), and
//! the sampler draws one random number for every token of the text, none for a guess. Good guesses only save time.

mod answers;
mod automaton;
mod draft;
mod drafter;
mod left;
mod mtp;
mod suffix;

pub use answers::PastAnswers;
pub(crate) use answers::{Answers, MOST_ANSWER_BYTES};
pub use draft::{DraftModel, DraftSequence};
pub use drafter::{DraftProposer, Drafter};
pub(crate) use left::forward_watched;
pub use mtp::{MtpHead, MtpSequence};
pub use suffix::SuffixProposer;

use std::fmt;
use std::path::{Path, PathBuf};
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
    /// What a token of any text takes without guesses, where that is known.
    pub seconds_per_token: Option<f64>,
}

/// Guesses how a text goes on.
pub trait Proposer: Send {
    /// Adds tokens to `proposal` that are likely to follow `tokens`: prompt and answer so far, which grow from call to call.
    fn propose(&mut self, tokens: &[u32], limits: ProposalLimits, proposal: &mut Vec<u32>);

    /// Lets it look at answers of before.
    fn recall(&mut self, answers: Arc<PastAnswers>) {
        drop(answers);
    }

    /// Whether it wants to be shown what the model leaves of what it reads.
    fn watches(&self) -> bool {
        false
    }

    /// Is shown what the last layer left of tokens that the model has read, `(tokens, hidden)`, as the model's head for further tokens wants
    /// it. The first of them is the text's token `at`; what it was shown of that and later ones before is void.
    fn watch(&mut self, at: usize, tokens: &[u32], left: &[f32]) {
        let _ = (at, tokens, left);
    }
}

/// Makes a proposer for every text.
pub type MakeProposer = Arc<dyn Fn() -> Box<dyn Proposer> + Send + Sync>;

/// Whether to read guesses on trial, and whose.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Speculate {
    /// One token a pass.
    Off,
    /// What followed when the text last read like this: [`SuffixProposer`].
    #[default]
    Suffix,
    /// The same, and where nothing did, what the model of a file or folder says: [`DraftProposer`].
    Draft(PathBuf),
    /// The same, and where nothing did, what the head of the file that guesses further tokens says: [`MtpHead`]. What is done where nothing
    /// else is asked for and the file has such a head.
    Mtp,
}

impl fmt::Display for Speculate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Suffix => f.write_str("suffix"),
            Self::Mtp => f.write_str("mtp"),
            Self::Draft(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for Speculate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "suffix" => Ok(Self::Suffix),
            "mtp" => Ok(Self::Mtp),
            path if Path::new(path).exists() => Ok(Self::Draft(path.into())),
            other => Err(format!(
                "`{other}` is neither off, suffix nor mtp, nor the file or folder of a draft model"
            )),
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
