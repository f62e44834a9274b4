//! What every route knows.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::keys::Keys;
use crate::models::{KeepAlive, Models, Served};
use crate::prepare::Preparations;
use crate::route::Caller;
use crate::store::ResponseStore;
use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_TYPE, HeaderName, ORIGIN};
use axum::http::{Request, StatusCode};
use kvant_engine::{Interrupt, SamplingOverrides, SamplingParams};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How the server is set up.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// What the model is called.
    pub model: String,
    /// Who may come in.
    pub keys: Keys,
    /// Everybody who can reach the server may use it, also where that is not this machine alone. Without keys it is refused otherwise.
    pub insecure: bool,
    /// What one key has asked may be found by another: prompts that begin alike are read once for all. Otherwise every key has
    /// prefixes of its own.
    pub share_prefixes: bool,
    /// The web pages of this origin may use the server from a browser; `*` for all.
    pub cors: Option<String>,
    /// Bounds of requests and connections.
    pub limits: Limits,
    /// Fields that are not understood are refused, in place of being ignored and named in the header `x-kvant-ignored-fields`.
    pub strict: bool,
    /// Names of other models are refused, in place of being answered by the one that is served.
    pub strict_model: bool,
    /// Leaves known lines that change with every request out of prompts, so that the prefix cache finds them; the header
    /// `x-kvant-stripped` names them.
    pub strip_volatile: bool,
    /// How tokens are chosen where neither the request nor the model's makers say.
    pub sampling: SamplingParams,
    /// Goes before what the model's makers say; requests may still say otherwise.
    pub forced_sampling: SamplingOverrides,
}

impl ServerOptions {
    /// The usual ones, for a model of this name: open to this machine.
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            keys: Keys::default(),
            insecure: false,
            share_prefixes: false,
            cors: None,
            limits: Limits::default(),
            strict: false,
            strict_model: false,
            strip_volatile: true,
            sampling: SamplingParams::usual(),
            forced_sampling: SamplingOverrides::default(),
        }
    }

    /// What requests to a model begin with: the server's own settings, else its makers', else the usual ones.
    pub(crate) fn sampling_of(&self, makers: &SamplingOverrides) -> SamplingParams {
        let usual = self.forced_sampling.over(makers.valid_over(self.sampling.clone()));
        // The whole text so far, as clients expect.
        SamplingParams { penalty_window: None, ..usual }
    }
}

/// Bounds of requests and connections.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of a body.
    pub body: usize,
    /// Answers to one request: choices times prompts.
    pub answers: usize,
    /// Texts to be embedded by one request.
    pub inputs: usize,
    /// Stop strings of one request.
    pub stops: usize,
    /// Bytes of a stop string.
    pub stop_bytes: usize,
    /// Tokens with a bias.
    pub biases: usize,
    /// Messages of a conversation.
    pub messages: usize,
    /// Bytes of a schema or grammar, and of all tools.
    pub format_bytes: usize,
    /// Texts to be ranked by one request.
    pub documents: usize,
    /// Responses that are kept to be gone on from, of each key.
    pub stored: usize,
    /// Bytes that they may have together.
    pub stored_bytes: usize,
    /// For how long they are kept.
    pub stored_for: Duration,
    /// Requests that are prepared at a time: templates, tokens, grammars.
    pub preparations: usize,
    /// For that.
    pub preparation: Duration,
    /// Connections at a time. Beyond, those idle for longest are closed; if none is, more get a 503, but for `/health`.
    pub connections: usize,
    /// For the head of a request to arrive, the wait for it included.
    pub head: Duration,
    /// For its body to arrive.
    pub arrival: Duration,
    /// For a client to take what is sent.
    pub stall: Duration,
    /// For a request to be answered in full; none for as long as it takes.
    pub answer: Option<Duration>,
    /// For answers under way when the server is told to end.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 8 << 20,
            answers: 16,
            inputs: 64,
            stops: 16,
            stop_bytes: 512,
            biases: 1024,
            messages: 4096,
            format_bytes: 1 << 20,
            documents: 256,
            stored: 256,
            stored_bytes: 64 << 20,
            stored_for: Duration::from_secs(6 * 3600),
            preparations: std::thread::available_parallelism().map_or(2, usize::from).max(2),
            preparation: Duration::from_secs(20),
            connections: 256,
            head: Duration::from_secs(30),
            arrival: Duration::from_secs(30),
            stall: Duration::from_secs(60),
            answer: Some(Duration::from_secs(2 * 3600)),
            grace: Duration::from_secs(10),
        }
    }
}

