//! What a store holds and where: groups, their matrices and tensors, extents, sections.

use std::collections::HashMap;

use super::format::{
    CODEC_NESTED, CODEC_SCALED, GROUP_ASSET, GROUP_DENSE, GROUP_EMBEDDING, GROUP_EXPERT,
    GROUP_FLOATS, GROUP_HEAD, NONE, PLANES, VERSION_NESTED, VERSION_SCALED,
};
use super::hash::{StoreId, place_seed};
use crate::memory::{OutOfMemory, try_filled, try_with_capacity};
use crate::nested::{Codec, Layout, NestedCodec, PlaneForm, TABLE_BYTES};
use crate::{DType, ExpertId, FloatKind, Level, MatrixKind, Plane};

/// One unit of reading: what shares an extent per plane.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GroupId {
    /// A named file such as the tokenizer.
    Asset {
        /// File name without folders.
        name: String,
    },
    /// Float tensors of a layer, or of the model as a whole.
    Floats {
        /// The layer, or none for the model.
        layer: Option<u32>,
    },
    /// The token embedding.
    Embedding,
    /// The output head.
    Head,
    /// The matrices of a layer that every token uses.
    Dense {
        /// The layer.
        layer: u32,
    },
    /// One expert's gate, up and down.
    Expert(ExpertId),
}

impl GroupId {
    /// An asset's group.
    pub fn asset(name: impl Into<String>) -> Self {
        Self::Asset { name: name.into() }
    }

    /// An expert's group.
    pub const fn expert_of(layer: u32, expert: u32) -> Self {
        Self::Expert(ExpertId { layer, expert })
    }

    /// The layer, where there is one.
    pub const fn layer(&self) -> Option<u32> {
        match self {
            Self::Floats { layer } => *layer,
            Self::Dense { layer } | Self::Expert(ExpertId { layer, .. }) => Some(*layer),
            Self::Asset { .. } | Self::Embedding | Self::Head => None,
        }
    }

    /// The number of the expert, if it is one.
    pub const fn expert(&self) -> Option<u32> {
        match self {
            Self::Expert(ExpertId { expert, .. }) => Some(*expert),
            _ => None,
        }
    }

    /// The kind's number in the index.
    pub(super) const fn kind(&self) -> u8 {
        match self {
            Self::Asset { .. } => GROUP_ASSET,
            Self::Floats { .. } => GROUP_FLOATS,
            Self::Embedding => GROUP_EMBEDDING,
            Self::Head => GROUP_HEAD,
            Self::Dense { .. } => GROUP_DENSE,
            Self::Expert(_) => GROUP_EXPERT,
        }
    }

    /// Whether a group of this kind may hold a matrix of that kind.
    pub(super) fn may_hold(&self, kind: MatrixKind) -> bool {
        match self {
            Self::Asset { .. } | Self::Floats { .. } => false,
            Self::Embedding => kind == MatrixKind::Embedding,
            Self::Head => kind == MatrixKind::Head,
            Self::Dense { .. } => !matches!(kind, MatrixKind::Embedding | MatrixKind::Head),
            Self::Expert(_) => {
                matches!(kind, MatrixKind::Gate | MatrixKind::Up | MatrixKind::Down)
            }
        }
    }
}

impl std::fmt::Display for GroupId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Asset { name } => write!(f, "asset `{name}`"),
            Self::Floats { layer: None } => write!(f, "floats of the model"),
            Self::Floats { layer: Some(layer) } => write!(f, "floats of layer {layer}"),
            Self::Embedding => write!(f, "embedding"),
            Self::Head => write!(f, "head"),
            Self::Dense { layer } => write!(f, "dense matrices of layer {layer}"),
            Self::Expert(id) => write!(f, "expert {} of layer {}", id.expert, id.layer),
        }
    }
}

/// How the values of a matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Codes, in planes.
    Nested {
        /// Order of the bits within a plane.
        layout: Layout,
        /// Which of the store's codecs.
        codec: u32,
        /// What decides the sizes of planes: that codec's.
        form: PlaneForm,
    },
    /// Floats, row by row, whole in the group's first extent.
    Float(DType),
}

/// One matrix `[rows, cols]` of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// What it does; with the group's layer and expert it is a [`crate::MatrixId`].
    pub kind: MatrixKind,
    /// Rows: outputs.
    pub rows: usize,
    /// Columns: inputs.
    pub cols: usize,
    /// How the values are stored.
    pub encoding: Encoding,
    /// The level reached once the group's extents up to each plane are present; none = nothing yet.
    pub levels: [Option<Level>; PLANES],
}

/// Levels of a matrix that is `offset` planes ahead of its group, up to a top level.
///
/// Offset 0 and [`Level::L8`] give 2, 3, 4, 6, 8; offset 1 gives 3, 4, 6, 8, 8.
pub fn levels_with_offset(offset: usize, top: Level) -> [Option<Level>; PLANES] {
    let mut levels = [None; PLANES];
    for (plane, level) in levels.iter_mut().enumerate() {
        let ahead = Level::ALL.get(plane.saturating_add(offset)).copied();
        *level = Some(ahead.map_or(top, |level| level.min(top)));
    }
    levels
}

