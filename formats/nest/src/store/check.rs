//! Consistency checks between the records of an index: each byte of the store has exactly one owner.

use std::collections::HashSet;

use super::bytes::align_up;
use super::error::{Fault, FieldFault};
use super::format::{
    ASSET_BYTES_MAX, CODEC_RECORD_BYTES, EXTENT_RECORD_BYTES, GROUP_RECORD_BYTES, INDEX_HEAD_BYTES,
    MATRIX_RECORD_BYTES, SECTION_RECORD_BYTES, SHARD_RECORD_BYTES, TENSOR_RECORD_BYTES,
};
use super::header::{Header, STORE_LENGTH_AT};
use super::index::{Encoding, Group, Index, Matrix};
use crate::memory::OutOfMemory;
use crate::nested::{CodecRef, GROUP, InputTransform, ScaleSteps};
use crate::{Level, MatrixKind, Plane};

/// Offsets of the index's tables in the store, for error messages.
struct TableOffsets {
    shards: u64,
    sections: u64,
    groups: u64,
    matrices: u64,
    extents: u64,
}

impl TableOffsets {
    fn new(index: &Index, base: u64) -> Self {
        let after = |start: u64, count: usize, bytes: usize| start + (count * bytes) as u64;
        let shards = base + INDEX_HEAD_BYTES as u64;
        let sections = after(shards, index.shards.len(), SHARD_RECORD_BYTES);
        let codecs = after(sections, index.sections.len(), SECTION_RECORD_BYTES);
        let groups = after(codecs, index.codecs.len(), CODEC_RECORD_BYTES);
        let matrices = after(groups, index.groups.len(), GROUP_RECORD_BYTES);
        let count = index.groups.iter().map(|group| group.matrices.len()).sum();
        let tensors = after(matrices, count, MATRIX_RECORD_BYTES);
        let count = index.groups.iter().map(|group| group.tensors.len()).sum();
        let extents = after(tensors, count, TENSOR_RECORD_BYTES);
        Self { shards, sections, groups, matrices, extents }
    }
}

impl Index {
    /// Checks all rules that involve several records.
    pub(super) fn check(&self, header: &Header, base: u64) -> Result<(), Fault> {
        let places = TableOffsets::new(self, base);
        self.check_shards(header, &places)?;
        let mut matrices = 0;
        for (number, group) in self.groups.iter().enumerate() {
            let group_at = places.groups + (number * GROUP_RECORD_BYTES) as u64;
            let matrix_at = places.matrices + (matrices * MATRIX_RECORD_BYTES) as u64;
            matrices += group.matrices.len();
            group.check(number, [group_at, matrix_at])?;
            self.check_group_extents(number, group, &places)?;
        }
        self.check_extents(header, &places)?;
        self.check_sections(header, &places)
    }

    fn check_shards(&self, header: &Header, places: &TableOffsets) -> Result<(), Fault> {
        let fault = |field, offset, expected: String, found: String| {
            Err(FieldFault { what: "index".into(), field, offset, expected, found }.into())
        };
        if self.shards.len() as u64 != u64::from(header.shards) {
            let (expected, found) = (header.shards.to_string(), self.shards.len().to_string());
            return fault("shard count", places.shards, expected, found);
        }
        let mut total = 0u64;
        for (number, length) in self.shards.iter().enumerate() {
            let at = places.shards + (number * SHARD_RECORD_BYTES) as u64;
            if *length == 0 || !length.is_multiple_of(self.alignment) {
                let expected = format!("a multiple of {}, not 0", self.alignment);
                return fault("shard length", at, expected, length.to_string());
            }
            total = match total.checked_add(*length) {
                Some(total) => total,
                None => return fault("shard length", at, "less".into(), length.to_string()),
            };
        }
        if total != header.store_length {
            let (expected, found) = (header.store_length.to_string(), total.to_string());
            return fault("shard lengths", places.shards, format!("{expected} together"), found);
        }
        if self.shards.first() != Some(&header.shard_length) {
            let found = format!("{:?}", self.shards.first());
            return fault("shard length", places.shards, header.shard_length.to_string(), found);
        }
        Ok(())
    }

