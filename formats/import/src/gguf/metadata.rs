//! Keys and values of a GGUF file.

use std::collections::HashSet;
use std::ops::Range;

use super::cursor::Cursor;
use crate::ImportError;
use crate::limits::{MAX_GGUF_ARRAY, MAX_GGUF_KEYS};
use nestling_formats::memory::{OutOfMemory, try_reserve, try_with_capacity};

/// Bytes of a key.
const KEY_BYTES_MAX: u64 = 256;

/// Arrays within arrays.
const DEPTH_MAX: u32 = 4;

/// Type numbers of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueKind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl ValueKind {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::Text,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, ImportError> {
        let number = cursor.u32(key)?;
        let kind = usize::try_from(number).ok().and_then(|at| Self::ALL.get(at));
        kind.copied().ok_or_else(|| cursor.malformed(key, "a value type from 0 to 12", number))
    }

    /// Bytes of a value, or the least that one takes.
    const fn bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::Text => 8,
            Self::Array => 12,
        }
    }
}

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufValue {
    /// A whole number of any width and sign.
    Integer(i128),
    /// A number in single or double precision.
    Float(f64),
    /// Yes or no.
    Bool(bool),
    /// A text.
    Text(GgufText),
    /// Values of one type.
    Array(GgufArray),
}

/// Where a text lies in the header; [`GgufMetadata::text`] reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufText(Range<usize>);

/// Where the values of an array lie in the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufArray {
    kind: ValueKind,
    count: usize,
    range: Range<usize>,
}

impl GgufArray {
    /// Values of the array.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// All keys of a file with their values; texts and arrays stay in the bytes of the header.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufMetadata {
    file: String,
    keys: Vec<(String, GgufValue)>,
    bytes: Vec<u8>,
}

impl GgufMetadata {
    pub(super) fn new(file: &str, keys: Vec<(String, GgufValue)>, bytes: Vec<u8>) -> Self {
        Self { file: file.into(), keys, bytes }
    }

    /// The whole header, the table of tensors included.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The file that the keys are of.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Keys and values in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &GgufValue)> {
        self.keys.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// The error of a value that is not as it should be.
    pub(crate) fn wrong(&self, key: &str, expected: &str) -> ImportError {
        let found = self.get(key).map_or_else(|| "nothing".into(), |value| self.shown(value));
        ImportError::Value {
            file: self.file.clone(),
            key: key.into(),
            expected: expected.into(),
            found,
        }
    }

    /// A value in a few words.
    pub(crate) fn shown(&self, value: &GgufValue) -> String {
        match value {
            GgufValue::Integer(number) => number.to_string(),
            GgufValue::Float(number) => number.to_string(),
            GgufValue::Bool(value) => value.to_string(),
            GgufValue::Text(text) => {
                let bytes = &self.bytes[text.0.clone()];
                let front = String::from_utf8_lossy(&bytes[..bytes.len().min(240)]);
                format!("{:?}", front.chars().take(60).collect::<String>())
            }
            GgufValue::Array(array) => format!("an array of {}", array.len()),
        }
    }

    /// A text, if the key is there.
    ///
    /// # Errors
    /// [`ImportError::Value`] for a value of another type, and for bytes that are no UTF-8; so the
    /// other readers.
    pub fn text(&self, key: &str) -> Result<Option<&str>, ImportError> {
        match self.get(key) {
            None => Ok(None),
            Some(GgufValue::Text(text)) => {
                let bytes = &self.bytes[text.0.clone()];
                let text = std::str::from_utf8(bytes);
                text.map(Some).map_err(|_| self.wrong(key, "a text in UTF-8"))
            }
            Some(_) => Err(self.wrong(key, "a text")),
        }
    }

    /// A whole number from 0 on, if the key is there.
    ///
    /// # Errors
    /// [`ImportError::Value`].
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>, ImportError> {
        match self.get(key) {
            None => Ok(None),
            Some(GgufValue::Integer(number)) => {
                let number = u64::try_from(*number);
                number.map(Some).map_err(|_| self.wrong(key, "a number from 0 on"))
            }
            Some(_) => Err(self.wrong(key, "a whole number")),
        }
    }

