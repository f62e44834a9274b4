//! Questions with several endings, one of which is right: HellaSwag, ARC and their like, from a file of JSON lines.
//!
//! A line is one question, in one of these forms:
//!
//! ```text
//! {"query": …, "choices": [TEXT, …], "gold": N}
//! {"ctx": …, "endings": [TEXT, …], "label": N}                                            HellaSwag
//! {"question": …, "choices": {"text": [TEXT, …], "label": ["A", …]}, "answerKey": "B"}    ARC
//! ```
//!
//! or one ending of it, and lines of the same `doc_id` belong together:
//!
//! ```text
//! {"request": {"context": …, "continuation": …}, "doc_id": N, "idx": N, "label": N}
//! ```
//!
//! The ending with the least nll per byte is chosen: longer ones are not put at a disadvantage.

use super::answer::Asker;
use super::report::Score;
use super::{Step, exact};
use crate::error::EvalError;
use kvant_cache::Mode;
use kvant_engine::Policy;
use kvant_model::Model;
use kvant_text::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::Value;

/// A question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Endings, each with what comes before it (the same for most sets).
    pub endings: Vec<(String, String)>,
    /// The number of the right one.
    pub right: usize,
}

/// Reads the first `most` questions of a text.
///
/// # Errors
/// Names the first line that is none.
pub fn questions(text: &str, most: usize) -> Result<Vec<Question>, EvalError> {
    let mut found: Vec<Question> = Vec::new();
    let mut document = None;
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |reason: &str| EvalError::NoQuestion { line: number + 1, reason: reason.to_owned() };
        let value: Value = serde_json::from_str(line).map_err(|e| wrong(&e.to_string()))?;
        if let Some(request) = value.get("request") {
            let id = &value["doc_id"];
            let is_new = document.as_ref() != Some(id);
            if is_new && found.len() == most {
                break;
            }
            let ending =
                ending_of(request).ok_or_else(|| wrong("its request has no context or continuation"))?;
            let right = value["label"].as_u64().ok_or_else(|| wrong("it has no label"))? as usize;
            match found.last_mut().filter(|_| !is_new) {
                // Sets for unconditional scoring repeat their endings with another context: those are not wanted.
                Some(question) if value["idx"].as_u64() != Some(question.endings.len() as u64) => (),
                Some(question) => question.endings.push(ending),
                None => found.push(Question { endings: vec![ending], right }),
            }
            document = Some(id.clone());
        } else {
            if found.len() == most {
                break;
            }
            found
                .push(whole(&value).ok_or_else(|| wrong("it has no question, choices and answer that fit"))?);
        }
    }
    match found
        .iter()
        .position(|question| question.right >= question.endings.len() || question.endings.len() < 2)
    {
        Some(at) => Err(EvalError::NoQuestion {
            line: at + 1,
            reason: format!(
                "question {} has {} endings, and number {} is to be right",
                at + 1,
                found[at].endings.len(),
                found[at].right
            ),
        }),
        None if found.is_empty() => {
            Err(EvalError::NoQuestion { line: 1, reason: "there is none".to_owned() })
        }
        None => Ok(found),
    }
}

fn ending_of(request: &Value) -> Option<(String, String)> {
    Some((request["context"].as_str()?.to_owned(), request["continuation"].as_str()?.to_owned()))
}

/// A question on one line.
fn whole(value: &Value) -> Option<Question> {
    let first = |keys: &[&str]| keys.iter().map(|key| &value[*key]).find(|found| !found.is_null());
    let context = first(&["query", "ctx", "question", "context"])?.as_str()?;
    let choices = first(&["choices", "endings"])?;
    let texts = choices.get("text").unwrap_or(choices).as_array()?;
    let right = match first(&["gold", "label", "answerKey"])? {
        Value::Number(number) => number.as_u64()? as usize,
        Value::String(name) => match choices["label"].as_array() {
            Some(names) => names.iter().position(|known| known.as_str() == Some(name))?,
            None => name.parse().ok()?,
        },
        _ => return None,
    };
    let ending = |text: &Value| {
        let text = text.as_str()?;
        // Words are told apart by the space before them.
        let space = if text.starts_with(char::is_whitespace) || context.ends_with(char::is_whitespace) {
            ""
        } else {
            " "
        };
        Some((context.to_owned(), format!("{space}{text}")))
    };
    Some(Question { endings: texts.iter().map(ending).collect::<Option<_>>()?, right })
}

