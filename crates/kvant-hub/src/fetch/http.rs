//! GET over HTTP(S): redirects followed by hand, so that the token never leaves the host it is for.

use crate::error::{HubError, HubErrorKind, Result};
use crate::options::{Options, Patience};
use std::io::Read;
use ureq::http::{HeaderMap, Uri, header};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Proxy};

const MAX_REDIRECTS: usize = 10;
/// Bounds an answer that is parsed in memory.
const MAX_TEXT: u64 = 64 << 20;

/// A client for one hub.
pub(super) struct Http {
    proxied: Agent,
    /// For loopback addresses, which no proxy could reach.
    direct: Agent,
    endpoint: Uri,
    token: Option<String>,
}

/// An answer whose status is for the caller to judge; redirects have been followed.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    /// SHA-256 that the hub itself announced for a large file, before it redirected to where the bytes lie.
    pub(super) linked_sha256: Option<String>,
    pub(super) body: Box<dyn Read>,
}

impl Http {
    pub(super) fn new(options: &Options) -> Result<Self> {
        let endpoint: Uri = options
            .endpoint
            .parse()
            .ok()
            .filter(|uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some())
            .ok_or_else(|| {
                HubError::mismatch(format!("HF_ENDPOINT {:?} is not an http(s) address", options.endpoint))
            })?;
        let roots = trusted_roots(options)?;
        Ok(Self {
            proxied: agent(&options.timeout, Proxy::try_from_env(), roots.clone()),
            direct: agent(&options.timeout, None, roots),
            endpoint,
            token: options.token.clone(),
        })
    }

    /// Fetches `url`, from byte `from` on when that is not zero.
    pub(super) fn get(&self, url: &str, from: u64) -> Result<Answer> {
        let mut target: Uri = url.parse().map_err(|_| bad_address(url))?;
        let mut linked_sha256 = None;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.request(&target, from)?;
            let status = response.status().as_u16();
            linked_sha256 = linked_sha256.or_else(|| announced_sha256(response.headers()));
            if !matches!(status, 301 | 302 | 303 | 307 | 308) {
                let (parts, body) = response.into_parts();
                let body = Box::new(body.into_reader());
                return Ok(Answer { status, headers: parts.headers, linked_sha256, body });
            }
            target = redirect(&target, response.headers())?;
        }
        Err(HubError::network(format!("{} redirects more than {MAX_REDIRECTS} times", place(&target))))
    }

    /// Fetches a small text; statuses other than 200 are errors that name `what`.
    pub(super) fn text(&self, url: &str, what: &str) -> Result<Vec<u8>> {
        let answer = self.get(url, 0)?;
        if answer.status != 200 {
            return Err(self.refusal(answer.status, what));
        }
        let mut text = Vec::new();
        let read = answer.body.take(MAX_TEXT + 1).read_to_end(&mut text);
        read.map_err(|e| HubError::network(format!("the connection broke while reading about {what}: {e}")))?;
        if text.len() as u64 > MAX_TEXT {
            return Err(HubError::malformed(format!(
                "the answer about {what} is larger than {MAX_TEXT} bytes"
            )));
        }
        Ok(text)
    }

    /// The error for a status that means no.
    pub(super) fn refusal(&self, status: u16, what: &str) -> HubError {
        let host = self.endpoint.host().unwrap_or_default();
        match (status, &self.token) {
            (401 | 403, None) => HubError::new(
                HubErrorKind::Unauthorised,
                format!(
                    "{host} does not give {what} to everyone (status {status}): it does not exist, is private or needs \
                     its licence accepted there; then set HF_TOKEN to an access token"
                ),
            ),
            (401 | 403, Some(_)) => HubError::new(
                HubErrorKind::Unauthorised,
                format!(
                    "{host} does not give {what} to the owner of HF_TOKEN (status {status}): check the name and the \
                     token, and accept the model's licence there"
                ),
            ),
            (404, _) => HubError::missing(format!("{host} has no {what}: check the spelling")),
            (status, _) => {
                HubError::network(format!("{host} answered with status {status} for {what}; try again later"))
            }
        }
    }

    fn request(&self, target: &Uri, from: u64) -> Result<ureq::http::Response<ureq::Body>> {
        let agent = if is_loopback(target) { &self.direct } else { &self.proxied };
        let mut request = agent.get(target).header(header::ACCEPT_ENCODING, "identity");
        if from > 0 {
            request = request.header(header::RANGE, format!("bytes={from}-"));
        }
        if let Some(token) = self.token.as_ref().filter(|_| same_origin(target, &self.endpoint)) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        request.call().map_err(|e| HubError::network(format!("cannot reach {}: {e}", place(target))))
    }
}

