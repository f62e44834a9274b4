//! What was said, what is held of it, and what commands do to both.

use super::remark;
use super::slash::{self, Slash};
use crate::command::run::assistant;
use crate::failure::Failure;
use crate::options::{GenerationOptions, Think, ThoughtTurn, is_shown, think_turn};
use crate::output::{Output, Shown};
use crate::report::Report;
use crate::saved::{SessionFile, Talk};
use crate::screen::{Look, Markdown, grouped};
use kvant_engine::{Finish, GenerateError, LoadedModel, Reply, Session};
use kvant_text::chat::Message;
use std::path::Path;

/// A conversation and the session that holds it.
pub struct Conversation {
    pub opened: LoadedModel,
    pub session: Session,
    pub file: Option<SessionFile>,
    pub generation: GenerationOptions,
    pub think: Option<Think>,
    pub quiet: bool,
    pub system: Option<String>,
    /// Turns of user and assistant by turns. The last may be a user's that was not answered: the context was full.
    pub turns: Vec<Message>,
    /// A tip follows the first answer: there are better models.
    pub has_tip: bool,
}

impl Conversation {
    pub fn messages(&self) -> Vec<Message> {
        let system = self.system.iter().map(|text| Message::new("system", text));
        system.chain(self.turns.iter().cloned()).collect()
    }

    /// Whether a message waits for its answer.
    pub fn is_waiting(&self) -> bool {
        self.turns.last().is_some_and(|turn| turn.role == "user")
    }

    /// A user's turn, and the answer to it.
    pub fn say(&mut self, text: String) -> Result<(), Failure> {
        if self.is_waiting() {
            eprintln!("the last message has no answer yet: /retry answers it, /undo removes it");
            return Ok(());
        }
        self.turns.push(Message::new("user", text));
        self.answer()
    }

    /// The turn that answers the conversation so far.
    pub fn turn(&self) -> Result<ThoughtTurn, Failure> {
        Ok(think_turn(self.opened.engine(), &self.messages(), self.think, None, Vec::new())?)
    }

    /// Answers the last message. One that cannot be answered is taken back, unless it is the context that is full: then it waits.
    pub fn answer(&mut self) -> Result<(), Failure> {
        let turn = match self.turn() {
            Ok(ThoughtTurn { turn, .. }) => turn,
            Err(Failure::Message(why)) => return self.take_back(&why),
            Err(other) => return Err(other),
        };
        let GenerationOptions { stop, max_tokens, .. } = &self.generation;
        let request = turn.request(self.generation.sampling(), stop.clone(), *max_tokens);
        let shown = Shown { answer: true, reasoning: is_shown(self.think), reading: !self.quiet };
        let mut output = Output::new(shown, Some(turn.parser));
        let reply = match self.session.generate(&request, &mut |event| output.take(event)) {
            Ok(reply) => reply,
            Err(GenerateError::PromptTooLong { prompt, context }) => {
                eprintln!(
                    "error: the conversation has {} tokens, the context holds {}; your message is kept",
                    grouped(prompt),
                    grouped(context)
                );
                self.offer_room();
                self.save();
                return Ok(());
            }
            Err(error) => return self.take_back(&error.to_string()),
        };
        self.turns.push(assistant(output.end()?));
        self.tell(&reply)?;
        self.save();
        Ok(())
    }

    /// What a person wants to know of an answer besides the answer.
    fn tell(&mut self, reply: &Reply) -> Result<(), Failure> {
        match &reply.finish {
            Finish::ContextFull => {
                eprintln!(
                    "note: the answer was cut off: the context of {} tokens is full",
                    grouped(self.session.context())
                );
                self.offer_room();
            }
            Finish::MaxTokens => {
                remark(&format!(
                    "(cut off after {} tokens, as -n or /set max_tokens says)",
                    reply.tokens.len()
                ));
            }
            Finish::Cancelled => eprintln!("note: stopped"),
            Finish::EndOfText(_) | Finish::Stop(_) => {}
        }
        if !self.quiet {
            remark(&Report::new(&self.opened, &self.session, reply)?.short_line());
        }
        if std::mem::take(&mut self.has_tip) && !self.quiet {
            remark(
                "(tip: this model is small; `kvant fit` lists better ones that fit here, and `kvant chat NAME` fetches one)",
            );
        }
        Ok(())
    }

    fn take_back(&mut self, why: &str) -> Result<(), Failure> {
        self.turns.pop();
        eprintln!("error: {why}");
        Ok(())
    }

    /// Saves what there is, if there is a file for it. The conversation can go on without; what was saved before is still there.
    pub fn save(&self) {
        let Some(file) = &self.file else { return };
        let talk = Talk::Chat { system: self.system.clone(), turns: self.turns.clone() };
        if let Err(Failure::Message(why)) = file.save(&self.session, &talk) {
            eprintln!("error: {why}");
        }
    }

    /// Keeps the saved conversation under another name before a new one takes its place. False if that cannot be: then the old one
    /// goes on.
    fn put_aside(&self) -> bool {
        let Some(file) = self.file.as_ref().filter(|_| !self.turns.is_empty()) else { return true };
        match file.put_aside() {
            Ok(Some(place)) => remark(&format!("(the old conversation is kept in {})", place.display())),
            Ok(None) => {}
            Err(Failure::Message(why)) => {
                eprintln!("error: {why}; the conversation stays as it was");
                return false;
            }
            Err(_) => return false,
        }
        true
    }

