//! `kvant chat`: a conversation.

mod conversation;
mod full;
mod history;
mod input;
mod offer;
mod slash;

use crate::config::{Config, DEFAULT_MODEL, default_model};
use crate::failure::Failure;
use crate::named;
use crate::open;
use crate::options::{ForeignThink, GenerationOptions, ModelOptions, Think};
use crate::saved::{self, SessionFile, Talk};
use crate::{interrupt, screen};
use clap::Args;
use conversation::Conversation;
use input::{Input, Line};
use slash::Slash;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  kvant chat
  kvant chat qwen3:8b --system \"You are a patient teacher.\"
  kvant chat model.gguf --session letters.kvant

In the conversation, /help lists the commands. Ctrl-C stops an answer. Ctrl-D,
/exit, or Ctrl-C twice on an empty line leave. A backslash at the end of a line
continues the message on the next line; \"\"\" begins and ends several lines.";

/// Arguments of `kvant chat`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Chat {
    /// The model, or a preset; the same as --model
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    named: Option<String>,

    #[command(flatten)]
    model: ModelOptions,

    #[command(flatten)]
    generation: GenerationOptions,

    /// System prompt: instructions for the model
    #[arg(long, value_name = "TEXT", alias = "system-prompt", allow_hyphen_values = true)]
    system: Option<String>,

    /// Save the conversation in FILE after each answer, and resume it if FILE exists
    #[arg(long, value_name = "FILE", alias = "prompt-cache")]
    session: Option<PathBuf>,

    /// Whether the model reasons before it answers: on, off, hide (reason, but show only
    /// the answer), low, medium or high [default: the model's own; shown on a terminal]
    #[arg(long, value_name = "HOW")]
    think: Option<Think>,

    #[command(flatten)]
    foreign_think: ForeignThink,

    /// End after the first answer
    #[arg(long, hide = true)]
    single_turn: bool,

    /// Do not print the line about speed and memory after each answer
    #[arg(short, long)]
    quiet: bool,
}

impl Chat {
    /// A conversation with everything decided.
    pub fn with(
        model: ModelOptions,
        generation: GenerationOptions,
        system: Option<String>,
        session: Option<PathBuf>,
        think: Option<Think>,
        quiet: bool,
    ) -> Self {
        let (foreign_think, single_turn) = (ForeignThink::default(), false);
        Self { named: None, model, generation, system, session, think, foreign_think, single_turn, quiet }
    }

    pub fn execute(mut self) -> Result<(), Failure> {
        let config = Config::read()?;
        let is_chosen = self.model.model != default_model();
        let is_named = self.named.is_some();
        if let Some(name) = self.named.take() {
            if config.has(&name) {
                self.model.preset = Some(name);
            } else if named::is_model(&name)? || is_chosen {
                self.model.model = name;
            } else {
                return Err(Failure::Usage(format!(
                    "`{name}` is neither a file nor a model name that kvant knows; `kvant models --known` lists short names"
                )));
            }
        }
        let preset = config.preset(self.model.preset.as_deref())?;
        self.model.apply(&preset);
        self.generation.apply(&preset);
        self.system = self.system.or(preset.system);
        self.think = self.foreign_think.or(self.think).or(preset.think);
        if !is_named && let Some(model) = offer::model(&self.model.model)? {
            self.model.model = model;
        }
        self.begin()
    }

    /// Opens the model and talks.
    pub fn begin(self) -> Result<(), Failure> {
        self.generation.check()?;
        if let Some(path) = &self.session {
            saved::check_place(path)?;
        }
        let opened = open::open(&self.model)?;
        if !opened.engine().converses() {
            return Err(Failure::new(format!(
                "{} has no chat template: it continues text and does not converse; use `kvant run --raw`, or name a template \
                 with --chat-template",
                self.model.model
            )));
        }
        let mut session = opened.session()?;
        let file = self.session.as_deref().map(|path| SessionFile::new(path, &opened)).transpose()?;
        let (system, turns) = match &file {
            Some(file) => match file.resume(&mut session)? {
                Some(Talk::Chat { system, turns }) => (system, turns),
                Some(Talk::Text { .. }) => {
                    return Err(file.failure("is a text; continue it with `kvant run --raw --session`"));
                }
                None => (None, Vec::new()),
            },
            None => (None, Vec::new()),
        };
        interrupt::catch()?;
        let mut input = Input::new()?;
        input.greet(&self.model.model);
        let mut conversation = Conversation {
            session,
            file,
            opened,
            generation: self.generation,
            think: self.think,
            quiet: self.quiet,
            system: self.system.or(system),
            turns,
            has_tip: input.is_person() && self.model.model == DEFAULT_MODEL,
        };
        if input.is_person() {
            conversation.show_last();
        }
        talk(&mut input, &mut conversation, self.single_turn)
    }
}

/// Line by line until the end, or for one turn.
fn talk(input: &mut Input, conversation: &mut Conversation, is_single: bool) -> Result<(), Failure> {
    let mut leaving = false;
    loop {
        if interrupt::terminated() {
            return Err(Failure::Interrupted);
        }
        if is_single && !conversation.turns.is_empty() && !conversation.is_waiting() {
            return Ok(());
        }
        interrupt::clear();
        let line = interrupt::idle(|| input.line())?;
        let was_leaving = std::mem::replace(&mut leaving, matches!(line, Line::Interrupted));
        match line {
            Line::End => return Ok(()),
            Line::Interrupted if was_leaving => return Ok(()),
            Line::Interrupted => input.say("(press Ctrl-C again to leave; Ctrl-D and /exit leave too)"),
            Line::Cleared => {}
            Line::Text(text) if text.trim().is_empty() => {}
            Line::Text(text) => match Slash::parse(&text) {
                None => conversation.say(slash::unescaped(text))?,
                Some(Err(unknown)) => eprintln!("{unknown}"),
                Some(Ok(Slash::Exit)) => return Ok(()),
                Some(Ok(command)) => conversation.obey(command)?,
            },
            Line::Block(text) => conversation.say(text)?,
        }
    }
}

/// A remark within a conversation.
fn remark(text: &str) {
    eprintln!("{}", screen::dimmed(text));
}
