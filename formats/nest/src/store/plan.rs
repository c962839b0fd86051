//! Planning of a store: all offsets are computed from the shapes before anything is written.

use std::collections::HashMap;

use super::bytes::align_up;
use super::check::Cursor;
use super::decode::check_name;
use super::encode::dtype_code;
use super::error::StoreError;
use super::format::{
    ALIGNMENT_DEFAULT, ALIGNMENT_MAX, ALIGNMENT_MIN, ALIGNMENT_SMALL, HEADER_BYTES,
    INDEX_BYTES_MAX, NONE, PLANES, SHARDS_MAX, SMALL_STORE_BYTES,
};
use super::hash::StoreId;
use super::header::Header;
use super::index::{
    CodecSlot, Encoding, Extent, FloatTensor, Group, GroupId, Index, Matrix, Section,
};
use crate::nested::{Codec, MAX_TABLES, NestedCodec, SCALED_CODEC_BYTES, ScaledCodec};
use crate::{DType, Plane};

/// A planned section: a named set of extents in file order.
#[derive(Clone, Debug)]
pub struct SectionPlan {
    /// Section name; by default the level that the section completes.
    pub name: String,
    /// Extents of the section.
    pub extents: Vec<(GroupId, Plane)>,
}

/// Space in the index for measurements of single matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measures {
    /// Absent records.
    #[default]
    None,
    /// One record per matrix.
    PerMatrix,
}

/// The planned contents of a store.
///
/// Groups keep the order in which they are added. The default sections expect assets, floats, embedding, head
/// and dense matrices before experts.
///
/// ```
/// use nestling_formats::nested::{Layout, PlaneForm};
/// use nestling_formats::store::{Encoding, GroupId, Matrix, StorePlan, levels_with_offset};
/// use nestling_formats::{Level, MatrixKind};
///
/// let mut plan = StorePlan::new("source hash", "{}");
/// let codec = plan.add_codec(1);
/// let encoding = Encoding::Nested { layout: Layout::Tile16, codec, form: PlaneForm::Nested };
/// let levels = levels_with_offset(0, Level::L8);
/// let head = Matrix { kind: MatrixKind::Head, rows: 16, cols: 32, encoding, levels };
/// plan.add_group(GroupId::Head, vec![head], Vec::new());
/// assert_eq!(plan.index()?.extents().len(), 5); // one per plane
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct StorePlan {
    /// Identity of the source, such as its hash; part of the store's id.
    pub source: Vec<u8>,
    /// Creation parameters, as JSON; part of the store's id.
    pub parameters_json: String,
    /// Alignment of extents in bytes; `None` selects 512 for stores below 256 MiB, else 16 KiB.
    pub alignment: Option<u64>,
    /// Maximum size of a file in bytes; `None` puts all in one file. A larger extent gets a separate file.
    pub shard_bytes_max: Option<u64>,
    /// Sections; empty selects the default order. First comes everything but the experts up to level 6 with
    /// the experts' P2, then the experts' other planes one by one; the last section includes all other P8. In a
    /// dense model, the matrices of the layers take the place of the experts.
    pub sections: Vec<SectionPlan>,
    /// Space in the index for measurements of single matrices.
    pub measures: Measures,
    codecs: Vec<CodecSlot>,
    groups: Vec<Group>,
    asset_bytes: HashMap<String, u64>,
}

/// Checks that stores have values of this type.
fn check_dtype(dtype: DType) -> Result<(), String> {
    match dtype_code(dtype) {
        Some(_) => Ok(()),
        None => Err(format!("has values of {dtype}, which no store has")),
    }
}

impl StorePlan {
    /// Creates an empty plan. `source` identifies the source, for example by its hash; `parameters_json`
    /// describes the creation. Both are part of the store's id.
    pub fn new(source: impl Into<Vec<u8>>, parameters_json: impl Into<String>) -> Self {
        let (source, parameters_json) = (source.into(), parameters_json.into());
        Self { source, parameters_json, ..Self::default() }
    }

    /// Adds a file to the plan.
    pub fn add_asset(&mut self, name: impl Into<String>, bytes: u64) {
        let name = name.into();
        self.asset_bytes.insert(name.clone(), bytes);
        self.add_group(GroupId::Asset { name }, Vec::new(), Vec::new());
    }

    /// Reserves space for a nested codec with `tables` tables and returns its number.
    pub fn add_codec(&mut self, tables: usize) -> u32 {
        let number = u32::try_from(self.codecs.len()).unwrap_or(NONE);
        let bytes = NestedCodec::encoded_bytes(tables.min(MAX_TABLES + 1));
        self.codecs.push(CodecSlot { bytes, codec: None });
        number
    }

