//! Decoding of the index: counts are checked against lengths first, then each record is read.

use std::collections::HashMap;

use super::bytes::Fields;
use super::codecs;
use super::encode::dtype_code;
use super::error::Fault;
use super::format::{self, MAGIC, NAME_BYTES_MAX, NONE, PLANES};
use super::header::Header;
use super::index::{
    CodecSlot, Encoding, Extent, FloatTensor, Group, GroupId, Index, Matrix, Section,
};
use super::kinds::{FLOAT_KINDS, MATRIX_KINDS, float_kind, matrix_kind};
use crate::memory::{OutOfMemory, try_filled, try_with_capacity};
use crate::nested::{Layout, PlaneForm};
use crate::{DType, ExpertId, Level, Plane};

/// The counts at the start of the index.
struct Counts {
    parameters: usize,
    names: usize,
    shards: usize,
    sections: usize,
    codecs: usize,
    codec_bytes: usize,
    groups: usize,
    matrices: usize,
    tensors: usize,
    extents: usize,
    measures: usize,
}

impl Counts {
    /// Reads the counts and checks that the tables fill the index exactly. Allocations are therefore bounded
    /// by a small multiple of the bytes present.
    fn read(fields: &mut Fields<'_>, index_length: usize) -> Result<Self, Fault> {
        let at = fields.offset();
        let counts = Self {
            parameters: fields.size("parameters length")?,
            names: fields.size("names length")?,
            shards: fields.size("shard count")?,
            sections: fields.size("section count")?,
            codecs: fields.size("codec count")?,
            codec_bytes: fields.size("codecs length")?,
            groups: fields.size("group count")?,
            matrices: fields.size("matrix count")?,
            tensors: fields.size("tensor count")?,
            extents: fields.size("extent count")?,
            measures: fields.size("measure count")?,
        };
        fields.zeros(4)?;
        if counts.measures != 0 && counts.measures != counts.matrices {
            let expected = format!("0, or {} as of matrices", counts.matrices);
            return Err(fields.fault("measure count", at + 40, expected, counts.measures));
        }
        let total = counts.index_bytes();
        if total != Some(index_length as u64) {
            let found = total.map_or("too large".into(), |total| format!("{total} bytes"));
            return Err(fields.fault("counts", at, format!("{index_length} bytes"), found));
        }
        Ok(counts)
    }

    fn index_bytes(&self) -> Option<u64> {
        let tables = [
            (self.shards, format::SHARD_RECORD_BYTES),
            (self.sections, format::SECTION_RECORD_BYTES),
            (self.codecs, format::CODEC_RECORD_BYTES),
            (self.groups, format::GROUP_RECORD_BYTES),
            (self.matrices, format::MATRIX_RECORD_BYTES),
            (self.tensors, format::TENSOR_RECORD_BYTES),
            (self.extents, format::EXTENT_RECORD_BYTES),
            (self.measures, format::MEASURE_RECORD_BYTES),
            (self.codec_bytes, 1),
            (self.names, 1),
            (self.parameters, 1),
        ];
        tables.iter().try_fold(format::INDEX_HEAD_BYTES as u64, |total, (count, bytes)| {
            total.checked_add((*count as u64).checked_mul(*bytes as u64)?)
        })
    }
}

const INDEX: &str = "the index of a store"; // purpose of allocations, for errors

/// A group record as stored, without its matrices, tensors and name.
struct GroupRecord {
    kind: u8,
    layer: u32,
    expert: u32,
    name_length: usize,
    matrices: usize,
    tensors: usize,
    frequency: Option<f32>,
    weight_square: Option<f32>,
    offset: u64,
}

