//! Aggregation, in the manner of RULER: which words of a long list occur most often?
//!
//! No place of the list says so; all of it has to be weighed. The words mean nothing, and their counts fall off with the square of
//! the rank, so that the most frequent ones can be told apart.

use super::lines::Record;
use super::random::Random;
use crate::error::EvalError;
use kvant_text::tokenizer::{EncodeOptions, Tokenizer};

/// Words of a list that are asked for.
pub const ASKED: usize = 3;
/// Words there are.
const WORDS: usize = 60;

const BEFORE: &str = "Below is a list of coded words. Some occur more often than others.\n\n";

/// Lists of about `context` tokens, each with a question for the first, the second and the third most frequent word. The answers
/// before are given with a question.
///
/// # Errors
/// If the vocabulary cannot express it, or the context is too short.
pub fn documents(
    tokenizer: &Tokenizer,
    context: usize,
    documents: usize,
    seed: u64,
) -> Result<Vec<Record>, EvalError> {
    let encode = |text: &str, add_special: bool| {
        tokenizer.encode(text, EncodeOptions { add_special, parse_special: false })
    };
    (0..documents)
        .map(|document| {
            let mut random = Random::new(seed + document as u64);
            let names: Vec<String> = (0..WORDS).map(|_| coded(&mut random)).collect();
            let mut tokens = encode(BEFORE, true)?;
            let mut questions: Vec<(Vec<u32>, Vec<u32>)> = Vec::new();
            let mut asked = String::from("\n\nThe most frequent word is");
            for (place, name) in names.iter().take(ASKED).enumerate() {
                questions.push((encode(&asked, false)?, encode(&format!(" {name}"), false)?));
                let next = ["second", "third"].get(place).unwrap_or(&"last");
                asked.push_str(&format!(" {name}, the {next} most frequent is"));
            }
            let longest = questions.iter().map(|(question, answer)| question.len() + answer.len()).max();
            let words =
                names.iter().map(|name| encode(&format!(" {name}"), false)).collect::<Result<Vec<_>, _>>()?;
            let Some(room) = context.checked_sub(tokens.len() + longest.unwrap_or(0)) else {
                return Err(EvalError::ContextTooShort { context });
            };
            // Shares of 1/rank²; those of the last ones are less than a word.
            let whole: f64 =
                words.iter().enumerate().map(|(rank, word)| word.len() as f64 / share(rank)).sum();
            let mut list: Vec<usize> = Vec::new();
            for rank in 0..WORDS {
                let count = (room as f64 / whole / share(rank)) as usize;
                list.extend(std::iter::repeat_n(rank, count));
            }
            if list.iter().filter(|&&rank| rank == ASKED).count() == 0 {
                return Err(EvalError::ContextTooShort { context });
            }
            random.shuffle(&mut list);
            list.iter().for_each(|&rank| tokens.extend(&words[rank]));
            Ok(Record { tokens, questions })
        })
        .collect()
}

fn share(rank: usize) -> f64 {
    ((rank + 1) * (rank + 1)) as f64
}

/// Six letters, consonants and vowels in turn.
fn coded(random: &mut Random) -> String {
    let letter = |random: &mut Random, of: &[u8]| char::from(of[random.below(of.len())]);
    (0..6).map(|i| letter(random, if i % 2 == 0 { b"bdfgklmnprstvz" } else { b"aeiou" })).collect()
}
