//! A sentence hidden in a novel, at several depths; or many in one novel, each of which is asked for (multi-needle).

use super::lines::{Record, names};
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

/// Sentences hidden in one document.
pub const NEEDLES: usize = 10;

/// Documents of about `context` tokens with [`NEEDLES`] sentences each, spread over the whole of it, and a question about each. Every
/// document is another part of the text, as far as it goes.
///
/// # Errors
/// As for [`records`].
pub fn documents(
    tokenizer: &Tokenizer,
    text: &str,
    context: usize,
    documents: usize,
    seed: u64,
) -> Result<Vec<Record>, EvalError> {
    let encode =
        |text: &str| tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: false });
    let hay = encode(text)?;
    (0..documents)
        .map(|document| {
            let mut random = Random::new(seed + document as u64);
            let (mut needles, mut questions) = (Vec::new(), Vec::new());
            for name in names(&mut random).into_iter().take(NEEDLES) {
                let number = 10_000 + random.below(90_000);
                needles.push(encode(&format!(" The secret number of the {name} archive is {number}. "))?);
                let question = encode(&format!("\n\nThe secret number of the {name} archive is"))?;
                questions.push((question, encode(&format!(" {number}"))?));
            }
            let longest = questions.iter().map(|(question, answer)| question.len() + answer.len()).max();
            let prefix = tokenizer.prefix();
            let taken = prefix.len() + needles.iter().map(Vec::len).sum::<usize>() + longest.unwrap_or(0);
            let Some(length) = context.checked_sub(taken).filter(|&length| length >= 4 * NEEDLES) else {
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
            let mut tokens = prefix.to_vec();
            for (number, needle) in needles.iter().enumerate() {
                // Half a part before the first and after the last.
                let at = |number: usize| (2 * number + 1) * length / (2 * NEEDLES);
                tokens.extend(&hay[if number == 0 { 0 } else { at(number - 1) }..at(number)]);
                tokens.extend(needle);
            }
            tokens.extend(&hay[(2 * NEEDLES - 1) * length / (2 * NEEDLES)..]);
            Ok(Record { tokens, questions })
        })
        .collect()
}
