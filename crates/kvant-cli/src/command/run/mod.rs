//! `kvant run`: one prompt, one answer.

mod logprobs;

use crate::command::chat::Chat;
use crate::config::{Config, default_model};
use crate::failure::Failure;
use crate::named::{self, Words};
use crate::options::{
    Bound, ConstraintOptions, ForeignThink, GenerationOptions, ModelOptions, Think, ThoughtTurn, is_shown,
    text_of_flag, think_turn,
};
use crate::output::{Output, Shown};
use crate::report::Report;
use crate::saved::{self, SessionFile, Talk};
use crate::screen::dimmed;
use crate::{interrupt, open};
use clap::Args;
use kvant_engine::grammar::Grammar;
use kvant_engine::reply::{ParsedReply, ReplyParser};
use kvant_engine::tools::ToolCall;
use kvant_engine::{Engine, Finish, Request};
use kvant_text::chat::Message;
use kvant_text::tokenizer::EncodeOptions;
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  kvant run \"Why is the sky blue?\"
  kvant run qwen3:8b --system \"Be brief.\" \"What is a monad?\"
  kvant run model.gguf -f report.txt \"Summarise this report:\"
  git diff | kvant run -f - \"Write a commit message for this diff:\"
  kvant run --session trip.kvant \"Where should I begin?\"
  kvant run --json-schema '{\"type\": \"array\"}' \"Name three rivers.\"
  kvant run --seed 7 --json \"Name three rivers.\" | jq -r .text
  kvant run --logprobs=3 -n 20 \"Name a river.\"
  kvant run --greedy --stop . --raw \"The capital of France is\"

The first argument is a model if it is a file, a folder, a short name, a preset
or a name on Hugging Face. The prompt and files are joined by blank lines. Stdin
is read when it is named (- or -f -), or when there is no other prompt.";

/// Arguments of `kvant run`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Run {
    /// The model; or the prompt, if this is not the name of a model
    #[arg(value_name = "MODEL")]
    first: Option<String>,

    /// The prompt; - for stdin
    #[arg(value_name = "PROMPT", conflicts_with = "model")]
    second: Option<String>,

    #[command(flatten)]
    model: ModelOptions,

    #[command(flatten)]
    generation: GenerationOptions,

    #[command(flatten)]
    constraint: ConstraintOptions,

    /// The prompt, if it could be mistaken for a model
    #[arg(short, long, value_name = "TEXT", conflicts_with = "second", allow_hyphen_values = true)]
    prompt: Option<String>,

    /// Read the prompt, or more of it, from a file (- for stdin); may be repeated
    #[arg(short, long, value_name = "FILE")]
    file: Vec<PathBuf>,

    /// Continue the prompt as plain text, without a chat template (the default for base
    /// models)
    #[arg(long, conflicts_with = "chat")]
    raw: bool,

    /// Use the model's chat template (the default for instruct models)
    #[arg(long)]
    chat: bool,

    /// System prompt: instructions for the model
    #[arg(
        long,
        value_name = "TEXT",
        conflicts_with = "raw",
        alias = "system-prompt",
        allow_hyphen_values = true
    )]
    system: Option<String>,

    /// Save the conversation (or, with --raw, the text) in FILE, and resume it if FILE
    /// exists
    #[arg(long, value_name = "FILE", alias = "prompt-cache")]
    session: Option<PathBuf>,

    /// Whether the model reasons before it answers: on, off, hide (reason, but show only
    /// the answer), low, medium or high [default: the model's own; shown on a terminal]
    #[arg(long, value_name = "HOW", conflicts_with = "raw")]
    think: Option<Think>,

    #[command(flatten)]
    foreign_think: ForeignThink,

    /// Read \n, \t, \\, \" and \' in the prompt as C does
    #[arg(short = 'e', long, hide = true)]
    escape: bool,

    /// One prompt has one answer.
    #[arg(long, hide = true)]
    single_turn: bool,

    /// Functions that the model may call, in OpenAI's form: a JSON file, or the list itself.
    /// Calls are printed as JSON, one to a line
    #[arg(long, value_name = "TOOLS", conflicts_with = "raw")]
    tools: Option<String>,

    /// Also print every token with its probability; with =N also the N most likely tokens in
    /// its place (at most 20)
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "0",
          value_parser = clap::value_parser!(u8).range(0..=20))]
    logprobs: Option<u8>,

    /// Print one JSON object instead of the text
    #[arg(long)]
    json: bool,

    /// Do not print the closing line about speed and memory
    #[arg(short, long)]
    quiet: bool,
}

