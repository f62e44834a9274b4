//! What speculative decoding brings: the same texts with and without, in turns.

use crate::failure::Failure;
use crate::options::Bound;
use crate::screen::grouped;
use crate::table::Column::{Left, Right};
use crate::table::Table;
use kvant_engine::{Engine, LoadedModel, Reply, Request, SamplingParams, SpeculationCounts};
use kvant_text::chat::Message;
use serde_json::json;
use std::io::Write;
use std::ops::ControlFlow;

/// A source file of about 1,000 tokens.
const FILE: &str = include_str!("rewritten.txt");

/// A text to generate.
struct Task {
    name: &'static str,
    prompt: String,
    tokens: usize,
    bound: Option<Bound>,
}

/// Runs of a task, one way.
#[derive(Default)]
struct Runs {
    /// Tokens a second.
    rates: Vec<f64>,
    last: Option<Reply>,
}

fn tasks() -> Vec<Task> {
    let person = json!({
        "type": "object",
        "properties": {"first_name": {"type": "string"}, "last_name": {"type": "string"},
                       "email_address": {"type": "string"}, "age_in_years": {"type": "integer"}},
        "required": ["first_name", "last_name", "email_address", "age_in_years"],
        "additionalProperties": false,
    });
    let people = json!({"type": "array", "items": person, "minItems": 8, "maxItems": 8});
    let rewrite = format!(
        "Rewrite this file with the type `StopStep` renamed to `StopEvent`. Change nothing else. Answer with the whole file and \
         nothing but the file.\n\n```rust\n{FILE}```"
    );
    vec![
        Task { name: "rewrite", prompt: rewrite, tokens: 1100, bound: None },
        Task {
            name: "json",
            prompt: "List eight customers of a bookshop. Make them up.".into(),
            tokens: 400,
            bound: Some(Bound::Schema(people)),
        },
        Task {
            name: "chat",
            prompt: "Why do leaves change their colours in autumn, and why not all of them?".into(),
            tokens: 256,
            bound: None,
        },
    ]
}

fn prompt(engine: &Engine, text: &str) -> Result<Vec<u32>, Failure> {
    Ok(match engine.converses() {
        true => engine.chat_prompt(&[Message::new("user", text)])?,
        false => engine.text_prompt(text)?,
    })
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Measures and prints a table, or one JSON object per row.
pub fn run(opened: &LoadedModel, name: &str, repetitions: usize, is_json: bool) -> Result<(), Failure> {
    let engine = opened.engine();
    if !engine.speculates() {
        return Err(Failure::new(format!("no speculative decoding on {}", engine.device())));
    }
    let mut table = Table::new(&[
        Left("text"),
        Right("tokens"),
        Right("tok/s without"),
        Right("with"),
        Right("ratio"),
        Right("proposed"),
        Right("accepted"),
        Right("tokens a pass"),
    ]);
    let mut out = crate::shown::stdout();
    for task in tasks() {
        let request = Request {
            prompt: prompt(engine, &task.prompt)?,
            sampling: SamplingParams::greedy(),
            max_tokens: Some(task.tokens),
            ..Request::default()
        };
        let [mut plain, mut speculative] = [Runs::default(), Runs::default()];
        for _ in 0..repetitions.max(1) {
            for (speculates, runs) in [(false, &mut plain), (true, &mut speculative)] {
                let mut session = opened.session()?;
                session.set_speculating(speculates);
                let constraint = task.bound.as_ref().map(|bound| bound.compile(engine)).transpose()?;
                let go_on = &mut |_: kvant_engine::Event<'_>| ControlFlow::Continue(());
                let reply = session.generate_within(&request, constraint, go_on)?;
                runs.rates.push(reply.stats.decode_rate().unwrap_or(0.0));
                runs.last = Some(reply);
            }
        }
        let (Some(before), Some(reply)) = (plain.last, speculative.last) else { continue };
        if before.tokens != reply.tokens {
            return Err(Failure::new(format!("{}: another text with speculation than without", task.name)));
        }
        let (before, after) = (median(&plain.rates), median(&speculative.rates));
        let SpeculationCounts { proposed, accepted } = reply.stats.speculation;
        let a_pass = reply.stats.tokens_per_pass().unwrap_or(1.0);
        if is_json {
            let row = json!({
                "test": task.name, "tokens": reply.tokens.len(), "tok_s_without": before, "tok_s_with": after,
                "ratio": after / before, "proposed": proposed, "accepted": accepted, "tokens_per_pass": a_pass,
                "model": name, "device": engine.device(),
            });
            writeln!(out, "{row}")?;
        } else {
            table.row([
                task.name.to_owned(),
                grouped(reply.tokens.len()),
                format!("{before:.1}"),
                format!("{after:.1}"),
                format!("{:.2}", after / before),
                grouped(proposed),
                grouped(accepted),
                format!("{a_pass:.2}"),
            ]);
        }
    }
    if !is_json {
        table.write(&mut out, 0)?;
        writeln!(out, "\n{name}, greedy, median of {repetitions} runs each, in turns; the texts are equal")?;
    }
    Ok(())
}