/// The server's state.
pub struct App {
    /// What is served.
    pub models: Arc<Models>,
    /// Responses that may be gone on from.
    pub store: ResponseStore,
    /// How it is set up.
    pub options: ServerOptions,
    /// When it started, in seconds since 1970.
    pub started: u64,
    /// Only this machine can reach it.
    pub is_local: bool,
    preparations: Preparations,
    next_id: AtomicU64,
}

impl App {
    /// A server for these models.
    pub fn new(models: Models, options: ServerOptions, is_local: bool) -> Self {
        let store =
            ResponseStore::new(options.limits.stored, options.limits.stored_bytes, options.limits.stored_for);
        let preparations = Preparations::new(options.limits.preparations, options.limits.preparation);
        Self {
            models: Arc::new(models),
            store,
            options,
            preparations,
            started: now(),
            is_local,
            next_id: AtomicU64::new(1),
        }
    }

    /// The model that a request names, loaded where it is not, and kept for as long as the request wants.
    pub async fn model_of(&self, fields: &mut Fields, caller: &Caller) -> Result<Arc<Served>, ApiError> {
        let name = fields.text("model")?;
        let keep = self.keep_alive(fields, caller)?;
        let served = self.model(name.as_deref(), caller).await?;
        if let Some(keep) = keep {
            self.models.keep(served.model_name(), keep);
        }
        adapted(served, fields)
    }

    /// Reads `keep_alive`. It concerns all who use the model, so it is ignored where the caller is not the admin.
    pub fn keep_alive(&self, fields: &mut Fields, caller: &Caller) -> Result<Option<KeepAlive>, ApiError> {
        let Some(value) = fields.take("keep_alive") else { return Ok(None) };
        let Some(keep) = KeepAlive::read(&value) else {
            return Err(fields.wrong("keep_alive", "seconds, or a duration such as \"5m\"", &value));
        };
        if !caller.may_administer {
            caller.notes().ignored("keep_alive".into());
        }
        Ok(Some(keep).filter(|_| caller.may_administer))
    }

    /// The model of this name, loaded where it is not.
    pub async fn model(&self, name: Option<&str>, caller: &Caller) -> Result<Arc<Served>, ApiError> {
        let served = self.models.get(name, self.options.strict_model).await?;
        caller.log.model(&served.name);
        Ok(served)
    }

    /// Does what has to be done before the engine takes a request, away from those who wait for the network.
    pub async fn prepare<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Interrupt) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.preparations.run(work).await
    }

    /// The bounds.
    pub fn limits(&self) -> &Limits {
        &self.options.limits
    }

    /// A name for an answer that no other has.
    pub fn fresh_id(&self, prefix: &str) -> String {
        format!("{prefix}-{:x}-{}", self.started, self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// The body of a request, within its bounds.
    pub async fn body(&self, request: Request<Body>) -> Result<Bytes, ApiError> {
        let headers = request.headers();
        let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
        let kind = kind.trim().to_ascii_lowercase();
        // What curl and some libraries send where they are told nothing. Browsers say where a form comes from.
        let is_program = ["", "application/x-www-form-urlencoded"].contains(&kind.as_str())
            && [ORIGIN, HeaderName::from_static("sec-fetch-site")]
                .iter()
                .all(|name| !headers.contains_key(name));
        // A web page can send anything else to any server without asking first.
        if !is_program && !kind.starts_with("application/json") {
            let message = "the content type must be application/json";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let limit = self.limits().body;
        let body = axum::body::to_bytes(request.into_body(), limit);
        match tokio::time::timeout(self.limits().arrival, body).await {
            Err(_) => Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
            Ok(Err(_)) => {
                let message = format!("the body cannot be read, or is larger than {limit} bytes");
                Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message))
            }
            Ok(Ok(body)) => Ok(body),
        }
    }
}

/// The model with the adapters that a request lists in `lora`, as llama.cpp has it.
fn adapted(served: Arc<Served>, fields: &mut Fields) -> Result<Arc<Served>, ApiError> {
    let Some(items) = fields.array("lora")? else { return Ok(served) };
    if served.has_own_adapters() {
        let message =
            format!("lora lists adapters, and so does the model {:?}: leave out one of them", served.name);
        return Err(ApiError::field("lora", message));
    }
    let mix = served.adapters.read(fields, "lora", items)?;
    Ok(served.with(&served.name, mix))
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