impl Run {
    pub fn execute(mut self) -> Result<(), Failure> {
        let config = Config::read()?;
        let is_chosen = self.model.model != default_model();
        let words = named::sort(self.first.take(), self.second.take(), is_chosen, &config)?;
        let is_named = words.model.is_some() || words.preset.is_some();
        let Words { model, preset, prompt } = words;
        if let Some(model) = model {
            self.model.model = model;
        }
        self.model.preset = preset.or(self.model.preset.take());
        let preset = config.preset(self.model.preset.as_deref())?;
        self.model.apply(&preset);
        self.generation.apply(&preset);
        if !self.raw {
            self.system = self.system.or(preset.system);
            self.think = self.foreign_think.or(self.think).or(preset.think);
        }
        if let (Some(given), Some(_)) = (&prompt, &self.prompt) {
            return Err(Failure::Usage(format!("`{given}` and --prompt: one prompt is enough")));
        }
        let given = prompt.or(self.prompt.take());
        let given = if self.escape { given.map(|text| unescaped(&text)) } else { given };
        let Some(text) = joined(given, &self.file, self.quiet)? else {
            if is_named && io::stdout().is_terminal() {
                return self.into_chat().begin();
            }
            return Err(Failure::Usage(
                "no prompt: give one as an argument, with -f or through stdin, or use `kvant chat` for a conversation".into(),
            ));
        };
        self.answer(text)
    }

    /// A model and nothing to say to it, at a terminal: a conversation, as Ollama has it.
    fn into_chat(self) -> Chat {
        Chat::with(self.model, self.generation, self.system, self.session, self.think, self.quiet)
    }

    fn answer(self, text: String) -> Result<(), Failure> {
        if text.is_empty() && !self.raw {
            return Err(Failure::Usage("the prompt is empty".into()));
        }
        self.generation.check()?;
        let bound = self.constraint.bound()?;
        if let Some(path) = &self.session {
            saved::check_place(path)?;
        }
        let opened = open::open(&self.model)?;
        let engine = opened.engine();
        let mut session = opened.session()?;
        session.set_logprobs(self.logprobs.map(usize::from));
        let file = self.session.as_deref().map(|path| SessionFile::new(path, &opened)).transpose()?;
        let saved = match &file {
            Some(file) => file.resume(&mut session)?,
            None => None,
        };
        let rule = bound.as_ref().map(|bound| bound.compile(engine)).transpose()?;
        let format = bound.as_ref().map(Bound::grammar);
        let Asked { request, parser, turns } = self.request(engine, text, saved, format)?;

        interrupt::catch()?;
        let shown =
            Shown { answer: !self.json, reasoning: is_shown(self.think), reading: !self.quiet && !self.json };
        let mut output = Output::new(shown, parser);
        let reply = session
            .generate_within(&request, rule, &mut |event| output.take(event))
            .map_err(open::generate_failure)?;
        let parsed = output.end()?;
        let report = Report::new(&opened, &session, &reply)?;
        let words = engine.tokenizer();
        if self.json {
            let mut object = report.json(&self.model.model, &parsed);
            if self.logprobs.is_some() {
                object["logprobs"] = logprobs::json(words, &reply);
            }
            writeln!(crate::shown::stdout(), "{object}")?;
        } else {
            if self.logprobs.is_some() {
                logprobs::table(words, &reply).write(&mut crate::shown::stdout(), 0)?;
            }
            for call in &parsed.calls {
                writeln!(crate::shown::stdout(), "{}", call_json(call))?;
            }
            if reply.finish == Finish::ContextFull {
                let size = session.context();
                eprintln!(
                    "note: the context of {size} tokens is full; --ctx sets a larger one, --window streams without end"
                );
            }
            if !self.quiet {
                eprintln!("{}", dimmed(&report.line()));
            }
        }
        if bound.is_some() && matches!(reply.finish, Finish::MaxTokens | Finish::ContextFull) {
            eprintln!(
                "note: the answer is incomplete: it was cut off after {} tokens, before its schema or grammar ends",
                reply.tokens.len()
            );
        }
        if let Some(file) = &file {
            let talk = match turns {
                Some(Talk::Chat { system, mut turns }) => {
                    turns.push(assistant(parsed));
                    Talk::Chat { system, turns }
                }
                _ => Talk::text(&request, &reply),
            };
            file.save(&session, &talk)?;
        }
        if reply.finish == Finish::Cancelled { Err(Failure::Interrupted) } else { Ok(()) }
    }

