//! What speculative decoding brings: the same texts with and without, in turns.

use crate::failure::Failure;
use crate::options::Bound;
use crate::screen::grouped;
use crate::table::Column::{Left, Right};
use crate::table::Table;
use kvant_engine::scheduler::{Job, JobEvent, Listener, Scheduler, SchedulerOptions};
use kvant_engine::{Engine, Event, LoadedModel, Request, SamplingParams, SpeculationCounts};
use kvant_text::chat::Message;
use serde_json::json;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The texts, and a name for all of them.
pub const NAMES: [&str; 5] = ["rewrite", "json", "chat", "batch", ALL];

/// All texts.
pub const ALL: &str = "all";

/// A source file of about 1,000 tokens.
const FILE: &str = include_str!("rewritten.txt");

/// Questions for a batch. Some have answers that repeat what was said, most have not.
const QUESTIONS: [&str; 8] = [
    "Why do leaves change their colours in autumn, and why not all of them?",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "Explain how a bicycle stays upright.",
    "What should I look for when I buy a used car?",
    "List the numbers from 1 to 40 as words, one per line.",
    "Write a Python class for a bank account with deposit, withdraw and transfer.",
    "Give me a recipe for vegetable soup.",
    "Repeat this sentence five times: The quick brown fox jumps over the lazy dog near the river bank.",
];

/// Texts to generate at once.
struct Workload {
    name: &'static str,
    prompts: Vec<String>,
    /// Tokens of each, at most.
    tokens: usize,
    bound: Option<Bound>,
}

/// What came of them once.
struct Timed {
    texts: Vec<Vec<u32>>,
    rates: Rates,
    counts: SpeculationCounts,
    tokens_per_pass: f64,
}

/// Tokens a second, by two clocks.
#[derive(Clone, Copy, Default)]
struct Rates {
    clock: f64,
    /// Of the processors' time, where the system tells: what other programs do hardly changes it.
    processor: Option<f64>,
}

/// A moment on both clocks.
#[derive(Clone, Copy)]
struct Moment {
    clock: Instant,
    processor: Option<f64>,
}

impl Moment {
    fn now() -> Self {
        Self { clock: Instant::now(), processor: processor_seconds() }
    }

    /// What so many tokens since then come to.
    fn rates(self, tokens: usize) -> Rates {
        let processor =
            processor_seconds().zip(self.processor).map(|(now, then)| tokens as f64 / (now - then));
        Rates { clock: tokens as f64 / self.clock.elapsed().as_secs_f64(), processor }
    }
}

/// Seconds that processors have spent on the threads of this program, on Linux.
fn processor_seconds() -> Option<f64> {
    let mut sum = 0.0;
    for thread in std::fs::read_dir("/proc/self/task").ok()? {
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        sum += text.split_whitespace().next()?.parse::<f64>().ok()? / 1e9;
    }
    Some(sum)
}

fn task(name: &str) -> Workload {
    match name {
        "rewrite" => Workload {
            name: "rewrite",
            prompts: vec![format!(
                "Rewrite this file with the type `StopStep` renamed to `StopEvent`. Change nothing else. Answer with the whole file \
                 and nothing but the file.\n\n```rust\n{FILE}```"
            )],
            tokens: 1100,
            bound: None,
        },
        "json" => Workload {
            name: "json",
            prompts: vec![
                "Register these customers of a bookshop, one tool call each: Ada Lovelace, 36, ada@engine.example; Alan Turing, 41, \
                 alan@bombe.example; Grace Hopper, 85, grace@cobol.example; Edsger Dijkstra, 72, edsger@path.example; Barbara \
                 Liskov, 84, barbara@types.example; Donald Knuth, 86, donald@tex.example."
                    .into(),
            ],
            tokens: 400,
            bound: Some(Bound::Schema(tool_calls())),
        },
        "chat" => Workload { name: "chat", prompts: vec![QUESTIONS[0].into()], tokens: 256, bound: None },
        _ => Workload { name: "batch", prompts: QUESTIONS.map(str::to_owned).to_vec(), tokens: 96, bound: None },
    }
}

