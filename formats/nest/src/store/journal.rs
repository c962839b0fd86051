//! The journal of an unfinished store, from which an interrupted conversion resumes.
//!
//! Records have separate checksums. Reading ends at the first mismatch, where the writer was interrupted. The
//! journal is trusted only where it can be verified: an extent counts as written only if its bytes have the
//! recorded hash.

use std::io;

use xxhash_rust::xxh3::xxh3_64;

use super::bytes::{ByteWriter, Fields};
use super::disk::DiskFile;
use super::format::{JOURNAL_MAGIC, PLANES, VERSION_NESTED};
use super::hash::StoreId;
use crate::memory::try_zeroed;

const HEADER_BYTES: usize = 28;
/// Size of a record's head: kind, number, length.
const RECORD_HEAD_BYTES: usize = 12;
const CHECKSUM_BYTES: usize = 8;
/// Maximum payload; larger than a codec with all its tables.
pub(super) const PAYLOAD_BYTES_MAX: usize = 4096;

const KIND_EXTENT: u32 = 1;
const KIND_CODEC: u32 = 2;
const KIND_ERROR_DROP: u32 = 3;
const KIND_FREQUENCY: u32 = 4;
const KIND_MATRIX_DROPS: u32 = 5;
const KIND_WEIGHT_SQUARE: u32 = 6;
const KIND_NOTE: u32 = 7;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    /// Hash of an extent that was written.
    Extent { extent: u32, hash: [u8; 16] },
    /// Encoded codec.
    Codec { codec: u32, bytes: Vec<u8> },
    /// Reduction of the error by an extent.
    ErrorDrop { extent: u32, value: f32 },
    /// Frequency of use of a group.
    Frequency { group: u32, value: f32 },
    /// Reduction of the error by each plane of a matrix; matrices are numbered across all groups.
    MatrixDrops { matrix: u32, drops: [Option<f32>; PLANES] },
    /// Mean square of the router's weight for a group.
    WeightSquare { group: u32, value: f32 },
    /// Caller-defined data about a group, available again after resuming.
    Note { group: u32, bytes: Vec<u8> },
}

impl Record {
    fn encode(&self) -> Vec<u8> {
        let (value_bytes, drop_bytes);
        let (kind, number, payload): (_, _, &[u8]) = match self {
            Self::Extent { extent, hash } => (KIND_EXTENT, *extent, hash),
            Self::Codec { codec, bytes } => (KIND_CODEC, *codec, bytes),
            Self::Note { group, bytes } => (KIND_NOTE, *group, bytes),
            Self::ErrorDrop { extent, value } => {
                value_bytes = value.to_le_bytes();
                (KIND_ERROR_DROP, *extent, &value_bytes)
            }
            Self::Frequency { group, value } => {
                value_bytes = value.to_le_bytes();
                (KIND_FREQUENCY, *group, &value_bytes)
            }
            Self::WeightSquare { group, value } => {
                value_bytes = value.to_le_bytes();
                (KIND_WEIGHT_SQUARE, *group, &value_bytes)
            }
            Self::MatrixDrops { matrix, drops } => {
                let mut out = ByteWriter::default();
                drops.iter().for_each(|drop| out.measure(*drop));
                drop_bytes = out.0;
                (KIND_MATRIX_DROPS, *matrix, &drop_bytes)
            }
        };
        let mut out = ByteWriter::default();
        out.u32(kind);
        out.u32(number);
        out.count(payload.len());
        out.bytes(payload);
        let checksum = xxh3_64(&out.0);
        out.u64(checksum);
        out.0
    }

    fn decode(kind: u32, number: u32, payload: &[u8]) -> Option<Self> {
        // Values that are invalid in the index cannot come from a writer.
        let is_measure = |value: &f32| value.is_finite() && value.is_sign_positive();
        let value = || payload.try_into().ok().map(f32::from_le_bytes).filter(is_measure);
        match kind {
            KIND_EXTENT => Some(Self::Extent { extent: number, hash: payload.try_into().ok()? }),
            KIND_CODEC => Some(Self::Codec { codec: number, bytes: payload.to_vec() }),
            KIND_NOTE => Some(Self::Note { group: number, bytes: payload.to_vec() }),
            KIND_ERROR_DROP => Some(Self::ErrorDrop { extent: number, value: value()? }),
            KIND_FREQUENCY => Some(Self::Frequency { group: number, value: value()? }),
            KIND_WEIGHT_SQUARE => Some(Self::WeightSquare { group: number, value: value()? }),
            KIND_MATRIX_DROPS => {
                let mut fields = Fields::new(payload, 0, "record");
                let mut drops = [None; PLANES];
                for drop in &mut drops {
                    *drop = fields.measure("error drop").ok()?;
                }
                Some(Self::MatrixDrops { matrix: number, drops })
            }
            _ => None,
        }
    }
}