fn agent(timeout: &Patience, proxy: Option<Proxy>, roots: RootCerts) -> Agent {
    Agent::config_builder()
        .proxy(proxy)
        .tls_config(TlsConfig::builder().root_certs(roots).build())
        .user_agent(concat!("kvant/", env!("CARGO_PKG_VERSION")))
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .timeout_connect(Some(timeout.connect))
        .timeout_recv_response(Some(timeout.silence))
        .timeout_per_read(Some(timeout.silence))
        .build()
        .new_agent()
}

/// Mozilla's roots, or those in `SSL_CERT_FILE` for networks with a root of their own.
fn trusted_roots(options: &Options) -> Result<RootCerts> {
    let Some(path) = &options.certificates else { return Ok(RootCerts::WebPki) };
    let pem =
        std::fs::read(path).map_err(|e| HubError::io("read the certificates of SSL_CERT_FILE", path, e))?;
    let certificates: Vec<Certificate<'static>> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(HubError::malformed("SSL_CERT_FILE holds no certificates in PEM form").in_file(path));
    }
    Ok(RootCerts::new_with_certs(&certificates))
}

fn bad_address(url: &str) -> HubError {
    HubError::network(format!("{url:?} is not an address"))
}

/// Scheme and host only: the rest of a redirected address can carry credentials.
fn place(uri: &Uri) -> String {
    let authority = uri.authority().map(|a| a.as_str().rsplit('@').next().unwrap_or_default());
    format!("{}://{}", uri.scheme_str().unwrap_or("?"), authority.unwrap_or("?"))
}

fn same_origin(a: &Uri, b: &Uri) -> bool {
    let port = |uri: &Uri| uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    let host = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
    a.scheme() == b.scheme() && host(a) == host(b) && port(a) == port(b)
}

fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Where a redirect leads: an absolute address, or a path on the same host. Never from https to http.
fn redirect(from: &Uri, headers: &HeaderMap) -> Result<Uri> {
    let location = headers.get(header::LOCATION).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let absolute = if location.starts_with('/') && !location.starts_with("//") {
        format!("{}{location}", place(from))
    } else {
        location.to_owned()
    };
    let target: Uri = absolute
        .parse()
        .ok()
        .filter(|uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https")))
        .ok_or_else(|| HubError::network(format!("{} redirects to no address", place(from))))?;
    if from.scheme_str() == Some("https") && target.scheme_str() != Some("https") {
        return Err(HubError::network(format!(
            "{} redirects to an unencrypted address; refused",
            place(from)
        )));
    }
    Ok(target)
}

fn announced_sha256(headers: &HeaderMap) -> Option<String> {
    let tag = headers.get("x-linked-etag")?.to_str().ok()?.trim_matches('"');
    is_sha256(tag).then(|| tag.to_ascii_lowercase())
}

pub(super) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// `path` with everything but unreserved characters and slashes percent-encoded.
pub(super) fn encode_path(path: &str) -> String {
    path.bytes()
        .map(|b| match b {
            b'/' | b'-' | b'_' | b'.' | b'~' => char::from(b).to_string(),
            b if b.is_ascii_alphanumeric() => char::from(b).to_string(),
            b => format!("%{b:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn origins() {
        assert!(same_origin(&uri("https://Hub.co/a"), &uri("https://hub.co:443/b")));
        assert!(!same_origin(&uri("https://hub.co"), &uri("http://hub.co")));
        assert!(!same_origin(&uri("https://hub.co"), &uri("https://cdn.hub.co")));
        assert!(!same_origin(&uri("http://127.0.0.1:1"), &uri("http://127.0.0.1:2")));
    }

    #[test]
    fn redirects_stay_encrypted_and_absolute() {
        let to = |from: &str, location: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::LOCATION, location.parse().unwrap());
            redirect(&uri(from), &headers).map(|uri| uri.to_string())
        };
        assert_eq!(to("https://a/x", "/y?z=1").unwrap(), "https://a/y?z=1");
        assert_eq!(to("http://a/x", "https://b/y").unwrap(), "https://b/y");
        assert!(to("https://a/x", "http://a/y").is_err());
        assert!(to("https://a/x", "//b/y").is_err());
        assert!(to("https://a/x", "ftp://b/y").is_err());
        assert!(to("https://a/x", "y").is_err());
        assert!(redirect(&uri("https://a/x"), &HeaderMap::new()).is_err());
    }

    #[test]
    fn messages_hide_what_an_address_carries() {
        assert_eq!(place(&uri("https://user:secret@cdn.co/f?signature=1")), "https://cdn.co");
    }

    #[test]
    fn paths_are_encoded() {
        assert_eq!(encode_path("a b/ü+.gguf"), "a%20b/%C3%BC%2B.gguf");
    }
}
