//! Conversion of a GGUF file's tokenizer to a `tokenizer.json`.

use nestling_formats::memory::{OutOfMemory, try_filled};
use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::GgufMetadata;
use super::pretokenizers::pre_tokenizer;
use crate::ImportError;
use crate::json_writer::JsonWriter;
use crate::limits::{MAX_GGUF_TOKEN_BYTES, MAX_GGUF_TOKENS};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";

/// Maximum length in bytes of a piece that is split into pairs. SentencePiece's own limit is 16 characters.
const PIECE_BYTES_MAX: usize = 128;

/// Character that represents a space in SentencePiece's vocabularies.
const SPACE: char = '▁';

/// Generates a `tokenizer.json` from the metadata.
///
/// # Errors
/// Returns an [`ImportError`] for an unknown tokenizer or pre-tokenizer, and for invalid keys.
pub fn tokenizer_json(metadata: &GgufMetadata) -> Result<Vec<u8>, ImportError> {
    Vocabulary::new(metadata)?.json()
}

/// Token types, numbered as in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenKind {
    fn new(number: f64) -> Self {
        match number as i64 {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// Byte-level BPE with merges.
    Bytes,
    /// SentencePiece BPE: pieces with scores.
    Pieces,
    /// BPE with merges over characters, with spaces replaced.
    Characters,
}

/// Tokens with their types, and the tokenization settings.
pub(super) struct Vocabulary<'a> {
    metadata: &'a GgufMetadata,
    method: Method,
    tokens: Vec<&'a str>,
    kinds: Vec<TokenKind>,
}

impl<'a> Vocabulary<'a> {
    pub fn new(metadata: &'a GgufMetadata) -> Result<Self, ImportError> {
        let method = match metadata.text(MODEL)? {
            Some("gpt2") => Method::Bytes,
            Some("llama") => Method::Pieces,
            Some("gemma4") => Method::Characters,
            Some(other) => {
                let supported = "supported: gpt2, llama, gemma4";
                return Err(unsupported(metadata, MODEL, other, supported));
            }
            None => return Err(metadata.wrong(MODEL, "a text")),
        };
        let tokens = metadata.texts(TOKENS)?;
        let tokens = tokens.ok_or_else(|| metadata.wrong(TOKENS, "an array of texts"))?;
        let limit = |what: String, found: usize, limit: usize| {
            let (file, found, limit) = (metadata.file().into(), found as u64, limit as u64);
            ImportError::Limit { file, what, found, limit }
        };
        if tokens.len() > MAX_GGUF_TOKENS {
            return Err(limit(format!("the length of `{TOKENS}`"), tokens.len(), MAX_GGUF_TOKENS));
        }
        if let Some(long) = tokens.iter().find(|token| token.len() > MAX_GGUF_TOKEN_BYTES) {
            let what = format!("the length of a token of `{TOKENS}`");
            return Err(limit(what, long.len(), MAX_GGUF_TOKEN_BYTES));
        }
        let kinds = match metadata.numbers(TYPES)? {
            Some(numbers) => numbers.into_iter().map(TokenKind::new).collect(),
            None => try_filled("kinds of tokens", TokenKind::Normal, tokens.len())?,
        };
        if kinds.len() < tokens.len() {
            return Err(metadata.wrong(TYPES, "a number for every token"));
        }
        Ok(Self { metadata, method, tokens, kinds })
    }

