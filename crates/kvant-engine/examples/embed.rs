//! kvant inside another program: two engines with a thread pool each in one process, steps one by one, and an answer kept to a
//! JSON schema.
//!
//! ```text
//! cargo run --release -p kvant-engine --features grammar --example embed -- MODEL.gguf [OTHER.gguf]
//! ```

use kvant_engine::grammar::{Grammar, GrammarCompiler};
use kvant_engine::{Engine, LoadOptions, Policy, Request, Sampler, SamplingParams, Session};
use kvant_model::Checkpoint;
use kvant_threads::Pool;
use std::error::Error;
use std::ops::ControlFlow;
use std::sync::Arc;

type Failure = Box<dyn Error + Send + Sync>;

/// An engine with a pool of its own: it shares nothing with another one.
fn open(path: &str, threads: usize) -> Result<Arc<Engine>, Failure> {
    let checkpoint = Checkpoint::open(path)?;
    Ok(Arc::new(Engine::load_on(Pool::new(threads), &checkpoint, LoadOptions::default())?))
}

/// Text by prefill, sampling and steps as separate calls.
fn steps(mut session: Session, prompt: &str, count: usize) -> Result<String, Failure> {
    let engine = Arc::clone(session.engine());
    let ids = engine.text_prompt(prompt)?;
    let mut sampler = Sampler::new(SamplingParams::greedy())?;
    let mut token = sampler.sample(session.prefill(&ids)?)?;
    let mut bytes = Vec::new();
    for _ in 0..count {
        bytes.extend_from_slice(engine.tokenizer().text_bytes(token).unwrap_or_default());
        token = sampler.sample(session.step(token)?)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// An answer that is JSON of a schema.
fn schema(engine: &Arc<Engine>, prompt: &str) -> Result<String, Failure> {
    let schema = serde_json::json!({
        "type": "object",
        "properties": { "colour": { "enum": ["blue", "red", "green"] } },
        "required": ["colour"],
        "additionalProperties": false
    });
    let constraint = GrammarCompiler::new(engine.tokenizer())?.compile(&Grammar::JsonSchema(schema))?;
    let mut session = engine.session("int4".parse::<Policy>()?, 512)?;
    let request = Request {
        prompt: engine.text_prompt(prompt)?,
        sampling: SamplingParams::greedy(),
        max_tokens: Some(64),
        ..Request::default()
    };
    Ok(session
        .generate_within(&request, Some(Box::new(constraint)), &mut |_| ControlFlow::Continue(()))?
        .text)
}

fn main() -> Result<(), Failure> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let first = paths.first().ok_or("name a model: a GGUF file or a folder with safetensors")?;
    let engines = [open(first, 1)?, open(paths.get(1).unwrap_or(first), 1)?];
    // Sessions are Send: each goes to a thread of its own, and both engines work at the same time.
    let prompts = ["The sky is", "Once upon a time"];
    let texts: Vec<Result<String, Failure>> = std::thread::scope(|scope| {
        let run = |(engine, prompt): (&Arc<Engine>, &'static str)| {
            let engine = Arc::clone(engine);
            scope.spawn(move || steps(engine.session("int4".parse::<Policy>()?, 512)?, prompt, 16))
        };
        let running: Vec<_> = engines.iter().zip(prompts).map(run).collect();
        running
            .into_iter()
            .map(|one| one.join().unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect()
    });
    for (prompt, text) in prompts.into_iter().zip(texts) {
        println!("{prompt}{}", text?);
    }
    println!("{}", schema(&engines[0], "The colour of the sky, as JSON: ")?);
    Ok(())
}
