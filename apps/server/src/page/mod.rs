//! The web page at `/`: a chat with live model status. Its files are put into one document that contacts only this
//! server.

use std::sync::LazyLock;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::error::text_response;

const MARKUP: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const MARKDOWN_LIBRARY: &str = include_str!("marked.umd.js");
const SCRIPTS: [&str; 3] = [MARKDOWN_LIBRARY, include_str!("markdown.js"), include_str!("page.js")];

static PAGE: LazyLock<String> = LazyLock::new(assemble);
static POLICY: LazyLock<Option<HeaderValue>> =
    LazyLock::new(|| HeaderValue::from_str(&policy()).ok());

/// Handles `GET /`. The page contains no secrets, so it needs no key, but its requests do.
pub(crate) fn page() -> Response {
    let mut response = text_response(StatusCode::OK, "text/html; charset=utf-8", PAGE.clone());
    let headers = response.headers_mut();
    if let Some(policy) = POLICY.as_ref() {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy.clone());
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Browsers would resolve the hosts of links in answers before a click.
    headers
        .insert(HeaderName::from_static("x-dns-prefetch-control"), HeaderValue::from_static("off"));
    response
}

/// Returns the markup with the style and the scripts in place of its empty elements.
fn assemble() -> String {
    let style = format!("<style>{STYLE}</style>");
    let scripts = SCRIPTS.map(|script| format!("<script>{script}</script>")).join("\n");
    MARKUP.replacen("<style></style>", &style, 1).replacen("<script></script>", &scripts, 1)
}

/// Returns a content security policy. It allows only the page's own scripts and style, by hash, and connections to
/// this server. Trusted types forbid functions that parse HTML.
fn policy() -> String {
    let (scripts, style) = (SCRIPTS.map(hash).join(" "), hash(STYLE));
    format!(
        "default-src 'none'; script-src {scripts}; style-src {style}; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'"
    )
}

/// Returns the source expression for an inline script or style.
fn hash(content: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(content)))
}

#[cfg(test)]
mod tests {
    use super::{MARKDOWN_LIBRARY, MARKUP, PAGE, SCRIPTS, STYLE};

    const PAGE_BYTES_MAX: usize = 150_000;

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        let own = SCRIPTS.into_iter().skip(1).chain([MARKUP, STYLE]).collect::<String>();
        for foreign in ["http://", "https://", "//cdn", " src=", "@import", "url("] {
            assert!(!own.contains(foreign), "{foreign}");
        }
        // Inline styles and handlers would need a policy that also allows injected ones.
        assert!(!own.contains(" style=") && !own.contains(" onclick="));
        for name in ["fetch(", "import(", "XMLHttpRequest", "sourceMappingURL"] {
            assert!(!MARKDOWN_LIBRARY.contains(name), "{name}");
        }
    }

    #[test]
    fn no_script_parses_html_or_code() {
        for script in SCRIPTS {
            for sink in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
            {
                assert!(!script.contains(sink), "{sink}");
            }
        }
    }

    #[test]
    fn the_document_has_each_file_once_and_is_small() {
        assert_eq!(PAGE.matches("<style>").count(), 1);
        assert_eq!(PAGE.matches("<script>").count(), SCRIPTS.len());
        assert_eq!(PAGE.matches("</script>").count(), SCRIPTS.len());
        for file in SCRIPTS.into_iter().chain([STYLE]) {
            assert!(PAGE.contains(file));
        }
        assert!(PAGE.len() < PAGE_BYTES_MAX, "{}", PAGE.len());
    }
}
