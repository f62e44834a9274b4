//! `/api/pull`, `/api/delete` and `/api/copy`: which models there are. Only the admin's key may say, also where nobody else needs one.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::models::PullProgress;
use crate::route::{Caller, json};
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{Request, Response, StatusCode};
use futures_util::stream;
use serde_json::{Value, json as object};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Between two lines about one file.
const PAUSE: Duration = Duration::from_millis(200);

async fn read(app: &App, caller: &Caller, request: Request<Body>, what: &str) -> Result<Fields, ApiError> {
    caller.manages_models(what)?;
    Fields::parse(&app.body(request).await?, caller.notes())
}

fn name(fields: &mut Fields) -> Result<String, ApiError> {
    let required = || ApiError::field("model", "model is required");
    super::name(fields)?.filter(|name| !name.is_empty()).ok_or_else(required)
}

fn refused(message: String) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, message)
}

/// Fetches a model, telling how far that is.
pub async fn pull(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let mut fields = read(&app, &caller, request, "fetching a model").await?;
    let name = name(&mut fields)?;
    let streams = fields.flag("stream")?.unwrap_or(true);
    fields.ignore(&["insecure"]);
    fields.end()?;
    let (sender, mut receiver) = unbounded_channel();
    let models = Arc::clone(&app.models);
    let work = move || {
        let mut told = Told { sender: sender.clone(), last: None };
        told.say(object!({"status": "pulling manifest"}));
        let last = match models.pull(&name, &mut |progress| told.progress(&progress)) {
            Ok(()) => object!({"status": "success"}),
            Err(message) => object!({"error": message}),
        };
        // Whoever asked may have gone; the model is here all the same.
        let _ = sender.send(last);
    };
    tokio::task::spawn_blocking(work);
    if streams {
        return Ok(lines(receiver));
    }
    let mut last = Value::Null;
    while let Some(line) = receiver.recv().await {
        last = line;
    }
    match last["error"].as_str() {
        Some(message) => Err(refused(message.to_owned())),
        None => Ok(json(&last)),
    }
}

/// Tells of progress, and not too often.
struct Told {
    sender: UnboundedSender<Value>,
    last: Option<Instant>,
}

impl Told {
    fn say(&self, line: Value) {
        let _ = self.sender.send(line);
    }

    fn progress(&mut self, progress: &PullProgress<'_>) {
        let PullProgress { file, done, total } = *progress;
        let is_due = self.last.is_none_or(|last| last.elapsed() >= PAUSE);
        if is_due || total == Some(done) {
            self.last = Some(Instant::now());
            let status = format!("pulling {file}");
            self.say(object!({"status": status, "digest": file, "total": total, "completed": done}));
        }
    }
}

fn lines(receiver: UnboundedReceiver<Value>) -> Response<Body> {
    let lines = stream::unfold(receiver, |mut receiver| async move {
        let line = receiver.recv().await?;
        Some((Ok::<Bytes, Infallible>(format!("{line}\n").into()), receiver))
    });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    response
}

/// Removes the files of a model that was fetched.
pub async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let mut fields = read(&app, &caller, request, "deleting a model").await?;
    let name = app.models.resolve(Some(&name(&mut fields)?), true)?;
    fields.end()?;
    app.models.remove(&name).await.map_err(refused)?;
    Ok(json(&object!({"status": "success"})))
}

/// Gives a model one more name, until the server ends.
pub async fn copy(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let mut fields = read(&app, &caller, request, "copying a model").await?;
    let required = |name: &str| ApiError::field(name, format!("{name} is required"));
    let source = fields.text("source")?.ok_or_else(|| required("source"))?;
    let destination = fields.text("destination")?.filter(|name| !name.is_empty());
    let destination = destination.ok_or_else(|| required("destination"))?;
    fields.end()?;
    let source = app.models.resolve(Some(&source), true)?;
    app.models.copy(&source, &destination).map_err(refused)?;
    Ok(json(&object!({"status": "success"})))
}
