//! Who may come in.

use crate::app::App;
use crate::error::ApiError;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, AUTHORIZATION,
    HOST, HeaderValue, VARY,
};
use axum::http::{Method, Request, Response, StatusCode};
use axum::middleware::Next;
use axum::response::IntoResponse;
use std::sync::Arc;

/// Whose request it is: the number of the key it came with.
#[derive(Debug, Clone, Copy)]
pub struct Owner(pub u64);

/// Lets requests in that may come, and adds what browsers want to hear.
pub async fn guard(State(app): State<Arc<App>>, mut request: Request<Body>, next: Next) -> Response<Body> {
    let is_question = request.method() == Method::OPTIONS && app.options.cors.is_some();
    let mut response = match admit(&app, &request) {
        Err(error) => error.into_response(),
        // A browser asks before it sends a key.
        Ok(_) if is_question => preflight(),
        Ok(owner) => {
            request.extensions_mut().insert(owner);
            next.run(request).await
        }
    };
    if let Some(origin) = app.options.cors.as_deref().and_then(|origin| HeaderValue::from_str(origin).ok()) {
        response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        response.headers_mut().insert(VARY, HeaderValue::from_static("origin"));
    }
    response
}

fn preflight() -> Response<Body> {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("authorization, content-type"));
    response
}

fn admit(app: &App, request: &Request<Body>) -> Result<Owner, ApiError> {
    let keys = &app.options.keys;
    if keys.is_open() {
        // A web page whose name was made to lead to this machine would speak with its own name.
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
        if app.is_local && !is_local_name(host) {
            let message = format!("this server answers to localhost only, not to {host:?}");
            return Err(ApiError::new(StatusCode::FORBIDDEN, message));
        }
        return Ok(Owner(0));
    }
    // The page has a field for the key, and nothing to hide.
    let is_free = matches!(request.uri().path(), "/" | "/health") || request.method() == Method::OPTIONS;
    let sent = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
    match sent.and_then(bearer).and_then(|key| keys.find(key)) {
        Some(index) => Ok(Owner(index as u64)),
        None if is_free => Ok(Owner(0)),
        None => {
            let message = match sent {
                Some(_) => "the API key is not one of this server's",
                None => "an API key is required: send it as `Authorization: Bearer KEY`",
            };
            Err(ApiError::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key"))
        }
    }
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

fn is_local_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    // Without a name nobody was misled.
    matches!(name, "" | "localhost" | "127.0.0.1" | "[::1]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_local() {
        for name in ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080", "[::1]", ""] {
            assert!(is_local_name(name), "{name}");
        }
        for name in ["example.org", "localhost.example.org:80", "127.0.0.1.nip.io", "[::2]:8080"] {
            assert!(!is_local_name(name), "{name}");
        }
    }

    #[test]
    fn a_key_comes_after_its_scheme() {
        assert_eq!(bearer(b"Bearer abc"), Some(&b"abc"[..]));
        assert_eq!(bearer(b"bearer  abc "), Some(&b"abc"[..]));
        assert_eq!((bearer(b"Basic abc"), bearer(b"Bear"), bearer(b"")), (None, None, None));
    }
}
