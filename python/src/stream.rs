//! Texts on their way: what a scheduler says of a job, piece by piece.

use crate::error::{bad_value, failed, generation, sampling};
use crate::work::{lock, receive};
use kvant_engine::grammar::Grammar;
use kvant_engine::reply::{ReplyParser, ReplyPart};
use kvant_engine::sampler::SettingValue;
use kvant_engine::scheduler::{Handle, Job, JobError, JobEvent, Listener, Logprobs, Pooling, Refused};
use kvant_engine::{Constraint, Finish, Request, SAMPLING, SamplingOverrides, SamplingParams, Tenant};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(sampling_settings, module)?)?;
    module.add_class::<Stream>()?;
    module.add_class::<Piece>()
}

/// How tokens are chosen and when to stop: a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Settings {
    /// Settings of the sampler by name, as people type them.
    sampling: Vec<(String, String)>,
    logit_bias: Vec<(u32, f32)>,
    pub stop: Vec<String>,
    pub max_tokens: Option<usize>,
    pub logprobs: Option<usize>,
    /// JSON.
    schema: Option<String>,
    grammar: Option<String>,
    regex: Option<String>,
}

impl Settings {
    /// What the text has to be, if anything.
    pub fn grammar(&self) -> PyResult<Option<Grammar>> {
        match (&self.schema, &self.grammar, &self.regex) {
            (None, None, None) => Ok(None),
            (Some(schema), None, None) => {
                let schema = serde_json::from_str(schema).map_err(|e| bad_value(format!("schema: {e}")))?;
                Ok(Some(Grammar::JsonSchema(schema)))
            }
            (None, Some(grammar), None) => Ok(Some(Grammar::Lark(grammar.clone()))),
            (None, None, Some(regex)) => Ok(Some(Grammar::Regex(regex.clone()))),
            _ => Err(bad_value("schema, grammar and regex exclude each other: name one")),
        }
    }

    /// The sampler's part.
    pub fn sampling(&self) -> PyResult<SamplingParams> {
        let mut given = SamplingOverrides::default();
        self.sampling.iter().try_for_each(|(name, text)| given.set(name, text)).map_err(bad_value)?;
        let params = given.over(SamplingParams::usual());
        Ok(SamplingParams { logit_bias: self.logit_bias.clone(), ..params })
    }
}

/// The sampler's settings: their names, kinds, and what holds when nobody says otherwise.
#[pyfunction]
fn sampling_settings() -> Vec<(&'static str, &'static str, String)> {
    let kind = |usual: &SettingValue| match usual {
        SettingValue::Number(_) => "number",
        SettingValue::Count(_) => "count",
        SettingValue::Window(_) => "window",
        SettingValue::Flag(_) => "flag",
        SettingValue::Order(_) => "order",
        _ => "seed",
    };
    SAMPLING.iter().map(|setting| (setting.name, kind(&setting.usual), setting.usual.to_string())).collect()
}

/// What is to be continued, and how it is read.
pub struct Asked {
    pub request: Request,
    /// Splits a turn of a conversation.
    pub parser: Option<ReplyParser>,
    pub constraint: Option<Box<dyn Constraint>>,
}

/// Gives a text to the scheduler.
pub fn submit(handle: &Handle, asked: Asked, logprobs: Option<usize>) -> PyResult<Stream> {
    let Asked { request, parser, constraint } = asked;
    let (sink, events, gone) = sink();
    let job = Job {
        request,
        logprobs,
        prompt_logprobs: false,
        cache_prompt: true,
        embed: None,
        score: None,
        constraint,
        deadline: None,
        owner: 0,
        tenant: Tenant::SHARED,
        listener: Box::new(sink),
    };
    handle.submit(vec![job]).map_err(|e| refused(&e))?;
    Ok(Stream {
        events: Mutex::new(events),
        gone,
        state: Mutex::new(State { parser, seed: 0, is_over: false }),
    })
}

fn refused(error: &Refused) -> PyErr {
    match error {
        Refused::Busy { .. } | Refused::Stopping => failed(error),
        Refused::Sampling(error) => sampling(error),
        error => bad_value(error),
    }
}

fn stopped(error: &JobError) -> PyErr {
    match error {
        JobError::Generate(error) => generation(error),
        JobError::Stopped => failed("the engine is closed"),
        error => failed(error),
    }
}

/// The scheduler's end of a stream.
struct ChannelSink {
    events: Sender<JobEvent>,
    gone: Arc<AtomicBool>,
}

fn sink() -> (ChannelSink, Receiver<JobEvent>, Arc<AtomicBool>) {
    let (events, receiver) = channel();
    let gone = Arc::new(AtomicBool::new(false));
    (ChannelSink { events, gone: Arc::clone(&gone) }, receiver, gone)
}

