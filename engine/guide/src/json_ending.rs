//! Preferences among the tokens that a JSON grammar allows, so that an answer draws to an end: numbers have a
//! bounded number of digits, and shortly before the limit on tokens the value is closed.
//!
//! A preference never forbids all tokens: where the grammar allows no preferred token, it allows all of its own.

use std::sync::Arc;

use llguidance::toktrie::SimpleVob;
use serde_json::Value;

use crate::json_scan::{JsonScan, TokenKind, TokenKinds, longest_number};
use crate::limits::{CLOSING_SHARE, CLOSING_TOKENS, EXPONENT_DIGITS, NUMBER_DIGITS};

/// Kinds of tokens that close a value outside of texts, best first. The value of a missing member is a literal, a
/// number, a text, or something that is closed at once.
const CLOSING: [&[TokenKind]; 9] = [
    &[TokenKind::Close],
    &[TokenKind::CloseMore],
    &[TokenKind::Comma],
    &[TokenKind::Colon],
    &[TokenKind::Literal],
    &[TokenKind::Number],
    &[TokenKind::Quote, TokenKind::QuoteMore],
    &[TokenKind::Open],
    &[TokenKind::Other],
];

/// Kinds of tokens that close a text.
const CLOSING_TEXT: [&[TokenKind]; 2] = [&[TokenKind::Quote], &[TokenKind::QuoteMore]];

/// Bounds of the numbers in the values of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JsonBounds {
    /// Maximum number of digits in a row.
    digits: usize,
}

impl JsonBounds {
    /// Returns the bounds for the values of some schemas. A number in a schema lifts the bound to its own length.
    pub fn of<'a>(schemas: impl IntoIterator<Item = &'a Value>) -> Self {
        Self { digits: schemas.into_iter().map(longest_number).fold(NUMBER_DIGITS, usize::max) }
    }
}

/// Preferences for one answer.
pub(crate) struct JsonEnding {
    kinds: Arc<TokenKinds>,
    bounds: JsonBounds,
    scan: JsonScan,
    /// Number of tokens that the answer may have, if it is known.
    tokens_max: Option<usize>,
    tokens_left: usize,
}

impl JsonEnding {
    pub fn new(kinds: Arc<TokenKinds>, bounds: JsonBounds) -> Self {
        Self { kinds, bounds, scan: JsonScan::default(), tokens_max: None, tokens_left: usize::MAX }
    }

    /// Starts at the next value.
    pub fn restart(&mut self) {
        self.scan = JsonScan::default();
    }

    pub fn set_tokens_left(&mut self, tokens: usize) {
        self.tokens_max.get_or_insert(tokens);
        self.tokens_left = tokens;
    }

    pub fn accept(&mut self, token: u32) {
        self.scan.push(self.kinds.bytes(token));
    }

    /// Returns true if a complete value ends here.
    pub fn ends_value(&self) -> bool {
        self.is_closing() || self.scan.depth == 0 && self.is_long_number()
    }

    /// Returns the preferred tokens, or `None` if all allowed ones are equal.
    pub fn preferred(&self, allowed: &SimpleVob) -> Option<SimpleVob> {
        if self.is_closing() {
            let order: &[&[TokenKind]] = if self.scan.in_text { &CLOSING_TEXT } else { &CLOSING };
            return order.iter().find_map(|kinds| self.kinds.only(allowed, kinds));
        }
        match self.is_long_number() {
            true => self.kinds.without(allowed, TokenKind::Number),
            false => None,
        }
    }

    fn is_closing(&self) -> bool {
        self.tokens_max.is_some_and(|limit| {
            let reserve = (limit / CLOSING_SHARE).min(CLOSING_TOKENS);
            self.tokens_left <= reserve.saturating_add(self.scan.depth)
        })
    }

    fn is_long_number(&self) -> bool {
        let limit = if self.scan.in_exponent { EXPONENT_DIGITS } else { self.bounds.digits };
        !self.scan.in_text && self.scan.digits >= limit
    }
}