/// Six calls of a tool.
fn tool_calls() -> serde_json::Value {
    let customer = json!({
        "type": "object",
        "properties": {"first_name": {"type": "string"}, "last_name": {"type": "string"},
                       "email_address": {"type": "string"}, "age_in_years": {"type": "integer"}},
        "required": ["first_name", "last_name", "email_address", "age_in_years"],
        "additionalProperties": false,
    });
    let call = json!({
        "type": "object",
        "properties": {"name": {"const": "register_customer"}, "arguments": customer},
        "required": ["name", "arguments"],
        "additionalProperties": false,
    });
    json!({"type": "array", "items": call, "minItems": 6, "maxItems": 6})
}

fn prompt(engine: &Engine, text: &str) -> Result<Vec<u32>, Failure> {
    Ok(match engine.converses() {
        true => engine.chat_prompt(&[Message::new("user", text)])?,
        false => engine.text_prompt(text)?,
    })
}

impl Workload {
    fn run(&self, opened: &LoadedModel, speculates: bool) -> Result<Timed, Failure> {
        let request = |text: &String| {
            Ok(Request {
                prompt: prompt(opened.engine(), text)?,
                sampling: SamplingParams::greedy(),
                max_tokens: Some(self.tokens),
                ..Request::default()
            })
        };
        let requests = self.prompts.iter().map(request).collect::<Result<Vec<Request>, Failure>>()?;
        match requests.as_slice() {
            [request] => self.run_alone(opened, request, speculates),
            _ => run_batch(opened, requests, speculates),
        }
    }

    fn run_alone(&self, opened: &LoadedModel, request: &Request, speculates: bool) -> Result<Timed, Failure> {
        let mut session = opened.session()?;
        session.set_speculating(speculates);
        let constraint = self.bound.as_ref().map(|bound| bound.compile(opened.engine())).transpose()?;
        // The first token comes with the prompt.
        let mut begun = None;
        let reply = session.generate_within(request, constraint, &mut |event| {
            if let Event::Text(_) = event {
                begun.get_or_insert_with(Moment::now);
            }
            ControlFlow::Continue(())
        })?;
        Ok(Timed {
            rates: begun.map_or_else(Rates::default, |begun| begun.rates(reply.stats.decoded)),
            counts: reply.stats.speculation,
            tokens_per_pass: reply.stats.tokens_per_pass().unwrap_or(1.0),
            texts: vec![reply.tokens],
        })
    }
}

/// Hears the texts of a batch.
#[derive(Default)]
struct Hall {
    texts: Vec<Vec<u32>>,
    counts: SpeculationCounts,
    /// When all prompts were read, and the tokens chosen by then.
    begun: Option<(Moment, usize)>,
    failed: Option<String>,
}

impl Hall {
    fn tokens(&self) -> usize {
        self.texts.iter().map(Vec::len).sum()
    }
}

struct Seat {
    hall: Arc<Mutex<Hall>>,
    index: usize,
}

impl Listener for Seat {
    fn take(&mut self, event: JobEvent) {
        let mut hall = self.hall.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            JobEvent::Token { token, .. } => {
                hall.texts[self.index].push(token);
                if hall.begun.is_none() && hall.texts.iter().all(|text| !text.is_empty()) {
                    hall.begun = Some((Moment::now(), hall.tokens()));
                }
            }
            JobEvent::Finished { usage, .. } => {
                hall.counts.proposed += usage.speculation.proposed;
                hall.counts.accepted += usage.speculation.accepted;
            }
            JobEvent::Failed(error) => hall.failed = Some(error.to_string()),
            _ => {}
        }
    }

    fn is_gone(&self) -> bool {
        false
    }
}