/// Decodes the index. `base` is its offset in the store.
pub(super) fn decode(bytes: &[u8], base: u64, header: &Header) -> Result<Index, Fault> {
    let mut fields = Fields::new(bytes, base, "index");
    let counts = Counts::read(&mut fields, bytes.len())?;
    let mut shards = try_with_capacity(INDEX, counts.shards)?;
    for _ in 0..counts.shards {
        shards.push(fields.u64("shard length")?);
    }
    let (mut sections, section_names) = read_sections(&mut fields, counts.sections)?;
    let codec_records =
        codecs::read_records(&mut fields, counts.codecs, counts.codec_bytes, header.version)?;
    let records = read_groups(&mut fields, &counts)?;
    let mut matrices = try_with_capacity(INDEX, counts.matrices)?;
    for number in 0..counts.matrices {
        fields.record("matrix", number);
        matrices.push(read_matrix(&mut fields, counts.codecs)?);
    }
    let mut tensors = try_with_capacity(INDEX, counts.tensors)?;
    for number in 0..counts.tensors {
        fields.record("tensor", number);
        tensors.push(read_tensor(&mut fields)?);
    }
    let extents_at = fields.offset();
    let mut extents = try_with_capacity(INDEX, counts.extents)?;
    for number in 0..counts.extents {
        fields.record("extent", number);
        extents.push(read_extent(&mut fields, counts.groups)?);
    }
    let measures = read_measures(&mut fields, counts.measures, &records)?;
    let codecs = codecs::read(&mut fields, &codec_records)?;
    for matrix in &mut matrices {
        if let Encoding::Nested { codec, form, .. } = &mut matrix.encoding {
            let slot = usize::try_from(*codec).ok().and_then(|number| codecs.get(number));
            *form = slot.map(CodecSlot::form).ok_or_else(|| {
                fields.fault("codec", base, format!("below {}", codecs.len()), *codec)
            })?;
        }
    }
    let mut names = Names::new(&mut fields, counts.names)?;
    for (section, length) in sections.iter_mut().zip(section_names) {
        section.name = names.next(length, "section name", &mut fields)?;
    }
    let (mut groups, numbers) = assemble(&mut fields, records, matrices, tensors, &mut names)?;
    for (group, drops) in groups.iter_mut().zip(measures) {
        group.error_drops = drops;
    }
    names.end(&fields)?;
    link_extents(&mut fields, &mut groups, &extents, extents_at)?;
    let parameters_json = read_parameters(&mut fields, counts.parameters)?;
    let mut index = Index {
        id: header.id,
        alignment: header.alignment,
        parameters_json,
        shards,
        sections,
        codecs,
        groups,
        extents,
        numbers,
        section_levels: Vec::new(),
    };
    if index.version() != header.version {
        fields.record("header", None);
        let expected = format!("{} with these codecs", index.version());
        return Err(fields.fault("version", MAGIC.len() as u64, expected, header.version));
    }
    index.check(header, base)?;
    index.check_codecs()?;
    index.find_section_levels()?;
    Ok(index)
}

fn read_sections(
    fields: &mut Fields<'_>,
    count: usize,
) -> Result<(Vec<Section>, Vec<usize>), Fault> {
    let mut sections: Vec<Section> = try_with_capacity(INDEX, count)?;
    let mut names = try_with_capacity(INDEX, count)?;
    for number in 0..count {
        fields.record("section", number);
        names.push(fields.size("name length")?);
        let at = fields.offset();
        let extents = fields.u32("extent count")?;
        let before = sections.last().map_or(0, |section| section.extents_end);
        let extents_end = before.checked_add(extents).filter(|_| extents > 0).ok_or_else(|| {
            fields.fault("extent count", at, "at least 1, together below 2^32", extents)
        })?;
        sections.push(Section { name: String::new(), extents_end, end: fields.u64("end")? });
    }
    Ok((sections, names))
}

fn read_groups(fields: &mut Fields<'_>, counts: &Counts) -> Result<Vec<GroupRecord>, Fault> {
    let mut records = try_with_capacity(INDEX, counts.groups)?;
    let (mut matrices, mut tensors) = (counts.matrices, counts.tensors);
    for number in 0..counts.groups {
        fields.record("group", number);
        let offset = fields.offset();
        let kind = fields.u8("kind")?;
        fields.zeros(3)?;
        let record = GroupRecord {
            kind,
            layer: fields.u32("layer")?,
            expert: fields.u32("expert")?,
            name_length: fields.size("name length")?,
            matrices: fields.size("matrix count")?,
            tensors: fields.size("tensor count")?,
            frequency: fields.measure("frequency")?,
            weight_square: fields.measure("weight square")?.filter(|square| *square > 0.0),
            offset,
        };
        for (left, taken, field) in [
            (&mut matrices, record.matrices, "matrix count"),
            (&mut tensors, record.tensors, "tensor count"),
        ] {
            *left = left.checked_sub(taken).ok_or_else(|| {
                fields.fault(field, offset, format!("at most the {left} left"), taken)
            })?;
        }
        records.push(record);
    }
    if (matrices, tensors) != (0, 0) {
        fields.record("index", None);
        let found = format!("{matrices} matrices and {tensors} tensors");
        return Err(fields.fault("group count", fields.offset(), "every record in a group", found));
    }
    Ok(records)
}

