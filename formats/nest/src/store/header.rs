//! The header at the start of each file of a store.

use super::bytes::{ByteWriter, Fields, align_up};
use super::error::{Fault, StoreError};
use super::format::{
    ALIGNMENT_MAX, ALIGNMENT_MIN, HEADER_BYTES, INDEX_BYTES_MAX, MAGIC, SHARDS_MAX, VERSION_NESTED,
    VERSION_SCALED,
};
use super::hash::{StoreId, hash};

/// Number of header bytes covered by the header's own hash.
const HASHED_BYTES: usize = HEADER_BYTES - 16;

/// Byte offset of the store length in the header.
pub(super) const STORE_LENGTH_AT: u64 = 80;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub version: u32,
    pub alignment: u64,
    pub shards: u32,
    /// Shard number, from 0.
    pub shard: u32,
    pub id: StoreId,
    /// Length in bytes of the index, which follows the header of shard 0; 0 in other shards.
    pub index_length: u64,
    pub index_hash: [u8; 16],
    /// Total length of all shards in bytes.
    pub store_length: u64,
    /// Length of this shard in bytes.
    pub shard_length: u64,
}

impl Header {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = ByteWriter::default();
        out.bytes(&MAGIC);
        out.u32(self.version);
        out.u32(HEADER_BYTES as u32);
        // The alignment fits in u32, since the plan limits it to 16 MiB.
        out.u32(u32::try_from(self.alignment).unwrap_or(u32::MAX));
        out.u32(self.shards);
        out.u32(self.shard);
        out.zeros(4);
        out.bytes(&self.id.0);
        out.u64(if self.shard == 0 { HEADER_BYTES as u64 } else { 0 });
        out.u64(self.index_length);
        out.bytes(&self.index_hash);
        out.u64(self.store_length);
        out.u64(self.shard_length);
        out.zeros(HASHED_BYTES - out.0.len());
        let own_hash = hash(0, &out.0);
        out.bytes(&own_hash);
        out.0
    }

    /// Decodes the header at the start of `bytes`, which is at offset `base` in the store.
    pub fn decode(bytes: &[u8], base: u64, file: &str) -> Result<Self, StoreError> {
        let not_a_store = || StoreError::NotAStore { file: file.to_owned() };
        let Some(bytes) = bytes.get(..HEADER_BYTES) else {
            if bytes.len() < MAGIC.len() || !bytes.starts_with(&MAGIC) {
                return Err(not_a_store());
            }
            return Err(StoreError::Truncated {
                file: file.to_owned(),
                expected: HEADER_BYTES as u64,
                found: bytes.len() as u64,
                section: "header".into(),
                section_end: HEADER_BYTES as u64,
            });
        };
        if !bytes.starts_with(&MAGIC) {
            return Err(not_a_store());
        }
        let mut fields = Fields::new(bytes, base, "header");
        let version = fields.take(MAGIC.len(), "magic").and_then(|_| fields.u32("version"));
        let version = version.map_err(|fault| fault.in_file(file))?;
        if !(VERSION_NESTED..=VERSION_SCALED).contains(&version) {
            return Err(StoreError::Version {
                file: file.to_owned(),
                found: version,
                supported: VERSION_SCALED,
            });
        }
        let (hashed, stored) = bytes.split_at(HASHED_BYTES);
        if hash(0, hashed) != stored {
            return Err(StoreError::Damaged {
                file: file.to_owned(),
                what: "header".into(),
                offset: base,
                length: HEADER_BYTES as u64,
            });
        }
        Self::decode_fields(&mut fields, version).map_err(|fault| fault.in_file(file))
    }

    fn decode_fields(fields: &mut Fields<'_>, version: u32) -> Result<Self, Fault> {
        let at = fields.offset();
        let header_length = fields.u32("header length")?;
        if header_length != HEADER_BYTES as u32 {
            return Err(fields.fault("header length", at, HEADER_BYTES, header_length));
        }
        let at = fields.offset();
        let alignment = u64::from(fields.u32("alignment")?);
        if !(ALIGNMENT_MIN..=ALIGNMENT_MAX).contains(&alignment) || !alignment.is_power_of_two() {
            let expected = format!("a power of two in {ALIGNMENT_MIN}..={ALIGNMENT_MAX}");
            return Err(fields.fault("alignment", at, expected, alignment));
        }
        let at = fields.offset();
        let shards = fields.u32("shard count")?;
        if !(1..=SHARDS_MAX).contains(&shards) {
            return Err(fields.fault("shard count", at, format!("1..={SHARDS_MAX}"), shards));
        }
        let at = fields.offset();
        let shard = fields.u32("shard number")?;
        if shard >= shards {
            return Err(fields.fault("shard number", at, format!("below {shards}"), shard));
        }
        fields.zeros(4)?;
        let id = StoreId(fields.array("store id")?);
        let at = fields.offset();
        let index_offset = fields.u64("index offset")?;
        let expected = if shard == 0 { HEADER_BYTES as u64 } else { 0 };
        if index_offset != expected {
            return Err(fields.fault("index offset", at, expected, index_offset));
        }
        let index_length_at = fields.offset();
        let index_length = fields.u64("index length")?;
        let index_hash = fields.array("index hash")?;
        let store_length_at = fields.offset();
        let store_length = fields.u64("store length")?;
        let shard_length_at = fields.offset();
        let shard_length = fields.u64("shard length")?;
        fields.zeros(8)?;
        let header = Self {
            version,
            alignment,
            shards,
            shard,
            id,
            index_length,
            index_hash,
            store_length,
            shard_length,
        };
        header.check(fields, [index_length_at, store_length_at, shard_length_at])?;
        Ok(header)
    }

    /// Checks the three lengths against each other; `at` has the offsets of their fields.
    fn check(&self, fields: &Fields<'_>, at: [u64; 3]) -> Result<(), Fault> {
        let [index_length_at, store_length_at, shard_length_at] = at;
        if self.shard != 0 && (self.index_length != 0 || self.index_hash != [0; 16]) {
            let expected = "0 outside of the first shard";
            return Err(fields.fault("index length", index_length_at, expected, self.index_length));
        }
        let multiple = format!("a multiple of the alignment {}, not 0", self.alignment);
        if self.store_length == 0 || !self.store_length.is_multiple_of(self.alignment) {
            return Err(fields.fault("store length", store_length_at, multiple, self.store_length));
        }
        if self.shard_length == 0 || !self.shard_length.is_multiple_of(self.alignment) {
            return Err(fields.fault("shard length", shard_length_at, multiple, self.shard_length));
        }
        let whole = self.shards == 1;
        if self.shard_length > self.store_length
            || (whole && self.shard_length != self.store_length)
        {
            let expected = format!("{} of the store", if whole { "all" } else { "at most all" });
            let expected = format!("{expected}, {} bytes", self.store_length);
            return Err(fields.fault("shard length", shard_length_at, expected, self.shard_length));
        }
        if self.index_length > INDEX_BYTES_MAX {
            let expected = format!("at most {INDEX_BYTES_MAX}");
            return Err(fields.fault("index length", index_length_at, expected, self.index_length));
        }
        if self.shard == 0 && self.data_start().is_none_or(|start| start > self.shard_length) {
            let expected = format!("less than the shard's {} bytes", self.shard_length);
            return Err(fields.fault("index length", index_length_at, expected, self.index_length));
        }
        Ok(())
    }

    /// Returns the offset of the first extent, relative to the start of this shard.
    pub fn data_start(&self) -> Option<u64> {
        let end = (HEADER_BYTES as u64).checked_add(self.index_length)?;
        align_up(end, self.alignment)
    }
}