    /// Returns the text of a token.
    pub fn text(&self, id: u64) -> Option<&'a str> {
        usize::try_from(id).ok().and_then(|id| self.tokens.get(id)).copied()
    }

    /// Returns the control tokens with their ids.
    pub fn control(&self) -> impl Iterator<Item = (u64, &'a str)> {
        let tokens = self.tokens.iter().zip(&self.kinds).enumerate();
        let control = tokens.filter(|(_, (_, kind))| **kind == TokenKind::Control);
        control.map(|(id, (text, _))| (id as u64, *text))
    }

    /// Returns the id and text of a special token named in the metadata.
    pub fn named(&self, name: &str) -> Result<Option<(u64, &'a str)>, ImportError> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = self.metadata.unsigned(&key)? else { return Ok(None) };
        match self.text(id) {
            Some(text) => Ok(Some((id, text))),
            // The value -1 means none in some files.
            None if id >= u64::from(u32::MAX) => Ok(None),
            None => Err(self.metadata.wrong(&key, "a token of the vocabulary")),
        }
    }

    /// Returns true if texts start with the begin-of-sequence token.
    pub fn adds_bos(&self) -> Result<bool, ImportError> {
        let said = self.metadata.boolean("tokenizer.ggml.add_bos_token")?;
        let bos = self.named("bos")?;
        // llama.cpp's default.
        let default = match self.method {
            Method::Bytes => {
                let name = self.metadata.text(PRE)?;
                name.and_then(pre_tokenizer).is_some_and(|pre| pre.begins)
            }
            Method::Pieces | Method::Characters => true,
        };
        Ok(bos.is_some() && said.unwrap_or(default))
    }

    /// Returns true if texts end with the end-of-sequence token.
    pub fn adds_eos(&self) -> Result<bool, ImportError> {
        let said = self.metadata.boolean("tokenizer.ggml.add_eos_token")?;
        Ok(self.named("eos")?.is_some() && said.unwrap_or(false))
    }

    /// Generates the `tokenizer.json`. Errors and the length are found before memory is allocated.
    pub fn json(&self) -> Result<Vec<u8>, ImportError> {
        self.refuse_repeated()?;
        JsonWriter::written(self.metadata.file(), |out| self.write(out))
    }

    fn write(&self, out: &mut JsonWriter<'_>) -> Result<(), ImportError> {
        let parts = match self.method {
            Method::Bytes => self.byte_level()?,
            Method::Pieces => self.pieces()?,
            Method::Characters => self.characters()?,
        };
        out.raw("{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[")?;
        self.write_added(out)?;
        out.raw("],\"normalizer\":")?;
        out.value(&parts.normalizer)?;
        out.raw(",\"pre_tokenizer\":")?;
        out.value(&parts.pre_tokenizer)?;
        out.raw(",\"post_processor\":")?;
        out.value(&self.post_processor()?)?;
        out.raw(",\"decoder\":")?;
        out.value(&parts.decoder)?;
        out.raw(",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":")?;
        out.value(&parts.unknown)?;
        out.raw(",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":")?;
        let pieces = self.method != Method::Bytes;
        out.value(&json!(pieces))?;
        out.raw(",\"byte_fallback\":")?;
        out.value(&json!(pieces))?;
        out.raw(",\"ignore_merges\":")?;
        out.value(&json!(parts.whole_words))?;
        out.raw(",\"vocab\":{")?;
        self.write_vocabulary(out)?;
        out.raw("},\"merges\":[")?;
        match self.method {
            Method::Pieces => self.write_pairs(out)?,
            Method::Bytes | Method::Characters => self.write_merges(out)?,
        }
        out.raw("]}}")
    }

    fn byte_level(&self) -> Result<Parts, ImportError> {
        let Some(name) = self.metadata.text(PRE)? else {
            return Err(self.metadata.wrong(PRE, "the name of a pre-tokenizer"));
        };
        let Some(pre) = pre_tokenizer(name) else {
            let supported =
                "it decides how texts are cut into words; convert the model's own files";
            return Err(unsupported(self.metadata, PRE, name, supported));
        };
        let splits = pre.patterns.iter().map(|pattern| {
            json!({
                "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated",
                "invert": false,
            })
        });
        let bytes = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": false,
        });
        let all: Vec<Value> = splits.chain([bytes.clone()]).collect();
        Ok(Parts {
            normalizer: if pre.composed { json!({ "type": "NFC" }) } else { Value::Null },
            pre_tokenizer: json!({ "type": "Sequence", "pretokenizers": all }),
            decoder: bytes,
            unknown: Value::Null,
            whole_words: pre.whole_words,
        })
    }

    fn pieces(&self) -> Result<Parts, ImportError> {
        let prefix = self.metadata.boolean("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        let replace = json!({
            "type": "Replace", "pattern": { "String": " " }, "content": SPACE,
        });
        let prepend = json!({ "type": "Prepend", "prepend": SPACE });
        let normalizers = if prefix { vec![prepend, replace] } else { vec![replace] };
        let mut decoders = spoken();
        if prefix {
            decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
        }
        Ok(Parts {
            normalizer: json!({ "type": "Sequence", "normalizers": normalizers }),
            pre_tokenizer: Value::Null,
            decoder: json!({ "type": "Sequence", "decoders": decoders }),
            unknown: json!(self.unknown()?),
            whole_words: false,
        })
    }

    fn characters(&self) -> Result<Parts, ImportError> {
        Ok(Parts {
            normalizer: json!({
                "type": "Replace", "pattern": { "String": " " }, "content": SPACE,
            }),
            pre_tokenizer: json!({
                "type": "Split", "pattern": { "String": " " },
                "behavior": "MergedWithPrevious", "invert": false,
            }),
            decoder: json!({ "type": "Sequence", "decoders": spoken() }),
            unknown: json!(self.unknown()?),
            whole_words: false,
        })
    }

    fn unknown(&self) -> Result<Option<&'a str>, ImportError> {
        if let Some((_, text)) = self.named("unknown")? {
            return Ok(Some(text));
        }
        let at = self.kinds.iter().position(|kind| *kind == TokenKind::Unknown);
        Ok(at.and_then(|at| self.tokens.get(at)).copied())
    }

    fn post_processor(&self) -> Result<Value, ImportError> {
        let bos = if self.adds_bos()? { self.named("bos")? } else { None };
        let eos = if self.adds_eos()? { self.named("eos")? } else { None };
        if bos.is_none() && eos.is_none() {
            return Ok(Value::Null);
        }
        let special =
            |(_, text): &(u64, &str)| json!({ "SpecialToken": { "id": text, "type_id": 0 } });
        let around = |sequences: &[Value]| -> Vec<Value> {
            let front = bos.iter().map(special);
            front.chain(sequences.iter().cloned()).chain(eos.iter().map(special)).collect()
        };
        let of = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
        let mut tokens = serde_json::Map::new();
        for (id, text) in bos.iter().chain(&eos) {
            let token = json!({ "id": text, "ids": [id], "tokens": [text] });
            tokens.insert((*text).into(), token);
        }
        Ok(json!({
            "type": "TemplateProcessing", "single": around(&[of("A")]),
            "pair": around(&[of("A"), of("B")]), "special_tokens": tokens,
        }))
    }

    fn write_added(&self, out: &mut JsonWriter<'_>) -> Result<(), ImportError> {
        let mut first = true;
        for (id, (text, kind)) in self.tokens.iter().zip(&self.kinds).enumerate() {
            let special = match kind {
                TokenKind::Control | TokenKind::Unknown => true,
                TokenKind::UserDefined => false,
                _ => continue,
            };
            if text.is_empty() {
                continue;
            }
            out.separate(&mut first)?;
            out.value(&json!({
                "id": id, "content": text, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": special,
            }))?;
        }
        Ok(())
    }

    fn is_filler(&self, id: usize) -> bool {
        self.tokens[id].is_empty()
            || self.kinds[id] == TokenKind::Unused && self.tokens[id].starts_with("[PAD")
    }

    fn refuse_repeated(&self) -> Result<(), ImportError> {
        let (mut seen, count) = (HashSet::new(), self.tokens.len());
        let reserved = seen.try_reserve(count);
        reserved.map_err(|_| OutOfMemory::of::<&str>("texts of tokens", count))?;
        let mut real = (0..self.tokens.len()).filter(|id| !self.is_filler(*id));
        let Some(again) = real.find(|id| !seen.insert(self.tokens[*id])) else { return Ok(()) };
        let text: String = self.tokens[again].chars().take(60).collect();
        Err(self.metadata.wrong(TOKENS, &format!("every token once, and not {text:?} again")))
    }

    fn write_vocabulary(&self, out: &mut JsonWriter<'_>) -> Result<(), ImportError> {
        let mut first = true;
        for (id, text) in self.tokens.iter().enumerate() {
            if self.is_filler(id) {
                continue;
            }
            out.separate(&mut first)?;
            out.text(text)?;
            out.raw(&format!(":{id}"))?;
        }
        Ok(())
    }

    fn write_merges(&self, out: &mut JsonWriter<'_>) -> Result<(), ImportError> {
        let merges = self.metadata.texts(MERGES)?;
        let merges = merges.ok_or_else(|| self.metadata.wrong(MERGES, "an array of texts"))?;
        let mut first = true;
        for merge in merges {
            // The first token of a pair may start with a space.
            let space = merge.char_indices().skip(1).find(|(_, character)| *character == ' ');
            let Some((at, _)) = space.filter(|_| merge.len() <= MAX_GGUF_TOKEN_BYTES) else {
                return Err(self.metadata.wrong(MERGES, "pairs of tokens with a space between"));
            };
            out.separate(&mut first)?;
            out.pair(&merge[..at], &merge[at + 1..])?;
        }
        Ok(())
    }

    /// Writes the pairs of pieces that form a piece, highest score first, as SentencePiece merges them.
    fn write_pairs(&self, out: &mut JsonWriter<'_>) -> Result<(), ImportError> {
        // Default: missing scores count as too few, which is rejected below.
        let scores = self.metadata.numbers(SCORES)?.unwrap_or_default();
        if scores.len() < self.tokens.len() {
            return Err(self.metadata.wrong(SCORES, "a number for every token"));
        }
        let normal = |id: usize| self.kinds[id] == TokenKind::Normal && !self.is_filler(id);
        let ids: HashMap<&str, usize> =
            self.tokens.iter().enumerate().map(|(id, text)| (*text, id)).collect();
        let mut order: Vec<usize> = (0..self.tokens.len()).filter(|id| normal(*id)).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        let mut first = true;
        for id in order {
            let piece = self.tokens[id];
            if piece.len() > PIECE_BYTES_MAX {
                continue;
            }
            let halves = piece.char_indices().skip(1).map(|(at, _)| piece.split_at(at));
            let known = |half: &str| ids.get(half).copied().filter(|id| normal(*id));
            let mut pairs: Vec<(usize, usize)> =
                halves.filter_map(|(one, two)| Some((known(one)?, known(two)?))).collect();
            pairs.sort_unstable();
            for (one, two) in pairs {
                out.separate(&mut first)?;
                out.pair(self.tokens[one], self.tokens[two])?;
            }
        }
        Ok(())
    }
}

/// Tokenizer parts that differ between the methods.
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    unknown: Value,
    whole_words: bool,
}

/// Returns the decoders that convert pieces back to text.
fn spoken() -> Vec<Value> {
    vec![
        json!({ "type": "Replace", "pattern": { "String": SPACE }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ]
}

fn unsupported(metadata: &GgufMetadata, key: &str, found: &str, supported: &str) -> ImportError {
    ImportError::Unsupported {
        file: metadata.file().into(),
        key: key.into(),
        found: format!("{:?}", found.chars().take(60).collect::<String>()),
        supported: supported.into(),
    }
}