fn read_matrix(fields: &mut Fields<'_>, codecs: usize) -> Result<Matrix, Fault> {
    let at = fields.offset();
    let kind = fields.u8("kind")?;
    let kind =
        matrix_kind(kind).ok_or_else(|| fields.fault("kind", at, codes(&MATRIX_KINDS), kind))?;
    let layout_at = fields.offset();
    let layout_code = fields.u8("layout")?;
    let layout = Layout::from_code(layout_code)
        .ok_or_else(|| fields.fault("layout", layout_at, "0 or 1", layout_code))?;
    let encoding_at = fields.offset();
    let encoding_code = fields.u8("encoding")?;
    fields.zeros(1)?;
    let (rows, cols) = (read_dimension(fields, "rows")?, read_dimension(fields, "columns")?);
    let codec_at = fields.offset();
    let codec = fields.u32("codec")?;
    let encoding = if encoding_code == format::ENCODING_NESTED {
        if u64::from(codec) >= codecs as u64 {
            return Err(fields.fault("codec", codec_at, format!("below {codecs}"), codec));
        }
        // Placeholder: the form is set from the codec, which is read later.
        let form = PlaneForm::Nested;
        Encoding::Nested { layout, codec, form }
    } else {
        let dtype = float_dtype(encoding_code)
            .ok_or_else(|| fields.fault("encoding", encoding_at, "0..=3", encoding_code))?;
        if codec != NONE {
            return Err(fields.fault("codec", codec_at, "none for floats", codec));
        }
        if layout != Layout::RowMajor {
            return Err(fields.fault("layout", layout_at, "1 for floats", layout_code));
        }
        Encoding::Float(dtype)
    };
    let at = fields.offset();
    let bits: [u8; PLANES] = fields.array("levels")?;
    fields.zeros(8 - PLANES)?;
    let mut levels = [None; PLANES];
    for (level, bits) in levels.iter_mut().zip(bits) {
        *level = Level::from_bits(bits);
        if level.is_none() && bits != 0 {
            return Err(fields.fault("levels", at, "0, 2, 3, 4, 6 or 8", bits));
        }
    }
    let matrix = Matrix { kind, rows, cols, encoding, levels };
    if let Err(expected) = matrix.check_levels() {
        return Err(fields.fault("levels", at, expected, format!("{bits:?}")));
    }
    Ok(matrix)
}

fn read_tensor(fields: &mut Fields<'_>) -> Result<FloatTensor, Fault> {
    let at = fields.offset();
    let kind = fields.u8("kind")?;
    let kind =
        float_kind(kind).ok_or_else(|| fields.fault("kind", at, codes(&FLOAT_KINDS), kind))?;
    let at = fields.offset();
    let dtype = fields.u8("dtype")?;
    let dtype = float_dtype(dtype).ok_or_else(|| fields.fault("dtype", at, "1..=3", dtype))?;
    let at = fields.offset();
    let rank = fields.u8("rank")?;
    fields.zeros(1)?;
    let shape = match rank {
        1 => {
            let shape = vec![read_dimension(fields, "shape")?];
            fields.zeros(4)?;
            shape
        }
        2 => vec![read_dimension(fields, "shape")?, read_dimension(fields, "shape")?],
        _ => return Err(fields.fault("rank", at, "1 or 2", rank)),
    };
    fields.zeros(4)?;
    Ok(FloatTensor { kind, dtype, shape })
}

fn read_dimension(fields: &mut Fields<'_>, field: &'static str) -> Result<usize, Fault> {
    let at = fields.offset();
    match fields.size(field)? {
        0 => Err(fields.fault(field, at, "at least 1", 0)),
        size => Ok(size),
    }
}