/// All texts in the passes of one scheduler, timed from when all prompts are read.
fn run_batch(opened: &LoadedModel, requests: Vec<Request>, speculates: bool) -> Result<Timed, Failure> {
    let options = SchedulerOptions { most_running: requests.len(), ..SchedulerOptions::default() };
    let scheduler = Scheduler::new(Arc::clone(opened.engine()), opened.shared_cache()?, options);
    let mut scheduler = scheduler.speculating(speculates);
    let count = requests.len();
    let hall = Arc::new(Mutex::new(Hall { texts: vec![Vec::new(); count], ..Hall::default() }));
    let jobs = requests
        .into_iter()
        .enumerate()
        .map(|(index, request)| Job::new(request, Box::new(Seat { hall: Arc::clone(&hall), index })));
    let handle = scheduler.handle();
    handle.submit(jobs.collect()).map_err(|refused| Failure::new(refused.to_string()))?;
    while scheduler.step() {}
    let passes = handle.counters().passes;
    let hall = hall.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = &hall.failed {
        return Err(Failure::new(error.clone()));
    }
    let (begun, before) = hall.begun.ok_or_else(|| Failure::new("a text of the batch has no tokens"))?;
    Ok(Timed {
        texts: hall.texts.clone(),
        rates: begun.rates(hall.tokens() - before),
        counts: hall.counts,
        tokens_per_pass: hall.tokens() as f64 / passes.max(1) as f64,
    })
}

fn best(rates: impl Iterator<Item = f64>) -> f64 {
    rates.fold(0.0, f64::max)
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Measures and prints a table, or one JSON object per row.
pub fn run(
    opened: &LoadedModel,
    model: &str,
    texts: &[String],
    repetitions: usize,
    is_json: bool,
) -> Result<(), Failure> {
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
        Right("median"),
        Right("by CPU time"),
        Right("proposed"),
        Right("accepted"),
        Right("tokens a pass"),
    ]);
    let mut out = crate::shown::stdout();
    let is_asked = |name: &&&str| texts.iter().any(|text| text == **name || text == ALL);
    for name in NAMES.iter().filter(|name| **name != ALL).filter(is_asked) {
        let task = task(name);
        let [mut without, mut with] = [Vec::<Rates>::new(), Vec::new()];
        let mut ratios = Vec::new();
        let mut last = None;
        for _ in 0..repetitions.max(1) {
            let plain = task.run(opened, false)?;
            let speculative = task.run(opened, true)?;
            if plain.texts != speculative.texts {
                return Err(Failure::new(format!(
                    "{}: another text with speculation than without",
                    task.name
                )));
            }
            without.push(plain.rates);
            with.push(speculative.rates);
            ratios.push(speculative.rates.clock / plain.rates.clock);
            last = Some(speculative);
        }
        let Some(Timed { texts, counts, tokens_per_pass, .. }) = last else { continue };
        let by_clock = |rates: &[Rates]| best(rates.iter().map(|rates| rates.clock));
        let by_processor = |rates: &[Rates]| best(rates.iter().filter_map(|rates| rates.processor));
        let (before, after, usual) = (by_clock(&without), by_clock(&with), median(&ratios));
        let of_processors =
            Some(by_processor(&with) / by_processor(&without)).filter(|ratio| ratio.is_finite());
        let SpeculationCounts { proposed, accepted } = counts;
        let tokens: usize = texts.iter().map(Vec::len).sum();
        if is_json {
            let row = json!({
                "test": task.name, "tokens": tokens, "tok_s_without": before, "tok_s_with": after,
                "ratio": after / before, "ratio_median": usual, "ratio_processor": of_processors,
                "ratios": ratios, "proposed": proposed, "accepted": accepted,
                "tokens_per_pass": tokens_per_pass, "model": model, "device": engine.device(),
                "threads": engine.pool().threads(), "kv": opened.policy().to_string(),
            });
            writeln!(out, "{row}")?;
            out.flush()?;
        } else {
            table.row([
                task.name.to_owned(),
                grouped(tokens),
                format!("{before:.1}"),
                format!("{after:.1}"),
                format!("{:.2}", after / before),
                format!("{usual:.2}"),
                of_processors.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
                grouped(proposed),
                grouped(accepted),
                format!("{tokens_per_pass:.2}"),
            ]);
        }
    }
    if !is_json {
        table.write(&mut out, 0)?;
        writeln!(
            out,
            "\n{model}, greedy, in turns, {}: the best of each way, their ratio, the median of the ratios of two \
             turns, and the ratio by the processors' time; the texts are equal",
            super::runs_each(repetitions)
        )?;
    }
    Ok(())
}