    /// Adds a codec of scaled integers, whose parameters are known in advance, and returns its number.
    pub fn add_scaled_codec(&mut self, codec: ScaledCodec) -> u32 {
        let number = u32::try_from(self.codecs.len()).unwrap_or(NONE);
        self.codecs.push(CodecSlot { bytes: SCALED_CODEC_BYTES, codec: Some(codec.into()) });
        number
    }

    /// Adds a group with its matrices and tensors.
    pub fn add_group(&mut self, id: GroupId, matrices: Vec<Matrix>, tensors: Vec<FloatTensor>) {
        let extents = [None; PLANES];
        self.groups.push(Group {
            id,
            matrices,
            tensors,
            frequency: None,
            weight_square: None,
            error_drops: Vec::new(),
            extents,
        });
    }

    /// Computes the index of the planned store. All offsets are final, but codecs and hashes are still
    /// missing.
    ///
    /// # Errors
    /// [`StoreError::Plan`] if the plan violates the limits of the format.
    pub fn index(&self) -> Result<Index, StoreError> {
        self.check()?;
        let small = self.index_with(self.alignment.unwrap_or(ALIGNMENT_SMALL))?;
        if self.alignment.is_none() && small.length() >= SMALL_STORE_BYTES {
            return self.index_with(ALIGNMENT_DEFAULT);
        }
        Ok(small)
    }

    fn check(&self) -> Result<(), StoreError> {
        serde_json::from_str::<serde::de::IgnoredAny>(&self.parameters_json)
            .map_err(|error| StoreError::plan("parameters", format!("not JSON: {error}")))?;
        for (number, slot) in self.codecs.iter().enumerate() {
            if let Some(Codec::Scaled(codec)) = &slot.codec {
                let refused = |error: crate::nested::NestedError| {
                    StoreError::plan(format!("codec {number}"), error.to_string())
                };
                codec.check().map_err(refused)?;
                continue;
            }
            let range = NestedCodec::encoded_bytes(1)..=NestedCodec::encoded_bytes(MAX_TABLES);
            if !range.contains(&slot.bytes) {
                let reason = format!("has other than 1 to {MAX_TABLES} tables");
                return Err(StoreError::plan(format!("codec {number}"), reason));
            }
        }
        for (number, group) in self.groups.iter().enumerate() {
            let error = |reason: String| StoreError::plan(group.id.to_string(), reason);
            group.check(number, [0; 2]).map_err(|fault| error(fault.in_plan().to_string()))?;
            if let GroupId::Asset { name } = &group.id {
                check_name(name.as_bytes()).map_err(|rule| error(format!("needs {rule}")))?;
                if self.asset_bytes.get(name).is_none_or(|bytes| *bytes == 0) {
                    return Err(error("is empty".into()));
                }
            }
            for matrix in &group.matrices {
                self.check_matrix(matrix)
                    .map_err(|reason| error(format!("{:?} {reason}", matrix.kind)))?;
            }
            for tensor in &group.tensors {
                let sizes_fit = tensor.shape.iter().all(|size| size_fits(*size));
                if !(1..=2).contains(&tensor.shape.len()) || !sizes_fit {
                    return Err(error(format!("{:?} has shape {:?}", tensor.kind, tensor.shape)));
                }
                check_dtype(tensor.dtype)
                    .map_err(|reason| error(format!("{:?} {reason}", tensor.kind)))?;
            }
        }
        Ok(())
    }

    fn check_matrix(&self, matrix: &Matrix) -> Result<(), String> {
        if !size_fits(matrix.rows) || !size_fits(matrix.cols) {
            return Err(format!("has shape [{}, {}]", matrix.rows, matrix.cols));
        }
        matrix.check_levels().map_err(|rule| format!("needs {rule}"))?;
        match matrix.encoding {
            Encoding::Nested { codec, form, .. } => {
                let slot = usize::try_from(codec).ok().and_then(|number| self.codecs.get(number));
                let slot =
                    slot.ok_or_else(|| format!("names codec {codec} of {}", self.codecs.len()))?;
                if slot.form() != form {
                    return Err(format!("has planes of {form:?}, its codec of {:?}", slot.form()));
                }
                Ok(())
            }
            Encoding::Float(dtype) => check_dtype(dtype),
        }
    }

    fn planned_groups(&self) -> Vec<Group> {
        let mut groups = self.groups.clone();
        if self.measures == Measures::PerMatrix {
            for group in &mut groups {
                group.error_drops = vec![[None; PLANES]; group.matrices.len()];
            }
        }
        groups
    }

