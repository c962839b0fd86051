//! Conversion of `tiktoken.model` to `tokenizer.json`. Some models are published with such a file, which
//! lists byte strings with ranks, and with Python code. The code of Kimi-K2 and Moonlight
//! (`tokenization_kimi.py`) adds two things that are built in here: the word pattern, and 256 special ids
//! after the ranks. Their texts are in `tokenizer_config.json`.
//!
//! Merges are derived from the ranks as in transformers' `TikTokenConverter`: all pairs of tokens whose
//! concatenation is a token, in the order of that token's rank.

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

/// Python tokenizer class whose pattern and special tokens are built in.
const CLASS: &str = "TikTokenTokenizer";

/// Number of ids after the ranks. All of them are special tokens.
const RESERVED: usize = 256;

/// Maximum length of a token in bytes; each position in it is tried as a split. Published tokens stay below
/// 129.
const TOKEN_BYTES_MAX: usize = 256;

/// Generates a `tokenizer.json` from the files of a directory. Returns `None` if there is no
/// `tiktoken.model`.
///
/// # Errors
/// Returns an [`ImportError`] that names the file, for invalid ranks and for an unknown Python class.
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

/// Special tokens by id, with their texts and whether decoding omits them.
type Special = HashMap<u64, SpecialToken>;

#[derive(Debug)]
struct SpecialToken {
    text: String,
    special: bool,
}

/// Reads the special tokens of a `tokenizer_config.json` with the known class.
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
        // Default: false, as in transformers' `AddedToken`.
        let is_special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
        if special.insert(id, SpecialToken { text: text.into(), special: is_special }).is_some() {
            return Err(wrong_special(file, id, "every id once", "it twice"));
        }
    }
    Ok(special)
}

fn wrong_special(file: &str, id: u64, expected: &str, found: &str) -> ImportError {
    ImportError::Value {
        file: file.into(),
        key: format!("added_tokens_decoder: {id}"),
        expected: expected.into(),
        found: found.chars().take(60).collect(),
    }
}

/// Returns the special tokens of all ids after the ranks. Their texts must differ from the tokens of the
/// ranks, since both are keys of one vocabulary.
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

/// Byte strings in order of rank.
struct Ranks {
    bytes: Vec<u8>,
    tokens: Vec<Range<usize>>,
}

impl Ranks {
    /// Parses lines of a base64 byte string, a space and its rank.
    fn read(file: &str, lines: &[u8]) -> Result<Self, ImportError> {
        // Base64 text is longer than the decoded bytes.
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

    fn iter(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.tokens.iter().map(|range| &self.bytes[range.clone()]).enumerate()
    }

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
        // A byte without a token would be lost from texts.
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

/// Decodes a token spelled in GPT-2's alphabet. Returns `None` if a character does not represent a byte.
fn unspelled(text: &str, alphabet: &[char; 256]) -> Option<Vec<u8>> {
    let byte = |character| (0..=u8::MAX).find(|byte| alphabet[usize::from(*byte)] == character);
    // A text may be longer than any token, so the length is bounded.
    text.chars().take(TOKEN_BYTES_MAX + 1).map(byte).collect()
}

/// Returns GPT-2's characters for the 256 bytes. Printable bytes of Latin-1 represent themselves, and the
/// others map to U+0100 and above.
fn alphabet() -> [char; 256] {
    let mut next = '\u{100}'..;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            // Default: the range does not end before its 68th character.
            _ => next.next().unwrap_or('\u{fffd}'),
        }
    })
}

#[cfg(test)]
mod tests;