fn read_extent(fields: &mut Fields<'_>, groups: usize) -> Result<Extent, Fault> {
    let at = fields.offset();
    let group = fields.u32("group")?;
    if u64::from(group) >= groups as u64 {
        return Err(fields.fault("group", at, format!("below {groups}"), group));
    }
    let at = fields.offset();
    let plane = fields.u32("plane")?;
    let plane = usize::try_from(plane)
        .ok()
        .and_then(|index| Plane::ALL.get(index))
        .ok_or_else(|| fields.fault("plane", at, "0..=4", plane))?;
    let extent = Extent {
        group,
        plane: *plane,
        offset: fields.u64("offset")?,
        length: fields.u64("length")?,
        hash: fields.array("hash")?,
        error_drop: fields.measure("error drop")?,
    };
    fields.zeros(4)?;
    Ok(extent)
}

/// Reads the measured error drops of all matrices, group by group.
fn read_measures(
    fields: &mut Fields<'_>,
    count: usize,
    groups: &[GroupRecord],
) -> Result<Vec<Vec<ErrorDrops>>, Fault> {
    if count == 0 {
        return Ok(try_filled(INDEX, Vec::new(), groups.len())?);
    }
    let mut number = 0;
    let mut measures = try_with_capacity(INDEX, groups.len())?;
    for group in groups {
        let mut list = try_with_capacity(INDEX, group.matrices)?;
        for _ in 0..group.matrices {
            fields.record("measure", number);
            number += 1;
            let mut drops = [None; PLANES];
            for drop in &mut drops {
                *drop = fields.measure("error drop")?;
            }
            list.push(drops);
        }
        measures.push(list);
    }
    Ok(measures)
}

/// Reduction of the group's error by each plane of a matrix.
type ErrorDrops = [Option<f32>; PLANES];

/// The concatenated names, consumed from the front.
struct Names<'a> {
    rest: &'a [u8],
    offset: u64,
}

impl<'a> Names<'a> {
    fn new(fields: &mut Fields<'a>, length: usize) -> Result<Self, Fault> {
        fields.record("index", None);
        let offset = fields.offset();
        Ok(Self { rest: fields.take(length, "names")?, offset })
    }

    fn next(
        &mut self,
        length: usize,
        field: &'static str,
        fields: &mut Fields<'_>,
    ) -> Result<String, Fault> {
        let offset = self.offset;
        let Some((name, rest)) = self.rest.split_at_checked(length) else {
            let expected = format!("at most the {} bytes left", self.rest.len());
            return Err(fields.fault(field, offset, expected, length));
        };
        self.rest = rest;
        self.offset += length as u64;
        let text = String::from_utf8_lossy(name);
        match check_name(name) {
            Ok(name) => Ok(name.to_owned()),
            Err(expected) => Err(fields.fault(field, offset, expected, text)),
        }
    }

    fn end(&self, fields: &Fields<'_>) -> Result<(), Fault> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(fields.fault("names length", self.offset, "0 bytes left over", left)),
        }
    }
}

/// Checks that a name is a safe file name on all systems.
pub(super) fn check_name(name: &[u8]) -> Result<&str, &'static str> {
    let expected = "1 to 255 bytes of letters, digits, '.', '_', '-' or '+', not starting with '.'";
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-+".contains(byte);
    let valid = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.iter().all(allowed)
        && !name.starts_with(b".");
    match std::str::from_utf8(name) {
        Ok(text) if valid => Ok(text),
        _ => Err(expected),
    }
}

/// Groups with their contents, and their numbers by id.
type Groups = (Vec<Group>, HashMap<GroupId, u32>);

