//! Text: what is asked for, what is told while it grows, and how it is stopped.

use crate::engine::render_options;
use crate::memory::{Versioned, borrow, handle, list, optional_text, options, text};
use crate::message::{KvantMessage, conversation};
use crate::reply::KvantReply;
use crate::session::KvantSession;
use crate::status::{Failure, KvantStatus, guard};
use kvant_engine::grammar::Grammar;
use kvant_engine::reply::{ParsedReply, ReplyParser, ReplyPart};
use kvant_engine::{Constraint, Event, Request, SamplingOverrides, SamplingParams, Turn, TurnOptions};
use kvant_text::chat::{Message, RenderOptions};
use std::ffi::{c_char, c_void};
use std::ops::ControlFlow;

/// How text is generated. Set struct_size to sizeof, everything else to zero, then fill in: zeros, like a NULL in place of the
/// structure, always take the most likely token and go on until the model ends the text.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KvantGenerateOptions {
    /// sizeof(kvant_generate_options).
    pub struct_size: usize,
    /// The most tokens to generate; 0 for as many as the context holds.
    pub max_tokens: usize,
    /// Texts that end the generation; they are not part of it.
    pub stop: *const *const c_char,
    /// How many there are.
    pub stop_count: usize,
    /// A JSON schema that the answer is kept to; NULL for none.
    pub json_schema: *const c_char,
    /// In a chat: functions that may be called, a JSON array in OpenAI's form; NULL for none.
    pub tools: *const c_char,
    /// In a chat: a JSON object for the template, such as {"enable_thinking": false}; NULL for none.
    pub variables: *const c_char,
    /// Makes a run repeatable; 0 picks a seed.
    pub seed: u64,
    /// Flattens (above 1) or sharpens (below 1) the distribution; 0 always takes the most likely token.
    pub temperature: f32,
    /// Keep the fewest most likely tokens whose probabilities reach this sum; 0 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Divides the positive and multiplies the negative logits of tokens in the history; 0 does nothing.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit for each time it is in the history.
    pub frequency_penalty: f32,
    /// Subtracted from a token's logit if it is in the history.
    pub presence_penalty: f32,
    /// How many of the last tokens the penalties look at; 0 for 64.
    pub penalty_window: usize,
    /// Keep only this many of the most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Settings of the sampler by their names: a JSON object such as {"min_p": 0.05, "seed": 7}. They go before the fields above;
    /// NULL for none.
    pub settings: *const c_char,
}

// SAFETY: numbers and pointers, the first of which is the size.
unsafe impl Versioned for KvantGenerateOptions {}

/// What a callback is told.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvantEventKind {
    /// done of total tokens of the prompt have been read.
    Prefill = 0,
    /// More text: whole characters.
    Text = 1,
    /// In a chat: more of what is thought before the answer.
    Reasoning = 2,
    /// In a chat: a call of the function `name`; text has its arguments, a JSON object.
    ToolCall = 3,
}

/// Something that happens during a generation. Later versions may add fields at the end.
#[repr(C)]
pub struct KvantEvent {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// What happens; values that you do not know are to be ignored.
    pub kind: KvantEventKind,
    /// The text, UTF-8, with a zero at its end; as long as the callback runs.
    pub text: *const c_char,
    /// Bytes of the text, the zero not among them.
    pub length: usize,
    /// The function that is called; NULL in other events.
    pub name: *const c_char,
    /// Tokens of the prompt that have been read.
    pub done: usize,
    /// Tokens of the prompt.
    pub total: usize,
}

/// Is told of a generation as it goes, on the thread that called; anything but 0 stops it. It must not throw, longjmp or free the
/// session, and a use of the session gets KVANT_STATUS_BUSY.
pub type KvantCallback = Option<unsafe extern "C" fn(event: *const KvantEvent, user: *mut c_void) -> i32>;

/// Who listens to a generation.
struct Listener {
    callback: KvantCallback,
    user: *mut c_void,
    /// It wants no more.
    has_stopped: bool,
}

impl Listener {
    fn prefill(&mut self, done: usize, total: usize) {
        self.tell(KvantEventKind::Prefill, "", None, (done, total));
    }

