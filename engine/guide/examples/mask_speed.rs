//! Measures the cost of masks: `mask_speed [TOKENS] [SEED]` walks through constraints over a random
//! vocabulary of 151,936 tokens and prints the time per mask. The first mask is reported separately.
#![expect(clippy::print_stdout, reason = "the result is printed")]

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Instant;

use nestling_guide::Guide;
use nestling_runtime::{ConstraintCache, ConstraintContext, ConstraintSource, TokenMask};
use nestling_text::{OutputFormat, Tokenizer};
use serde_json::{Value, json};

/// Size of Qwen3's vocabulary.
const TOKENS: usize = 151_936;

/// Tokens per answer, after which a new one starts.
const ANSWER_TOKENS: usize = 400;

const PIECES: [&str; 24] = [
    "{", "}", "[", "]", "\"", ":", ",", "\": ", "\": \"", "\",", "\", \"", "\"}", "},", "{\"",
    "[{", "\"]", "]}", "true", "false", "null", "\\n", "\\\"", "\n  ", "\n    ",
];

struct Chance(u64);

impl Chance {
    fn below(&mut self, count: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count.max(1)
    }

    fn letters(&mut self, most: usize) -> String {
        let length = 1 + self.below(most);
        (0..length).map(|_| char::from(b'a' + self.below(26) as u8)).collect()
    }

    /// Returns a token that is typical of byte-level BPE vocabularies.
    fn word(&mut self) -> Vec<u8> {
        let piece = PIECES[self.below(PIECES.len())];
        match self.below(20) {
            0..8 => format!(" {}", self.letters(11)).into_bytes(),
            8..12 => self.letters(11).into_bytes(),
            12 => {
                let word = self.letters(8);
                let (first, rest) = word.split_at(1);
                format!(" {}{rest}", first.to_uppercase()).into_bytes()
            }
            13 => format!("{}{}", self.letters(4), piece).into_bytes(),
            14 => format!("{piece}{}", self.letters(4)).into_bytes(),
            15 => format!("{piece}{}", PIECES[self.below(PIECES.len())]).into_bytes(),
            16 => [" ", "\n", "\t"][self.below(3)].repeat(1 + self.below(40)).into_bytes(),
            17 => {
                let mark = b"!#$%&'()*+-./;<=>?@^_`|~"[self.below(24)];
                let mut word = vec![mark; 1 + self.below(3)];
                word.extend(self.letters(5).bytes());
                word
            }
            18 => {
                let ideograph =
                    |chance: &mut Self| char::from_u32(0x4e00 + chance.below(0x5000) as u32);
                (0..=self.below(3)).filter_map(|_| ideograph(self)).collect::<String>().into_bytes()
            }
            // The start or the end of a character.
            _ => {
                let bytes = [
                    0xe0 + self.below(16) as u8,
                    0x80 + self.below(64) as u8,
                    0x80 + self.below(64) as u8,
                ];
                bytes[..1 + self.below(3)].to_vec()
            }
        }
    }
}

/// Returns the character of a byte in the byte-level BPE alphabet.
fn letter(byte: u8) -> Option<char> {
    let visible = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let before = (0..byte).filter(|byte| !visible(*byte)).count() as u32;
    char::from_u32(if visible(byte) { u32::from(byte) } else { 256 + before })
}

fn tokenizer(chance: &mut Chance) -> Result<Tokenizer, Box<dyn Error>> {
    let spelt = |bytes: &[u8]| bytes.iter().filter_map(|byte| letter(*byte)).collect::<String>();
    let mut words: BTreeMap<String, u32> =
        (0..=255u8).map(|byte| (spelt(&[byte]), u32::from(byte))).collect();
    for piece in PIECES {
        let next = words.len() as u32;
        words.entry(spelt(piece.as_bytes())).or_insert(next);
    }
    while words.len() < TOKENS {
        let next = words.len() as u32;
        words.entry(spelt(&chance.word())).or_insert(next);
    }
    let level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
    });
    let file = json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": words, "merges": [],
        },
    });
    Ok(Tokenizer::from_bytes("tokenizer.json", file.to_string().as_bytes())?)
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 80},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "email": {"type": "string", "format": "email"},
            "tags": {"type": "array", "items": {"enum": ["new", "old", "lost", "found"]}},
            "address": {
                "type": "object",
                "properties": {"street": {"type": "string"}, "code": {"type": "string", "pattern": "^[0-9]{5}$"}},
                "required": ["street", "code"],
                "additionalProperties": false,
            },
        },
        "required": ["name", "age", "address"],
        "additionalProperties": false,
    })
}

