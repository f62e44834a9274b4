//! `kvant chat`: a conversation.

mod input;
mod slash;

use crate::command::run::assistant;
use crate::failure::Failure;
use crate::interrupt;
use crate::open;
use crate::options::{GenerationOptions, ModelOptions};
use crate::output::{Output, Reasoning};
use crate::report::Report;
use crate::saved::{SessionFile, Talk};
use clap::Args;
use input::{Input, Line};
use kvant_engine::{Finish, GenerateError, Opened, Request, Session};
use kvant_model::chat::Message;
use slash::Slash;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  kvant chat
  kvant chat -m model.gguf --system \"You are a patient teacher.\"
  kvant chat --session letters.kvant

Within the conversation: /help lists the commands, Ctrl-C stops an answer, Ctrl-D, /exit or Ctrl-C twice at the
prompt leaves, and a line that ends with a backslash goes on with the next one.";

/// Arguments of `kvant chat`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Chat {
    #[command(flatten)]
    model: ModelOptions,

    #[command(flatten)]
    generation: GenerationOptions,

    /// Instructions that come before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// Save the conversation in FILE after each answer, and go on from it if it exists
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,

    /// What a model reasons before its answers [default: show on a terminal]
    #[arg(long, value_name = "HOW")]
    reasoning: Option<Reasoning>,

    /// Leave out the line about speed and memory after each answer
    #[arg(short, long)]
    quiet: bool,
}

impl Chat {
    pub fn execute(self) -> Result<(), Failure> {
        self.generation.check()?;
        let opened = open::open(&self.model)?;
        if !opened.engine().converses() {
            return Err(Failure::new(format!(
                "{} has no chat template: it continues text and does not converse; use `kvant run --raw`",
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
        if !turns.is_empty() {
            input.say(&format!("(going on after {} turns, {} tokens)", turns.len(), session.tokens().len()));
        }
        let mut conversation = Conversation {
            session,
            file,
            opened: &opened,
            generation: &self.generation,
            quiet: self.quiet,
            reasoning: Reasoning::or_usual(self.reasoning),
            system: self.system.clone().or(system),
            turns,
        };
        let mut leaving = false;
        loop {
            interrupt::clear();
            let line = input.line()?;
            let was_leaving = std::mem::replace(&mut leaving, matches!(line, Line::Interrupted));
            match line {
                Line::End => return Ok(()),
                Line::Interrupted if was_leaving => return Ok(()),
                Line::Interrupted => input.say("(Ctrl-C once more, Ctrl-D or /exit leaves)"),
                Line::Text(text) if text.trim().is_empty() => {}
                Line::Text(text) => match Slash::parse(&text) {
                    None => conversation.say(slash::unescaped(text))?,
                    Some(Err(unknown)) => eprintln!("{unknown}"),
                    Some(Ok(Slash::Exit)) => return Ok(()),
                    Some(Ok(command)) => conversation.obey(command)?,
                },
            }
        }
    }
}

struct Conversation<'c> {
    opened: &'c Opened,
    session: Session,
    file: Option<SessionFile>,
    generation: &'c GenerationOptions,
    quiet: bool,
    reasoning: Reasoning,
    system: Option<String>,
    /// Turns of user and assistant by turns.
    turns: Vec<Message>,
}

impl Conversation<'_> {
    fn messages(&self) -> Vec<Message> {
        let system = self.system.iter().map(|text| Message::new("system", text));
        system.chain(self.turns.iter().cloned()).collect()
    }

    /// A user's turn, and the answer to it. A turn that cannot be answered is taken back.
    fn say(&mut self, text: String) -> Result<(), Failure> {
        self.turns.push(Message::new("user", text));
        let prompt = match self.opened.engine().chat_prompt(&self.messages()) {
            Ok(prompt) => prompt,
            Err(error) => return self.take_back(error),
        };
        let request = Request {
            prompt,
            sampling: self.generation.sampling(),
            stop: self.generation.stop.clone(),
            max_tokens: self.generation.max_tokens,
            trim_start: true,
            markers: self.opened.engine().reply_markers().to_vec(),
        };
        let parser = self.opened.engine().reply_parser(&request.prompt, &[]);
        let mut output = Output::new(true, self.reasoning, Some(parser));
        let reply = match self.session.generate(&request, &mut |event| output.take(event)) {
            Ok(reply) => reply,
            Err(GenerateError::PromptTooLong { prompt, context }) => {
                return self.take_back(format!(
                    "the conversation has {prompt} tokens, the context holds {context}: /clear starts over, \
                     and a restart with a larger --ctx holds more"
                ));
            }
            Err(error) => return self.take_back(error),
        };
        let said = output.end()?;
        match reply.finish {
            Finish::ContextFull => eprintln!("note: the context is full; /clear starts over"),
            Finish::Cancelled => eprintln!("note: stopped"),
            _ => {}
        }
        if !self.quiet {
            eprintln!("{}", Report::new(self.opened.engine(), &self.session, &reply)?.line());
        }
        self.turns.push(assistant(said));
        if let Some(file) = &self.file {
            let talk = Talk::Chat { system: self.system.clone(), turns: self.turns.clone() };
            // The conversation can go on; what was saved before is still there.
            if let Err(Failure::Message(why)) = file.save(&self.session, &talk) {
                eprintln!("error: {why}");
            }
        }
        Ok(())
    }

    fn take_back(&mut self, why: impl std::fmt::Display) -> Result<(), Failure> {
        self.turns.pop();
        eprintln!("error: {why}");
        Ok(())
    }

    fn obey(&mut self, command: Slash) -> Result<(), Failure> {
        match command {
            Slash::Help => eprintln!("{}", slash::HELP),
            Slash::Clear => {
                self.turns.clear();
                self.session.clear();
                eprintln!("(a new conversation)");
            }
            Slash::System(text) => {
                self.system = Some(text).filter(|text| !text.is_empty());
                self.turns.clear();
                eprintln!("(new instructions, a new conversation)");
            }
            Slash::Retry => {
                let last = self.turns.iter().rposition(|turn| turn.role == "user");
                match last.and_then(|at| self.turns.drain(at..).next()?.content) {
                    Some(text) => self.say(text)?,
                    None => eprintln!("there is nothing to answer yet"),
                }
            }
            Slash::Save(path) => match self.save(Path::new(&path)) {
                Ok(()) => eprintln!("(saved to {path})"),
                Err(e) => eprintln!("error: cannot write {path}: {e}"),
            },
            Slash::Exit => {}
        }
        Ok(())
    }

    /// Writes the conversation as JSON in the form chat servers take: a list of roles and contents.
    fn save(&self, path: &Path) -> std::io::Result<()> {
        let text = serde_json::to_string_pretty(&self.messages())?;
        std::fs::write(path, text + "\n")
    }
}
