//! Allowed parts of a `tokenizer.json`, and their size limits.
//!
//! The tokenizer library runs whatever the file describes and does not validate sizes: some parts panic,
//! others turn a word into gigabytes. This module allows only the parts that published models use. Anything
//! else is rejected with an error that names it, before the library sees it.

use serde_json::Value;

use super::limits::{
    ADDED_BYTES_MAX, ADDED_MAX, ADDED_TEXT_BYTES_MAX, AUTOMATA_MAX, DEPTH_MAX, GROWTH_MAX,
    LOOKS_MAX, PARTS_MAX, PATTERN_BYTES_MAX, TEMPLATE_PIECES_MAX, WORD_BYTES_MAX,
};

/// A violation: the part, the expected value and the value found.
pub(super) type Fault = (&'static str, &'static str, String);

/// Returns an error if a part is not listed or is too large. Returns the maximum factor by which the
/// normalizers may lengthen a text.
pub(super) fn check_parts(json: &Value) -> Result<usize, Fault> {
    let mut growth = 1;
    for kind in [&NORMALIZERS, &PRE_TOKENIZERS, &POST_PROCESSORS, &DECODERS] {
        if let Some(part) = json.get(kind.name).filter(|part| !part.is_null()) {
            let mut sums = Sums { parts: 0, templates: 0, growth: 1, automata: 0 };
            kind.check(part, 0, &mut sums)?;
            if kind.name == NORMALIZERS.name {
                growth = sums.growth;
            }
        }
    }
    check_added(json).map(|()| growth)
}

struct Kind {
    name: &'static str,
    /// Key of the list inside a sequence.
    list: &'static str,
    /// Allowed types, which published models use, with their checks.
    known: &'static [(&'static str, Check)],
}

/// Checks a part and returns the maximum factor by which it may lengthen a text.
type Check = fn(&Part<'_>) -> Result<usize, Fault>;

struct Part<'a> {
    kind: &'static str,
    json: &'a Value,
}

/// Totals over all parts of a kind.
struct Sums {
    parts: usize,
    templates: usize,
    growth: usize,
    automata: usize,
}

static NORMALIZERS: Kind = Kind {
    name: "normalizer",
    list: "normalizers",
    known: &[
        ("NFC", plain),
        ("NFD", plain),
        ("NFKC", plain),
        ("NFKD", plain),
        ("Lowercase", plain),
        ("Strip", plain),
        ("StripAccents", plain),
        ("ByteLevel", plain),
        ("Prepend", prepend),
        ("Replace", replace),
    ],
};

static PRE_TOKENIZERS: Kind = Kind {
    name: "pre_tokenizer",
    list: "pretokenizers",
    known: &[
        ("ByteLevel", plain),
        ("Digits", plain),
        ("Metaspace", plain),
        ("Punctuation", plain),
        ("Split", split),
        ("Whitespace", plain),
        ("WhitespaceSplit", plain),
    ],
};

static POST_PROCESSORS: Kind = Kind {
    name: "post_processor",
    list: "processors",
    known: &[("ByteLevel", plain), ("TemplateProcessing", template)],
};

static DECODERS: Kind = Kind {
    name: "decoder",
    list: "decoders",
    known: &[
        ("ByteFallback", plain),
        ("ByteLevel", plain),
        ("Fuse", plain),
        ("Metaspace", plain),
        ("Replace", replace_word),
        ("Strip", strip),
    ],
};