pub(super) struct Journal {
    file: Box<dyn DiskFile>,
    end: u64,
}

impl Journal {
    /// Starts a new journal, discarding the file's contents.
    pub fn begin(file: Box<dyn DiskFile>, id: StoreId) -> io::Result<Self> {
        file.set_len(0)?;
        let header = header(id);
        file.write_at(0, &header)?;
        Ok(Self { file, end: header.len() as u64 })
    }

    /// Reads the journal of store `id`; returns the file itself if it is another store's journal.
    pub fn read(file: Box<dyn DiskFile>, id: StoreId) -> io::Result<ReadJournal> {
        let length = file.len()?;
        let mut end = HEADER_BYTES as u64;
        let mut found = [0; HEADER_BYTES];
        if length < end {
            return Ok(ReadJournal::Other(file));
        }
        file.read_at(0, &mut found)?;
        if found != header(id)[..] {
            return Ok(ReadJournal::Other(file));
        }
        let mut records = Vec::new();
        while let Some((record, bytes)) = read_record(&*file, end, length)? {
            records.push(record);
            end += bytes as u64;
        }
        Ok(ReadJournal::Ours(Self { file, end }, records))
    }

    /// Appends a record. If that fails, the journal is unchanged.
    pub fn append(&mut self, record: &Record) -> io::Result<()> {
        let bytes = record.encode();
        self.file.write_at(self.end, &bytes)?;
        self.end += bytes.len() as u64;
        Ok(())
    }
}

pub(super) enum ReadJournal {
    /// Journal of this store, with its records.
    Ours(Journal, Vec<Record>),
    /// File that is empty, damaged at its start, or another store's journal.
    Other(Box<dyn DiskFile>),
}

fn header(id: StoreId) -> Vec<u8> {
    let mut out = ByteWriter::default();
    out.bytes(&JOURNAL_MAGIC);
    out.u32(VERSION_NESTED);
    out.bytes(&id.0);
    out.0
}

/// Reads the record at `at` and its length; returns `None` if there is no complete record.
fn read_record(file: &dyn DiskFile, at: u64, length: u64) -> io::Result<Option<(Record, usize)>> {
    let left = usize::try_from(length.saturating_sub(at)).unwrap_or(usize::MAX);
    if left < RECORD_HEAD_BYTES + CHECKSUM_BYTES {
        return Ok(None);
    }
    let mut head = [0; RECORD_HEAD_BYTES];
    file.read_at(at, &mut head)?;
    let mut fields = Fields::new(&head, at, "record");
    let (Ok(kind), Ok(number), Ok(payload)) =
        (fields.u32("kind"), fields.u32("number"), fields.size("length"))
    else {
        return Ok(None);
    };
    let total = RECORD_HEAD_BYTES + payload.min(PAYLOAD_BYTES_MAX + 1) + CHECKSUM_BYTES;
    if payload > PAYLOAD_BYTES_MAX || total > left {
        return Ok(None);
    }
    let bytes = try_zeroed("a record of the journal", total);
    let mut bytes = bytes.map_err(|_| io::ErrorKind::OutOfMemory)?;
    file.read_at(at, &mut bytes)?;
    let (record, checksum) = bytes.split_at(total - CHECKSUM_BYTES);
    if xxh3_64(record).to_le_bytes() != checksum {
        return Ok(None);
    }
    let payload = &record[RECORD_HEAD_BYTES..];
    Ok(Record::decode(kind, number, payload).map(|record| (record, total)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_that_an_index_cannot_hold_end_a_journal() {
        for kind in [KIND_ERROR_DROP, KIND_FREQUENCY, KIND_WEIGHT_SQUARE] {
            for value in [f32::NAN, f32::INFINITY, -1.0, -0.0] {
                assert!(Record::decode(kind, 0, &value.to_le_bytes()).is_none(), "{kind} {value}");
            }
            assert!(Record::decode(kind, 0, &0.5f32.to_le_bytes()).is_some());
        }
    }
}
