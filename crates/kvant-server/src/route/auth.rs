//! Who may come in.

use crate::app::App;
use crate::error::{ApiError, Dialect};
use crate::keys::Identity;
use crate::notes::Notes;
use crate::protocol::anthropic::VERSION_HEADER;
use crate::request_log::RequestLog;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, AUTHORIZATION,
    HOST, HeaderName, HeaderValue, VARY,
};
use axum::http::{Method, Request, Response, StatusCode};
use axum::middleware::Next;
use axum::response::IntoResponse;
use kvant_engine::Tenant;
use std::sync::Arc;
use tracing::Instrument;

/// Names the fields of a request that were not understood.
pub const IGNORED: HeaderName = HeaderName::from_static("x-kvant-ignored-fields");

/// Names what was left out of a prompt because it changes with every request.
pub const STRIPPED: HeaderName = HeaderName::from_static("x-kvant-stripped");

/// The largest head of a request.
pub const HEAD_BYTES: usize = 64 << 10;

/// A key as Anthropic's clients send it.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// What a web page may send where it does not say.
const USUAL_HEADERS: HeaderValue = HeaderValue::from_static("authorization, content-type, x-api-key");

/// Whose request it is, and what is noted about it.
#[derive(Clone)]
pub struct Caller {
    /// Who it is.
    pub whose: Identity,
    /// Whether it may do what concerns all others.
    pub may_administer: bool,
    /// Filled in on the way.
    pub log: Arc<RequestLog>,
}

impl Caller {
    /// What is said about the request besides its answer.
    pub fn notes(&self) -> &Notes {
        &self.log.notes
    }

    /// Refuses what changes this machine's disk to all but the holder of the admin's key: a server without keys lets every program and
    /// every user of the machine in, and none of them is to fetch or delete unasked.
    pub fn manages_models(&self, what: &str) -> Result<(), ApiError> {
        match self.whose.is_admin {
            true => Ok(()),
            false => Err(forbidden(what)),
        }
    }

    /// Refuses what only the admin may do; where nobody has a key and nobody else can come, everybody here is the admin.
    pub fn administers(&self, what: &str) -> Result<(), ApiError> {
        match self.may_administer {
            true => Ok(()),
            false => Err(forbidden(what)),
        }
    }
}

fn forbidden(what: &str) -> ApiError {
    let message = format!("{what} needs the admin key: start the server with --admin-key, and send that key");
    ApiError::new(StatusCode::FORBIDDEN, message).code("admin_key_required")
}

/// Lets requests in that may come, and adds what browsers want to hear.
pub async fn authorize(
    State(app): State<Arc<App>>,
    mut request: Request<Body>,
    next: Next,
) -> Response<Body> {
    let is_question = request.method() == Method::OPTIONS && app.options.cors.is_some();
    let path = request.uri().path().to_owned();
    let dialect = Dialect::of(&path, request.headers().contains_key(VERSION_HEADER));
    let notes = if app.options.strict { Notes::strict() } else { Notes::default() };
    let log = Arc::new(RequestLog::new(request.method().as_str(), &path, notes));
    let mut response = match admit(&app, &request) {
        Err(error) => error.into_response(),
        // A browser asks before it sends a key.
        Ok(_) if is_question => preflight(request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS)),
        Ok(whose) => {
            let keys = &app.options.keys;
            // Where nobody has a key and nobody else can come, everybody here looks after the server.
            let is_alone = keys.is_open() && !keys.has_admin() && app.is_local;
            let may_administer = whose.is_admin || is_alone;
            request.extensions_mut().insert(Caller { whose, may_administer, log: Arc::clone(&log) });
            next.run(request).instrument(log.span().clone()).await
        }
    };
    let error = response.extensions_mut().remove::<ApiError>();
    log.status(response.status().as_u16(), error.as_ref());
    if let Some(error) = error
        && dialect != Dialect::OpenAi
    {
        *response.body_mut() = Body::from(error.body_in(dialect).to_string());
    }
    for (name, value) in [(IGNORED, log.notes.header()), (STRIPPED, log.notes.stripped_header())] {
        if let Some(value) = value {
            response.headers_mut().insert(name, value);
        }
    }
    if let Some(origin) = app.options.cors.as_deref().and_then(|origin| HeaderValue::from_str(origin).ok()) {
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
        headers.insert(VARY, HeaderValue::from_static("origin, access-control-request-headers"));
    }
    response
}

/// Packages send headers of their own (`x-stainless-os`): whatever is asked for may be sent. None of them opens anything.
fn preflight(asked: Option<&HeaderValue>) -> Response<Body> {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.cloned().unwrap_or(USUAL_HEADERS));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

fn admit(app: &App, request: &Request<Body>) -> Result<Identity, ApiError> {
    let keys = &app.options.keys;
    check_head(request)?;
    let header = |name: HeaderName| request.headers().get(name).map(HeaderValue::as_bytes);
    let (sent, plain) = (header(AUTHORIZATION), header(API_KEY));
    let found = sent.and_then(bearer).or(plain).and_then(|key| keys.find(key));
    let path = request.uri().path();
    if keys.is_open() {
        // A web page whose name was made to lead to this machine would speak with its own name.
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
        if app.is_local && !is_local_name(host) {
            let message = format!("this server answers to localhost only, not to {host:?}");
            return Err(ApiError::new(StatusCode::FORBIDDEN, message));
        }
    }
    // The page has a field for the key, and nothing to hide.
    let is_free = keys.is_open() || matches!(path, "/" | "/health") || request.method() == Method::OPTIONS;
    let tenant = |who: Identity| if app.options.share_prefixes { Tenant::SHARED } else { who.tenant };
    match found {
        // Counts of everything that everybody does.
        _ if path == "/metrics" && keys.has_admin() && !found.is_some_and(|who| who.is_admin) => {
            Err(forbidden("/metrics"))
        }
        Some(who) => Ok(Identity { tenant: tenant(who), ..who }),
        None if is_free => Ok(Identity::ANYBODY),
        None => {
            let message = match sent.or(plain) {
                Some(_) => "unknown API key",
                None => "an API key is required: send it as `Authorization: Bearer KEY`, or as `x-api-key`",
            };
            Err(ApiError::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key"))
        }
    }
}

/// Refuses heads beyond [`HEAD_BYTES`]. What reads them is told the same bound, but reads a little further.
fn check_head(request: &Request<Body>) -> Result<(), ApiError> {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    // Each line with its colon, its blank and its end.
    let lines = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    match target + lines.sum::<usize>() > HEAD_BYTES {
        true => {
            let message = format!("the head of the request is larger than {HEAD_BYTES} bytes");
            Err(ApiError::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message))
        }
        false => Ok(()),
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