impl Kind {
    /// Checks a part. `depth` counts nested sequences and bounds the recursion.
    fn check(&'static self, json: &Value, depth: usize, sums: &mut Sums) -> Result<(), Fault> {
        // Default: a part without a type is rejected like an unknown one.
        let of_type = json.get("type").and_then(Value::as_str).unwrap_or_default();
        if of_type == "Sequence" {
            let list = json.get(self.list).and_then(Value::as_array);
            let list = list.ok_or((self.name, "a list of parts", "something else".into()))?;
            if depth == DEPTH_MAX {
                return Err((self.name, "3 sequences within each other", "more".into()));
            }
            return list.iter().try_for_each(|part| self.check(part, depth + 1, sums));
        }
        sums.parts += 1;
        if sums.parts > PARTS_MAX {
            return Err((self.name, "at most 32 parts", "more".into()));
        }
        sums.templates += usize::from(of_type == "TemplateProcessing");
        if sums.templates > 1 {
            return Err((self.name, "one template", "more".into()));
        }
        let Some((_, check)) = self.known.iter().find(|(name, _)| *name == of_type) else {
            return Err((self.name, "a part that is known to be safe", format!("{of_type:?}")));
        };
        let growth = check(&Part { kind: self.name, json })?;
        sums.automata += Part { kind: self.name, json }.automata();
        if sums.automata > AUTOMATA_MAX {
            let found = format!("{} alternatives and groups", sums.automata);
            return Err((self.name, "regular expressions of at most 96 alternatives", found));
        }
        sums.growth = sums.growth.saturating_mul(growth.max(1));
        match sums.growth <= GROWTH_MAX {
            true => Ok(()),
            false => Err((self.name, "a text at most 64 times longer", sums.growth.to_string())),
        }
    }
}

impl Part<'_> {
    fn fault<T>(&self, expected: &'static str, found: String) -> Result<T, Fault> {
        Err((self.kind, expected, found))
    }

    fn word(&self, name: &str) -> Result<&str, Fault> {
        match self.json.get(name).and_then(Value::as_str) {
            Some(word) if word.len() <= WORD_BYTES_MAX => Ok(word),
            Some(word) => {
                self.fault("a text of at most 256 bytes", format!("{} bytes", word.len()))
            }
            None => self.fault("a text", format!("no {name:?}")),
        }
    }

    /// Returns the minimum number of bytes that the part's pattern matches; 0 for a regular expression.
    fn pattern(&self) -> Result<usize, Fault> {
        let pattern = self.json.get("pattern");
        let of = |name: &str| pattern.and_then(|pattern| pattern.get(name)).and_then(Value::as_str);
        match (of("String"), of("Regex")) {
            (Some(""), _) => self.fault("a pattern", "an empty one".into()),
            (Some(word), _) if word.len() <= WORD_BYTES_MAX => Ok(word.len()),
            (_, Some(regex)) => self.regex(regex).map(|()| 0),
            _ => self.fault("a pattern of at most 256 bytes", "another".into()),
        }
    }

    fn regex(&self, regex: &str) -> Result<(), Fault> {
        if regex.len() > PATTERN_BYTES_MAX {
            let found = format!("{} bytes", regex.len());
            return self.fault("a regular expression of at most 2048 bytes", found);
        }
        match looks(regex) {
            looks if looks > LOOKS_MAX => {
                self.fault("at most 16 groups that look around", looks.to_string())
            }
            _ => Ok(()),
        }
    }

    /// Returns an upper bound on the automata of the part's regular expression; 0 without one.
    fn automata(&self) -> usize {
        let pattern = self.json.get("pattern").and_then(|pattern| pattern.get("Regex")?.as_str());
        pattern.map_or(0, |regex| 1 + looks(regex) + regex.matches('|').count())
    }
}

/// Returns the number of look-around groups and back-references.
fn looks(regex: &str) -> usize {
    let groups = ["(?=", "(?!", "(?<", "(?>", "\\k", "\\g", "\\K", "\\G"];
    let references = regex.as_bytes().windows(2);
    let references = references.filter(|two| two[0] == b'\\' && two[1].is_ascii_digit()).count();
    references + groups.iter().map(|group| regex.matches(group).count()).sum::<usize>()
}

fn plain(_: &Part<'_>) -> Result<usize, Fault> {
    Ok(1)
}

