//! Tokenizers that models are published with as byte strings with ranks, `tiktoken.model`, and Python code in place of a
//! `tokenizer.json`. The code of Kimi-K2 and Moonlight (`tokenization_kimi.py`) adds two things to the file, which are
//! known here: the pattern that cuts words, and 256 ids after the ranks, whose texts `tokenizer_config.json` has.
//!
//! Merges follow from the ranks as in transformers' `TikTokenConverter`: every pair of tokens whose bytes together are
//! a token, in the order of that token's rank.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nestling_formats::memory::{OutOfMemory, try_reserve, try_zeroed};
use serde_json::{Value, json};

use crate::ImportError;
use crate::gguf::KIMI_K2;
use crate::json_writer::JsonWriter;
use crate::limits::{MAX_ASSET_BYTES, MAX_CONFIG_BYTES, MAX_GGUF_TOKENS};
use crate::weight_files::read_small;

const RANKS: &str = "tiktoken.model";
const CONFIG: &str = "tokenizer_config.json";

/// The class in Python whose pattern and special tokens are known.
const CLASS: &str = "TikTokenTokenizer";

/// Ids after the ranks, all of them special tokens.
const RESERVED: usize = 256;

/// Bytes of the longest token: every place where it may be cut in two is tried. Published ones stay below 129.
const TOKEN_BYTES_MAX: usize = 256;

/// The `tokenizer.json` that says what the files of a directory without one say; `None` where there is no
/// `tiktoken.model`.
///
/// # Errors
/// [`ImportError`] that names the file: for ranks that make no sense, and for Python code that is not known.
pub fn tokenizer_json(directory: &Path) -> Result<Option<Vec<u8>>, ImportError> {
    let path = directory.join(RANKS);
    let Some(bytes) = read_small(&path, MAX_ASSET_BYTES)? else { return Ok(None) };
    let config_path = directory.join(CONFIG);
    let config = read_small(&config_path, MAX_CONFIG_BYTES)?;
    let config_file = config_path.display().to_string();
    let special = special_tokens(&config_file, config.as_deref())?;
    let file = path.display().to_string();
    let ranks = Ranks::read(&file, &bytes)?;
    let ids = ranks.ids(&file)?;
    let reserved = reserved(&config_file, special, &ids)?;
    Ok(Some(JsonWriter::written(&file, |out| write(&ranks, &ids, &reserved, out))?))
}

/// Texts of special tokens by their ids, and whether each is left out of decoded text.
type Special = HashMap<u64, SpecialToken>;

#[derive(Debug)]
struct SpecialToken {
    text: String,
    special: bool,
}

/// The special tokens of a `tokenizer_config.json` whose class is known.
fn special_tokens(file: &str, bytes: Option<&[u8]>) -> Result<Special, ImportError> {
    let config: Value = match bytes {
        Some(bytes) => serde_json::from_slice(bytes)
            .map_err(|source| ImportError::Json { file: file.into(), source })?,
        None => Value::Null,
    };
    let class = config.get("tokenizer_class").and_then(Value::as_str);
    if class != Some(CLASS) {
        return Err(ImportError::Unsupported {
            file: file.into(),
            key: "tokenizer_class".into(),
            found: class.map_or("absent".into(), |class| class.chars().take(60).collect()),
            supported: format!(
                "the code beside `{RANKS}` is known for {CLASS}; for others save a `tokenizer.json`"
            ),
        });
    }
    let mut special = Special::new();
    let Some(Value::Object(tokens)) = config.get("added_tokens_decoder") else {
        return Ok(special);
    };
    for (id, token) in tokens {
        let text = token.get("content").and_then(Value::as_str);
        let (Ok(id), Some(text)) = (id.parse(), text) else {
            return Err(ImportError::Value {
                file: file.into(),
                key: "added_tokens_decoder".into(),
                expected: "ids with a `content`".into(),
                found: id.chars().take(60).collect(),
            });
        };
        // Default: as in transformers' `AddedToken`.
        let is_special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
        if special.insert(id, SpecialToken { text: text.into(), special: is_special }).is_some() {
            return Err(wrong_special(file, id, "every id once", "it twice"));
        }
    }
    Ok(special)
}

