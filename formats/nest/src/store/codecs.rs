//! Codecs of the index: a table of ids and lengths, followed by the parameters.

use super::bytes::Fields;
use super::error::Fault;
use super::format;
use super::index::CodecSlot;
use crate::memory::try_with_capacity;
use crate::nested::{Codec, NestedCodec, ScaledCodec};

const CODECS: &str = "the codecs of a store"; // purpose of allocations, for errors

pub(super) struct CodecRecord {
    id: u32,
    length: usize,
}

/// Reads the table of codecs, whose parameters take `bytes` bytes in total.
pub(super) fn read_records(
    fields: &mut Fields<'_>,
    count: usize,
    bytes: usize,
    version: u32,
) -> Result<Vec<CodecRecord>, Fault> {
    let newest = match version {
        format::VERSION_NESTED => format::CODEC_NESTED,
        _ => format::CODEC_SCALED,
    };
    let mut records = try_with_capacity(CODECS, count)?;
    let mut left = bytes;
    for number in 0..count {
        fields.record("codec", number);
        let at = fields.offset();
        let id = fields.u32("codec id")?;
        if !(format::CODEC_NESTED..=newest).contains(&id) {
            let expected = match newest {
                format::CODEC_NESTED => "1 in version 1",
                _ => "1 or 2",
            };
            return Err(fields.fault("codec id", at, expected, id));
        }
        let at = fields.offset();
        let length = fields.size("length")?;
        left = left.checked_sub(length).ok_or_else(|| {
            fields.fault("length", at, format!("at most the {left} bytes left"), length)
        })?;
        records.push(CodecRecord { id, length });
    }
    if left != 0 {
        fields.record("index", None);
        return Err(fields.fault("codecs length", fields.offset(), "0 bytes left over", left));
    }
    Ok(records)
}

pub(super) fn read(
    fields: &mut Fields<'_>,
    records: &[CodecRecord],
) -> Result<Vec<CodecSlot>, Fault> {
    let mut slots = try_with_capacity(CODECS, records.len())?;
    for (number, CodecRecord { id, length }) in records.iter().enumerate() {
        fields.record("codec", number);
        let at = fields.offset();
        let bytes = fields.take(*length, "parameters")?;
        let codec = match *id {
            format::CODEC_NESTED => NestedCodec::from_bytes(bytes).map(Codec::from),
            _ => ScaledCodec::from_bytes(bytes).map(Codec::from),
        };
        let codec =
            codec.map_err(|error| fields.fault("parameters", at, "a valid codec", error))?;
        slots.push(CodecSlot { bytes: *length, codec: Some(codec) });
    }
    Ok(slots)
}
