//! A `tokenizer.json` as text, within the limit of an asset.

use nestling_formats::Invariant;
use nestling_formats::memory::try_with_capacity;
use serde_json::Value;

use crate::ImportError;
use crate::limits::MAX_ASSET_BYTES;

/// JSON written piece by piece, up to the limit of an asset, or only counted.
pub(crate) struct JsonWriter<'a> {
    file: &'a str,
    length: usize,
    bytes: Option<Vec<u8>>,
}

impl<'a> JsonWriter<'a> {
    /// What `write` writes, which is done twice: what is wrong is found, and the length, before memory is taken. `file`
    /// is what errors name.
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

    /// Text that is JSON already.
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

    /// A value.
    pub fn value(&mut self, value: &Value) -> Result<(), ImportError> {
        self.raw(&value.to_string())
    }

    /// A text, in quotes.
    pub fn text(&mut self, text: &str) -> Result<(), ImportError> {
        self.raw(&Value::from(text).to_string())
    }

    /// Two texts as an array.
    pub fn pair(&mut self, one: &str, two: &str) -> Result<(), ImportError> {
        self.raw("[")?;
        self.text(one)?;
        self.raw(",")?;
        self.text(two)?;
        self.raw("]")
    }

    /// A comma, but for the first.
    pub fn separate(&mut self, first: &mut bool) -> Result<(), ImportError> {
        if std::mem::take(first) { Ok(()) } else { self.raw(",") }
    }
}