    /// A finite number, if the key is there.
    ///
    /// # Errors
    /// [`ImportError::Value`].
    pub fn number(&self, key: &str) -> Result<Option<f64>, ImportError> {
        match self.get(key) {
            None => Ok(None),
            Some(GgufValue::Integer(number)) => Ok(Some(*number as f64)),
            Some(GgufValue::Float(number)) if number.is_finite() => Ok(Some(*number)),
            Some(_) => Err(self.wrong(key, "a finite number")),
        }
    }

    /// True or false, if the key is there.
    ///
    /// # Errors
    /// [`ImportError::Value`].
    pub fn boolean(&self, key: &str) -> Result<Option<bool>, ImportError> {
        match self.get(key) {
            None => Ok(None),
            Some(GgufValue::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    /// Texts of an array, if the key is there.
    ///
    /// # Errors
    /// [`ImportError::Value`] for anything else, texts that are no UTF-8 too.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, ImportError> {
        let wrong = || self.wrong(key, "an array of texts in UTF-8");
        let Some(value) = self.get(key) else { return Ok(None) };
        let GgufValue::Array(GgufArray { kind: ValueKind::Text, count, range }) = value else {
            return Err(wrong());
        };
        let mut rest = &self.bytes[range.clone()];
        let mut texts = try_with_capacity("an array of a GGUF file", *count)?;
        while let Some((length, behind)) = rest.split_first_chunk::<8>() {
            let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
            let (text, behind) = behind.split_at_checked(length).ok_or_else(wrong)?;
            texts.push(std::str::from_utf8(text).map_err(|_| wrong())?);
            rest = behind;
        }
        Ok(Some(texts))
    }

    /// Numbers of an array, if the key is there: whole or not, or truth values as 0 and 1.
    ///
    /// # Errors
    /// [`ImportError::Value`] for arrays of anything else.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, ImportError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let GgufValue::Array(GgufArray { kind, range, .. }) = value else {
            return Err(self.wrong(key, "an array of numbers"));
        };
        let bytes = &self.bytes[range.clone()];
        let values = bytes.chunks_exact(kind.bytes() as usize);
        let mut numbers = try_with_capacity("an array of a GGUF file", values.len())?;
        for bytes in values {
            let number = number(*kind, bytes);
            numbers.push(number.ok_or_else(|| self.wrong(key, "an array of numbers"))?);
        }
        Ok(Some(numbers))
    }

    /// Whether the value of a key is an array.
    pub fn is_array(&self, key: &str) -> bool {
        matches!(self.get(key), Some(GgufValue::Array(_)))
    }
}

fn number(kind: ValueKind, bytes: &[u8]) -> Option<f64> {
    match scalar(kind, bytes)? {
        GgufValue::Integer(number) => Some(number as f64),
        GgufValue::Float(number) => Some(number),
        GgufValue::Bool(value) => Some(f64::from(u8::from(value))),
        GgufValue::Text(_) | GgufValue::Array(_) => None,
    }
}

/// A value of fixed size; none for a truth value that is neither 0 nor 1.
fn scalar(kind: ValueKind, bytes: &[u8]) -> Option<GgufValue> {
    fn of<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
        bytes.try_into().ok()
    }
    Some(match kind {
        ValueKind::U8 => GgufValue::Integer(u8::from_le_bytes(of(bytes)?).into()),
        ValueKind::I8 => GgufValue::Integer(i8::from_le_bytes(of(bytes)?).into()),
        ValueKind::U16 => GgufValue::Integer(u16::from_le_bytes(of(bytes)?).into()),
        ValueKind::I16 => GgufValue::Integer(i16::from_le_bytes(of(bytes)?).into()),
        ValueKind::U32 => GgufValue::Integer(u32::from_le_bytes(of(bytes)?).into()),
        ValueKind::I32 => GgufValue::Integer(i32::from_le_bytes(of(bytes)?).into()),
        ValueKind::U64 => GgufValue::Integer(u64::from_le_bytes(of(bytes)?).into()),
        ValueKind::I64 => GgufValue::Integer(i64::from_le_bytes(of(bytes)?).into()),
        ValueKind::F32 => GgufValue::Float(f32::from_le_bytes(of(bytes)?).into()),
        ValueKind::F64 => GgufValue::Float(f64::from_le_bytes(of(bytes)?)),
        ValueKind::Bool => match bytes {
            [0] => GgufValue::Bool(false),
            [1] => GgufValue::Bool(true),
            _ => return None,
        },
        ValueKind::Text | ValueKind::Array => return None,
    })
}

