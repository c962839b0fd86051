//! Metadata keys and values of a GGUF file.

use std::collections::HashSet;
use std::ops::Range;

use super::cursor::Cursor;
use crate::ImportError;
use crate::limits::{MAX_GGUF_ARRAY, MAX_GGUF_KEYS};
use nestling_formats::memory::{OutOfMemory, try_reserve, try_with_capacity};

/// Maximum length of a key in bytes.
const KEY_BYTES_MAX: u64 = 256;

/// Maximum nesting depth of arrays.
const DEPTH_MAX: u32 = 4;

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

    /// Returns the size of a value in bytes, or the minimum size for types of variable size.
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

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufValue {
    /// An integer of any width and sign.
    Integer(i128),
    /// A number in single or double precision.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A text.
    Text(GgufText),
    /// An array of values of one type.
    Array(GgufArray),
}

/// Location of a text in the header, to be read with [`GgufMetadata::text`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufText(Range<usize>);

/// Location of an array in the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufArray {
    kind: ValueKind,
    count: usize,
    range: Range<usize>,
}

impl GgufArray {
    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if the array is empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Metadata of a file. Texts and arrays stay in the bytes of the header.
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

    /// Returns the bytes of the whole header, including the tensor table.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the file name used in errors.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns keys and values in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &GgufValue)> {
        self.keys.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    pub(crate) fn wrong(&self, key: &str, expected: &str) -> ImportError {
        let found = self.get(key).map_or_else(|| "nothing".into(), |value| self.shown(value));
        ImportError::Value {
            file: self.file.clone(),
            key: key.into(),
            expected: expected.into(),
            found,
        }
    }

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

    /// Returns a text, if the key is present.
    ///
    /// # Errors
    /// [`ImportError::Value`] for a value of another type and for invalid UTF-8. The other readers fail
    /// alike.
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

    /// Returns a non-negative integer, if the key is present.
    ///
    /// # Errors
    /// [`ImportError::Value`] for any other value.
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

    /// Returns a finite number, if the key is present.
    ///
    /// # Errors
    /// [`ImportError::Value`] for any other value.
    pub fn number(&self, key: &str) -> Result<Option<f64>, ImportError> {
        match self.get(key) {
            None => Ok(None),
            Some(GgufValue::Integer(number)) => Ok(Some(*number as f64)),
            Some(GgufValue::Float(number)) if number.is_finite() => Ok(Some(*number)),
            Some(_) => Err(self.wrong(key, "a finite number")),
        }
    }

    /// Returns a boolean, if the key is present.
    ///
    /// # Errors
    /// [`ImportError::Value`] for any other value.
    pub fn boolean(&self, key: &str) -> Result<Option<bool>, ImportError> {
        match self.get(key) {
            None => Ok(None),
            Some(GgufValue::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    /// Returns an array of texts, if the key is present.
    ///
    /// # Errors
    /// [`ImportError::Value`] for any other value and for invalid UTF-8.
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

    /// Returns an array of numbers, if the key is present. Booleans are returned as 0 and 1.
    ///
    /// # Errors
    /// [`ImportError::Value`] for arrays of other types.
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

    /// Returns true if the value of a key is an array.
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

/// Decodes a value of fixed size. Returns `None` for a boolean other than 0 and 1.
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

/// Description of the allocation, for out-of-memory errors.
const KEYS: &str = "the keys of a GGUF file";

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

/// Returns the shortest decimal number that rounds to a single-precision value: 1e-6 instead of
/// 9.999999974e-7.
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

/// Reads the number of values of an array, after its type.
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
        // The product cannot overflow: the count was checked against the file size.
        kind => cursor.take(key, count * kind.bytes()).map(drop),
    }
}