    /// Checks that a group has exactly the extents that its shapes require, in plane order.
    fn check_group_extents(
        &self,
        number: usize,
        group: &Group,
        places: &TableOffsets,
    ) -> Result<(), Fault> {
        let group_at = places.groups + (number * GROUP_RECORD_BYTES) as u64;
        let mut before = None;
        for plane in Plane::ALL {
            let bytes = group.extent_bytes(plane);
            let extent = group.extents[plane.index()];
            let Some(expected) = bytes.map(|bytes| bytes as u64) else {
                let (field, found) = ("sizes", "more bytes than can be counted".into());
                return Err(group_fault(number, field, group_at, "smaller matrices", found));
            };
            let expected_none = if group.is_asset() { plane != Plane::P2 } else { expected == 0 };
            let Some(extent_number) = extent else {
                if expected_none {
                    continue;
                }
                let (field, found) = ("extents", "none".into());
                let expected = format!("an extent of plane {plane:?}");
                return Err(group_fault(number, field, group_at, expected, found));
            };
            let at = places.extents + u64::from(extent_number) * EXTENT_RECORD_BYTES as u64;
            let what = format!("extent {extent_number}");
            let length = self.extent(group, plane).map_or(0, |extent| extent.length);
            let wrong = match group.is_asset() {
                true => !(1..=ASSET_BYTES_MAX).contains(&length),
                false => length != expected,
            };
            if expected_none || wrong {
                let expected = match (expected_none, group.is_asset()) {
                    (true, _) => format!("no plane {plane:?} of {}", group.id),
                    (_, true) => format!("1 to {ASSET_BYTES_MAX}"),
                    (_, false) => expected.to_string(),
                };
                let found = length.to_string();
                return Err(
                    FieldFault { what, field: "length", offset: at, expected, found }.into()
                );
            }
            if before > extent {
                let expected = format!("the planes of {} in order", group.id);
                let found = format!("{plane:?} too early");
                return Err(FieldFault { what, field: "plane", offset: at, expected, found }.into());
            }
            before = extent;
        }
        Ok(())
    }

    pub(super) fn check_codecs(&self) -> Result<(), Fault> {
        for (number, slot) in (0u32..).zip(&self.codecs) {
            let misfit = slot.codec.as_ref().and_then(|codec| self.misfit(number, codec.borrow()));
            if let Some((matrix, rule)) = misfit {
                return Err(FieldFault {
                    what: format!("codec {number}"),
                    field: "matrices",
                    offset: 0,
                    expected: rule.into(),
                    found: format!("{:?} with {} columns", matrix.kind, matrix.cols),
                }
                .into());
            }
        }
        Ok(())
    }

    /// Returns the first matrix that does not match this codec, with the violated rule.
    pub(super) fn misfit(
        &self,
        number: u32,
        codec: CodecRef<'_>,
    ) -> Option<(&Matrix, &'static str)> {
        let broken = |matrix: &Matrix| {
            let top = matrix.levels.last().copied().flatten();
            let codec = match codec {
                CodecRef::Nested(codec) => codec,
                CodecRef::Scaled(codec) => {
                    let beyond = top > Some(codec.form.top());
                    return beyond.then_some("no level above that of complete codes");
                }
            };
            let rotated = codec.inputs != InputTransform::None;
            let octaves = codec.steps == ScaleSteps::Octaves;
            let rotates = matrix.kind == MatrixKind::Down && matrix.cols.is_multiple_of(GROUP);
            if rotated && !rotates {
                return Some(
                    "down matrices with a multiple of 32 columns where inputs are rotated",
                );
            }
            let beyond = octaves && top > Some(Level::L4);
            beyond.then_some("no level above 4 where scales have steps of octaves")
        };
        let names = |matrix: &&Matrix| matches!(matrix.encoding, Encoding::Nested { codec, .. } if codec == number);
        let matrices = self.groups.iter().flat_map(|group| &group.matrices);
        matrices.filter(names).find_map(|matrix| Some((matrix, broken(matrix)?)))
    }

    /// Checks that the extents are contiguous and fill each shard.
    fn check_extents(&self, header: &Header, places: &TableOffsets) -> Result<(), Fault> {
        let mut layout = Cursor::new(header.data_start().unwrap_or(u64::MAX), self.alignment);
        for (number, extent) in self.extents.iter().enumerate() {
            let at = places.extents + (number * EXTENT_RECORD_BYTES) as u64;
            let fault = |field, expected: String, found: u64| FieldFault {
                what: format!("extent {number}"),
                field,
                offset: at,
                expected,
                found: found.to_string(),
            };
            let offset = layout.next(&self.shards);
            if offset != Some(extent.offset) {
                let expected = offset.map_or("no more extents".into(), |o| o.to_string());
                return Err(fault("offset", expected, extent.offset).into());
            }
            if layout.place(extent.length, &self.shards).is_none() {
                let expected = format!("at most what shard {} has left", layout.shard + 1);
                return Err(fault("length", expected, extent.length).into());
            }
        }
        if layout.at != header.store_length || layout.shard + 1 != self.shards.len() {
            return Err(FieldFault {
                what: "header".into(),
                field: "store length",
                offset: STORE_LENGTH_AT,
                expected: format!("{} where the last extent ends", layout.at),
                found: header.store_length.to_string(),
            }
            .into());
        }
        Ok(())
    }

