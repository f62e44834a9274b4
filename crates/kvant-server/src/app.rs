//! What every route knows.

use crate::constraints::Constraints;
use crate::error::ApiError;
use crate::keys::Keys;
use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, StatusCode};
use kvant_engine::Constraint;
use kvant_engine::grammar::Grammar;
use kvant_engine::scheduler::Handle;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How the server is set up.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// What the model is called.
    pub model: String,
    /// Who may come in.
    pub keys: Keys,
    /// The web pages of this origin may use the server from a browser; `*` for all.
    pub cors: Option<String>,
    /// Bounds of requests and connections.
    pub limits: Limits,
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
    /// Connections at a time; more wait.
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
            format_bytes: 256 << 10,
            connections: 256,
            head: Duration::from_secs(30),
            arrival: Duration::from_secs(30),
            stall: Duration::from_secs(60),
            answer: None,
            grace: Duration::from_secs(10),
        }
    }
}

/// The server's state.
pub struct App {
    /// The scheduler.
    pub handle: Handle,
    /// How it is set up.
    pub options: ServerOptions,
    /// When it started, in seconds since 1970.
    pub started: u64,
    /// Only this machine can reach it.
    pub is_local: bool,
    /// For answers that are kept to a grammar.
    constraints: Constraints,
    next_id: AtomicU64,
}

impl App {
    /// A server on top of this scheduler.
    pub fn new(handle: Handle, options: ServerOptions, is_local: bool) -> Self {
        Self {
            handle,
            options,
            started: now(),
            is_local,
            constraints: Constraints::default(),
            next_id: AtomicU64::new(1),
        }
    }

    /// Constraints for `count` answers, where a grammar is asked for. Takes a moment.
    pub fn constraints(
        &self,
        grammar: Option<&Grammar>,
        count: usize,
    ) -> Result<Vec<Box<dyn Constraint>>, ApiError> {
        let Some(grammar) = grammar else { return Ok(Vec::new()) };
        self.constraints.make(self.handle.engine().tokenizer(), grammar, count)
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
        let kind = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
        // A web page can send anything else to any server without asking first.
        if !kind.trim().to_ascii_lowercase().starts_with("application/json") {
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

    /// Whether a request means this model.
    pub fn check_model(&self, name: Option<&str>) -> Result<(), ApiError> {
        let own = &self.options.model;
        match name {
            Some(name) if name != own => {
                let message = format!("the model {name:?} is not served here; {own:?} is");
                let error = ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found");
                Err(error)
            }
            _ => Ok(()),
        }
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
