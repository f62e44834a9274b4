//! Text to policy, with errors that point.

use super::{Clause, Policy, SparseV};
use crate::exact_window::MAX_SINKS;
use crate::recurrent::StateTypeError;
use kvant_codec::{KvSpec, SpecError};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Text that is no policy: what is wrong, where, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    text: String,
    position: usize,
    reason: String,
}

impl PolicyError {
    /// Byte offset of the offending character.
    pub fn position(&self) -> usize {
        self.position
    }

    /// What is wrong and what is allowed, without the picture.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let column = self.text.get(..self.position).map_or(self.position, |before| before.chars().count());
        writeln!(f, "not a KV policy: {}", self.reason)?;
        writeln!(f, "  {}", self.text)?;
        write!(f, "  {:column$}^", "")
    }
}

impl std::error::Error for PolicyError {}

/// An error before its text is known: position and reason.
type ParseFault = (usize, String);

/// A piece of the text and where it starts.
#[derive(Clone, Copy)]
struct Piece<'a> {
    at: usize,
    text: &'a str,
}

impl<'a> Piece<'a> {
    fn trimmed(self) -> Piece<'a> {
        let start = self.text.len() - self.text.trim_start().len();
        Piece { at: self.at + start, text: self.text.trim() }
    }

    fn split(self, separator: char) -> impl Iterator<Item = Piece<'a>> {
        let mut at = self.at;
        self.text.split(separator).map(move |text| {
            let piece = Piece { at, text };
            at += text.len() + separator.len_utf8();
            piece.trimmed()
        })
    }

    fn after(self, prefix: &str) -> Option<Piece<'a>> {
        let text = self.text.strip_prefix(prefix)?;
        Some(Piece { at: self.at + prefix.len(), text }.trimmed())
    }

    fn split_once(self, separator: &str) -> Option<(Piece<'a>, Piece<'a>)> {
        let (before, after) = self.text.split_once(separator)?;
        let after = Piece { at: self.at + before.len() + separator.len(), text: after };
        Some((Piece { at: self.at, text: before }.trimmed(), after.trimmed()))
    }

    fn number(self) -> Result<usize, ParseFault> {
        let what = if self.text.is_empty() { "nothing".to_owned() } else { format!("`{}`", self.text) };
        self.text.parse().map_err(|_| (self.at, format!("a number is needed here, not {what}")))
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Policy, PolicyError> {
        parse(Piece { at: 0, text }).map_err(|(position, reason)| PolicyError {
            text: text.to_owned(),
            position,
            reason,
        })
    }
}

fn parse(text: Piece<'_>) -> Result<Policy, ParseFault> {
    let mut pieces = text.split(';');
    let first = pieces.next().unwrap_or(text);
    let mut policy = Policy::from(spec(first, first.text, 0)?);
    for piece in pieces {
        if let Some(number) = piece.after("sinks=") {
            policy.rule.sinks = number.number()?;
            if policy.rule.sinks > MAX_SINKS {
                return Err((number.at, format!("at most {MAX_SINKS} sinks are kept")));
            }
        } else if let Some(number) = piece.after("recent=") {
            policy.rule.recent = number.number()?;
        } else if let Some(number) = piece.after("sparse-v=") {
            let threshold = number.text.parse::<SparseV>().map_err(|e| (number.at, e.to_string()))?;
            policy.sparse_v = Some(threshold);
        } else if let Some(name) = piece.after("state=") {
            policy.state = name.text.parse().map_err(|e: StateTypeError| (name.at, e.to_string()))?;
        } else {
            policy.clauses.push(clause(piece)?);
        }
    }
    Ok(policy)
}

fn clause(piece: Piece<'_>) -> Result<Clause, ParseFault> {
    let usage = "after `;` comes sinks=N, recent=N, sparse-v=P, state=TYPE, or `layers 0-1: k=CODEC` with layers, heads or \
                 both";
    let Some((selection, codecs)) = piece.split_once(":") else {
        let what =
            if piece.text.is_empty() { "nothing follows".to_owned() } else { format!("`{}`", piece.text) };
        return Err((piece.at, format!("{what}: {usage}")));
    };
    let mut result = Clause { layers: Vec::new(), heads: Vec::new(), key: None, value: None };
    let heads = match word(selection, "layers") {
        Some(rest) => match rest.split_once("heads") {
            Some((layers, heads)) => {
                result.layers = ranges(layers)?;
                Some(heads)
            }
            None => {
                result.layers = ranges(rest)?;
                None
            }
        },
        None => {
            Some(word(selection, "heads").ok_or((selection.at, format!("`{}`: {usage}", selection.text)))?)
        }
    };
    if let Some(heads) = heads {
        result.heads = ranges(heads)?;
    }
    (result.key, result.value) = sides(codecs)?;
    Ok(result)
}

/// The rest after a word that is followed by a space.
fn word<'a>(piece: Piece<'a>, word: &str) -> Option<Piece<'a>> {
    let rest = piece.text.strip_prefix(word)?;
    rest.starts_with(char::is_whitespace).then(|| Piece { at: piece.at + word.len(), text: rest }.trimmed())
}

fn ranges(piece: Piece<'_>) -> Result<Vec<RangeInclusive<usize>>, ParseFault> {
    piece
        .split(',')
        .map(|range| {
            let (start, end) = match range.split_once("-") {
                Some((start, end)) => (start.number()?, end.number()?),
                None => (range.number()?, range.number()?),
            };
            if start > end {
                return Err((range.at, format!("`{}` is empty: the larger number comes last", range.text)));
            }
            Ok(start..=end)
        })
        .collect()
}

type Codecs = (Option<kvant_codec::CodecSpec>, Option<kvant_codec::CodecSpec>);

/// One side or both. The spec grammar knows pairs only, so a side on its own is completed with some other.
fn sides(piece: Piece<'_>) -> Result<Codecs, ParseFault> {
    const FILLER: &str = "k=f16,";
    if piece.text.starts_with("v=") {
        let both = spec(piece, &format!("{FILLER}{}", piece.text), FILLER.len())?;
        return Ok((None, Some(both.value)));
    }
    match spec(piece, piece.text, 0) {
        Ok(both) => Ok((Some(both.key), Some(both.value))),
        Err(fault) if piece.text.starts_with("k=") && !piece.text.contains("v=") => {
            match spec(piece, &format!("{},v=f16", piece.text), 0) {
                Ok(both) => Ok((Some(both.key), None)),
                // The codec itself is wrong, unless all that is missing are the values.
                Err(alone) if alone.0 < piece.at + piece.text.len() => Err(alone),
                Err(_) => Err(fault),
            }
        }
        Err(fault) => Err(fault),
    }
}

/// Parses `text`, which is the piece with `skipped` bytes before it, and moves errors to where the piece is.
fn spec(piece: Piece<'_>, text: &str, skipped: usize) -> Result<KvSpec, ParseFault> {
    text.parse().map_err(|error: SpecError| {
        let position = error.position().saturating_sub(skipped).min(piece.text.len());
        (piece.at + position, error.reason().to_owned())
    })
}
