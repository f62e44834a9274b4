//! `/v1/responses/{id}/input_items`: what a response was made from.

use super::{name_of, unknown};
use crate::app::App;
use crate::error::ApiError;
use crate::route::{Caller, json};
use crate::store::Stored;
use axum::Extension;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Response, Uri};
use kvant_text::chat::Message;
use serde_json::{Value, json as object};
use std::sync::Arc;

/// Items of a list where the request does not say.
const USUAL: usize = 20;

/// The most items of a list.
const MOST: usize = 100;

/// The conversation of a response, and its items: those of its input, and its output.
pub fn before(stored: Stored) -> (Vec<Message>, Vec<Value>) {
    let Stored { messages, input, response } = stored;
    let output = response["output"].as_array().cloned().unwrap_or_default();
    (messages, [input, output].concat())
}

/// What the query says by a name. Names of items and the words for an order have nothing to escape.
fn asked<'u>(uri: &'u Uri, name: &str) -> Option<&'u str> {
    let pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next_back()
}

/// A list of the items, the newest first unless the request says otherwise.
pub async fn input_items(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Response<Body>, ApiError> {
    let id = name_of(id)?;
    let stored = app.store.get(caller.whose.owner, &id).ok_or_else(|| unknown(&id))?;
    let limit = match asked(&uri, "limit") {
        None => USUAL,
        Some(text) => text.parse().ok().filter(|count| (1..=MOST).contains(count)).ok_or_else(|| {
            ApiError::field("limit", format!("limit is {text:?}; it must be a whole number from 1 to {MOST}"))
        })?,
    };
    let mut items = stored.input;
    match asked(&uri, "order") {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(other) => {
            return Err(ApiError::field("order", format!("order is {other:?}; it must be asc or desc")));
        }
    }
    if let Some(after) = asked(&uri, "after") {
        let place = items.iter().position(|item| item["id"] == after);
        let place = place.ok_or_else(|| ApiError::field("after", format!("there is no item {after:?}")))?;
        items.drain(..=place);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id_of = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    Ok(json(&object!({
        "object": "list",
        "first_id": id_of(items.first()),
        "last_id": id_of(items.last()),
        "has_more": has_more,
        "data": items,
    })))
}
