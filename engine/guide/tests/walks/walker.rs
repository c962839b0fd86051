//! A tokenizer with one token per byte, some words and some markers, and a walker through constraints.

use std::collections::BTreeMap;

use nestling_runtime::{
    ConstraintCache, ConstraintContext, ConstraintError, ConstraintSource, TokenMask,
};
use nestling_text::{OutputFormat, Tokenizer};
use serde_json::{Value, json};

const WORDS: [&str; 6] = ["\"name\"", "true", "the", "\":", "12", "},"];

/// Creates the tokenizer. `special` markers have a meaning; `plain` ones are only added tokens.
pub fn tokenizer(special: &[&str], plain: &[&str]) -> Tokenizer {
    let letter = |byte: u8| {
        let visible = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let before = (0..byte).filter(|byte| !visible(*byte)).count() as u32;
        let place = if visible(byte) { u32::from(byte) } else { 256 + before };
        char::from_u32(place).unwrap().to_string()
    };
    let mut vocabulary: BTreeMap<String, u32> =
        (0..=255u8).map(|byte| (letter(byte), u32::from(byte))).collect();
    for word in WORDS {
        vocabulary.insert(word.into(), vocabulary.len() as u32);
    }
    let first = vocabulary.len();
    let markers =
        special.iter().map(|text| (text, true)).chain(plain.iter().map(|text| (text, false)));
    let added = markers.zip(first..).map(|((text, special), id)| {
        json!({
            "id": id, "content": text, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": special,
        })
    });
    let level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
    });
    let file = json!({
        "version": "1.0", "added_tokens": added.collect::<Vec<_>>(),
        "pre_tokenizer": level, "decoder": level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": vocabulary, "merges": [],
        },
    });
    Tokenizer::from_bytes("tokenizer.json", file.to_string().as_bytes()).unwrap()
}

/// Pseudo-random number generator.
pub struct Chance(pub u64);

impl Chance {
    pub fn below(&mut self, count: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }
}

/// Result of a walk.
#[derive(Debug, PartialEq, Eq)]
pub enum Walk {
    Whole(String),
    Cut(String),
}

/// Walks until the constraint is finished, or may end and the random choice is to end. Forced tokens must be
/// allowed.
pub fn walk(
    source: &dyn ConstraintSource,
    tokenizer: &Tokenizer,
    format: &OutputFormat,
    seed: u64,
    tokens_max: usize,
) -> Result<Walk, ConstraintError> {
    let cache = ConstraintCache::default();
    let vocab_size = tokenizer.vocab_size();
    let context = ConstraintContext::new(Some(tokenizer), vocab_size, format, &cache);
    let mut constraint = source.constraint(&context)?;
    constraint.start(None)?;
    // Neighbouring seeds start far from each other.
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31));
    for _ in 0..4 {
        chance.below(2);
    }
    let mut ids: Vec<u32> = vec![];
    let mut mask = TokenMask::none(vocab_size);
    let text = |ids: &[u32]| tokenizer.decode(ids, true).unwrap();
    while ids.len() < tokens_max {
        let forced = constraint.forced()?;
        mask.forbid_all();
        constraint.mask(&mut mask)?;
        if let Some(first) = forced.first() {
            assert!(mask.allows(*first), "{first} after {}", text(&ids));
            for token in forced {
                constraint.accept(token)?;
                ids.push(token);
            }
            if constraint.is_done()? {
                return Ok(Walk::Whole(text(&ids)));
            }
            continue;
        }
        if constraint.is_done()? || constraint.may_end()? && chance.below(4) == 0 {
            return Ok(Walk::Whole(text(&ids)));
        }
        let allowed: Vec<u32> = (0..vocab_size as u32).filter(|id| mask.allows(*id)).collect();
        assert!(!allowed.is_empty() || constraint.may_end()?, "nothing after {}", text(&ids));
        if allowed.is_empty() {
            return Ok(Walk::Whole(text(&ids)));
        }
        let token = closing(&allowed, &mut chance);
        constraint.accept(token)?;
        ids.push(token);
    }
    Ok(Walk::Cut(text(&ids)))
}

/// Chooses an allowed token. Every other time it prefers one that closes something, so that walks end.
fn closing(allowed: &[u32], chance: &mut Chance) -> u32 {
    let closes = |id: &&u32| matches!(**id, 34 | 93 | 125);
    match allowed.iter().find(closes) {
        Some(token) if chance.below(2) == 0 => *token,
        _ => allowed[chance.below(allowed.len())],
    }
}

/// Parses a complete walk. Returns `None` for numbers beyond the range of floats, which JSON allows and
/// `serde_json` rejects.
pub fn json_of(walk: Walk) -> Option<Value> {
    let Walk::Whole(text) = walk else { return None };
    match serde_json::from_str(&text) {
        Ok(value) => Some(value),
        Err(error) if error.to_string().contains("out of range") => None,
        Err(error) => panic!("{error}: {text}"),
    }
}
