//! The web page at `/`: a chat with live model status. It is a single embedded file that contacts only this
//! server.

use std::sync::OnceLock;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::error::text_response;

const PAGE: &str = include_str!("page.html");

/// Handles `GET /`. The page contains no secrets, so it needs no key, but its requests do.
pub(crate) fn page() -> Response {
    static POLICY: OnceLock<Option<HeaderValue>> = OnceLock::new();
    let mut response = text_response(StatusCode::OK, "text/html; charset=utf-8", PAGE.to_owned());
    let headers = response.headers_mut();
    if let Some(policy) = POLICY.get_or_init(|| HeaderValue::from_str(&policy()).ok()) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy.clone());
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Returns a content security policy. It allows only the page's own script and style, by hash, and
/// connections to this server.
fn policy() -> String {
    let (script, style) = (hash("script"), hash("style"));
    format!(
        "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

/// Returns the CSP hash of the page's only element with this name.
fn hash(element: &str) -> String {
    let (begin, end) = (format!("<{element}>"), format!("</{element}>"));
    let inside = PAGE.split_once(&begin).and_then(|(_, rest)| rest.split_once(&end));
    // Default: the hash of an empty string matches no script or style.
    let inside = inside.map_or("", |(inside, _)| inside);
    format!("sha256-{}", STANDARD.encode(Sha256::digest(inside)))
}

#[cfg(test)]
mod tests {
    use super::PAGE;

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        for foreign in ["http://", "https://", "//cdn", "innerHTML", "eval(", " src=", "@import"] {
            assert!(!PAGE.contains(foreign), "{foreign}");
        }
        for element in ["<script>", "<style>"] {
            assert_eq!(PAGE.matches(element).count(), 1, "{element}");
        }
        // Inline styles and handlers would need a policy that also allows injected ones.
        assert!(!PAGE.contains(" style=") && !PAGE.contains(" onclick="));
    }
}
