//! Writer of a `tokenizer.json`, limited to the maximum asset size.

use nestling_formats::Invariant;
use nestling_formats::memory::try_with_capacity;
use serde_json::Value;

use crate::ImportError;
use crate::limits::MAX_ASSET_BYTES;

/// A JSON writer with a size limit. It can also run in a mode that only counts bytes.
pub(crate) struct JsonWriter<'a> {
    file: &'a str,
    length: usize,
    bytes: Option<Vec<u8>>,
}

impl<'a> JsonWriter<'a> {
    /// Returns the text that `write` produces. `write` runs twice: the first pass finds errors and the length
    /// before memory is allocated. `file` is the name in error messages.
    pub fn written(
        file: &'a str,
        write: impl Fn(&mut Self) -> Result<(), ImportError>,
    ) -> Result<Vec<u8>, ImportError> {
        let mut counted = Self { file, length: 0, bytes: None };
        write(&mut counted)?;
        let bytes = try_with_capacity("tokenizer.json", counted.length)?;
        let mut out = Self { file, length: 0, bytes: Some(bytes) };
        write(&mut out)?;
        Ok(out.bytes.invariant("the second writer keeps what is written")?)
    }

    /// Writes raw JSON text.
    pub fn raw(&mut self, text: &str) -> Result<(), ImportError> {
        self.length += text.len();
        let length = self.length as u64;
        if length > MAX_ASSET_BYTES {
            return Err(ImportError::Limit {
                file: self.file.into(),
                what: "the length of its tokenizer as JSON".into(),
                found: length,
                limit: MAX_ASSET_BYTES,
            });
        }
        if let Some(bytes) = &mut self.bytes {
            bytes.extend_from_slice(text.as_bytes());
        }
        Ok(())
    }

    /// Writes a JSON value.
    pub fn value(&mut self, value: &Value) -> Result<(), ImportError> {
        self.raw(&value.to_string())
    }

    /// Writes a JSON string.
    pub fn text(&mut self, text: &str) -> Result<(), ImportError> {
        self.raw(&Value::from(text).to_string())
    }

    /// Writes an array of two strings.
    pub fn pair(&mut self, one: &str, two: &str) -> Result<(), ImportError> {
        self.raw("[")?;
        self.text(one)?;
        self.raw(",")?;
        self.text(two)?;
        self.raw("]")
    }

    /// Writes a comma, except before the first element.
    pub fn separate(&mut self, first: &mut bool) -> Result<(), ImportError> {
        if std::mem::take(first) { Ok(()) } else { self.raw(",") }
    }
}