fn prepend(part: &Part<'_>) -> Result<usize, Fault> {
    match part.word("prepend")? {
        "" => part.fault("a text to begin with", "an empty one".into()),
        _ => Ok(1),
    }
}

fn replace(part: &Part<'_>) -> Result<usize, Fault> {
    let (pattern, content) = (part.pattern()?, part.word("content")?);
    // An empty match is found between all characters.
    Ok(if pattern == 0 { content.len() + 1 } else { content.len().div_ceil(pattern) })
}

/// Checks a decoder's `Replace`. Only literal patterns are allowed, since texts may be long and a regular
/// expression would scan them from each character.
fn replace_word(part: &Part<'_>) -> Result<usize, Fault> {
    match part.json.get("pattern").and_then(|pattern| pattern.get("Regex")) {
        None => replace(part),
        Some(_) => part.fault("a text that is replaced", "a regular expression".into()),
    }
}

fn split(part: &Part<'_>) -> Result<usize, Fault> {
    part.pattern().map(|_| 1)
}

/// Checks `Strip`, which is allowed at the start only, as in published tokenizers. The library's counter
/// overruns texts that are shorter than `stop`.
fn strip(part: &Part<'_>) -> Result<usize, Fault> {
    match part.json.get("stop").and_then(Value::as_u64) {
        Some(0) => part.word("content").map(|_| 1),
        stop => part.fault("nothing that is cut off an end", format!("{stop:?}")),
    }
}

/// Checks the template of tokens around a single text. Texts in pairs are not supported.
fn template(part: &Part<'_>) -> Result<usize, Fault> {
    let tokens = part.json.get("special_tokens").and_then(Value::as_object);
    let is_known = |id: &str| tokens.is_some_and(|tokens| tokens.contains_key(id));
    let mut pieces = 0;
    for (name, is_pair) in [("single", false), ("pair", true)] {
        let Some(list) = part.json.get(name).and_then(Value::as_array) else {
            return part.fault("a list of pieces", format!("no {name:?}"));
        };
        pieces += list.len();
        let of = |piece: &Value| piece.get("Sequence").and_then(|text| text.get("id")).cloned();
        let wrong = list.iter().filter_map(of).find(|id| id != "A" && !(is_pair && id == "B"));
        if let Some(id) = wrong {
            return part.fault("sequence A", id.to_string());
        }
        let texts = list.iter().filter(|piece| piece.get("Sequence").is_some()).count();
        if !is_pair && texts != 1 {
            return part.fault("the text once", format!("{texts} times"));
        }
        let mut special =
            list.iter().filter_map(|piece| piece.get("SpecialToken")?.get("id")?.as_str());
        if let Some(id) = special.find(|id| !is_known(id)) {
            return part.fault("special tokens that are described", format!("{id:?}"));
        }
    }
    for token in tokens.into_iter().flat_map(|tokens| tokens.values()) {
        pieces += token.get("ids").and_then(Value::as_array).map_or(0, Vec::len);
    }
    match pieces <= TEMPLATE_PIECES_MAX {
        true => Ok(1),
        false => part.fault("at most 64 pieces and ids", pieces.to_string()),
    }
}

fn check_added(json: &Value) -> Result<(), Fault> {
    let added = json.get("added_tokens").and_then(Value::as_array);
    let (mut count, mut bytes, mut longest) = (0, 0, 0);
    for token in added.into_iter().flatten() {
        let length = token.get("content").and_then(Value::as_str).map_or(0, str::len);
        (count, bytes, longest) = (count + 1, bytes + length, longest.max(length));
    }
    if count > ADDED_MAX || bytes > ADDED_BYTES_MAX {
        let found = format!("{count} of {bytes} bytes");
        return Err(("added_tokens", "at most 65536 of 1 MiB", found));
    }
    if longest > ADDED_TEXT_BYTES_MAX {
        return Err(("added_tokens", "texts of at most 1024 bytes", format!("{longest} bytes")));
    }
    Ok(())
}
