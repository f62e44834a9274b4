//! Errors as clients know them: in OpenAI's shape, and on the routes of others in theirs.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use kvant_engine::scheduler::{JobError, Refused};
use kvant_engine::{GenerateError, PromptError, SampleError, TurnError};
use serde_json::{Value, json};

/// Whose shape an error has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `{"error": {"message": …, "type": …, "param": …, "code": …}}`
    OpenAi,
    /// `{"type": "error", "error": {"type": …, "message": …}}`
    Anthropic,
    /// `{"error": …}`
    Ollama,
}

impl Dialect {
    /// That of a route, where clients of several protocols ask for it.
    pub fn of(path: &str, speaks_anthropic: bool) -> Self {
        match path {
            path if path.starts_with("/v1/messages") => Self::Anthropic,
            path if path.starts_with("/v1/models") && speaks_anthropic => Self::Anthropic,
            path if path.starts_with("/api/") => Self::Ollama,
            _ => Self::OpenAi,
        }
    }
}

/// Seconds after which a client that was turned away may try again.
const RETRY_SECONDS: &str = "2";

/// A request that is not answered, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
}

impl ApiError {
    /// A fault of the request.
    pub fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A fault of one of its fields.
    pub fn field(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(name.into()), ..Self::bad(message) }
    }

    /// Any other fault; the kind follows from the status.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let kind = match status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        Self { status, kind, code: None, param: None, message: message.into() }
    }

    /// The same with a code that programs can tell it by.
    pub fn code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// The same as a fault of another field.
    pub fn at(self, name: &str) -> Self {
        Self { param: Some(name.to_owned()), ..self }
    }

    /// Whether it is the fault of this field.
    pub fn is_about(&self, name: &str) -> bool {
        self.param.as_deref() == Some(name)
    }

    /// What a log may have of it: the message where the server is at fault; else code and field, since the message may quote what was
    /// sent.
    pub fn for_log(&self) -> String {
        match (self.status.is_server_error(), self.code.unwrap_or(self.kind), &self.param) {
            (true, ..) => self.message.clone(),
            (false, code, None) => code.to_owned(),
            (false, code, Some(param)) => format!("{code}: {param}"),
        }
    }

    /// What is said.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// As it is written in the shape of others.
    pub fn body_in(&self, dialect: Dialect) -> Value {
        match dialect {
            Dialect::OpenAi => self.body(),
            Dialect::Ollama => json!({"error": self.message}),
            Dialect::Anthropic => {
                let kind = match self.status.as_u16() {
                    401 => "authentication_error",
                    403 => "permission_error",
                    404 => "not_found_error",
                    413 => "request_too_large",
                    429 => "rate_limit_error",
                    503 => "overloaded_error",
                    504 => "timeout_error",
                    500.. => "api_error",
                    _ => "invalid_request_error",
                };
                json!({"type": "error", "error": {"type": kind, "message": self.message}})
            }
        }
    }

    /// As it is written.
    pub fn body(&self) -> Value {
        let Self { message, kind, param, code, .. } = self;
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.body().to_string()));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Routes of others have it written anew.
        response.extensions_mut().insert(self.clone());
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_SECONDS));
        }
        response
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let message = refused.to_string();
        match refused {
            Refused::Busy { .. } => Self::new(StatusCode::TOO_MANY_REQUESTS, message).code("queue_full"),
            Refused::Stopping => Self::new(StatusCode::SERVICE_UNAVAILABLE, message),
            Refused::PromptTooLong { .. } => Self::bad(message).code("context_length_exceeded"),
            _ => Self::bad(message),
        }
    }
}

impl From<&JobError> for ApiError {
    fn from(error: &JobError) -> Self {
        let status = match error {
            JobError::Deadline => StatusCode::GATEWAY_TIMEOUT,
            JobError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
            JobError::Generate(error) if is_asked_for(error) => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

/// Whether an answer failed because of what the request asked for: a grammar that nothing follows, settings that leave no token.
fn is_asked_for(error: &GenerateError) -> bool {
    match error {
        GenerateError::EmptyPrompt | GenerateError::PromptTooLong { .. } | GenerateError::Constraint(_) => {
            true
        }
        GenerateError::Sample(error) => !matches!(error, SampleError::BadLogit { .. }),
        _ => false,
    }
}

impl From<TurnError> for ApiError {
    fn from(error: TurnError) -> Self {
        let message = error.to_string();
        let place = match error {
            TurnError::Prompt(error) => return error.into(),
            TurnError::CannotCombine => "response_format",
            TurnError::CannotContinue => "messages",
            TurnError::CannotRequire | TurnError::NoSuchTool => "tool_choice",
            _ => return Self::bad(message),
        };
        Self::field(place, message).code("unsupported_parameter")
    }
}

impl From<PromptError> for ApiError {
    fn from(error: PromptError) -> Self {
        let message = error.to_string();
        match error {
            PromptError::TooLong { .. } => Self::bad(message).code("context_length_exceeded"),
            _ => Self::bad(message),
        }
    }
}