impl Listener for ChannelSink {
    fn take(&mut self, event: JobEvent) {
        // Whoever has gone away is noticed before the next pass.
        let _ = self.events.send(event);
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

/// Texts whose vectors are being made.
pub struct Waiting {
    sinks: Vec<(Mutex<Receiver<JobEvent>>, Arc<AtomicBool>)>,
}

/// Gives texts to the scheduler whose vectors are wanted.
pub fn submit_embeddings(handle: &Handle, texts: Vec<Vec<u32>>, pooling: Pooling) -> PyResult<Waiting> {
    let (mut jobs, mut sinks) = (Vec::with_capacity(texts.len()), Vec::with_capacity(texts.len()));
    for prompt in texts {
        let (sink, events, gone) = sink();
        jobs.push(Job {
            request: Request { prompt, ..Request::default() },
            logprobs: None,
            prompt_logprobs: false,
            cache_prompt: true,
            embed: Some(pooling),
            score: None,
            constraint: None,
            deadline: None,
            owner: 0,
            tenant: Tenant::SHARED,
            listener: Box::new(sink),
        });
        sinks.push((Mutex::new(events), gone));
    }
    handle.submit(jobs).map_err(|e| refused(&e))?;
    Ok(Waiting { sinks })
}

impl Waiting {
    /// The vectors, in the order of the texts.
    pub fn collect(self, py: Python<'_>) -> PyResult<Vec<Vec<f32>>> {
        self.sinks.iter().map(|(events, _)| vector(py, events)).collect()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.sinks.iter().for_each(|(_, gone)| gone.store(true, Ordering::Release));
    }
}

fn vector(py: Python<'_>, events: &Mutex<Receiver<JobEvent>>) -> PyResult<Vec<f32>> {
    let mut found = Vec::new();
    loop {
        match receive(py, events)? {
            Some(JobEvent::Embedded(vector)) => found = vector,
            Some(JobEvent::Finished { .. }) => return Ok(found),
            Some(JobEvent::Failed(error)) => return Err(stopped(&error)),
            Some(
                JobEvent::Started { .. } | JobEvent::Prompt(_) | JobEvent::Token { .. } | JobEvent::Scored(_),
            ) => {}
            None => return Err(broken()),
        }
    }
}

fn broken() -> PyErr {
    failed(
        "the engine has stopped: an error in its thread, told on stderr, has ended it; open the model again",
    )
}

struct State {
    parser: Option<ReplyParser>,
    seed: u64,
    is_over: bool,
}

/// A text that is being generated.
#[pyclass(frozen, module = "kvant._kvant")]
pub struct Stream {
    events: Mutex<Receiver<JobEvent>>,
    gone: Arc<AtomicBool>,
    state: Mutex<State>,
}

#[pymethods]
impl Stream {
    /// The next piece; none after the last. Ctrl-C ends the text.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Piece>> {
        loop {
            if lock(&self.state).is_over {
                return Ok(None);
            }
            let event = receive(py, &self.events).inspect_err(|_| self.close())?;
            let mut state = lock(&self.state);
            match event {
                Some(JobEvent::Started { seed, .. }) => state.seed = seed,
                Some(JobEvent::Token { token, text, logprobs }) => {
                    let parts = state.parser.as_mut().map(|parser| parser.push(&text));
                    return Ok(Some(Piece::token(token, text, logprobs, parts)));
                }
                Some(JobEvent::Finished { text, finish, usage }) => {
                    state.is_over = true;
                    let parts = state.parser.as_mut().map(|parser| {
                        let mut parts = parser.push(&text);
                        parts.extend(parser.finish());
                        parts
                    });
                    let (reason, stop) = named(&finish);
                    let end = (reason, stop, state.seed, usage.prompt, usage.cached, usage.generated);
                    return Ok(Some(Piece { end: Some(end), ..Piece::text(text, parts) }));
                }
                Some(JobEvent::Failed(error)) => {
                    state.is_over = true;
                    return Err(stopped(&error));
                }
                Some(JobEvent::Prompt(_) | JobEvent::Embedded(_) | JobEvent::Scored(_)) => {}
                None => {
                    state.is_over = true;
                    // A job whose listener is gone ends without a word.
                    return if self.gone.load(Ordering::Acquire) { Ok(None) } else { Err(broken()) };
                }
            }
        }
    }

    /// Ends the text before the next token.
    fn close(&self) {
        self.gone.store(true, Ordering::Release);
        lock(&self.state).is_over = true;
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Release);
    }
}

/// Why a text ended, in the words of OpenAI's interface, and the stop string.
fn named(finish: &Finish) -> (&'static str, Option<String>) {
    match finish {
        Finish::EndOfText(_) => ("stop", None),
        Finish::Stop(text) => ("stop", Some(text.clone())),
        Finish::MaxTokens | Finish::ContextFull => ("length", None),
        Finish::Cancelled => ("cancelled", None),
    }
}

/// Reason, stop string, seed; tokens of the prompt, those found in the cache, and those generated.
type End = (&'static str, Option<String>, u64, usize, usize, usize);

/// A part of a reply: what it is (`reasoning`, `text`, `call`), its text or the function's name, and a call's arguments.
type Part = (&'static str, String, Option<String>);

/// A piece of a text: a token with what it let out, or the end.
#[pyclass(frozen, get_all, module = "kvant._kvant")]
pub struct Piece {
    /// The token; none at the end.
    token: Option<u32>,
    /// More text; may be empty.
    text: String,
    /// The natural logarithm of the token's probability, where asked for.
    logprob: Option<f32>,
    /// The likeliest tokens with theirs.
    top: Vec<(u32, f32)>,
    /// The text split into the parts of a reply, in a conversation.
    parts: Vec<Part>,
    /// Set at the end.
    end: Option<End>,
}

impl Piece {
    fn text(text: String, parts: Option<Vec<ReplyPart>>) -> Self {
        let parts = parts.unwrap_or_default().into_iter().map(part).collect();
        Self { token: None, text, logprob: None, top: Vec::new(), parts, end: None }
    }

    fn token(token: u32, text: String, logprobs: Option<Logprobs>, parts: Option<Vec<ReplyPart>>) -> Self {
        let (logprob, top) = match logprobs {
            Some(found) => (Some(found.chosen), found.top),
            None => (None, Vec::new()),
        };
        Self { token: Some(token), logprob, top, ..Self::text(text, parts) }
    }
}

fn part(part: ReplyPart) -> Part {
    match part {
        ReplyPart::Reasoning(text) => ("reasoning", text, None),
        ReplyPart::Text(text) => ("text", text, None),
        ReplyPart::Call(call) => ("call", call.name, Some(call.arguments)),
    }
}