    fn index_with(&self, alignment: u64) -> Result<Index, StoreError> {
        let mut index = Index {
            id: StoreId::default(),
            alignment,
            parameters_json: self.parameters_json.clone(),
            shards: Vec::new(),
            sections: Vec::new(),
            codecs: self.codecs.clone(),
            groups: self.planned_groups(),
            extents: Vec::new(),
            numbers: HashMap::with_capacity(self.groups.len()),
            section_levels: Vec::new(),
        };
        if !alignment.is_power_of_two() || !(ALIGNMENT_MIN..=ALIGNMENT_MAX).contains(&alignment) {
            let rule = format!("{alignment}: not a power of two of at least {ALIGNMENT_MIN}");
            return Err(StoreError::plan("alignment", rule));
        }
        for (number, group) in (0u32..).zip(&index.groups) {
            if index.numbers.insert(group.id.clone(), number).is_some() {
                return Err(StoreError::plan(group.id.to_string(), "is planned twice"));
            }
        }
        self.list_extents(&mut index)?;
        self.place_extents(&mut index)?;
        index.find_section_levels()?;
        if self.sections.is_empty() {
            name_sections(&mut index);
        }
        // Names are final at this point, and with them the length of the index.
        self.place_extents(&mut index)?;
        index.id = index.compute_id(&self.source);
        let header = index.header(&[]);
        if header.index_length > INDEX_BYTES_MAX {
            let reason = format!("needs an index of {} bytes", header.index_length);
            return Err(StoreError::plan("store", reason));
        }
        index.check(&header, HEADER_BYTES as u64).map_err(|fault| fault.in_plan())?;
        index.check_codecs().map_err(|fault| fault.in_plan())?;
        Ok(index)
    }

    /// Fills in extents and sections, without offsets.
    fn list_extents(&self, index: &mut Index) -> Result<(), StoreError> {
        let defaults;
        let sections = if self.sections.is_empty() {
            defaults = default_sections(&index.groups);
            &defaults
        } else {
            &self.sections
        };
        for section in sections {
            check_name(section.name.as_bytes())
                .map_err(|rule| StoreError::plan(format!("section `{}`", section.name), rule))?;
            for (id, plane) in &section.extents {
                let error = |reason| StoreError::plan(format!("plane {plane:?} of {id}"), reason);
                let number = *index.numbers.get(id).ok_or_else(|| error("is not planned"))?;
                let group = usize::try_from(number).ok().and_then(|n| index.groups.get_mut(n));
                let group = group.ok_or_else(|| error("is not planned"))?;
                let length = match &group.id {
                    GroupId::Asset { name } => self.asset_bytes.get(name).copied(),
                    _ => group.extent_bytes(*plane).map(|bytes| bytes as u64),
                };
                let length = length.ok_or_else(|| error("is too large"))?;
                let extent = u32::try_from(index.extents.len());
                let extent = extent.map_err(|_| error("is one extent too many"))?;
                if group.extents[plane.index()].replace(extent).is_some() {
                    return Err(error("is in two sections"));
                }
                index.extents.push(Extent {
                    group: number,
                    plane: *plane,
                    offset: 0,
                    length,
                    hash: [0; 16],
                    error_drop: None,
                });
            }
            let extents_end = u32::try_from(index.extents.len()).unwrap_or(NONE);
            index.sections.push(Section { name: section.name.clone(), extents_end, end: 0 });
        }
        if index.extents.is_empty() {
            return Err(StoreError::plan("store", "nothing is planned"));
        }
        Ok(())
    }

    /// Sets the offset of each extent, and the ends of sections and shards.
    fn place_extents(&self, index: &mut Index) -> Result<(), StoreError> {
        let too_large = || StoreError::plan("store", "is too large");
        // The number of shards determines the length of the index and thus of the first shard, so iterate
        // until both agree.
        let mut count = index.shards.len().max(1);
        loop {
            index.shards = vec![0; count];
            let front = (HEADER_BYTES as u64).checked_add(index.encode().len() as u64);
            let start = front.and_then(|front| align_up(front, index.alignment));
            let shards = self.split(index, start.ok_or_else(too_large)?).ok_or_else(too_large)?;
            let found = shards.len();
            index.shards = shards;
            if found == count {
                break;
            }
            count = found.max(count + 1);
            if count as u64 > u64::from(SHARDS_MAX) {
                return Err(StoreError::plan("store", format!("needs over {SHARDS_MAX} shards")));
            }
        }
        let mut cursor = Cursor::new(index.data_start(), index.alignment);
        for extent in &mut index.extents {
            extent.offset = cursor.next(&index.shards).ok_or_else(too_large)?;
            cursor.place(extent.length, &index.shards).ok_or_else(too_large)?;
        }
        let alignment = index.alignment;
        for section in &mut index.sections {
            let last = usize::try_from(section.extents_end).ok().and_then(|end| end.checked_sub(1));
            let last = last.and_then(|last| index.extents.get(last));
            let end =
                last.and_then(|last| align_up(last.offset.checked_add(last.length)?, alignment));
            section.end = end.ok_or_else(|| {
                StoreError::plan(format!("section `{}`", section.name), "has no extents")
            })?;
        }
        Ok(())
    }

