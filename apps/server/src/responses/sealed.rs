//! Reasoning as an opaque text (`encrypted_content`), which clients send back without the reasoning itself.
//!
//! The text is encoded and not encrypted: nothing in it is hidden from a client that receives the reasoning
//! anyway, and a client that changes it could as well send other reasoning.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// First letters of a text of this server. Texts of other servers are not understood.
const PREFIX: &str = "nestling1:";

/// Returns reasoning as an opaque text.
pub(super) fn sealed(reasoning: &str) -> String {
    format!("{PREFIX}{}", STANDARD.encode(reasoning))
}

/// Returns the reasoning in an opaque text; `None` if another server wrote it or it is damaged.
pub(super) fn opened(text: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(text.strip_prefix(PREFIX)?).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasoning_comes_back_as_it_was() {
        for text in ["", "Hm.", "äöü\n\u{1f980}"] {
            assert_eq!(opened(&sealed(text)).as_deref(), Some(text));
        }
        for foreign in ["", "gAAAAAB", "nestling1:%", "nestling1:/w=="] {
            assert_eq!(opened(foreign), None, "{foreign}");
        }
    }
}
