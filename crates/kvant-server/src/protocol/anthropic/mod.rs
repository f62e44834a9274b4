//! Anthropic's words: `/v1/messages`, and `/v1/messages/count_tokens`.

mod events;
mod request;
mod response;

use crate::route::{Answered, Asked, json};
use axum::http::HeaderName;
use events::MessageEvents;
use serde_json::json as object;

/// What Anthropic's clients send with every request.
pub const VERSION_HEADER: HeaderName = HeaderName::from_static("anthropic-version");

/// The next turn of a conversation.
pub async fn messages(Asked { app, caller, mut fields }: Asked) -> Answered {
    let served = app.model_of(&mut fields, &caller).await?;
    let turn = request::read(fields, &app, &served)?;
    let stream = turn.settings.stream;
    let id = app.fresh_id("msg");
    let turns = turn.begin(&app, served, &caller).await?;
    match stream {
        true => {
            let events = MessageEvents::new(id, turns.served().name.clone(), turns.prompt_tokens[0]);
            Ok(turns.stream(events))
        }
        false => {
            let model = turns.served().name.clone();
            let turn = turns.whole(&format!("toolu_{id}")).await?;
            Ok(json(&response::message(&id, &model, turn)))
        }
    }
}

/// How many tokens a conversation has.
pub async fn count_tokens(Asked { app, caller, mut fields }: Asked) -> Answered {
    let served = app.model_of(&mut fields, &caller).await?;
    let mut turn = request::read(fields, &app, &served)?;
    turn.settle(&app, &caller);
    let prepared = app.prepare(move |interrupt| turn.prepare(&served, interrupt)).await??;
    Ok(json(&object!({"input_tokens": prepared.turn.prompt.len()})))
}