/// One tensor that stays in float, of one or two dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FloatTensor {
    /// What it does; with the group's layer it is a [`crate::FloatId`].
    pub kind: FloatKind,
    /// Element type; little-endian.
    pub dtype: DType,
    /// One or two dimensions, none of them zero.
    pub shape: Vec<usize>,
}

/// One unit of reading with all that it holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its name.
    pub id: GroupId,
    /// Its matrices, in the order of their parts.
    pub matrices: Vec<Matrix>,
    /// Its float tensors, in the order of their parts.
    pub tensors: Vec<FloatTensor>,
    /// How often it is used, if that was measured.
    pub frequency: Option<f32>,
    /// Mean square of the weight that the router gives it where it is used, if that was measured.
    pub weight_square: Option<f32>,
    /// By how much each plane of each matrix lowers the group's output error, in the order of the
    /// matrices; empty if the store has no such records.
    pub error_drops: Vec<[Option<f32>; PLANES]>,
    /// Number of the extent that holds each plane, where there is one.
    pub extents: [Option<u32>; PLANES],
}

impl Group {
    /// The matrix of that kind.
    pub fn matrix(&self, kind: MatrixKind) -> Option<&Matrix> {
        self.matrices.iter().find(|matrix| matrix.kind == kind)
    }

    /// The tensor of that kind.
    pub fn tensor(&self, kind: FloatKind) -> Option<&FloatTensor> {
        self.tensors.iter().find(|tensor| tensor.kind == kind)
    }
}

/// One plane of one group, as it lies in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct Extent {
    /// Number of the group.
    pub group: u32,
    /// Which plane.
    pub plane: Plane,
    /// Where it begins: a multiple of the alignment.
    pub offset: u64,
    /// Bytes without the zeros up to the next multiple of the alignment.
    pub length: u64,
    /// XXH3-128, seeded with the extent's place.
    pub hash: [u8; 16],
    /// By how much the plane lowers the group's output error, if that was measured.
    pub error_drop: Option<f32>,
}

/// A named run of extents; a store cut at its end is a smaller model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its name; by default the level that it completes.
    pub name: String,
    /// One more than the number of its last extent.
    pub extents_end: u32,
    /// Bytes of a store that ends with it.
    pub end: u64,
}

/// A codec and the bytes reserved for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodecSlot {
    /// Bytes of its encoding.
    pub bytes: usize,
    /// The codec; none only while a store is planned or written.
    pub codec: Option<Codec>,
}

impl CodecSlot {
    /// What decides the sizes of its matrices' planes; a codec that is not known yet is nested.
    pub fn form(&self) -> PlaneForm {
        self.codec.as_ref().map_or(PlaneForm::Nested, Codec::form)
    }

    /// The id of the codec.
    pub(super) fn id(&self) -> u32 {
        match self.form() {
            PlaneForm::Nested => CODEC_NESTED,
            PlaneForm::Scaled(_) => CODEC_SCALED,
        }
    }

    /// Tables that a nested codec has, or has room for; 0 for another.
    pub fn tables(&self) -> usize {
        if self.form() != PlaneForm::Nested {
            return 0;
        }
        self.bytes.saturating_sub(NestedCodec::encoded_bytes(0)) / TABLE_BYTES
    }
}

/// The index of a store.
#[derive(Clone, Debug, PartialEq)]
pub struct Index {
    pub(super) id: StoreId,
    pub(super) alignment: u64,
    pub(super) parameters_json: String,
    /// Bytes of each shard.
    pub(super) shards: Vec<u64>,
    pub(super) sections: Vec<Section>,
    pub(super) codecs: Vec<CodecSlot>,
    pub(super) groups: Vec<Group>,
    /// In file order.
    pub(super) extents: Vec<Extent>,
    pub(super) numbers: HashMap<GroupId, u32>,
    /// The level that is complete after each section.
    pub(super) section_levels: Vec<Option<Level>>,
}

impl Index {
    /// Identity of the store.
    pub fn id(&self) -> StoreId {
        self.id
    }

    /// Extents begin at multiples of this many bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// How the store was made, as JSON.
    pub fn parameters_json(&self) -> &str {
        &self.parameters_json
    }

    /// Bytes of each file of the whole store.
    pub fn shards(&self) -> &[u64] {
        &self.shards
    }

    /// Bytes of the whole store, all shards together.
    pub fn length(&self) -> u64 {
        self.sections.last().map_or(0, |section| section.end)
    }

    /// The sections, in file order.
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// All groups, whether or not their extents are present.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// All extents in file order, present or not.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The group of that name.
    pub fn group(&self, id: &GroupId) -> Option<&Group> {
        self.groups.get(usize::try_from(*self.numbers.get(id)?).ok()?)
    }