fn guides() -> Result<Vec<(&'static str, Guide)>, Box<dyn Error>> {
    let tree = json!({
        "$ref": "#/$defs/node",
        "$defs": {"node": {
            "type": "object",
            "properties": {"value": {"type": ["number", "string"]},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["value", "children"],
        }},
    });
    let narrowed = json!({
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "size": {"type": "number"}},
        "if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]},
        "then": {"properties": {"text": {"type": "string"}}, "required": ["text"]},
        "required": ["kind"],
        "unevaluatedProperties": false,
    });
    Ok(vec![
        ("a person's schema", Guide::json_schema(&person())?),
        ("a tree's schema", Guide::json_schema(&tree)?),
        ("a schema with conditions", Guide::json_schema(&narrowed)?),
        ("any JSON object", Guide::json_object()?),
        (
            "regex of a date and words",
            Guide::regex("[0-9]{4}-[0-9]{2}-[0-9]{2}( [a-z]{2,12}){3,200}")?,
        ),
        ("regex of anything", Guide::regex("(?s:.){1,2000}")?),
    ])
}

/// Chooses an allowed token. Every third time it prefers one that closes something, so that answers make
/// progress.
fn chosen(mask: &TokenMask, chance: &mut Chance) -> Option<u32> {
    let closes = [34_u32, 93, 125].into_iter().find(|token| mask.allows(*token));
    if let (Some(token), 0) = (closes, chance.below(3)) {
        return Some(token);
    }
    let start = chance.below(TOKENS) as u32;
    (start..TOKENS as u32).chain(0..start).find(|token| mask.allows(*token))
}

/// CPU time of this thread in microseconds, which other work on the machine does not affect.
#[cfg(unix)]
fn processor_micros() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
}

/// Wall-clock time in microseconds, on systems where CPU time per thread is not used.
#[cfg(not(unix))]
fn processor_micros() -> f64 {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    START.elapsed().as_secs_f64() * 1e6
}

/// Measures the masks of `tokens` tokens in microseconds, separately for the first one of an answer, and the
/// preparations before them.
fn walk(
    guide: &Guide,
    context: &ConstraintContext<'_>,
    tokens: usize,
    chance: &mut Chance,
) -> Result<(f64, Vec<f64>), Box<dyn Error>> {
    let mut times = Vec::with_capacity(tokens);
    let start = processor_micros();
    let mut constraint = guide.constraint(context)?;
    let prepared = processor_micros() - start;
    constraint.start(None)?;
    let mut mask = TokenMask::none(TOKENS);
    let mut length = 0;
    while times.len() < tokens {
        mask.forbid_all();
        let start = processor_micros();
        constraint.mask(&mut mask)?;
        times.push(processor_micros() - start);
        let token = chosen(&mask, chance);
        if let Some(token) = token {
            constraint.accept(token)?;
            length += 1;
        }
        if token.is_none() || length >= ANSWER_TOKENS || constraint.is_done()? {
            (constraint, length) = (guide.constraint(context)?, 0);
            constraint.start(None)?;
        }
    }
    Ok((prepared, times))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let tokens = arguments.next().map_or(Ok(4000), |text| text.parse())?;
    let mut chance = Chance(arguments.next().map_or(Ok(1), |text| text.parse())?);
    let start = Instant::now();
    let tokenizer = tokenizer(&mut chance)?;
    let (format, cache) = (OutputFormat::plain(), ConstraintCache::default());
    let context = ConstraintContext::new(Some(&tokenizer), TOKENS, &format, &cache);
    println!("{TOKENS} tokens made in {:.1} s", start.elapsed().as_secs_f64());
    let start = Instant::now();
    Guide::regex("a")?.constraint(&context)?;
    println!("the vocabulary prepared in {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    println!("| constraint | masks | compiled, ms | first, µs | p50 | p99 | worst |");
    println!("|---|---:|---:|---:|---:|---:|---:|");
    let mut all = Vec::new();
    let row = |name: &str, prepared: f64, mut times: Vec<f64>| {
        let first = times.first().copied();
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times.get((times.len() as f64 * share) as usize).or(times.last());
        // Default: a walk without tokens has no times.
        let shown = |time: Option<&f64>| time.map_or(String::new(), |time| format!("{time:.1}"));
        println!(
            "| {name} | {} | {:.1} | {} | {} | {} | {} |",
            times.len(),
            prepared / 1e3,
            shown(first.as_ref()),
            shown(at(0.5)),
            shown(at(0.99)),
            shown(times.last()),
        );
    };
    for (name, guide) in guides()? {
        let (prepared, times) = walk(&guide, &context, tokens, &mut chance)?;
        all.extend(times.iter().copied());
        row(name, prepared, times);
    }
    row("all", 0.0, all);
    Ok(())
}
