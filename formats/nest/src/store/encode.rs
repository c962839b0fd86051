//! Encoding of the index.

use super::bytes::ByteWriter;
use super::format::{NONE, PLANES};
use super::index::{Encoding, Group, GroupId, Index, Matrix};
use super::{format, hash};
use crate::DType;

/// Returns the number of an element type in the index, or `None` for a type that stores do not have.
pub(super) const fn dtype_code(dtype: DType) -> Option<u8> {
    match dtype {
        DType::F32 => Some(format::ENCODING_F32),
        DType::F16 => Some(format::ENCODING_F16),
        DType::Bf16 => Some(format::ENCODING_BF16),
        DType::U8 => None,
    }
}

fn float_code(dtype: DType) -> u8 {
    // Default: a number that readers refuse. Plans are checked before they are encoded.
    dtype_code(dtype).unwrap_or(u8::MAX)
}

impl Index {
    /// Encodes the index as stored. The length depends only on the plan; codecs and extent hashes that are
    /// not yet known are zero.
    pub(super) fn encode(&self) -> Vec<u8> {
        let names = self.names();
        let codec_bytes: usize = self.codecs.iter().map(|slot| slot.bytes).sum();
        let matrices = self.groups.iter().map(|group| group.matrices.len()).sum();
        let tensors = self.groups.iter().map(|group| group.tensors.len()).sum();
        let measures = self.groups.iter().map(|group| group.error_drops.len()).sum();
        let mut out = ByteWriter::default();
        for count in [
            self.parameters_json.len(),
            names.len(),
            self.shards.len(),
            self.sections.len(),
            self.codecs.len(),
            codec_bytes,
            self.groups.len(),
            matrices,
            tensors,
            self.extents.len(),
            measures,
        ] {
            out.count(count);
        }
        out.zeros(4);
        self.encode_tables(&mut out);
        for slot in &self.codecs {
            match &slot.codec {
                Some(codec) => out.bytes(&codec.to_bytes()),
                None => out.zeros(slot.bytes),
            }
        }
        out.bytes(names.as_bytes());
        out.bytes(self.parameters_json.as_bytes());
        out.0
    }

    fn encode_tables(&self, out: &mut ByteWriter) {
        for length in &self.shards {
            out.u64(*length);
        }
        let mut extents = 0;
        for section in &self.sections {
            out.count(section.name.len());
            out.u32(section.extents_end - extents);
            out.u64(section.end);
            extents = section.extents_end;
        }
        for slot in &self.codecs {
            out.u32(slot.id());
            out.count(slot.bytes);
        }
        for group in &self.groups {
            encode_group(group, out);
        }
        for matrix in self.groups.iter().flat_map(|group| &group.matrices) {
            encode_matrix(matrix, out);
        }
        for tensor in self.groups.iter().flat_map(|group| &group.tensors) {
            out.u8(tensor.kind as u8);
            out.u8(float_code(tensor.dtype));
            out.u8(u8::try_from(tensor.shape.len()).unwrap_or(u8::MAX));
            out.zeros(1);
            // Default: 0 marks an absent dimension.
            let size = |dimension: usize| tensor.shape.get(dimension).copied().unwrap_or(0);
            out.count(size(0));
            out.count(size(1));
            out.zeros(4);
        }
        for extent in &self.extents {
            out.u32(extent.group);
            out.u32(extent.plane as u32);
            out.u64(extent.offset);
            out.u64(extent.length);
            out.bytes(&extent.hash);
            out.measure(extent.error_drop);
            out.zeros(4);
        }
        for drops in self.groups.iter().flat_map(|group| &group.error_drops) {
            drops.iter().for_each(|drop| out.measure(*drop));
        }
    }

    /// Returns the names of the sections, then of the assets, concatenated.
    fn names(&self) -> String {
        let sections = self.sections.iter().map(|section| section.name.as_str());
        let assets = self.groups.iter().filter_map(|group| match &group.id {
            GroupId::Asset { name } => Some(name.as_str()),
            _ => None,
        });
        sections.chain(assets).collect()
    }

    /// Computes the id of a planned store: a hash of the version, the source and the plan with its
    /// parameters.
    pub(super) fn compute_id(&self, source: &[u8]) -> hash::StoreId {
        let plan = Self { id: hash::StoreId::default(), ..self.clone() }.encode();
        let mut hasher = hash::Hasher::new(0);
        hasher.update(&self.version().to_le_bytes());
        hasher.update(&self.alignment.to_le_bytes());
        hasher.update(&(source.len() as u64).to_le_bytes());
        hasher.update(source);
        hasher.update(&plan);
        hash::StoreId(hasher.finish())
    }
}

fn encode_group(group: &Group, out: &mut ByteWriter) {
    out.u8(group.id.kind());
    out.zeros(3);
    out.u32(group.id.layer().unwrap_or(NONE));
    out.u32(group.id.expert().unwrap_or(NONE));
    out.count(match &group.id {
        GroupId::Asset { name } => name.len(),
        _ => 0,
    });
    out.count(group.matrices.len());
    out.count(group.tensors.len());
    out.measure(group.frequency);
    out.u32(group.weight_square.map_or(0, f32::to_bits));
}

fn encode_matrix(matrix: &Matrix, out: &mut ByteWriter) {
    let (layout, encoding, codec) = match matrix.encoding {
        Encoding::Nested { layout, codec, .. } => (layout.code(), format::ENCODING_NESTED, codec),
        Encoding::Float(dtype) => (crate::nested::Layout::RowMajor.code(), float_code(dtype), NONE),
    };
    out.u8(matrix.kind as u8);
    out.u8(layout);
    out.u8(encoding);
    out.zeros(1);
    out.count(matrix.rows);
    out.count(matrix.cols);
    out.u32(codec);
    for level in matrix.levels {
        out.u8(level.map_or(0, crate::Level::bits));
    }
    out.zeros(8 - PLANES);
}
