//! Reading and writing of little-endian fields, with byte offsets for error messages.

use super::error::{Fault, FieldFault};

pub(super) struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Offset of `bytes` within the store.
    base: u64,
    /// Name of the current record for error messages, and its number if there are several.
    what: (&'static str, Option<usize>),
}

impl<'a> Fields<'a> {
    pub fn new(bytes: &'a [u8], base: u64, what: &'static str) -> Self {
        Self { bytes, at: 0, base, what: (what, None) }
    }

    /// Sets the record name for the following fields.
    pub fn record(&mut self, name: &'static str, number: impl Into<Option<usize>>) {
        self.what = (name, number.into());
    }

    /// Returns the offset of the next field in the store.
    pub fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    pub fn take(&mut self, length: usize, field: &'static str) -> Result<&'a [u8], Fault> {
        let rest = &self.bytes[self.at..];
        let Some(taken) = rest.get(..length) else {
            let found = format!("{} bytes left", rest.len());
            return Err(self.fault(field, self.offset(), format!("{length} bytes"), found));
        };
        self.at += length;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], Fault> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, field)?);
        Ok(array)
    }

    pub fn u8(&mut self, field: &'static str) -> Result<u8, Fault> {
        Ok(u8::from_le_bytes(self.array(field)?))
    }

    pub fn u32(&mut self, field: &'static str) -> Result<u32, Fault> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub fn u64(&mut self, field: &'static str) -> Result<u64, Fault> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// Reads a count or index, which must fit in `usize`.
    pub fn size(&mut self, field: &'static str) -> Result<usize, Fault> {
        let offset = self.offset();
        let value = self.u32(field)?;
        usize::try_from(value)
            .map_err(|_| self.fault(field, offset, "a size that fits in memory", value))
    }

    /// Reads reserved bytes, which must be zero.
    pub fn zeros(&mut self, length: usize) -> Result<(), Fault> {
        let offset = self.offset();
        match self.take(length, "reserved")?.iter().position(|byte| *byte != 0) {
            None => Ok(()),
            Some(at) => Err(self.fault("reserved", offset + at as u64, "0", "not zero")),
        }
    }

    /// Reads a measured value: absent, or finite and not negative.
    pub fn measure(&mut self, field: &'static str) -> Result<Option<f32>, Fault> {
        let offset = self.offset();
        let bits = self.u32(field)?;
        if bits == super::format::NONE {
            return Ok(None);
        }
        let value = f32::from_bits(bits);
        if value.is_finite() && value.is_sign_positive() {
            return Ok(Some(value));
        }
        Err(self.fault(field, offset, "a finite number, not negative, or none", value))
    }

    pub fn fault(
        &self,
        field: &'static str,
        offset: u64,
        expected: impl ToString,
        found: impl ToString,
    ) -> Fault {
        let (expected, found) = (expected.to_string(), found.to_string());
        let what = match self.what {
            (name, None) => name.to_owned(),
            (name, Some(number)) => format!("{name} {number}"),
        };
        FieldFault { what, field, offset, expected, found }.into()
    }
}

#[derive(Default)]
pub(super) struct ByteWriter(pub Vec<u8>);

impl ByteWriter {
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// Writes a count. Plans are checked against u32 before anything is encoded.
    pub fn count(&mut self, value: usize) {
        self.u32(u32::try_from(value).unwrap_or(u32::MAX));
    }

    pub fn measure(&mut self, value: Option<f32>) {
        self.u32(value.map_or(super::format::NONE, f32::to_bits));
    }

    pub fn zeros(&mut self, length: usize) {
        self.0.resize(self.0.len() + length, 0);
    }
}

/// Rounds `value` up to a multiple of `alignment`, a power of two.
pub(super) fn align_up(value: u64, alignment: u64) -> Option<u64> {
    value.checked_next_multiple_of(alignment)
}
