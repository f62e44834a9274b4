//! A context that is full: it grows, becomes a window, or loses old turns. The talk itself is never lost.

use super::conversation::Conversation;
use super::remark;
use crate::failure::Failure;
use crate::open;
use crate::saved::SessionFile;
use crate::screen::grouped;

/// A prompt is to leave this part of the context for answers, in percent, when turns are dropped for it.
const LEFT: usize = 25;
/// The window that is offered.
const WINDOW: usize = 4096;

impl Conversation {
    /// Says what can be done.
    pub fn offer_room(&self) {
        let context = self.session.context();
        eprintln!(
            "  /grow {}   double the context (or name a length: /grow 64k)\n  \
             /window     stream: the model sees only the first few and the last {} tokens\n  \
             /drop       drop the oldest messages\n  \
             /clear      start over",
            context.saturating_mul(2),
            grouped(WINDOW.min(context)),
        );
    }

    /// Makes the context longer; what is held stays held.
    pub fn grow(&mut self, tokens: Option<usize>) -> Result<(), Failure> {
        let now = self.session.context();
        let wanted = tokens.unwrap_or(now.saturating_mul(2));
        if now == usize::MAX {
            eprintln!("this conversation streams under --window: its context has no limit to raise");
            return Ok(());
        }
        if wanted <= self.session.tokens().len() {
            eprintln!("error: the conversation already has {} tokens", grouped(self.session.tokens().len()));
            return Ok(());
        }
        if let Err(error) = self.opened.grow(&mut self.session, wanted) {
            if let Failure::Message(why) = open::failure(&error) {
                eprintln!("error: {why}");
            }
            return Ok(());
        }
        remark(&format!("(the context is now {} tokens)", grouped(wanted)));
        self.go_on()
    }

    /// Streaming attention from here on; the conversation is read again, as far as it is in view.
    pub fn window(&mut self, tokens: Option<usize>) -> Result<(), Failure> {
        let window = tokens.unwrap_or(WINDOW.min(self.session.context()));
        let held = self.session.kv().footprint().bytes();
        match self.opened.stream(window, held) {
            Ok(session) => self.session = session,
            Err(error) => {
                if let Failure::Message(why) = open::failure(&error) {
                    eprintln!("error: {why}");
                }
                return Ok(());
            }
        }
        remark(&format!(
            "(the model now sees the first few and the last {} tokens; older ones are forgotten)",
            grouped(window)
        ));
        if self.file.is_some() {
            remark(&format!("(from now on, resume this session with --window {window})"));
        }
        self.go_on()
    }

    /// Leaves out the oldest turns: as many as asked for, or as many as it takes.
    pub fn drop_turns(&mut self, count: Option<usize>) -> Result<(), Failure> {
        let context = self.session.context();
        let mut dropped = 0;
        loop {
            let is_enough = match count {
                Some(count) => dropped >= count,
                None => self.turn()?.turn.prompt.len() <= context - context / 100 * LEFT,
            };
            // The next user's turn: instructions come before all turns, and answers need questions.
            let next = self.turns.iter().skip(1).position(|turn| turn.role == "user").map(|at| at + 1);
            match next {
                Some(next) if !is_enough => {
                    self.turns.drain(..next);
                    dropped += 1;
                }
                _ => break,
            }
        }
        match dropped {
            0 => eprintln!("no older messages to drop"),
            1 => remark("(dropped the oldest message and its answer)"),
            count => remark(&format!("(dropped the {count} oldest messages and their answers)")),
        }
        self.go_on()
    }

    /// Saves under what holds now, and answers the message that waits.
    fn go_on(&mut self) -> Result<(), Failure> {
        if let Some(file) = &self.file {
            self.file = Some(SessionFile::new(file.path(), &self.opened)?);
        }
        if self.is_waiting() {
            return self.answer();
        }
        self.save();
        Ok(())
    }
}