    /// The group that an extent belongs to.
    pub fn group_of(&self, extent: &Extent) -> Option<&Group> {
        self.groups.get(usize::try_from(extent.group).ok()?)
    }

    /// The place of an extent among all.
    pub(super) fn number(&self, extent: &Extent) -> Option<usize> {
        self.extents.binary_search_by_key(&extent.offset, |other| other.offset).ok()
    }

    /// The extent that holds the byte at `offset`, the zeros after it included.
    pub fn extent_at(&self, offset: u64) -> Option<&Extent> {
        let after = self.extents.partition_point(|extent| extent.offset <= offset);
        self.extents.get(after.checked_sub(1)?)
    }

    /// The extent of a group's plane, present or not.
    pub fn extent(&self, group: &Group, plane: Plane) -> Option<&Extent> {
        let number = group.extents[plane.index()]?;
        self.extents.get(usize::try_from(number).ok()?)
    }

    /// The version of the format that such a store has.
    pub(super) fn version(&self) -> u32 {
        let scaled = self.codecs.iter().any(|slot| slot.id() == CODEC_SCALED);
        if scaled { VERSION_SCALED } else { VERSION_NESTED }
    }

    /// The store's codecs.
    pub fn codecs(&self) -> &[CodecSlot] {
        &self.codecs
    }

    /// The codec of a matrix of codes.
    pub fn codec(&self, matrix: &Matrix) -> Option<&Codec> {
        let Encoding::Nested { codec, .. } = matrix.encoding else { return None };
        self.codecs.get(usize::try_from(codec).ok()?)?.codec.as_ref()
    }

    /// The highest level that the first `sections` sections complete.
    ///
    /// A level is complete when every group has all those of its planes that the level needs. Above
    /// the experts' top level there is none, whatever other matrices have.
    pub fn complete_level(&self, sections: usize) -> Option<Level> {
        self.section_levels.get(sections.checked_sub(1)?).copied().flatten()
    }

    /// Fills [`Self::section_levels`], once groups, extents and sections are in place.
    pub(super) fn find_section_levels(&mut self) -> Result<(), OutOfMemory> {
        let has_experts = self.groups.iter().any(|group| group.id.expert().is_some());
        let counts = |group: &Group| !has_experts || group.id.expert().is_some();
        let tops = self.groups.iter().filter(|group| counts(group) && !group.matrices.is_empty());
        let tops = tops.filter_map(|group| group.extents.iter().rposition(Option::is_some));
        // Without any matrix, everything that is there serves every level.
        let top = tops.max().unwrap_or(PLANES - 1);
        // The lowest plane that lies at or after each extent: what a cut before it would miss.
        let count = self.extents.len() + 1;
        let mut missing = try_filled("the levels of a store's sections", PLANES, count)?;
        for number in (0..self.extents.len()).rev() {
            missing[number] = missing[number + 1].min(self.extents[number].plane.index());
        }
        let level = |section: &Section| {
            let end = usize::try_from(section.extents_end).ok()?;
            let complete = missing.get(end)?.checked_sub(1)?;
            Level::ALL.get(complete.min(top)).copied()
        };
        let mut levels =
            try_with_capacity("the levels of a store's sections", self.sections.len())?;
        levels.extend(self.sections.iter().map(level));
        self.section_levels = levels;
        Ok(())
    }

    /// How many sections make up the model of that level: the fewest that complete it.
    pub fn sections_for(&self, level: Level) -> Option<usize> {
        (1..=self.sections.len()).find(|count| self.complete_level(*count) >= Some(level))
    }

    /// How many planes of a group belong to the model of that level.
    ///
    /// This depends on the sections alone, not on how much of the store is present: a whole store
    /// and one that was cut are the same model at the same level.
    pub fn planes_at(&self, group: &Group, level: Level) -> Option<usize> {
        let last = self.sections_for(level)?.checked_sub(1)?;
        let end = self.sections.get(last)?.extents_end;
        let planes = group.extents.iter().rposition(|extent| extent.is_some_and(|e| e < end));
        Some(planes.map_or(0, |plane| plane + 1))
    }

    /// Seed of an extent's hash.
    pub(super) fn seed(&self, extent: &Extent) -> Option<u64> {
        let group = &self.group_of(extent)?.id;
        let (layer, expert) = match group {
            // Assets have no other number.
            GroupId::Asset { .. } => (NONE, extent.group),
            _ => (group.layer().unwrap_or(NONE), group.expert().unwrap_or(NONE)),
        };
        let place = [u32::from(group.kind()), layer, expert, extent.plane as u32];
        Some(place_seed(self.id, place))
    }

    /// An extent's name in messages.
    pub(super) fn describe(&self, extent: &Extent) -> String {
        let Some(group) = self.group_of(extent) else {
            return format!("an extent of group {}", extent.group);
        };
        match group.id {
            GroupId::Asset { .. } | GroupId::Floats { .. } => group.id.to_string(),
            _ => format!("plane {:?} of {}", extent.plane, group.id),
        }
    }
}