fn assemble(
    fields: &mut Fields<'_>,
    records: Vec<GroupRecord>,
    matrices: Vec<Matrix>,
    tensors: Vec<FloatTensor>,
    names: &mut Names<'_>,
) -> Result<Groups, Fault> {
    let (mut matrices, mut tensors) = (matrices.into_iter(), tensors.into_iter());
    let mut groups = try_with_capacity(INDEX, records.len())?;
    let (mut numbers, count) = (HashMap::new(), records.len());
    numbers.try_reserve(count).map_err(|_| OutOfMemory::of::<(GroupId, u32)>(INDEX, count))?;
    for (number, record) in (0u32..).zip(records) {
        fields.record("group", numbers.len());
        let id = group_id(fields, &record, names)?;
        if let Some(first) = numbers.insert(id.clone(), number) {
            let found = format!("{id}, as group {first}");
            return Err(fields.fault("kind", record.offset, "a group of its own", found));
        }
        groups.push(Group {
            id,
            matrices: matrices.by_ref().take(record.matrices).collect(),
            tensors: tensors.by_ref().take(record.tensors).collect(),
            frequency: record.frequency,
            weight_square: record.weight_square,
            error_drops: Vec::new(),
            extents: [None; PLANES],
        });
    }
    Ok((groups, numbers))
}

/// Links each group to its extents. The extent records start at offset `extents_at`.
fn link_extents(
    fields: &mut Fields<'_>,
    groups: &mut [Group],
    extents: &[Extent],
    extents_at: u64,
) -> Result<(), Fault> {
    for (number, extent) in (0u32..).zip(extents) {
        let group = usize::try_from(extent.group).ok().and_then(|group| groups.get_mut(group));
        let slot = group.map(|group| &mut group.extents[extent.plane.index()]);
        if let Some(first) = slot.and_then(|slot| slot.replace(number)) {
            fields.record("extent", usize::try_from(number).ok());
            let found = format!("plane {:?} of group {} again", extent.plane, extent.group);
            let expected = format!("not what extent {first} holds");
            let at = extents_at + u64::from(number) * format::EXTENT_RECORD_BYTES as u64;
            return Err(fields.fault("plane", at, expected, found));
        }
    }
    Ok(())
}

fn group_id(
    fields: &mut Fields<'_>,
    record: &GroupRecord,
    names: &mut Names<'_>,
) -> Result<GroupId, Fault> {
    let GroupRecord { kind, layer, expert, name_length, offset, .. } = *record;
    let id = match kind {
        format::GROUP_ASSET => {
            GroupId::Asset { name: names.next(name_length, "asset name", fields)? }
        }
        format::GROUP_FLOATS => GroupId::Floats { layer: (layer != NONE).then_some(layer) },
        format::GROUP_EMBEDDING => GroupId::Embedding,
        format::GROUP_HEAD => GroupId::Head,
        format::GROUP_DENSE => GroupId::Dense { layer },
        format::GROUP_EXPERT => GroupId::Expert(ExpertId { layer, expert }),
        _ => return Err(fields.fault("kind", offset, "0..=5", kind)),
    };
    let numbered = matches!(kind, format::GROUP_DENSE | format::GROUP_EXPERT);
    if id.layer().unwrap_or(NONE) != layer || (numbered && layer == NONE) {
        return Err(fields.fault("layer", offset, "a layer where the kind has one", layer));
    }
    if id.expert().unwrap_or(NONE) != expert || (kind == format::GROUP_EXPERT && expert == NONE) {
        return Err(fields.fault("expert", offset, "an expert where the kind has one", expert));
    }
    if kind != format::GROUP_ASSET && name_length != 0 {
        return Err(fields.fault("name length", offset, "0 without a name", name_length));
    }
    Ok(id)
}

fn read_parameters(fields: &mut Fields<'_>, length: usize) -> Result<String, Fault> {
    fields.record("index", None);
    let at = fields.offset();
    let bytes = fields.take(length, "parameters")?;
    let text = std::str::from_utf8(bytes)
        .map_err(|error| fields.fault("parameters", at, "UTF-8", error))?;
    serde_json::from_str::<serde::de::IgnoredAny>(text)
        .map_err(|error| fields.fault("parameters", at, "JSON", error))?;
    Ok(text.to_owned())
}

/// Returns the range of the codes of kinds, which are consecutive.
fn codes<T>(kinds: &[T]) -> String {
    format!("0..={}", kinds.len() - 1)
}

fn float_dtype(code: u8) -> Option<DType> {
    let all = [DType::F32, DType::F16, DType::Bf16];
    all.into_iter().find(|dtype| dtype_code(*dtype) == Some(code))
}
