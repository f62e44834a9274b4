//! Variable tracking, in the manner of RULER: which variables have a value, where most are assigned from one another?
//!
//! ```text
//! … VAR QXD = 48213. … VAR BTR = VAR QXD. … VAR CNM = VAR BTR. …
//!
//! Variables with the value 48213: QXD, BTR, CNM.
//! ```
//!
//! Assignments of several chains are spread over a text. A chain is right when every token of its list is the most likely one.

use super::lines::Record;
use super::random::Random;
use crate::error::EvalError;
use kvant_text::tokenizer::{EncodeOptions, Tokenizer};
use std::collections::BTreeSet;

/// Chains in a document.
pub const CHAINS: usize = 4;
/// Variables of a chain.
const LINKS: usize = 3;

const BEFORE: &str = "Variables are assigned in the text below. Then a value is named, and all variables that have it are listed, in \
the order in which they were assigned.\n\nExample: VAR KPZ = 31007. VAR WGA = VAR KPZ. VAR MEH = VAR WGA.\n\nVariables with the \
value 31007: KPZ, WGA, MEH.\n\nText:";

/// Documents of about `context` tokens: another part of the text each, with the assignments of [`CHAINS`] chains in it, and a question
/// about each chain.
///
/// # Errors
/// If the vocabulary cannot express it, or the context is too short for the assignments, or longer than the text.
pub fn documents(
    tokenizer: &Tokenizer,
    text: &str,
    context: usize,
    documents: usize,
    seed: u64,
) -> Result<Vec<Record>, EvalError> {
    let encode = |text: &str, add_special: bool| {
        tokenizer.encode(text, EncodeOptions { add_special, parse_special: false })
    };
    let hay = encode(text, false)?;
    let before = encode(BEFORE, true)?;
    (0..documents)
        .map(|document| {
            let mut random = Random::new(seed + document as u64);
            let names = names(&mut random);
            let chains: Vec<(usize, &[String])> =
                names.chunks(LINKS).map(|chain| (10_000 + random.below(90_000), chain)).collect();
            // First links first: a chain goes on after it has begun.
            let mut assignments = Vec::new();
            for link in 0..LINKS {
                for (value, chain) in &chains {
                    assignments.push(encode(
                        &match link {
                            0 => format!(" VAR {} = {value}. ", chain[0]),
                            _ => format!(" VAR {} = VAR {}. ", chain[link], chain[link - 1]),
                        },
                        false,
                    )?);
                }
            }
            let questions = chains
                .iter()
                .map(|(value, chain)| {
                    let question = encode(&format!("\n\nVariables with the value {value}:"), false)?;
                    Ok((question, encode(&format!(" {}.", chain.join(", ")), false)?))
                })
                .collect::<Result<Vec<_>, EvalError>>()?;
            let longest = questions.iter().map(|(question, answer)| question.len() + answer.len()).max();
            let taken = before.len() + assignments.iter().map(Vec::len).sum::<usize>() + longest.unwrap_or(0);
            let Some(length) = context.checked_sub(taken).filter(|&length| length >= assignments.len())
            else {
                return Err(EvalError::ContextTooShort { context });
            };
            let Some(most) = hay.len().checked_sub(length) else {
                return Err(EvalError::TextTooShort {
                    tokens: hay.len(),
                    needed: length,
                    ctx: context,
                    chunks: 1,
                });
            };
            let hay = &hay[(document * length).min(most)..][..length];
            let mut tokens = before.clone();
            for (number, assignment) in assignments.iter().enumerate() {
                let at = |number: usize| number * length / assignments.len();
                tokens.extend(&hay[at(number)..at(number + 1)]);
                tokens.extend(assignment);
            }
            Ok(Record { tokens, questions })
        })
        .collect()
}

/// Names of three letters, none twice.
fn names(random: &mut Random) -> Vec<String> {
    let (mut names, mut known) = (Vec::new(), BTreeSet::new());
    while names.len() < CHAINS * LINKS {
        let name: String = (0..3).map(|_| char::from(b'A' + random.below(26) as u8)).collect();
        if known.insert(name.clone()) {
            names.push(name);
        }
    }
    names
}