/// The error of a special token.
fn wrong_special(file: &str, id: u64, expected: &str, found: &str) -> ImportError {
    ImportError::Value {
        file: file.into(),
        key: format!("added_tokens_decoder: {id}"),
        expected: expected.into(),
        found: found.chars().take(60).collect(),
    }
}

/// The special tokens of all ids after the ranks, whose texts are keys of one vocabulary with the ranks' tokens.
fn reserved(
    file: &str,
    mut special: Special,
    ids: &HashMap<&[u8], usize>,
) -> Result<Vec<(u64, SpecialToken)>, ImportError> {
    let first = ids.len() as u64;
    let places = first..first + RESERVED as u64;
    if let Some(id) = special.keys().filter(|id| !places.contains(*id)).min() {
        let expected = format!("ids after the ranks: {first} to {}", places.end - 1);
        return Err(wrong_special(file, *id, &expected, "another"));
    }
    let alphabet = alphabet();
    let mut by_text = HashMap::new();
    let mut reserved = Vec::with_capacity(RESERVED);
    for id in places {
        let token = special.remove(&id).unwrap_or_else(|| SpecialToken {
            text: format!("<|reserved_token_{id}|>"),
            special: true,
        });
        if let Some(rank) = unspelled(&token.text, &alphabet).and_then(|token| ids.get(&token[..]))
        {
            let found = format!("that of rank {rank}: {}", token.text);
            return Err(wrong_special(file, id, "a text that no other token has", &found));
        }
        if let Some(other) = by_text.insert(token.text.clone(), id) {
            let found = format!("that of {other}: {}", token.text);
            return Err(wrong_special(file, id, "a text that no other token has", &found));
        }
        reserved.push((id, token));
    }
    Ok(reserved)
}

/// Byte strings in the order of their ranks.
struct Ranks {
    bytes: Vec<u8>,
    tokens: Vec<Range<usize>>,
}

impl Ranks {
    /// Lines of a byte string in base64, a space and its rank.
    fn read(file: &str, lines: &[u8]) -> Result<Self, ImportError> {
        // Base64 is longer than what it says.
        let mut bytes = try_zeroed("bytes of tokens", lines.len())?;
        let mut tokens: Vec<Range<usize>> = Vec::new();
        let (mut offset, mut end) = (0, 0);
        for line in lines.split(|byte| *byte == b'\n') {
            let wrong = |what: &str, expected: String| ImportError::Malformed {
                file: file.into(),
                what: what.into(),
                offset: offset as u64,
                expected,
                found: String::from_utf8_lossy(line).chars().take(60).collect(),
            };
            let text = line.trim_ascii();
            if !text.is_empty() {
                let at = text.iter().position(|byte| *byte == b' ');
                let (token, rank) = text.split_at(at.unwrap_or(text.len()));
                let rank = std::str::from_utf8(rank).ok().and_then(|rank| rank.trim().parse().ok());
                if rank != Some(tokens.len()) {
                    return Err(wrong("a rank", format!("a token and the rank {}", tokens.len())));
                }
                let length = STANDARD.decode_slice(token, &mut bytes[end..]);
                let length = length.ok().filter(|length| (1..=TOKEN_BYTES_MAX).contains(length));
                let expected = || format!("base64 of 1 to {TOKEN_BYTES_MAX} bytes");
                let length = length.ok_or_else(|| wrong("a token", expected()))?;
                if tokens.len() == MAX_GGUF_TOKENS {
                    return Err(ImportError::Limit {
                        file: file.into(),
                        what: "its number of tokens".into(),
                        found: tokens.len() as u64 + 1,
                        limit: MAX_GGUF_TOKENS as u64,
                    });
                }
                try_reserve(&mut tokens, "tokens", 1)?;
                tokens.push(end..end + length);
                end += length;
            }
            offset += line.len() + 1;
        }
        Ok(Self { bytes, tokens })
    }

    /// Every token with its rank.
    fn iter(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.tokens.iter().map(|range| &self.bytes[range.clone()]).enumerate()
    }

