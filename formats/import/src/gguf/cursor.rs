//! Incremental reader of a header whose length is known only after parsing.

use crate::ImportError;
use crate::limits::MAX_GGUF_HEADER_BYTES;
use nestling_formats::memory::OutOfMemory;

/// Read size in bytes: a header without a tokenizer takes one read, one with a tokenizer about a hundred.
const READ_AHEAD: usize = 128 << 10;

/// Function that fills a buffer from an offset of a file.
pub type ReadAt<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> Result<(), ImportError>;

/// The bytes of a header read so far, and the parse position.
pub struct Cursor<'a> {
    file: &'a str,
    file_bytes: u64,
    read: ReadAt<'a>,
    bytes: Vec<u8>,
    position: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(file: &'a str, file_bytes: u64, read: ReadAt<'a>) -> Self {
        Self { file, file_bytes, read, bytes: Vec::new(), position: 0 }
    }

    pub fn file(&self) -> &str {
        self.file
    }

    pub fn position(&self) -> usize {
        self.position
    }

    /// Returns the number of bytes of the file after the position.
    pub fn rest(&self) -> u64 {
        self.file_bytes.saturating_sub(self.position as u64)
    }

    /// Returns the bytes read, from the start of the file.
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.truncate(self.position);
        self.bytes
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads `count` bytes, advances the position and returns their range.
    pub fn take(&mut self, what: &str, count: u64) -> Result<std::ops::Range<usize>, ImportError> {
        if count > self.rest() {
            let expected = format!("{count} bytes");
            let found = format!("{} bytes to the file's end", self.rest());
            return Err(self.malformed(what, expected, found));
        }
        // The sum cannot overflow: both numbers are at most the file size.
        let end = self.position as u64 + count;
        if end > MAX_GGUF_HEADER_BYTES {
            return Err(ImportError::Limit {
                file: self.file.into(),
                what: format!("the end of {what}"),
                found: end,
                limit: MAX_GGUF_HEADER_BYTES,
            });
        }
        let (start, end) = (self.position, end as usize);
        if end > self.bytes.len() {
            let length = (end + READ_AHEAD).min(MAX_GGUF_HEADER_BYTES as usize) as u64;
            let length = length.min(self.file_bytes) as usize;
            let have = self.bytes.len();
            // The capacity at most doubles and never exceeds the maximum header size.
            let room = (2 * self.bytes.capacity()).min(MAX_GGUF_HEADER_BYTES as usize);
            let room = room.max(length);
            let reserved = self.bytes.try_reserve_exact(room - have);
            reserved.map_err(|_| OutOfMemory::of::<u8>("the header of a GGUF file", room))?;
            self.bytes.resize(length, 0);
            (self.read)(have as u64, &mut self.bytes[have..])?;
        }
        self.position = end;
        Ok(start..end)
    }

    pub fn u32(&mut self, what: &str) -> Result<u32, ImportError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub fn u64(&mut self, what: &str) -> Result<u64, ImportError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], ImportError> {
        let range = self.take(what, N as u64)?;
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes[range]);
        Ok(array)
    }

    /// Reads a count of entries that take at least `least_bytes` each.
    pub fn count(&mut self, what: &str, least_bytes: u64, limit: u64) -> Result<u64, ImportError> {
        let count = self.u64(what)?;
        if count > limit {
            let (file, what) = (self.file.into(), what.into());
            return Err(ImportError::Limit { file, what, found: count, limit });
        }
        if count.checked_mul(least_bytes).is_none_or(|bytes| bytes > self.rest()) {
            let expected = format!("at most {}", self.rest() / least_bytes.max(1));
            return Err(self.malformed(what, expected, count));
        }
        Ok(count)
    }

    /// Reads a length-prefixed text of at most `limit` bytes.
    pub fn text(&mut self, what: &str, limit: u64) -> Result<String, ImportError> {
        let length = self.count(&format!("the length of {what}"), 1, limit)?;
        let range = self.take(what, length)?;
        match std::str::from_utf8(&self.bytes[range]) {
            Ok(text) => Ok(text.into()),
            Err(_) => Err(self.malformed(what, "UTF-8", "other bytes")),
        }
    }

    /// Returns the error for malformed bytes before the position.
    pub fn malformed(
        &self,
        what: &str,
        expected: impl Into<String>,
        found: impl ToString,
    ) -> ImportError {
        ImportError::Malformed {
            file: self.file.into(),
            what: what.into(),
            offset: self.position as u64,
            expected: expected.into(),
            found: found.to_string(),
        }
    }
}
