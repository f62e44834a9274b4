//! Retrieval of one line out of a long record of lines, in the style of LongEval.
//!
//! ```text
//! line brisk-harbour: REGISTER_CONTENT is <48213>
//! line humble-violin: REGISTER_CONTENT is <10577>
//! …
//! The REGISTER_CONTENT in line brisk-harbour is <
//! ```

use super::answer::{Answer, Asker};
use super::random::Random;
use super::report::Score;
use super::{Step, exact};
use crate::error::EvalError;
use kvant_cache::Mode;
use kvant_engine::Policy;
use kvant_model::Model;
use kvant_text::tokenizer::{EncodeOptions, Tokenizer};

const ADJECTIVES: [&str; 32] = [
    "amber", "brisk", "calm", "dusty", "eager", "faded", "gentle", "hollow", "icy", "jolly", "keen",
    "lively", "mellow", "narrow", "odd", "plain", "quiet", "rusty", "silent", "tidy", "upper", "vivid",
    "wary", "young", "zesty", "bold", "crisp", "damp", "early", "fresh", "grand", "humble",
];
const NOUNS: [&str; 32] = [
    "anchor", "basket", "candle", "desert", "engine", "feather", "garden", "harbour", "island", "jacket",
    "kettle", "ladder", "meadow", "needle", "orchard", "pebble", "quarry", "ribbon", "saddle", "temple",
    "umbrella", "violin", "window", "yard", "zipper", "bridge", "copper", "drawer", "elbow", "forest",
    "glacier", "hammer",
];

const BEFORE: &str =
    "Below is a record of lines. Each has a name and a REGISTER_CONTENT, which is a number.\n\n";

/// Every name there is, each once, in some order.
pub(super) fn names(random: &mut Random) -> Vec<String> {
    let mut names: Vec<String> =
        ADJECTIVES.iter().flat_map(|a| NOUNS.iter().map(move |n| format!("{a}-{n}"))).collect();
    random.shuffle(&mut names);
    names
}

/// A record with questions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What comes before every question.
    pub tokens: Vec<u32>,
    /// Questions with the tokens of their answers.
    pub questions: Vec<(Vec<u32>, Vec<u32>)>,
}

impl Record {
    /// A record of about `context` tokens, questions included, with `questions` about lines spread over it.
    ///
    /// # Errors
    /// If the vocabulary cannot express it, or the context is too short for two lines.
    pub fn new(
        tokenizer: &Tokenizer,
        context: usize,
        questions: usize,
        seed: u64,
    ) -> Result<Self, EvalError> {
        let mut random = Random::new(seed);
        let names = names(&mut random);
        let encode = |text: &str, add_special: bool| {
            tokenizer.encode(text, EncodeOptions { add_special, parse_special: false })
        };
        let question = |name: &str| format!("\nThe REGISTER_CONTENT in line {name} is <");
        let mut tokens = encode(BEFORE, true)?;
        // Room for the longest question and answer.
        let room = encode(&question("umbrella-umbrella"), false)?.len() + 16;
        let mut lines = Vec::new();
        for name in names {
            let number = 10_000 + random.below(90_000);
            let line = encode(&format!("line {name}: REGISTER_CONTENT is <{number}>\n"), false)?;
            if tokens.len() + line.len() + room > context {
                break;
            }
            tokens.extend(line);
            lines.push((name, number));
        }
        if lines.len() < 2 {
            return Err(EvalError::ContextTooShort { context });
        }
        let asked = questions.min(lines.len());
        let places = (0..asked).map(|i| (2 * i + 1) * lines.len() / (2 * asked));
        let questions = places
            .map(|place| {
                let (name, number) = &lines[place];
                Ok((encode(&question(name), false)?, encode(&format!("{number}>"), false)?))
            })
            .collect::<Result<_, EvalError>>()?;
        Ok(Self { tokens, questions })
    }

    /// Asks everything with every cache; the first score is that of the exact one.
    ///
    /// # Errors
    /// If the model's keys and values cannot be kept that way, or it refuses the record.
    pub fn scores(
        &self,
        model: &Model,
        caches: &[Policy],
        mode: Mode,
        progress: &mut dyn FnMut(Step),
    ) -> Result<Vec<Score>, EvalError> {
        let longest = self.questions.iter().map(|(question, answer)| question.len() + answer.len()).max();
        let capacity = self.tokens.len() + longest.unwrap_or(0);
        let total = (caches.len() + 1) * self.questions.len();
        let (mut truth, mut scores, mut done): (Vec<Answer>, _, _) = (Vec::new(), Vec::new(), 0);
        for (number, cache) in [exact()].iter().chain(caches).enumerate() {
            let mut asker = Asker::new(model, cache, mode, capacity)?;
            let mut score = Score::default();
            for (place, (question, answer)) in self.questions.iter().enumerate() {
                let found = asker.ask(&[&self.tokens[..], question].concat(), answer)?;
                if number == 0 {
                    truth.push(found.clone());
                }
                score
                    .take(f64::from(u8::from(found.is_likeliest)), found.likeliest == truth[place].likeliest);
                score.nll.0 += found.nll();
                score.nll.1 += found.token_nlls.len();
                done += 1;
                progress(Step { done, total });
            }
            scores.push(score);
        }
        Ok(scores)
    }
}

/// Asks everything about every record with every cache; the first score is that of the exact one. Questions about one record are
/// one document when scores are held against each other.
///
/// # Errors
/// As for [`Record::scores`].
pub fn scores(
    records: &[Record],
    model: &Model,
    caches: &[Policy],
    mode: Mode,
    progress: &mut dyn FnMut(Step),
) -> Result<Vec<Score>, EvalError> {
    let total = (caches.len() + 1) * records.iter().map(|record| record.questions.len()).sum::<usize>();
    let (mut sums, mut before) = (vec![Score::default(); caches.len() + 1], 0);
    for record in records {
        let mut show = |step: Step| progress(Step { done: before + step.done, total });
        let scores = record.scores(model, caches, mode, &mut show)?;
        before += (caches.len() + 1) * record.questions.len();
        sums.iter_mut().zip(scores).for_each(|(sum, score)| sum.add(&score.as_document()));
    }
    Ok(sums)
}