    fn part(&mut self, part: &ReplyPart) {
        match part {
            ReplyPart::Text(text) => self.tell(KvantEventKind::Text, text, None, (0, 0)),
            ReplyPart::Reasoning(text) => self.tell(KvantEventKind::Reasoning, text, None, (0, 0)),
            ReplyPart::Call(call) => {
                self.tell(KvantEventKind::ToolCall, &call.arguments, Some(&call.name), (0, 0));
            }
        }
    }

    fn tell(&mut self, kind: KvantEventKind, text: &str, name: Option<&str>, (done, total): (usize, usize)) {
        let Some(callback) = self.callback.filter(|_| !self.has_stopped) else { return };
        let ended = |text: &str| [text.as_bytes(), &[0]].concat();
        let (own, own_name) = (ended(text), name.map(ended));
        let event = KvantEvent {
            struct_size: size_of::<KvantEvent>(),
            kind,
            text: own.as_ptr().cast(),
            length: text.len(),
            name: own_name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr().cast()),
            done,
            total,
        };
        // SAFETY: the callback's contract; the event lives as long as the call.
        self.has_stopped = unsafe { callback(&raw const event, self.user) } != 0;
    }
}

/// How tokens are chosen.
///
/// # Safety
/// What its pointers lead to is as the header says.
pub(crate) unsafe fn sampling(asked: &KvantGenerateOptions) -> Result<SamplingParams, Failure> {
    let or_one = |number: f32| if number == 0.0 { 1.0 } else { number };
    let fields = SamplingParams {
        temperature: asked.temperature,
        top_k: asked.top_k,
        top_p: or_one(asked.top_p),
        min_p: asked.min_p,
        repetition_penalty: or_one(asked.repetition_penalty),
        frequency_penalty: asked.frequency_penalty,
        presence_penalty: asked.presence_penalty,
        penalty_window: match asked.penalty_window {
            0 => SamplingParams::default().penalty_window,
            tokens => Some(tokens),
        },
        seed: (asked.seed != 0).then_some(asked.seed),
        ..SamplingParams::default()
    };
    // SAFETY: the caller's contract.
    let settings = unsafe { optional_text(asked.settings, "settings") }?;
    let Some(settings) = settings else { return Ok(fields) };
    let object = serde_json::from_str(settings)
        .map_err(|e| Failure::argument(format!("settings are not a JSON object: {e}")))?;
    let given = SamplingOverrides::from_object(&object);
    Ok(given.map_err(|e| Failure::argument(format!("settings: {e}")))?.over(fields))
}

/// # Safety
/// What its pointers lead to is as the header says.
unsafe fn request(asked: &KvantGenerateOptions, prompt: Vec<u32>) -> Result<Request, Failure> {
    // SAFETY: the caller's contract.
    let stops = unsafe { list(asked.stop, asked.stop_count, "stop") }?;
    let stop = stops.iter().enumerate().map(|(index, &stop)| {
        // SAFETY: the caller's contract.
        unsafe { text(stop, &format!("stop {index}")) }.map(str::to_owned)
    });
    Ok(Request {
        prompt,
        // SAFETY: the caller's contract.
        sampling: unsafe { sampling(asked) }?,
        stop: stop.collect::<Result<_, _>>()?,
        max_tokens: (asked.max_tokens > 0).then_some(asked.max_tokens),
        ..Request::default()
    })
}

/// What the answer has to be.
///
/// # Safety
/// What its pointers lead to is as the header says.
unsafe fn format(asked: &KvantGenerateOptions) -> Result<Option<Grammar>, Failure> {
    // SAFETY: the caller's contract.
    let schema = unsafe { optional_text(asked.json_schema, "json_schema") }?;
    let parse = |schema| serde_json::from_str(schema).map_err(|e| schema_refused(&e));
    Ok(schema.map(parse).transpose()?.map(Grammar::JsonSchema))
}

fn schema_refused(error: &dyn std::fmt::Display) -> Failure {
    Failure::argument(format!("json_schema: {error}"))
}

/// The turn that answers a conversation.
///
/// # Safety
/// What the options' pointers lead to is as the header says.
unsafe fn turn(
    session: &KvantSession,
    messages: &[Message],
    asked: &KvantGenerateOptions,
) -> Result<Turn, Failure> {
    // SAFETY: the caller's contract.
    let (rendered, format) = unsafe { (render_options(asked.tools, asked.variables)?, format(asked)?) };
    let RenderOptions { tools, variables, .. } = rendered;
    let options = TurnOptions { tools, variables, format, ..TurnOptions::default() };
    Ok(session.model.opened.engine().turn(messages, options)?)
}

