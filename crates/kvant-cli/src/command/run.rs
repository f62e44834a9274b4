//! `kvant run`: one prompt, one answer.

use crate::failure::Failure;
use crate::interrupt;
use crate::open;
use crate::options::{GenerationOptions, ModelOptions};
use crate::output::{Output, Reasoning};
use crate::report::Report;
use crate::saved::{SessionFile, Talk};
use clap::Args;
use kvant_engine::reply::ParsedReply;
use kvant_engine::{Engine, Finish, Request};
use kvant_model::chat::Message;
use kvant_model::tokenizer::EncodeOptions;
use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  kvant run \"Why is the sky blue?\"
  kvant run -m Qwen/Qwen2.5-0.5B-Instruct-GGUF:q4_k_m --system \"Be brief.\" \"What is a monad?\"
  kvant run --session trip.kvant \"Where should I begin?\"
  git diff | kvant run -m coder.gguf --raw -n 200
  kvant run --seed 7 --json \"Name three rivers.\" | jq -r .text
  kvant run --greedy --stop . --raw \"The capital of France is\"";

/// Arguments of `kvant run`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Run {
    /// The prompt; without it, or as -, it is read from stdin
    prompt: Option<String>,

    #[command(flatten)]
    model: ModelOptions,

    #[command(flatten)]
    generation: GenerationOptions,

    /// Continue the prompt as it is (what base models do without being told)
    #[arg(long, conflicts_with = "chat")]
    raw: bool,

    /// Put the prompt through the model's chat template (what instruct models do without being told)
    #[arg(long)]
    chat: bool,

    /// Instructions that come before the prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,

    /// Save the conversation (or, with --raw, the text) in FILE afterwards, and go on from it if it exists
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,

    /// What a model reasons before its answer [default: show on a terminal]
    #[arg(long, value_name = "HOW", conflicts_with = "raw")]
    reasoning: Option<Reasoning>,

    /// Print one JSON object at the end in place of the text
    #[arg(long)]
    json: bool,

    /// Leave out the closing line about speed and memory
    #[arg(short, long)]
    quiet: bool,
}

impl Run {
    pub fn execute(mut self) -> Result<(), Failure> {
        let text = prompt(self.prompt.take())?;
        if text.is_empty() && !self.raw {
            return Err(Failure::Usage("the prompt is empty".into()));
        }
        self.generation.check()?;
        let opened = open::open(&self.model)?;
        let mut session = opened.session()?;
        let file = self.session.as_deref().map(|path| SessionFile::new(path, &opened)).transpose()?;
        let saved = match &file {
            Some(file) => file.resume(&mut session)?,
            None => None,
        };
        let (request, turns) = self.request(opened.engine(), text, saved)?;

        interrupt::catch()?;
        let parser = turns.is_some().then(|| opened.engine().reply_parser(&request.prompt, &[]));
        let mut output = Output::new(!self.json, Reasoning::or_usual(self.reasoning), parser);
        let reply = session.generate(&request, &mut |event| output.take(event))?;
        let parsed = output.end()?;
        let report = Report::new(opened.engine(), &session, &reply)?;
        if self.json {
            writeln!(io::stdout(), "{}", report.json(&self.model.model, &parsed))?;
        } else {
            if reply.finish == Finish::ContextFull {
                let size = session.context();
                eprintln!(
                    "note: the context of {size} tokens is full; --ctx sets a larger one, --window goes on without end"
                );
            }
            if !self.quiet {
                eprintln!("{}", report.line());
            }
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

    /// What to generate, and for a conversation the turns that lead to it.
    fn request(
        &self,
        engine: &Engine,
        text: String,
        saved: Option<Talk>,
    ) -> Result<(Request, Option<Talk>), Failure> {
        let usual = match &saved {
            Some(Talk::Chat { .. }) => true,
            Some(Talk::Text { .. }) => false,
            None => engine.converses(),
        };
        let chat = (usual && !self.raw) || self.chat || self.system.is_some();
        let request = |prompt| Request {
            prompt,
            sampling: self.generation.sampling(),
            stop: self.generation.stop.clone(),
            max_tokens: self.generation.max_tokens,
            trim_start: chat,
            markers: if chat { engine.reply_markers().to_vec() } else { Vec::new() },
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
                Ok((request(engine.chat_prompt(&messages)?), Some(Talk::Chat { system, turns })))
            }
            (false, Some(Talk::Text { tokens })) => {
                // Some vocabularies begin every text with a space; to add nothing is to add no space either.
                let more = match text.is_empty() {
                    true => Vec::new(),
                    false => engine.tokenizer().encode(&text, EncodeOptions::default())?,
                };
                Ok((request([tokens, more].concat()), None))
            }
            (false, None) => Ok((request(engine.text_prompt(&text)?), None)),
        }
    }
}

/// A turn as the next prompt will have it.
pub fn assistant(said: ParsedReply) -> Message {
    let turn = Message::new("assistant", said.text);
    if said.reasoning.is_empty() { turn } else { turn.with("reasoning_content", said.reasoning) }
}

/// The prompt as given, or all of stdin without its last line break.
fn prompt(given: Option<String>) -> Result<String, Failure> {
    if let Some(text) = given.filter(|text| text != "-") {
        return Ok(text);
    }
    let mut stdin = io::stdin().lock();
    if stdin.is_terminal() {
        return Err(Failure::Usage(
            "no prompt: give one as an argument or through stdin, or use `kvant chat` for a conversation"
                .into(),
        ));
    }
    let mut bytes = Vec::new();
    stdin
        .read_to_end(&mut bytes)
        .map_err(|e| Failure::new(format!("cannot read the prompt from stdin: {e}")))?;
    let text = String::from_utf8(bytes)
        .map_err(|e| Failure::new(format!("the prompt on stdin is not UTF-8 text: {}", e.utf8_error())))?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}
