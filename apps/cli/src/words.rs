//! Text formatting for messages.

use nestling::import::{ContextLimit, ModelConfig};

/// Description of a model without experts.
pub const DENSE: &str = "dense: all weights are read for every token";

/// Describes why contexts are shorter than the model was trained for, if they are.
pub fn context_note(config: &ModelConfig) -> Option<String> {
    let ContextLimit::Selection { trained } = config.context_limit else { return None };
    Some(format!(
        "contexts are limited to {} tokens: in longer ones, up to the {trained} of its training, this model \
         attends to selected tokens only, which is not supported",
        config.max_position_embeddings
    ))
}

/// Replaces control characters, which could move the cursor or reconfigure the terminal. Line breaks and tabs
/// stay. Text from models, files, servers and errors is untrusted.
pub fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c };
    text.replace("\r\n", "\n").chars().map(shown).collect()
}

/// Formats a count with its noun: `1 line`, `2 lines`, `0 lines`.
pub fn counted(count: usize, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_cannot_command_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\r\n\tc"), "a\u{fffd}[2Jb\n\tc");
        assert_eq!(printable("\u{9b}31m\x7f\r\x07"), "\u{fffd}31m\u{fffd}\u{fffd}\u{fffd}");
        assert_eq!(printable("für 船 🚢"), "für 船 🚢");
    }

    #[test]
    fn one_is_singular() {
        assert_eq!([0, 1, 2].map(|n| counted(n, "line")), ["0 lines", "1 line", "2 lines"]);
    }
}