/// Generates within a grammar, and splits what is said if there is a parser.
fn generate(
    session: &KvantSession,
    grammar: Option<&Grammar>,
    request: &Request,
    mut parser: Option<ReplyParser>,
    mut listener: Listener,
) -> Result<KvantReply, Failure> {
    let constraint = match grammar {
        None => None,
        Some(grammar) => {
            let compiled = session.model.compiler()?.compile(grammar).map_err(|e| schema_refused(&e))?;
            Some(Box::new(compiled) as Box<dyn Constraint>)
        }
    };
    let mut held = session.lock()?;
    let mut parsed = ParsedReply::default();
    let mut take = |parts: Vec<ReplyPart>, listener: &mut Listener| {
        parts.iter().for_each(|part| listener.part(part));
        parsed.extend(parts);
    };
    let outcome = held.generate_within(request, constraint, &mut |event| {
        match event {
            Event::Prefill { done, total } => listener.prefill(done, total),
            Event::Text("") => {}
            Event::Text(text) => {
                let parts = match &mut parser {
                    Some(parser) => parser.push(text),
                    None => vec![ReplyPart::Text(text.to_owned())],
                };
                take(parts, &mut listener);
            }
        }
        match listener.has_stopped || session.is_cancelled() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    // Whatever was cancelled is over, also where it failed.
    session.forget_cancelling();
    let reply = outcome?;
    if let Some(parser) = &mut parser {
        take(parser.finish(), &mut listener);
    }
    Ok(KvantReply::new(reply, parsed))
}

/// Continues a prompt: all tokens before the first new one, those that the session holds included, which are not read again.
/// Options, callback and `reply` may be NULL; a reply is freed by the caller.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_session_generate(
    session: *const KvantSession,
    prompt: *const u32,
    count: usize,
    generate_options: *const KvantGenerateOptions,
    callback: KvantCallback,
    user: *mut c_void,
    reply: *mut *mut KvantReply,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (session, prompt, asked) = unsafe {
            let prompt = list(prompt, count, "prompt")?.to_vec();
            (borrow(session, "session")?, prompt, options(generate_options, "options")?)
        };
        // SAFETY: the caller's contract.
        let place = if reply.is_null() { None } else { Some(unsafe { handle(reply, "reply") }?) };
        if !asked.tools.is_null() || !asked.variables.is_null() {
            return Err(Failure::argument("tools and variables are for kvant_session_chat"));
        }
        let listener = Listener { callback, user, has_stopped: false };
        // SAFETY: the caller's contract.
        let made = unsafe {
            let format = format(&asked)?;
            generate(session, format.as_ref(), &request(&asked, prompt)?, None, listener)?
        };
        if let Some(place) = place {
            place.give(made);
        }
        Ok(())
    })
}

/// Answers a conversation, which is given whole each time: what the session holds of it is not read again. The reply is split
/// into reasoning, answer and tool calls. Options, callback and `reply` may be NULL; a reply is freed by the caller.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_session_chat(
    session: *const KvantSession,
    messages: *const KvantMessage,
    count: usize,
    generate_options: *const KvantGenerateOptions,
    callback: KvantCallback,
    user: *mut c_void,
    reply: *mut *mut KvantReply,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (session, turns, asked) = unsafe {
            let turns = conversation(list(messages, count, "messages")?)?;
            (borrow(session, "session")?, turns, options(generate_options, "options")?)
        };
        // SAFETY: the caller's contract.
        let place = if reply.is_null() { None } else { Some(unsafe { handle(reply, "reply") }?) };
        // SAFETY: the caller's contract.
        let turn = unsafe { turn(session, &turns, &asked) }?;
        let listener = Listener { callback, user, has_stopped: false };
        // SAFETY: the caller's contract.
        let made = unsafe {
            let Request { sampling, stop, max_tokens, .. } = request(&asked, Vec::new())?;
            let request = turn.request(sampling, stop, max_tokens);
            generate(session, turn.grammar.as_ref(), &request, Some(turn.parser), listener)?
        };
        if let Some(place) = place {
            place.give(made);
        }
        Ok(())
    })
}