/// Asks everything with every cache; the first score is that of the exact one.
///
/// # Errors
/// If the model's keys and values cannot be kept that way, or the vocabulary cannot express a question.
pub fn scores(
    model: &Model,
    tokenizer: &Tokenizer,
    questions: &[Question],
    caches: &[Policy],
    mode: Mode,
    progress: &mut dyn FnMut(Step),
) -> Result<Vec<Score>, EvalError> {
    let encode = |text: &str, add_special: bool| {
        tokenizer.encode(text, EncodeOptions { add_special, parse_special: false })
    };
    type Encoded = Vec<(Vec<u32>, Vec<u32>, usize)>;
    let mut encoded: Vec<Encoded> = Vec::with_capacity(questions.len());
    for question in questions {
        let ending = |(context, text): &(String, String)| -> Result<_, EvalError> {
            Ok((encode(context, true)?, encode(text, false)?, text.len()))
        };
        encoded.push(question.endings.iter().map(ending).collect::<Result<_, _>>()?);
    }
    let capacity =
        encoded.iter().flatten().map(|(context, ending, _)| context.len() + ending.len()).max().unwrap_or(0);
    let total = (caches.len() + 1) * questions.len();
    let (mut truth, mut scores, mut done): (Vec<usize>, _, _) = (Vec::new(), Vec::new(), 0);
    for (number, cache) in [exact()].iter().chain(caches).enumerate() {
        let mut asker = Asker::new(model, cache, mode, capacity)?;
        let mut score = Score::default();
        for (place, (question, endings)) in questions.iter().zip(&encoded).enumerate() {
            let (mut best, mut least) = (0, f64::INFINITY);
            for (ending, (context, tokens, bytes)) in endings.iter().enumerate() {
                let answer = asker.ask(context, tokens)?;
                let nll = answer.nll() / (*bytes).max(1) as f64;
                if nll < least {
                    (best, least) = (ending, nll);
                }
                if ending == question.right {
                    score.nll.0 += answer.nll();
                    score.nll.1 += answer.token_nlls.len();
                }
            }
            if number == 0 {
                truth.push(best);
            }
            score.take(f64::from(u8::from(best == question.right)), best == truth[place]);
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

    fn read(text: &str) -> Result<Vec<Question>, String> {
        questions(text, 10).map_err(|e| e.to_string())
    }

    #[test]
    fn every_form_gives_the_same_question() {
        let question = Question {
            endings: vec![("Q?".to_owned(), " one".to_owned()), ("Q?".to_owned(), " two".to_owned())],
            right: 1,
        };
        let requests = [(0, "Q?", " one"), (1, "Q?", " two"), (0, "", " one"), (1, "", " two")].map(|(idx, context, ending)| {
            format!(r#"{{"request": {{"context": "{context}", "continuation": "{ending}"}}, "doc_id": 4, "idx": {idx}, "label": 1}}"#)
        });
        for text in [
            r#"{"query": "Q?", "choices": ["one", "two"], "gold": 1}"#,
            r#"{"ctx": "Q?", "endings": ["one", " two"], "label": "1"}"#,
            r#"{"question": "Q?", "choices": {"text": ["one", "two"], "label": ["A", "B"]}, "answerKey": "B"}"#,
            &requests.join("\n"),
        ] {
            assert_eq!(read(text), Ok(vec![question.clone()]), "{text}");
        }
    }

    #[test]
    fn lines_that_are_no_questions_are_named() {
        let good = r#"{"query": "Q?", "choices": ["a", "b"], "gold": 0}"#;
        assert_eq!(questions(&[good; 5].join("\n\n"), 3).unwrap().len(), 3);
        assert!(read(&format!("{good}\n{{")).unwrap_err().contains("line 2"));
        assert!(read("{}").unwrap_err().contains("no question"));
        assert!(
            read(r#"{"query": "Q?", "choices": ["a", "b"], "gold": 7}"#).unwrap_err().contains("number 7")
        );
        assert!(read("").unwrap_err().contains("there is none"));
    }
}