    /// The last turns of a conversation that goes on, for someone who has forgotten them.
    pub fn show_last(&self) {
        if self.turns.is_empty() {
            return;
        }
        let (messages, tokens) = (self.turns.len(), self.session.tokens().len());
        let plural = if messages == 1 { "" } else { "s" };
        remark(&format!("(resumed: {messages} message{plural}, {} tokens)", grouped(tokens)));
        let from = self.turns.iter().rposition(|turn| turn.role == "user").unwrap_or(0);
        for turn in &self.turns[from..] {
            let text = turn.content.as_deref().unwrap_or_default();
            match turn.role.as_str() {
                "user" => remark(&format!("> {text}")),
                _ => {
                    let page = Markdown::new(Look::of_stdout());
                    let shown = page.map(|mut page| page.push(text) + &page.finish());
                    println!("{}", shown.as_deref().unwrap_or(text).trim_end());
                }
            }
        }
        if self.is_waiting() {
            remark("(not answered yet: /retry answers it)");
        }
    }

    pub fn obey(&mut self, command: Slash) -> Result<(), Failure> {
        match command {
            Slash::Help => eprintln!("{}", slash::HELP),
            Slash::Clear => {
                if self.put_aside() {
                    self.turns.clear();
                    self.session.clear();
                    self.save();
                    remark("(a new conversation)");
                }
            }
            Slash::System(None) => match &self.system {
                Some(text) => eprintln!("{text}"),
                None => remark("(no instructions; /system TEXT sets them)"),
            },
            Slash::System(Some(text)) => {
                self.system = Some(text).filter(|text| text != "none");
                self.save();
                match &self.system {
                    Some(_) => remark("(new instructions: they apply from the next message)"),
                    None => remark("(instructions removed)"),
                }
            }
            Slash::Retry => {
                let Some(last) = self.turns.iter().rposition(|turn| turn.role == "user") else {
                    eprintln!("nothing to answer yet");
                    return Ok(());
                };
                self.turns.truncate(last + 1);
                self.answer()?;
            }
            Slash::Undo => match self.turns.iter().rposition(|turn| turn.role == "user") {
                None => eprintln!("nothing to undo"),
                Some(last) => {
                    let text = self.turns[last].content.clone().unwrap_or_default();
                    self.turns.truncate(last);
                    self.save();
                    remark(&format!("(removed: {})", beginning(&text)));
                }
            },
            Slash::Save(path) => match self.write_json(Path::new(&path)) {
                Ok(()) => remark(&format!("(saved to {path})")),
                Err(e) => eprintln!("error: cannot write {path}: {e}"),
            },
            Slash::Load(path) => match read_json(Path::new(&path)) {
                Ok((system, turns)) if self.put_aside() => {
                    (self.system, self.turns) = (system, turns);
                    self.session.clear();
                    self.save();
                    self.show_last();
                }
                Ok(_) => {}
                Err(why) => eprintln!("error: {path}: {why}"),
            },
            Slash::Set(None) => eprintln!("{}", self.generation.shown()),
            Slash::Set(Some((name, value))) => match self.generation.set(&name, &value) {
                Ok(()) => remark(&format!("({name} {value})")),
                Err(why) => eprintln!("error: {why}"),
            },
            Slash::Think(think) => {
                self.think = Some(think);
                let told = if self.turns.is_empty() { None } else { self.turn()?.remark };
                match told {
                    Some(cannot) => eprintln!("note: {cannot}"),
                    None => remark("(applies from the next message)"),
                }
            }
            Slash::Grow(tokens) => self.grow(tokens)?,
            Slash::Window(tokens) => self.window(tokens)?,
            Slash::Drop(count) => self.drop_turns(count)?,
            Slash::Exit => {}
        }
        Ok(())
    }

    /// Writes the conversation as JSON in the form chat servers take: a list of roles and contents.
    fn write_json(&self, path: &Path) -> std::io::Result<()> {
        let text = serde_json::to_string_pretty(&self.messages())?;
        std::fs::write(path, text + "\n")
    }
}

/// Reads what `/save` writes: instructions, and turns by turns.
fn read_json(path: &Path) -> Result<(Option<String>, Vec<Message>), String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read it: {e}"))?;
    let mut turns: Vec<Message> = serde_json::from_str(&text)
        .map_err(|e| format!("not a conversation saved by /save (a JSON list of roles and contents): {e}"))?;
    let is_system = turns.first().is_some_and(|turn| turn.role == "system");
    let system = if is_system { turns.remove(0).content } else { None };
    let in_turn = turns.iter().enumerate().all(|(at, turn)| turn.role == ["user", "assistant"][at % 2]);
    if in_turn { Ok((system, turns)) } else { Err("user and assistant messages must alternate".to_owned()) }
}

/// The beginning of a text, for a remark.
fn beginning(text: &str) -> String {
    const MOST: usize = 50;
    let line = text.lines().next().unwrap_or_default();
    let short: String = line.chars().take(MOST).collect();
    if short.len() < text.len() { format!("{short}…") } else { short }
}
