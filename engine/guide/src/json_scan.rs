//! Position within JSON text, and kinds of tokens by their effect on it.

use llguidance::toktrie::{SimpleVob, TokEnv};
use serde_json::Value;

/// Position within JSON text, as far as the choice of tokens depends on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct JsonScan {
    pub in_text: bool,
    is_escaped: bool,
    /// Number of open lists and objects.
    pub depth: usize,
    /// Number of digits immediately before this position, outside of texts.
    pub digits: usize,
    /// True within the exponent of a number.
    pub in_exponent: bool,
}

impl JsonScan {
    pub fn push(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.push_byte(*byte));
    }

    fn push_byte(&mut self, byte: u8) {
        if self.in_text {
            self.in_text = byte != b'"' || self.is_escaped;
            self.is_escaped = byte == b'\\' && !self.is_escaped;
            return;
        }
        match byte {
            b'"' => self.in_text = true,
            b'[' | b'{' => self.depth += 1,
            b']' | b'}' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.in_exponent = match byte {
            // The letter of a literal such as `true` follows no digit.
            b'e' | b'E' => self.digits > 0,
            b'+' | b'-' | b'0'..=b'9' => self.in_exponent,
            _ => false,
        };
        self.digits = if byte.is_ascii_digit() { self.digits + 1 } else { 0 };
    }
}

/// Kind of a token, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// Closing brackets alone.
    Close,
    /// A closing bracket and other text.
    CloseMore,
    Comma,
    Colon,
    /// First letter of a literal.
    Literal,
    Number,
    /// A quote alone, or with closing brackets.
    Quote,
    /// A quote and other text.
    QuoteMore,
    Open,
    Space,
    Other,
}

/// Number of kinds.
const KINDS: usize = TokenKind::Other as usize + 1;

impl TokenKind {
    fn of(token: &[u8]) -> Self {
        let (first, rest) = token.split_first().unwrap_or((&0, &[]));
        let closes = rest.iter().all(|byte| matches!(byte, b']' | b'}'));
        match first {
            b']' | b'}' if closes => Self::Close,
            b']' | b'}' => Self::CloseMore,
            b',' => Self::Comma,
            b':' => Self::Colon,
            b'n' | b't' | b'f' => Self::Literal,
            b'0'..=b'9' | b'-' => Self::Number,
            b'"' if closes => Self::Quote,
            b'"' => Self::QuoteMore,
            b'[' | b'{' => Self::Open,
            b' ' | b'\n' | b'\t' | b'\r' => Self::Space,
            _ => Self::Other,
        }
    }
}

/// Tokens of a vocabulary by kind.
pub(crate) struct TokenKinds {
    env: TokEnv,
    kinds: Vec<SimpleVob>,
}

impl TokenKinds {
    pub fn new(env: TokEnv) -> Self {
        let trie = env.tok_trie();
        let tokens = trie.vocab_size();
        let mut kinds = vec![SimpleVob::alloc(tokens); KINDS];
        for token in (0..tokens).map_while(|token| u32::try_from(token).ok()) {
            let kind = TokenKind::of(trie.token(token));
            if let Some(tokens) = kinds.get_mut(kind as usize) {
                tokens.allow_token(token);
            }
        }
        Self { env, kinds }
    }

    pub fn bytes(&self, token: u32) -> &[u8] {
        self.env.tok_trie().token(token)
    }

    /// Returns the allowed tokens of some kinds, or `None` if there are none.
    pub fn only(&self, allowed: &SimpleVob, kinds: &[TokenKind]) -> Option<SimpleVob> {
        let mut chosen = SimpleVob::alloc(allowed.len());
        for tokens in kinds.iter().filter_map(|kind| self.kinds.get(*kind as usize)) {
            chosen.or(tokens);
        }
        chosen.and(allowed);
        (!chosen.is_zero()).then_some(chosen)
    }

    /// Returns the allowed tokens that are not of a kind, or `None` if there are none.
    pub fn without(&self, allowed: &SimpleVob, kind: TokenKind) -> Option<SimpleVob> {
        let mut chosen = allowed.clone();
        if let Some(tokens) = self.kinds.get(kind as usize) {
            chosen.sub(tokens);
        }
        (!chosen.is_zero()).then_some(chosen)
    }
}

/// Returns the largest number of digits that a number of the schema takes without an exponent.
pub(crate) fn longest_number(schema: &Value) -> usize {
    match schema {
        Value::Number(number) => written_digits(&number.to_string()),
        Value::Array(items) => items.iter().map(longest_number).fold(0, usize::max),
        Value::Object(map) => map.values().map(longest_number).fold(0, usize::max),
        _ => 0,
    }
}

/// Returns an upper bound on the digits of a number that is written without its exponent.
fn written_digits(number: &str) -> usize {
    let Some((digits, exponent)) = number.split_once(['e', 'E']) else { return number.len() };
    // Default: an exponent beyond the address space lifts every bound.
    let exponent = exponent.trim_start_matches(['+', '-']).parse().unwrap_or(usize::MAX);
    digits.len().saturating_add(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn scanned(text: &str) -> JsonScan {
        let mut scan = JsonScan::default();
        scan.push(text.as_bytes());
        scan
    }

    #[test]
    fn positions_are_those_of_json() {
        assert_eq!(scanned("[{\"a\\\"]").depth, 2);
        assert!(scanned("[{\"a\\\"]").in_text && !scanned("[{\"a\\\\\"]").in_text);
        assert_eq!(scanned("[{\"a\\\\\"]}").depth, 0);
        assert_eq!((scanned("[12, 345").digits, scanned("-0.0067").digits), (3, 4));
        assert_eq!((scanned("\"12").digits, scanned("12 ").digits), (0, 0));
        assert!(scanned("1.5e-3").in_exponent && scanned("2E").in_exponent);
        assert!(!scanned("true").in_exponent && !scanned("1e5,2").in_exponent);
    }

    #[test]
    fn tokens_have_kinds() {
        use TokenKind::*;
        let kinds =
            [("]}", Close), ("],", CloseMore), (", ", Comma), (":", Colon), ("null", Literal)];
        let more =
            [("-1", Number), ("\"}", Quote), ("\",", QuoteMore), ("{\"", Open), ("\n ", Space)];
        for (text, kind) in kinds.into_iter().chain(more).chain([("é", Other), ("", Other)]) {
            assert_eq!(TokenKind::of(text.as_bytes()), kind, "{text}");
        }
    }

    #[test]
    fn numbers_of_a_schema_are_measured_without_their_exponents() {
        let schema = json!({"maximum": 1e40, "items": [{"const": -12.5}], "title": "123456789"});
        assert!((41..50).contains(&longest_number(&schema)), "{}", longest_number(&schema));
        assert_eq!(longest_number(&json!({"const": -12.5})), 5);
        assert!(longest_number(&json!({"multipleOf": 1e-30})) >= 30);
        assert_eq!(longest_number(&json!({"type": "string"})), 0);
    }
}
