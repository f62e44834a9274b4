//! From what a protocol asked for to answers under way.

use super::generic_tools;
use super::{Turns, strip_volatile};
use crate::app::App;
use crate::error::ApiError;
use crate::models::Served;
use crate::request::jobs::{JobOptions, Jobs};
use crate::request::sampling::Settings;
use crate::request::tools::Tools;
use crate::route::Caller;
use kvant_engine::grammar::Grammar;
use kvant_engine::reply::{ChatFormat, ReplyParser};
use kvant_engine::tools::ToolStyle;
use kvant_engine::{Constraint, Interrupt};
use kvant_model::chat::{Message, RenderOptions};
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
}

/// A conversation as the model reads it.
pub struct Prompt {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Splits the reply.
    pub parser: ReplyParser,
    constraints: Vec<Box<dyn Constraint>>,
}

impl TurnRequest {
    /// The conversation as the model reads it. Takes a moment.
    pub fn prompt(&self, served: &Served, interrupt: &Interrupt) -> Result<Prompt, ApiError> {
        let engine = served.handle.engine();
        let definitions = self.tools.as_ref().map(|tools| tools.definitions.clone()).unwrap_or_default();
        let format = self.format(served);
        let is_generic = format.tools != engine.chat_format().tools;
        let (messages, shown) = match is_generic {
            true => (generic_tools::written_out(&self.messages, &definitions), Vec::new()),
            false => (self.messages.clone(), definitions.clone()),
        };
        let options =
            RenderOptions { tools: shown, variables: self.variables.clone(), ..RenderOptions::default() };
        let grammar = self.grammar()?;
        let tokens = match grammar.is_some() {
            // A grammar is for the answer and leaves no room for reasoning.
            true => served.prompts().answer(&messages, options)?,
            false => served.prompts().chat(&messages, options)?,
        };
        let parser = ReplyParser::new(&format, &definitions).after(&engine.prompt_end(&tokens));
        let constraints = served.constraints(grammar.as_ref(), self.settings.n, interrupt);
        let constraints = constraints.map_err(|error| match &self.tools {
            Some(_) if self.settings.grammar.is_none() => error.at("tools"),
            _ => error,
        })?;
        Ok(Prompt { tokens, parser, constraints })
    }

    /// How the model replies: with tools that its template does not know, in the way that everybody knows.
    fn format(&self, served: &Served) -> ChatFormat {
        let mut format = *served.handle.engine().chat_format();
        if self.tools.is_some() {
            format.tools.get_or_insert(ToolStyle::Hermes);
        }
        format
    }

    /// What the answer is kept to: a call that is required, a format, or, where tools are offered besides a format, either.
    fn grammar(&self) -> Result<Option<Grammar>, ApiError> {
        let (tools, format) = (&self.tools, &self.settings.grammar);
        match (tools, format) {
            (Some(tools), _) if tools.is_forced() => tools.grammar(),
            (Some(tools), Some(format)) => tools.grammar_or(format).map(Some),
            (_, format) => Ok(format.clone()),
        }
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
            let prompt = request.prompt(&model, interrupt);
            (request, prompt)
        };
        let (request, prompt) = app.prepare(prepare).await?;
        let Prompt { tokens, parser, constraints } = prompt?;
        let Self { settings, max_tokens, logprobs, .. } = request;
        let requests = (0..settings.n).map(|choice| kvant_engine::Request {
            prompt: tokens.clone(),
            sampling: settings.sampling_of(choice),
            stop: settings.stop.clone(),
            max_tokens,
            trim_start: true,
            markers: served.handle.engine().reply_markers().to_vec(),
        });
        let requests: Vec<_> = requests.collect();
        let options =
            JobOptions { logprobs, cache_prompt: settings.cache_prompt, ..JobOptions::of(caller.owner) };
        let jobs = Jobs::generate(served, app.limits(), requests, constraints, options).await?;
        let prompts = vec![tokens.len(); settings.n];
        Ok(Turns::new(jobs, prompts, Some(parser), Arc::clone(&caller.log)))
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
