//! DRY: penalties of tokens that would extend a repeated sequence, with llama.cpp's definition.

use std::collections::HashMap;

use crate::error::TextError;
use crate::sampling_params::SamplingParams;
use crate::tokenizer::{EncodeOptions, SpecialText, Tokenizer};

/// Maximum number of tokens after the first one of a sequence breaker, as in llama.cpp. It bounds the scan.
const TAIL_MAX: usize = 20;

/// Natural logarithm of the largest `f32`; llama.cpp bounds the penalty by it.
const LARGEST_LOG: f64 = 88.722_839_1;

/// Token sequences that contain a sequence breaker: tails by first token. An empty tail belongs to a token that
/// contains the whole breaker.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DryBreakers {
    tails: HashMap<u32, Vec<Vec<u32>>>,
}

impl DryBreakers {
    /// Finds the token sequences that contain one of `breakers`.
    ///
    /// # Errors
    /// Fails if the tokenizer cannot encode the rest of a breaker that begins inside a token.
    pub(super) fn new(tokenizer: &Tokenizer, breakers: &[String]) -> Result<Self, TextError> {
        let mut found = Self::default();
        for breaker in breakers {
            found.add(tokenizer, breaker)?;
        }
        Ok(found)
    }

    #[cfg(test)]
    pub(super) fn of_sequences(sequences: &[Vec<u32>]) -> Self {
        let mut found = Self::default();
        for sequence in sequences {
            if let [head, tail @ ..] = sequence.as_slice() {
                found.tails.entry(*head).or_default().push(tail.to_vec());
            }
        }
        found
    }

    fn add(&mut self, tokenizer: &Tokenizer, breaker: &str) -> Result<(), TextError> {
        let plain = EncodeOptions { add_special_tokens: false, special_text: SpecialText::Plain };
        let bytes = breaker.as_bytes();
        // Tokens of the breaker without its first bytes, by the number of these bytes.
        let mut rests: HashMap<usize, Vec<u32>> = HashMap::new();
        for token in (0u32..).take(tokenizer.vocab_size()) {
            let decoded;
            let word = match tokenizer.token_bytes(token) {
                Some(bytes) => bytes,
                None => {
                    decoded = tokenizer.decode(&[token], true)?;
                    decoded.as_bytes()
                }
            };
            if word.windows(bytes.len()).any(|window| window == bytes) {
                self.insert(token, Vec::new());
                continue;
            }
            for length in 1..bytes.len().min(word.len() + 1) {
                // A rest that begins inside a character has no text to encode.
                let (true, Some(rest)) = (word.ends_with(&bytes[..length]), breaker.get(length..))
                else {
                    continue;
                };
                let tail = match rests.get(&length) {
                    Some(tail) => tail.clone(),
                    None => {
                        let mut tail = tokenizer.encode(rest, plain)?;
                        tail.truncate(TAIL_MAX);
                        rests.insert(length, tail.clone());
                        tail
                    }
                };
                self.insert(token, tail);
            }
        }
        Ok(())
    }

    fn insert(&mut self, head: u32, tail: Vec<u32>) {
        let tails = self.tails.entry(head).or_default();
        if !tails.contains(&tail) {
            tails.push(tail);
        }
    }

    fn is_single(&self, token: u32) -> bool {
        // Default: a token without an entry begins no breaker.
        self.tails.get(&token).is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }

    /// Returns the number of tokens after the last breaker. `latest` is in reverse order, the last token first.
    fn limit(&self, latest: &[u32]) -> usize {
        for (at, head) in latest.iter().enumerate() {
            let Some(tails) = self.tails.get(head) else { continue };
            let follows = |tail: &Vec<u32>| {
                tail.len() <= at && tail.iter().eq(latest[at - tail.len()..at].iter().rev())
            };
            if let Some(length) = tails.iter().filter(|tail| follows(tail)).map(Vec::len).max() {
                return at - length;
            }
        }
        latest.len()
    }
}

/// Returns the positive penalties by token. `latest` holds the tokens to scan in reverse order, the last one first.
pub(super) fn dry_penalties(
    params: &SamplingParams,
    breakers: &DryBreakers,
    latest: &[u32],
) -> HashMap<u32, f64> {
    let allowed = params.dry_allowed_length as usize;
    let mut repeats: HashMap<u32, usize> = HashMap::new();
    if latest.len() <= allowed {
        return HashMap::new();
    }
    let limit = breakers.limit(latest);
    if limit < allowed {
        return HashMap::new();
    }
    let lengths = common_prefixes(latest);
    // The sequence of lengths[at] tokens before latest[at - 1] equals the end of the text.
    for (at, length) in lengths.iter().enumerate().skip(1) {
        let length = limit.min(*length);
        if length >= allowed && !breakers.is_single(latest[at - 1]) {
            let longest = repeats.entry(latest[at - 1]).or_insert(length);
            *longest = length.max(*longest);
        }
    }
    let base = f64::from(params.dry_base);
    let exponent_max =
        if base > 1.000_001 { libm::floor(LARGEST_LOG / libm::log(base)) } else { f64::INFINITY };
    let penalty = |length: usize| {
        let exponent = ((length - allowed) as f64).min(exponent_max);
        f64::from(params.dry_multiplier) * libm::pow(base, exponent)
    };
    repeats.into_iter().map(|(token, length)| (token, penalty(length))).collect()
}

/// Returns, for each offset, the length of the longest common prefix of `tokens` and of `tokens` from there on
/// (the Z function), in linear time. Entry 0 is 0.
fn common_prefixes(tokens: &[u32]) -> Vec<usize> {
    let mut lengths = vec![0; tokens.len()];
    // Bounds of the match that ends last.
    let (mut start, mut end) = (0, 0);
    for at in 1..tokens.len() {
        let mut length = if at < end { lengths[at - start].min(end - at) } else { 0 };
        while at + length < tokens.len() && tokens[length] == tokens[at + length] {
            length += 1;
        }
        if at + length > end {
            (start, end) = (at, at + length);
        }
        lengths[at] = length;
    }
    lengths
}
