//! Tokenizes long texts in chunks.

use nestling::engine::text::{EncodeOptions, TextError, Tokenizer};

/// Maximum size in bytes of a chunk that is tokenized at once.
const PIECE_BYTES: usize = 4 << 20;

/// Returns at least the first `tokens_max` tokens of a text, or all tokens of a shorter text.
///
/// # Errors
/// Returns the errors of [`Tokenizer::encode`].
pub fn encode(
    tokenizer: &Tokenizer,
    text: &str,
    options: EncodeOptions,
    tokens_max: usize,
) -> Result<Vec<u32>, TextError> {
    let mut tokens = Vec::new();
    for piece in pieces(text, PIECE_BYTES) {
        tokens.extend(tokenizer.encode(piece, options)?);
        if tokens.len() >= tokens_max {
            break;
        }
    }
    Ok(tokens)
}

/// Splits a text into chunks of at most `most` bytes, at the start of a line if possible.
fn pieces(mut rest: &str, most: usize) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, after) = rest.split_at(cut(rest, most));
        rest = after;
        Some(piece)
    })
}

/// Returns the index at which to split a text. It is after the last newline within `most` bytes that is not
/// followed by whitespace, because every pre-tokenizer separates tokens there.
fn cut(text: &str, most: usize) -> usize {
    if text.len() <= most {
        return text.len();
    }
    let most = match text.floor_char_boundary(most) {
        0 => return text.ceil_char_boundary(1),
        most => most,
    };
    let lines = text[..most].rmatch_indices('\n').map(|(at, _)| at + 1);
    let mut begins = lines.filter(|at| !text[*at..].starts_with(char::is_whitespace));
    // Default: a text without such a newline is split at `most` bytes.
    begins.next().unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_with_lines_and_lose_nothing() {
        let text = "one\ntwo\n\n  three\nfour\nfünf\n".repeat(5);
        for most in 1..60 {
            let found: Vec<&str> = pieces(&text, most).collect();
            assert_eq!(found.concat(), text);
            assert!(found.iter().all(|piece| !piece.is_empty() && piece.len() <= most.max(2)));
            if most >= 20 {
                let (_, first) = found.split_last().unwrap();
                assert!(first.iter().all(|piece| piece.ends_with('\n')), "{most}: {found:?}");
            }
        }
        assert_eq!(pieces("", 3).count(), 0);
    }
}
