//! From what a protocol asked for to answers under way.

use super::{Turns, strip_volatile};
use crate::app::App;
use crate::error::ApiError;
use crate::models::Served;
use crate::request::jobs::{JobOptions, Jobs};
use crate::request::sampling::Settings;
use crate::request::tools::Tools;
use crate::route::Caller;
use kvant_engine::{Constraint, Interrupt, ToolChoice, Turn, TurnOptions};
use kvant_text::chat::Message;
use serde_json::{Map, Value};
use std::sync::Arc;

/// The next turn of a conversation, as every protocol asks for it.
pub struct TurnRequest {
    /// How tokens are chosen, when to stop, what an answer has to be.
    pub settings: Settings,
    /// The conversation so far.
    pub messages: Vec<Message>,
    /// Variables of the template.
    pub variables: Map<String, Value>,
    /// The most tokens of an answer.
    pub max_tokens: Option<usize>,
    /// Probabilities, with those of so many likeliest tokens.
    pub logprobs: Option<usize>,
    /// What may be called.
    pub tools: Option<Tools>,
    /// The protocol has system turns anywhere. Templates want one, at the beginning: more of them there are joined, and later ones
    /// become the user's.
    pub merge_system: bool,
    /// Whether the model goes on with the last message. Unless the client says so, it does where that is a text of the assistant.
    pub continues: Option<bool>,
}

/// A turn that can be generated.
pub struct Prepared {
    /// Its prompt, and what splits the reply.
    pub turn: Turn,
    constraints: Vec<Box<dyn Constraint>>,
}

impl TurnRequest {
    /// The turn as the engine puts it together. Takes a moment.
    pub fn prepare(&self, served: &Served, interrupt: &Interrupt) -> Result<Prepared, ApiError> {
        let (tools, tool_choice) = match &self.tools {
            Some(tools) => (tools.definitions.clone(), tools.choice.clone()),
            None => (Vec::new(), ToolChoice::Auto),
        };
        let (format, variables) = (self.settings.grammar.clone(), self.variables.clone());
        let continue_final_message =
            self.continues.unwrap_or_else(|| TurnOptions::ends_with_answer(&self.messages));
        let options =
            TurnOptions { tools, tool_choice, format, variables, at_once: false, continue_final_message };
        let turn = served.prompts().turn(&self.messages, options)?;
        let constraints = served.constraints(turn.grammar.as_ref(), self.settings.n, interrupt);
        let constraints = constraints.map_err(|error| match &self.tools {
            Some(_) if self.settings.grammar.is_none() => error.at("tools"),
            _ => error,
        })?;
        Ok(Prepared { turn, constraints })
    }

    /// Leaves out what defeats the prefix cache, and puts system turns where templates want them.
    pub fn settle(&mut self, app: &App, caller: &Caller) {
        if app.options.strip_volatile {
            strip_volatile(&mut self.messages, caller.notes());
        }
        if self.merge_system {
            merge_system(&mut self.messages);
        }
    }

    /// Asks for the answers, and waits until the first has begun.
    pub async fn begin(mut self, app: &App, served: Arc<Served>, caller: &Caller) -> Result<Turns, ApiError> {
        self.settle(app, caller);
        let (model, request) = (Arc::clone(&served), self);
        let prepare = move |interrupt: &Interrupt| {
            let prepared = request.prepare(&model, interrupt);
            (request, prepared)
        };
        let (request, prepared) = app.prepare(prepare).await?;
        let Prepared { turn, constraints } = prepared?;
        let Self { settings, max_tokens, logprobs, .. } = request;
        let requests = (0..settings.n)
            .map(|choice| turn.request(settings.sampling_of(choice), settings.stop.clone(), max_tokens));
        let requests: Vec<_> = requests.collect();
        let options = JobOptions { logprobs, cache_prompt: settings.cache_prompt, ..JobOptions::of(caller) };
        let jobs = Jobs::generate(served, app.limits(), requests, constraints, options).await?;
        let prompts = vec![turn.prompt.len(); settings.n];
        Ok(Turns::new(jobs, prompts, Some(turn.parser), Arc::clone(&caller.log)))
    }
}

/// One system turn at the beginning; later ones are the user's.
fn merge_system(messages: &mut Vec<Message>) {
    let leading = messages.iter().take_while(|turn| turn.role == "system").count();
    if leading > 1 {
        let texts: Vec<String> = messages.drain(..leading).filter_map(|turn| turn.content).collect();
        messages.insert(0, Message::new("system", texts.join("\n\n")));
    }
    messages
        .iter_mut()
        .skip(1)
        .filter(|turn| turn.role == "system")
        .for_each(|turn| turn.role = "user".into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_system_turn_and_it_comes_first() {
        let turn = |role: &str, text: &str| Message::new(role, text);
        let mut turns =
            vec![turn("system", "a"), turn("system", "b"), turn("user", "c"), turn("system", "d")];
        merge_system(&mut turns);
        assert_eq!(turns, [turn("system", "a\n\nb"), turn("user", "c"), turn("user", "d")]);
        merge_system(&mut turns);
        assert_eq!(turns.len(), 3);
    }
}
