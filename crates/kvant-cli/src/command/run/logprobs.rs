//! The tokens of an answer, and how likely the model found them.

use crate::table::Column::{Left, Right};
use crate::table::Table;
use kvant_engine::Reply;
use kvant_engine::scheduler::Logprobs;
use kvant_text::tokenizer::Tokenizer;
use serde_json::{Value, json};

/// A token's text; bytes that are no character are shown as such.
fn text(words: &Tokenizer, token: u32) -> String {
    String::from_utf8_lossy(words.token_bytes(token).unwrap_or_default()).into_owned()
}

/// A probability for people.
fn percent(logprob: f32) -> String {
    format!("{:.2} %", 100.0 * f64::from(logprob).exp())
}

/// One row for each token; on the right the likeliest ones, if any are asked for.
pub fn table(words: &Tokenizer, reply: &Reply) -> Table {
    let quoted = |token| format!("{:?}", text(words, token));
    let mut table = Table::new(&[Right("id"), Left("token"), Right("probability"), Left("likeliest")]);
    for (&token, found) in reply.tokens.iter().zip(&reply.logprobs) {
        let top = found.top.iter().map(|&(token, logprob)| format!("{} {}", quoted(token), percent(logprob)));
        let top = top.collect::<Vec<_>>().join(", ");
        table.row([token.to_string(), quoted(token), percent(found.chosen), top]);
    }
    table
}

/// The same for programs: natural logarithms, as OpenAI's API has them.
pub fn json(words: &Tokenizer, reply: &Reply) -> Value {
    // JSON has no minus infinity.
    let entry = |token: u32, logprob: f32| json!({"id": token, "token": text(words, token), "logprob": logprob.max(f32::MIN)});
    let whole = |(&token, found): (&u32, &Logprobs)| {
        let mut whole = entry(token, found.chosen);
        whole["top_logprobs"] = found.top.iter().map(|&(token, logprob)| entry(token, logprob)).collect();
        whole
    };
    reply.tokens.iter().zip(&reply.logprobs).map(whole).collect()
}