    /// The functions that may be called.
    fn tools(&self) -> Result<Vec<Value>, Failure> {
        let Some(given) = &self.tools else { return Ok(Vec::new()) };
        let text = text_of_flag(given)?;
        let wrong = |why: &dyn std::fmt::Display| {
            Failure::Usage(format!(
                "--tools: a list of functions in OpenAI's form is needed, as JSON or in a file: {why}"
            ))
        };
        serde_json::from_str(&text).map_err(|e| wrong(&e))
    }

    /// What to generate; an answer of a conversation is kept to `format`.
    fn request(
        &self,
        engine: &Engine,
        text: String,
        saved: Option<Talk>,
        format: Option<Grammar>,
    ) -> Result<Asked, Failure> {
        let usual = match &saved {
            Some(Talk::Chat { .. }) => true,
            Some(Talk::Text { .. }) => false,
            None => engine.converses(),
        };
        let chat = (usual && !self.raw) || self.chat || self.system.is_some();
        let GenerationOptions { stop, max_tokens, .. } = &self.generation;
        let (sampling, stop, max_tokens) = (self.generation.sampling(), stop.clone(), *max_tokens);
        let continued = |prompt, sampling, stop| Asked {
            request: Request { prompt, sampling, stop, max_tokens, ..Request::default() },
            parser: None,
            turns: None,
        };
        match (chat, saved) {
            (true, Some(Talk::Text { .. })) => Err(Failure::Usage(
                "the session is a text, not a conversation: continue it with --raw".into(),
            )),
            (false, Some(Talk::Chat { .. })) => {
                Err(Failure::Usage("the session is a conversation, not a text: leave out --raw".into()))
            }
            (true, saved) => {
                let (system, mut turns) = match saved {
                    Some(Talk::Chat { system, turns }) => (system, turns),
                    _ => (None, Vec::new()),
                };
                let system = self.system.clone().or(system);
                turns.push(Message::new("user", text));
                let instructions = system.iter().map(|text| Message::new("system", text));
                let messages: Vec<Message> = instructions.chain(turns.iter().cloned()).collect();
                let ThoughtTurn { turn, remark } =
                    think_turn(engine, &messages, self.think, format, self.tools()?)?;
                remark.iter().for_each(|remark| eprintln!("note: --think: {remark}"));
                let request = turn.request(sampling, stop, max_tokens);
                let turns = Some(Talk::Chat { system, turns });
                Ok(Asked { request, parser: Some(turn.parser), turns })
            }
            (false, Some(Talk::Text { tokens })) => {
                // Some vocabularies begin every text with a space; to add nothing is to add no space either.
                let more = match text.is_empty() {
                    true => Vec::new(),
                    false => engine.tokenizer().encode(&text, EncodeOptions::default())?,
                };
                Ok(continued([tokens, more].concat(), sampling, stop))
            }
            (false, None) => Ok(continued(engine.text_prompt(&text)?, sampling, stop)),
        }
    }
}

