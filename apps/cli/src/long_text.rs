//! Texts that are longer than what is tokenized at once.

use nestling::engine::text::{EncodeOptions, TextError, Tokenizer};

/// Bytes that are tokenized at once.
const PIECE_BYTES: usize = 4 << 20;

/// At least the first `tokens_max` tokens of a text, if it has so many.
///
/// # Errors
/// As [`Tokenizer::encode`].
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

/// A text in pieces of at most `most` bytes, cut where a line begins if that can be.
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

/// Where a text is cut: behind the last line that ends within `most` bytes and is followed by no
/// space, which is a border of tokens in every pre-tokenizer.
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
    // Default: a text without such lines is cut where it has to be.
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
