//! OpenAI's newer words: `/v1/responses`, with and without a conversation that the server keeps.

mod events;
mod input;
mod items;
mod output;
mod request;

use crate::app::App;
use crate::error::ApiError;
use crate::route::{Answered, Asked, Caller, json};
use crate::store::Stored;
use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use events::ResponseEvents;
pub use items::input_items;
use output::Draft;
use serde_json::json as object;
use std::sync::Arc;

/// The next turn of a conversation.
pub async fn create(Asked { app, caller, mut fields }: Asked) -> Answered {
    let served = app.model_of(&mut fields, &caller).await?;
    let before = match fields.text("previous_response_id")? {
        None => None,
        Some(id) => Some((app.store.get(caller.whose.owner, &id).ok_or_else(|| unknown(&id))?, id)),
    };
    let (before, previous) = before.unzip();
    let (history, mut items) = before.map(items::before).unwrap_or_default();
    let id = app.fresh_id("resp");
    items.extend(input::items_of(&fields, &id));
    let request = request::read(fields, &app, &served, history)?;
    let draft = Draft::new(id, Arc::clone(&served), previous, &request);
    let request::ResponseRequest { turn, conversation, store, .. } = request;
    let stream = turn.settings.stream;
    let turns = turn.begin(&app, served, &caller).await?;
    let keep = {
        let (app, owner) = (Arc::clone(&app), caller.whose.owner);
        move |id: &str, messages, response| {
            if store {
                app.store.put(owner, id, Stored { messages, input: items, response });
            }
        }
    };
    if stream {
        return Ok(turns.stream(ResponseEvents::new(draft, conversation, Box::new(keep))));
    }
    let turn = turns.whole(&format!("call_{}", draft.id)).await?;
    let response = draft.completed(&turn);
    keep(&draft.id, output::with_answer(conversation, &turn), response.clone());
    Ok(json(&response))
}

/// A response that is kept.
pub async fn retrieve(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Answered {
    let id = name_of(id)?;
    let stored = app.store.get(caller.whose.owner, &id).ok_or_else(|| unknown(&id))?;
    Ok(json(&stored.response))
}

/// Forgets a response.
pub async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Answered {
    let id = name_of(id)?;
    match app.store.remove(caller.whose.owner, &id) {
        true => Ok(json(&object!({"id": id, "object": "response", "deleted": true}))),
        false => Err(unknown(&id)),
    }
}

fn name_of(id: Result<Path<String>, PathRejection>) -> Result<String, ApiError> {
    let Path(id) = id.map_err(|e| ApiError::bad(format!("invalid name of a response: {e}")))?;
    Ok(id)
}

fn unknown(id: &str) -> ApiError {
    let message = format!(
        "no response {id:?}: it was not stored, is too old, or the server has restarted; send the whole conversation as input"
    );
    ApiError::new(StatusCode::NOT_FOUND, message).code("response_not_found").at("previous_response_id")
}