    /// Returns the lengths of the shards, filled in order.
    fn split(&self, index: &Index, start: u64) -> Option<Vec<u64>> {
        let limit = self.shard_bytes_max.unwrap_or(u64::MAX);
        let mut shards = Vec::new();
        let (mut length, mut empty) = (start, true);
        for extent in &index.extents {
            let bytes = align_up(extent.length, index.alignment)?;
            if !empty && length.checked_add(bytes)? > limit {
                shards.push(length);
                length = index.alignment;
            }
            length = length.checked_add(bytes)?;
            empty = false;
        }
        shards.push(length);
        Some(shards)
    }
}

impl Index {
    /// Returns the header for this index. `encoded` holds the encoded index, or is empty to leave the hash
    /// empty.
    pub(super) fn header(&self, encoded: &[u8]) -> Header {
        let length = if encoded.is_empty() { self.encode().len() } else { encoded.len() };
        let seed = super::hash::index_seed(self.id);
        Header {
            version: self.version(),
            alignment: self.alignment,
            shards: u32::try_from(self.shards.len()).unwrap_or(NONE),
            shard: 0,
            id: self.id,
            index_length: length as u64,
            index_hash: super::hash::hash(seed, encoded),
            store_length: self.shards.iter().sum(),
            // Default: an index without shards has no extent offsets yet.
            shard_length: self.shards.first().copied().unwrap_or(0),
        }
    }

    /// Returns the offset of the first extent.
    fn data_start(&self) -> u64 {
        self.header(&[]).data_start().unwrap_or(u64::MAX)
    }
}

fn size_fits(size: usize) -> bool {
    size > 0 && u32::try_from(size).is_ok_and(|size| size < NONE)
}

/// Plane of the experts with whose section the head's P8 comes. With six bits the head costs a quarter of level 4's
/// divergence and half of level 6's (docs/perf/058).
const HEAD_FINE_WITH: Plane = Plane::P4;

/// Returns whether a group is the head: a group of its own, or else the embedding.
fn head_of(groups: &[Group]) -> impl Fn(&Group) -> bool {
    let is_separate = groups.iter().any(|group| group.id == GroupId::Head);
    move |group| match group.id {
        GroupId::Head => true,
        GroupId::Embedding => !is_separate,
        _ => false,
    }
}

/// Returns the default sections; they are named once the levels are known.
fn default_sections(groups: &[Group]) -> Vec<SectionPlan> {
    let has = |group: &Group, plane: Plane| match group.id {
        GroupId::Asset { .. } => plane == Plane::P2,
        _ => group.extent_bytes(plane) != Some(0),
    };
    let has_experts = groups.iter().any(|group| group.id.expert().is_some());
    // Groups whose planes are in separate sections. Without experts, the matrices of the layers are.
    let is_split = |group: &Group| match group.id {
        GroupId::Expert(_) => true,
        GroupId::Dense { .. } => !has_experts,
        _ => false,
    };
    let split = || groups.iter().filter(|group| is_split(group));
    let last = Plane::ALL.into_iter().rev().find(|plane| split().any(|group| has(group, *plane)));
    let last = last.unwrap_or(Plane::P8);
    let is_head = head_of(groups);
    // Plane with whose section a group's P8 comes, of groups that are not split.
    let fine_with = |group: &Group| match has_experts && is_head(group) {
        true => HEAD_FINE_WITH.min(last),
        false => last,
    };
    let mut sections = Vec::new();
    for plane in Plane::ALL {
        let mut extents = Vec::new();
        for group in groups {
            let is_split = is_split(group);
            let planes: &[Plane] = match (is_split, plane) {
                (true, _) => &[plane],
                (false, Plane::P2) => &[Plane::P2, Plane::P3, Plane::P4, Plane::P6],
                (false, _) => &[],
            };
            let is_fine = !is_split && plane == fine_with(group);
            let fine: &[Plane] = if is_fine { &[Plane::P8] } else { &[] };
            let planes = planes.iter().chain(fine).filter(|plane| has(group, **plane));
            extents.extend(planes.map(|plane| (group.id.clone(), *plane)));
        }
        if !extents.is_empty() {
            sections.push(SectionPlan { name: plane.level().to_string(), extents });
        }
    }
    sections
}

/// Names each section after the level that it completes.
fn name_sections(index: &mut Index) {
    let mut before = None;
    for (section, level) in index.sections.iter_mut().zip(&index.section_levels) {
        if let Some(level) = level.filter(|level| Some(*level) != before) {
            section.name = level.to_string();
        }
        before = *level;
    }
}