/// What is generated.
struct Asked {
    request: Request,
    /// Splits a turn of a conversation.
    parser: Option<ReplyParser>,
    /// The turns that lead to it.
    turns: Option<Talk>,
}

/// A call for programs: the name, and the arguments as an object where they are one.
pub fn call_json(call: &ToolCall) -> Value {
    let arguments = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!(call.arguments));
    json!({"name": call.name, "arguments": arguments})
}

/// A turn as the next prompt will have it.
pub fn assistant(said: ParsedReply) -> Message {
    let turn = Message::new("assistant", said.text);
    if said.reasoning.is_empty() { turn } else { turn.with("reasoning_content", said.reasoning) }
}

/// The prompt as given and files, with blank lines between them; `None` where there is nothing of the kind, at a terminal.
///
/// **Invariant:** stdin is read only when it is named (`-`) or when there is no other prompt: a loop over lines that runs kvant
/// keeps its lines, and an open pipe that nobody writes to delays nothing.
fn joined(given: Option<String>, files: &[PathBuf], is_quiet: bool) -> Result<Option<String>, Failure> {
    let is_stdin = |path: &PathBuf| path.as_os_str() == "-";
    let is_named = given.as_deref() == Some("-") || files.iter().any(is_stdin);
    let given = given.filter(|text| text != "-");
    if !is_named && given.is_none() && files.is_empty() {
        return if io::stdin().is_terminal() { Ok(None) } else { stdin_text().map(Some) };
    }
    let mut parts: Vec<String> = given.into_iter().collect();
    for path in files.iter().filter(|path| !is_stdin(path)) {
        let bytes = std::fs::read(path).map_err(|e| Failure::new(format!("-f {}: {e}", path.display())))?;
        parts.push(text_of(bytes, &format!("-f {}", path.display()))?);
    }
    if is_named {
        parts.push(stdin_text()?);
    } else if is_piped() && !is_quiet {
        eprintln!("note: stdin was not read; `-f -` adds it to the prompt");
    }
    parts.retain(|part| !part.is_empty());
    Ok(Some(parts.join("\n\n")))
}

/// How long stdin may keep silent before a line says what is waited for.
const SILENCE: Duration = Duration::from_secs(2);

/// All of stdin. Where it stays open for long, a line says that it is being read.
fn stdin_text() -> Result<String, Failure> {
    let (done, waiting) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        if waiting.recv_timeout(SILENCE) == Err(RecvTimeoutError::Timeout) {
            eprintln!("note: reading the prompt from stdin until it ends");
        }
    });
    let mut bytes = Vec::new();
    let read = io::stdin().lock().read_to_end(&mut bytes);
    drop(done);
    read.map_err(|e| Failure::new(format!("cannot read the prompt from stdin: {e}")))?;
    text_of(bytes, "stdin")
}

/// Whether another program writes to stdin.
#[cfg(unix)]
fn is_piped() -> bool {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileTypeExt;
    let stdin = io::stdin().as_fd().try_clone_to_owned().map(std::fs::File::from);
    stdin.and_then(|file| file.metadata()).is_ok_and(|about| about.file_type().is_fifo())
}

#[cfg(not(unix))]
fn is_piped() -> bool {
    false
}

/// A prompt with its escapes read as C does; what is none stays.
fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (letter, letters.clone().next()) {
            ('\\', Some(next @ ('n' | 't' | 'r' | '\\' | '"' | '\''))) => {
                letters.next();
                out.push(match next {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    other => other,
                });
            }
            _ => out.push(letter),
        }
    }
    out
}

/// Text without its last line break.
fn text_of(bytes: Vec<u8>, place: &str) -> Result<String, Failure> {
    let text = String::from_utf8(bytes)
        .map_err(|e| Failure::new(format!("{place}: the prompt is not UTF-8 text: {}", e.utf8_error())))?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}