    /// Ranks by tokens.
    fn ids(&self, file: &str) -> Result<HashMap<&[u8], usize>, ImportError> {
        let (mut ids, count) = (HashMap::new(), self.tokens.len());
        ids.try_reserve(count).map_err(|_| OutOfMemory::of::<(&[u8], usize)>("ranks", count))?;
        for (rank, token) in self.iter() {
            if let Some(first) = ids.insert(token, rank) {
                return Err(ImportError::Value {
                    file: file.into(),
                    key: format!("the token of rank {rank}"),
                    expected: "every token once".into(),
                    found: format!("that of rank {first} again"),
                });
            }
        }
        // Text with a byte that no token has would lose it.
        if let Some(byte) = (0..=u8::MAX).find(|byte| !ids.contains_key(&[*byte][..])) {
            return Err(ImportError::Value {
                file: file.into(),
                key: format!("the token of byte {byte:#04x}"),
                expected: "one for every byte".into(),
                found: "none".into(),
            });
        }
        Ok(ids)
    }
}

fn write(
    ranks: &Ranks,
    ids: &HashMap<&[u8], usize>,
    reserved: &[(u64, SpecialToken)],
    out: &mut JsonWriter<'_>,
) -> Result<(), ImportError> {
    let mut first = true;
    out.raw("{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[")?;
    for (id, SpecialToken { text, special }) in reserved {
        out.separate(&mut first)?;
        out.value(&json!({
            "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special,
        }))?;
    }
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
    });
    let split = json!({
        "type": "Split", "pattern": { "Regex": KIMI_K2 }, "behavior": "Isolated", "invert": false,
    });
    out.raw("],\"normalizer\":null,\"pre_tokenizer\":")?;
    out.value(&json!({ "type": "Sequence", "pretokenizers": [split, bytes] }))?;
    out.raw(",\"post_processor\":null,\"decoder\":")?;
    out.value(&bytes)?;
    out.raw(",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,")?;
    out.raw("\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,")?;
    out.raw("\"byte_fallback\":false,\"ignore_merges\":true,\"vocab\":{")?;
    let alphabet = alphabet();
    first = true;
    for (rank, token) in ranks.iter() {
        out.separate(&mut first)?;
        out.text(&spelled(token, &alphabet))?;
        out.raw(&format!(":{rank}"))?;
    }
    for (id, token) in reserved {
        out.separate(&mut first)?;
        out.text(&token.text)?;
        out.raw(&format!(":{id}"))?;
    }
    out.raw("},\"merges\":[")?;
    write_merges(ranks, ids, &alphabet, out)?;
    out.raw("]}}")
}

fn write_merges(
    ranks: &Ranks,
    ids: &HashMap<&[u8], usize>,
    alphabet: &[char; 256],
    out: &mut JsonWriter<'_>,
) -> Result<(), ImportError> {
    let mut first = true;
    let mut pairs = Vec::new();
    for (_, token) in ranks.iter() {
        pairs.clear();
        let halves = (1..token.len()).map(|at| token.split_at(at));
        pairs.extend(
            halves.filter_map(|(one, two)| Some((*ids.get(one)?, *ids.get(two)?, one, two))),
        );
        pairs.sort_unstable();
        for (_, _, one, two) in &pairs {
            out.separate(&mut first)?;
            out.pair(&spelled(one, alphabet), &spelled(two, alphabet))?;
        }
    }
    Ok(())
}

fn spelled(token: &[u8], alphabet: &[char; 256]) -> String {
    token.iter().map(|byte| alphabet[usize::from(*byte)]).collect()
}

/// The token that is spelled so; none of a text with a character that stands for no byte.
fn unspelled(text: &str, alphabet: &[char; 256]) -> Option<Vec<u8>> {
    let byte = |character| (0..=u8::MAX).find(|byte| alphabet[usize::from(*byte)] == character);
    // No token is longer, and a text may be.
    text.chars().take(TOKEN_BYTES_MAX + 1).map(byte).collect()
}

/// The characters that stand for bytes in GPT-2's vocabularies: printable bytes of Latin-1 for themselves, the others
/// follow from U+0100.
fn alphabet() -> [char; 256] {
    let mut next = '\u{100}'..;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            // Default: the range has no end before 68 characters.
            _ => next.next().unwrap_or('\u{fffd}'),
        }
    })
}

#[cfg(test)]
mod tests;