/// What memory is asked for.
const KEYS: &str = "the keys of a GGUF file";

/// Reads `count` keys with their values.
pub(super) fn read_keys(
    cursor: &mut Cursor<'_>,
    count: u64,
) -> Result<Vec<(String, GgufValue)>, ImportError> {
    let mut keys = Vec::new();
    for _ in 0..count {
        let key = cursor.text("a metadata key", KEY_BYTES_MAX)?;
        let kind = ValueKind::read(cursor, &key)?;
        let value = read_value(cursor, &key, kind)?;
        try_reserve(&mut keys, KEYS, 1)?;
        keys.push((key, value));
    }
    let (mut seen, count) = (HashSet::new(), keys.len());
    seen.try_reserve(count).map_err(|_| OutOfMemory::of::<&str>(KEYS, count))?;
    match keys.iter().find(|(key, _)| !seen.insert(key.as_str())) {
        None => Ok(keys),
        Some((key, _)) => {
            Err(cursor.malformed(&format!("key `{key}`"), "a new key", "one used before"))
        }
    }
}

/// The number of keys.
pub(super) fn read_key_count(cursor: &mut Cursor<'_>) -> Result<u64, ImportError> {
    cursor.count("the number of metadata keys", 13, MAX_GGUF_KEYS)
}

fn read_value(
    cursor: &mut Cursor<'_>,
    key: &str,
    kind: ValueKind,
) -> Result<GgufValue, ImportError> {
    match kind {
        ValueKind::Text => Ok(GgufValue::Text(GgufText(read_text(cursor, key)?))),
        ValueKind::Array => {
            let kind = ValueKind::read(cursor, key)?;
            let count = skip_array_head(cursor, key, kind)?;
            let start = cursor.position();
            skip_values(cursor, key, kind, count, 1)?;
            Ok(GgufValue::Array(GgufArray {
                kind,
                count: usize::try_from(count).unwrap_or(usize::MAX),
                range: start..cursor.position(),
            }))
        }
        kind => {
            let range = cursor.take(key, kind.bytes())?;
            let value = scalar(kind, &cursor.bytes()[range]).map(shortest);
            value.ok_or_else(|| cursor.malformed(key, "0 or 1 for a truth value", "another byte"))
        }
    }
}

/// The number that was meant where single precision only comes near it: 1e-6, not 9.999999974e-7.
fn shortest(value: GgufValue) -> GgufValue {
    match value {
        GgufValue::Float(number) if f64::from(number as f32) == number => {
            GgufValue::Float((number as f32).to_string().parse().unwrap_or(number))
        }
        value => value,
    }
}

fn read_text(cursor: &mut Cursor<'_>, key: &str) -> Result<Range<usize>, ImportError> {
    let length = cursor.u64(key)?;
    cursor.take(key, length)
}

/// The number of values of an array, whose type was read.
fn skip_array_head(
    cursor: &mut Cursor<'_>,
    key: &str,
    kind: ValueKind,
) -> Result<u64, ImportError> {
    let what = format!("the number of values of `{key}`");
    cursor.count(&what, kind.bytes(), MAX_GGUF_ARRAY)
}

fn skip_values(
    cursor: &mut Cursor<'_>,
    key: &str,
    kind: ValueKind,
    count: u64,
    depth: u32,
) -> Result<(), ImportError> {
    match kind {
        ValueKind::Text => (0..count).try_for_each(|_| read_text(cursor, key).map(drop)),
        ValueKind::Array if depth >= DEPTH_MAX => {
            let expected = format!("arrays within arrays {DEPTH_MAX} deep at most");
            Err(cursor.malformed(key, expected, "deeper ones"))
        }
        ValueKind::Array => (0..count).try_for_each(|_| {
            let kind = ValueKind::read(cursor, key)?;
            let count = skip_array_head(cursor, key, kind)?;
            skip_values(cursor, key, kind, count, depth + 1)
        }),
        // No overflow: the count was compared with the file's length.
        kind => cursor.take(key, count * kind.bytes()).map(drop),
    }
}
