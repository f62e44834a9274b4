//! Errors as clients of OpenAI's interface know them.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use kvant_engine::PromptError;
use kvant_engine::scheduler::{JobError, Refused};
use serde_json::{Value, json};

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
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl From<PromptError> for ApiError {
    fn from(error: PromptError) -> Self {
        Self::bad(error.to_string())
    }
}
