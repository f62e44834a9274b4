//! A sentence hidden in a novel, at several depths.

use super::lines::Record;
use super::random::Random;
use crate::error::EvalError;
use kvant_text::tokenizer::{EncodeOptions, Tokenizer};

const PLACES: [&str; 12] = [
    "Oslo", "Lima", "Cairo", "Dublin", "Seoul", "Havana", "Nairobi", "Prague", "Quito", "Riga", "Tunis",
    "Vienna",
];

/// Records of about `context` tokens, one for each depth: the text with one sentence in it, and one question about that.
///
/// # Errors
/// If the vocabulary cannot express it, or the context is too short for the sentence, or longer than the text.
pub fn records(
    tokenizer: &Tokenizer,
    text: &str,
    context: usize,
    depths: usize,
    seed: u64,
) -> Result<Vec<Record>, EvalError> {
    let encode = |text: &str, add_special: bool| {
        tokenizer.encode(text, EncodeOptions { add_special, parse_special: false })
    };
    let hay = encode(text, false)?;
    let mut random = Random::new(seed);
    (0..depths)
        .map(|depth| {
            let place = PLACES[random.below(PLACES.len())];
            let number = 10_000 + random.below(90_000);
            let needle =
                encode(&format!(" The secret number of the archive in {place} is {number}. "), false)?;
            let question = encode(&format!("\n\nThe secret number of the archive in {place} is"), false)?;
            let answer = encode(&format!(" {number}"), false)?;
            let prefix = tokenizer.prefix();
            let taken = prefix.len() + needle.len() + question.len() + answer.len();
            let Some(length) = context.checked_sub(taken).filter(|&length| length >= depths) else {
                return Err(EvalError::ContextTooShort { context });
            };
            if length > hay.len() {
                return Err(EvalError::TextTooShort {
                    tokens: hay.len(),
                    needed: length,
                    ctx: context,
                    chunks: 1,
                });
            }
            let at = (2 * depth + 1) * length / (2 * depths);
            let tokens = [prefix, &hay[..at], &needle, &hay[at..length]].concat();
            Ok(Record { tokens, questions: vec![(question, answer)] })
        })
        .collect()
}