    fn check_sections(&self, header: &Header, places: &TableOffsets) -> Result<(), Fault> {
        let mut fault = None;
        let mut names = HashSet::new();
        let reserved = names.try_reserve(self.sections.len());
        reserved.map_err(|_| OutOfMemory::of::<&str>("names of sections", self.sections.len()))?;
        for (number, section) in self.sections.iter().enumerate() {
            let offset = places.sections + (number * SECTION_RECORD_BYTES) as u64;
            let last = usize::try_from(section.extents_end - 1).ok();
            let Some(extent) = last.and_then(|last| self.extents.get(last)) else {
                let expected = format!("{} extents together", self.extents.len());
                let found = section.extents_end.to_string();
                fault = Some(("extent count", offset, expected, found));
                break;
            };
            // Cannot overflow: check_extents found the extent within the store.
            let end = align_up(extent.offset + extent.length, self.alignment);
            if end != Some(section.end) {
                let expected = end.unwrap_or(u64::MAX).to_string();
                fault = Some(("end", offset, expected, section.end.to_string()));
                break;
            }
            if !names.insert(section.name.as_str()) {
                fault = Some(("name", offset, "a name of its own".into(), section.name.clone()));
                break;
            }
        }
        let end = self.sections.last().map_or(0, |section| section.end);
        if fault.is_none() && end != header.store_length {
            let expected = format!("{} at the end of the last", header.store_length);
            fault = Some(("sections", places.sections, expected, end.to_string()));
        }
        match fault {
            None => Ok(()),
            Some((field, offset, expected, found)) => {
                Err(FieldFault { what: "sections".into(), field, offset, expected, found }.into())
            }
        }
    }
}

fn group_fault(
    number: usize,
    field: &'static str,
    offset: u64,
    expected: impl ToString,
    found: String,
) -> Fault {
    let what = format!("group {number}");
    FieldFault { what, field, offset, expected: expected.to_string(), found }.into()
}

impl Group {
    /// Checks the contents of the group. `at`: offsets of its record and of its first matrix's record.
    pub(super) fn check(&self, number: usize, at: [u64; 2]) -> Result<(), Fault> {
        for (index, matrix) in self.matrices.iter().enumerate() {
            let offset = at[1] + (index * MATRIX_RECORD_BYTES) as u64;
            let found = format!("{:?}", matrix.kind);
            if !self.id.may_hold(matrix.kind) {
                let expected = format!("a kind that {} may hold", self.id);
                return Err(group_fault(number, "matrix kind", offset, expected, found));
            }
            if self.matrices[..index].iter().any(|earlier| earlier.kind == matrix.kind) {
                return Err(group_fault(number, "matrix kind", offset, "each kind once", found));
            }
        }
        let tensors_allowed = matches!(self.id, super::GroupId::Floats { .. });
        for (index, tensor) in self.tensors.iter().enumerate() {
            let found = format!("{:?}", tensor.kind);
            if !tensors_allowed {
                return Err(group_fault(number, "tensor count", at[0], "0 here", found));
            }
            if self.tensors[..index].iter().any(|earlier| earlier.kind == tensor.kind) {
                return Err(group_fault(number, "tensor kind", at[0], "each kind once", found));
            }
        }
        if !self.is_asset() && self.matrices.is_empty() && self.tensors.is_empty() {
            let expected = "at least one matrix or tensor";
            return Err(group_fault(number, "matrix count", at[0], expected, "0".into()));
        }
        Ok(())
    }
}

impl Matrix {
    /// Checks the levels of a matrix. They must never decrease and must end with at least 2. Floats must be
    /// complete in the first extent.
    pub(super) fn check_levels(&self) -> Result<(), &'static str> {
        if self.levels.windows(2).any(|pair| pair[0] > pair[1]) {
            return Err("levels that never fall");
        }
        let last = self.levels.last().copied().flatten();
        if last.is_none() {
            return Err("at least level 2 at the end");
        }
        let whole = self.levels.iter().all(|level| *level == Some(Level::L8));
        if matches!(self.encoding, Encoding::Float(_)) && !whole {
            return Err("8 throughout for floats");
        }
        Ok(())
    }
}

/// Allocates aligned offsets, shard by shard.
pub(super) struct Cursor {
    /// Aligned end of the extents placed so far.
    pub at: u64,
    pub shard: usize,
    shard_start: u64,
    alignment: u64,
}

impl Cursor {
    pub fn new(at: u64, alignment: u64) -> Self {
        Self { at, shard: 0, shard_start: 0, alignment }
    }

    /// Returns the offset of the next extent: after the last one, or after the next shard's header.
    pub fn next(&mut self, shards: &[u64]) -> Option<u64> {
        let end = self.shard_start.checked_add(*shards.get(self.shard)?)?;
        if self.at == end {
            self.shard += 1;
            shards.get(self.shard)?;
            self.shard_start = end;
            self.at = end.checked_add(self.alignment)?;
        }
        Some(self.at)
    }

    /// Places an extent; returns `None` if it does not fit in the shard.
    pub fn place(&mut self, length: u64, shards: &[u64]) -> Option<()> {
        let end = align_up(self.at.checked_add(length)?, self.alignment)?;
        if end > self.shard_start.checked_add(*shards.get(self.shard)?)? {
            return None;
        }
        self.at = end;
        Some(())
    }
}
