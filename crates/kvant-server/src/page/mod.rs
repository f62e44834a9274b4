//! `/`: the page for people. One file with everything in it; it asks nobody but this server.

use axum::body::Body;
use axum::http::Response;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use sha2::{Digest, Sha256};
use std::sync::OnceLock;

const FRAME: &str = include_str!("index.html");
const STYLE: &str = include_str!("style.css");
const SCRIPTS: [&str; 3] = [include_str!("markdown.js"), include_str!("chat.js"), include_str!("cache.js")];

/// [marked](https://github.com/markedjs/marked) 18.2.0, MIT: finds the parts of a text in Markdown. What it would write as HTML is never
/// used.
const LIBRARY: &str = include_str!("marked.js");

/// The page, and what a browser lets it do: run its own script and speak with the server it came from.
struct Page {
    html: String,
    policy: HeaderValue,
}

impl Page {
    fn get() -> &'static Page {
        static PAGE: OnceLock<Page> = OnceLock::new();
        PAGE.get_or_init(|| {
            let script = SCRIPTS.concat();
            // What opens a comment in HTML would hide the end of the script from a browser.
            let library = LIBRARY.replace("<!--", "\\x3c!--");
            let digest = |text: &str| format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)));
            let policy = format!(
                "default-src 'none'; script-src {} {}; style-src {}; img-src data:; connect-src 'self'; \
                 base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
                digest(&library),
                digest(&script),
                digest(STYLE)
            );
            let html = FRAME.replace("/*style*/", STYLE).replace("/*script*/", &script);
            let html = html.replace("/*library*/", &library);
            let policy = HeaderValue::from_str(&policy).expect("base64 is text");
            Page { html, policy }
        })
    }
}

/// Sends it.
pub async fn page() -> Response<Body> {
    let Page { html, policy } = Page::get();
    let mut response = Response::new(Body::from(html.as_str()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, policy.clone());
    for (name, value) in [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CACHE_CONTROL, "no-cache"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::{LIBRARY, Page};

    #[test]
    fn the_page_is_whole_and_asks_nobody_else() {
        let page = &Page::get().html;
        assert!(page.contains("requestSubmit") && page.contains("grid-template") && !page.contains("/*s"));
        assert!(page.contains("marked v18") && !page.contains("/*library") && !LIBRARY.contains("</script"));
        let library = LIBRARY.replace("<!--", "\\x3c!--");
        let page = &page.replace(&library, "");
        for foreign in ["https:/", "@import", "url(", "src="] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        // The namespace of SVG is a name, not an address.
        assert_eq!(page.matches("http:/").count(), 1);
        assert!(page.len() < 40_000, "{} bytes", page.len());
    }
}
