//! The index of a store: groups with their matrices and tensors, extents and sections.

use std::collections::HashMap;

use super::format::{
    CODEC_NESTED, CODEC_SCALED, GROUP_ASSET, GROUP_DENSE, GROUP_EMBEDDING, GROUP_EXPERT,
    GROUP_FLOATS, GROUP_HEAD, NONE, PLANES, VERSION_NESTED, VERSION_SCALED,
};
use super::hash::{StoreId, place_seed};
use crate::memory::{OutOfMemory, try_filled, try_with_capacity};
use crate::nested::{Codec, Layout, NestedCodec, PlaneForm, TABLE_BYTES};
use crate::{DType, ExpertId, FloatKind, Level, MatrixKind, Plane};

/// Identity of a group, the unit of reading.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GroupId {
    /// A named file, such as the tokenizer.
    Asset {
        /// File name without a folder.
        name: String,
    },
    /// Float tensors of a layer, or of the model as a whole.
    Floats {
        /// Layer number, or `None` for tensors of the model.
        layer: Option<u32>,
    },
    /// The token embedding.
    Embedding,
    /// The output head.
    Head,
    /// The dense matrices of a layer, which all tokens use.
    Dense {
        /// Layer number.
        layer: u32,
    },
    /// Gate, up and down of an expert.
    Expert(ExpertId),
}

impl GroupId {
    /// Returns the id of an asset's group.
    pub fn asset(name: impl Into<String>) -> Self {
        Self::Asset { name: name.into() }
    }

    /// Returns the id of an expert's group.
    pub const fn expert_of(layer: u32, expert: u32) -> Self {
        Self::Expert(ExpertId { layer, expert })
    }

    /// Returns the layer of the group, if it belongs to one.
    pub const fn layer(&self) -> Option<u32> {
        match self {
            Self::Floats { layer } => *layer,
            Self::Dense { layer } | Self::Expert(ExpertId { layer, .. }) => Some(*layer),
            Self::Asset { .. } | Self::Embedding | Self::Head => None,
        }
    }

    /// Returns the expert number within the layer, if the group is an expert.
    pub const fn expert(&self) -> Option<u32> {
        match self {
            Self::Expert(ExpertId { expert, .. }) => Some(*expert),
            _ => None,
        }
    }

    /// Returns the number of the group's kind in the index.
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

    /// Returns whether this kind of group may contain a kind of matrix.
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

/// Encoding of a matrix's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Codes in planes, of the nested code or scaled integers.
    Nested {
        /// Bit order within a plane.
        layout: Layout,
        /// Number of the codec in the store.
        codec: u32,
        /// Codec parameters that determine the sizes of planes.
        form: PlaneForm,
    },
    /// Floats, row by row, all in the group's first extent.
    Float(DType),
}

/// A matrix `[rows, cols]` of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Role of the matrix. With the group's layer and expert it forms a [`crate::MatrixId`].
    pub kind: MatrixKind,
    /// Number of rows (outputs).
    pub rows: usize,
    /// Number of columns (inputs).
    pub cols: usize,
    /// Encoding of the values.
    pub encoding: Encoding,
    /// Level reached once the group's extents up to each plane are present, or `None` before the first level.
    pub levels: [Option<Level>; PLANES],
}

/// Returns the levels of a matrix that is `offset` planes ahead of its group, up to a top level.
///
/// Offset 0 and [`Level::L8`] give 2, 3, 4, 6, 8; offset 1 gives 3, 4, 6, 8, 8.
///
/// ```
/// use nestling_formats::Level;
/// use nestling_formats::store::levels_with_offset;
///
/// let levels = levels_with_offset(1, Level::L8).map(|level| level.map(Level::bits));
/// assert_eq!(levels, [3, 4, 6, 8, 8].map(Some));
/// ```
pub fn levels_with_offset(offset: usize, top: Level) -> [Option<Level>; PLANES] {
    let mut levels = [None; PLANES];
    for (plane, level) in levels.iter_mut().enumerate() {
        let ahead = Level::ALL.get(plane.saturating_add(offset)).copied();
        *level = Some(ahead.map_or(top, |level| level.min(top)));
    }
    levels
}

/// A float tensor of one or two dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FloatTensor {
    /// Role of the tensor. With the group's layer it forms a [`crate::FloatId`].
    pub kind: FloatKind,
    /// Element type, little-endian.
    pub dtype: DType,
    /// Shape: one or two dimensions, all nonzero.
    pub shape: Vec<usize>,
}

/// A group: the unit of reading with its contents.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Identity of the group.
    pub id: GroupId,
    /// Matrices, in the order of their parts.
    pub matrices: Vec<Matrix>,
    /// Float tensors, in the order of their parts.
    pub tensors: Vec<FloatTensor>,
    /// Measured frequency of use, if available.
    pub frequency: Option<f32>,
    /// Measured mean square of the router's weight for the group when it is used, if available.
    pub weight_square: Option<f32>,
    /// Reduction of the group's error by each plane of each matrix, in the order of the matrices; empty if the store
    /// has no such records. The unit is that of `FORMAT.md`, "What is measured".
    pub error_drops: Vec<[Option<f32>; PLANES]>,
    /// Number of each plane's extent, if the plane exists.
    pub extents: [Option<u32>; PLANES],
}

impl Group {
    /// Returns the matrix of the given kind.
    pub fn matrix(&self, kind: MatrixKind) -> Option<&Matrix> {
        self.matrices.iter().find(|matrix| matrix.kind == kind)
    }

    /// Returns the tensor of the given kind.
    pub fn tensor(&self, kind: FloatKind) -> Option<&FloatTensor> {
        self.tensors.iter().find(|tensor| tensor.kind == kind)
    }
}

/// An extent: one plane of one group, contiguous in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct Extent {
    /// Number of the group in the index.
    pub group: u32,
    /// Plane that the extent contains.
    pub plane: Plane,
    /// Byte offset in the store, a multiple of the alignment.
    pub offset: u64,
    /// Length in bytes, without padding.
    pub length: u64,
    /// XXH3-128 checksum, seeded with the extent's identity.
    pub hash: [u8; 16],
    /// Measured reduction of the group's error by this plane, if available. The unit is that of
    /// [`Group::error_drops`].
    pub error_drop: Option<f32>,
}

/// A named run of extents. A store truncated at the end of a section is a smaller model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Section name; by default the level that the section completes.
    pub name: String,
    /// Number of the section's last extent plus one.
    pub extents_end: u32,
    /// Length in bytes of a store truncated after this section.
    pub end: u64,
}

/// A codec and the space reserved for it in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodecSlot {
    /// Length of the encoded codec in bytes.
    pub bytes: usize,
    /// The codec; `None` only while a store is planned or written.
    pub codec: Option<Codec>,
}

impl CodecSlot {
    /// Parameters that determine the sizes of planes; a codec that is not yet known is nested.
    pub fn form(&self) -> PlaneForm {
        self.codec.as_ref().map_or(PlaneForm::Nested, Codec::form)
    }

    pub(super) fn id(&self) -> u32 {
        match self.form() {
            PlaneForm::Nested => CODEC_NESTED,
            PlaneForm::Scaled(_) => CODEC_SCALED,
        }
    }

    /// Returns the number of tables that a nested codec has or has space for; 0 for scaled integers.
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
    /// Length of each shard in bytes.
    pub(super) shards: Vec<u64>,
    pub(super) sections: Vec<Section>,
    pub(super) codecs: Vec<CodecSlot>,
    pub(super) groups: Vec<Group>,
    /// All extents in file order.
    pub(super) extents: Vec<Extent>,
    pub(super) numbers: HashMap<GroupId, u32>,
    /// Highest level that is complete after each section.
    pub(super) section_levels: Vec<Option<Level>>,
}

impl Index {
    /// Returns the identity of the store.
    pub fn id(&self) -> StoreId {
        self.id
    }

    /// Returns the alignment of extents in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Returns the creation parameters of the store, as JSON.
    pub fn parameters_json(&self) -> &str {
        &self.parameters_json
    }

    /// Returns the lengths in bytes of all files of the complete store.
    pub fn shards(&self) -> &[u64] {
        &self.shards
    }

    /// Returns the length of the complete store in bytes, over all shards.
    pub fn length(&self) -> u64 {
        self.sections.last().map_or(0, |section| section.end)
    }

    /// Returns all sections, in file order.
    ///
    /// ```
    /// use nestling_formats::Level;
    /// use nestling_formats::store::Store;
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
    /// let store = Store::open(path)?;
    /// let names: Vec<&str> = store.index().sections().iter().map(|section| &*section.name).collect();
    /// assert_eq!(names, ["2", "3", "4", "6", "8"]);
    /// assert_eq!(store.index().sections_for(Level::L3), Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// Returns all groups, including those without present extents.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Returns all extents in file order, present or not.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Returns the group with an id.
    pub fn group(&self, id: &GroupId) -> Option<&Group> {
        self.groups.get(usize::try_from(*self.numbers.get(id)?).ok()?)
    }

    /// Returns the group of an extent.
    pub fn group_of(&self, extent: &Extent) -> Option<&Group> {
        self.groups.get(usize::try_from(extent.group).ok()?)
    }

    /// Returns the number of an extent.
    pub(super) fn number(&self, extent: &Extent) -> Option<usize> {
        self.extents.binary_search_by_key(&extent.offset, |other| other.offset).ok()
    }

    /// Returns the extent at byte `offset`; padding counts as part of the extent before it.
    pub fn extent_at(&self, offset: u64) -> Option<&Extent> {
        let after = self.extents.partition_point(|extent| extent.offset <= offset);
        self.extents.get(after.checked_sub(1)?)
    }

    /// Returns the extent of a group's plane, whether or not it is present.
    pub fn extent(&self, group: &Group, plane: Plane) -> Option<&Extent> {
        let number = group.extents[plane.index()]?;
        self.extents.get(usize::try_from(number).ok()?)
    }

    /// Returns the format version that the store requires.
    pub(super) fn version(&self) -> u32 {
        let scaled = self.codecs.iter().any(|slot| slot.id() == CODEC_SCALED);
        if scaled { VERSION_SCALED } else { VERSION_NESTED }
    }

    /// Returns all codecs of the store.
    pub fn codecs(&self) -> &[CodecSlot] {
        &self.codecs
    }

    /// Returns the codec of a matrix, or `None` for floats.
    pub fn codec(&self, matrix: &Matrix) -> Option<&Codec> {
        let Encoding::Nested { codec, .. } = matrix.encoding else { return None };
        self.codecs.get(usize::try_from(codec).ok()?)?.codec.as_ref()
    }

    /// Returns the highest level that the first `sections` sections complete.
    ///
    /// A level is complete when each group has all of its planes up to that level. The experts' top level is
    /// the limit, even if other matrices have more.
    pub fn complete_level(&self, sections: usize) -> Option<Level> {
        self.section_levels.get(sections.checked_sub(1)?).copied().flatten()
    }

    /// Computes [`Self::section_levels`] after groups, extents and sections are set.
    pub(super) fn find_section_levels(&mut self) -> Result<(), OutOfMemory> {
        let has_experts = self.groups.iter().any(|group| group.id.expert().is_some());
        let counts = |group: &Group| !has_experts || group.id.expert().is_some();
        let tops = self.groups.iter().filter(|group| counts(group) && !group.matrices.is_empty());
        let tops = tops.filter_map(|group| group.extents.iter().rposition(Option::is_some));
        // A store without matrices serves all levels.
        let top = tops.max().unwrap_or(PLANES - 1);
        // Lowest plane at or after each extent, which a truncation before that extent would lack.
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

    /// Returns the minimum number of sections that complete a level.
    pub fn sections_for(&self, level: Level) -> Option<usize> {
        (1..=self.sections.len()).find(|count| self.complete_level(*count) >= Some(level))
    }

    /// Returns the number of planes of a group in the model of a level.
    ///
    /// The result depends only on the sections, not on the part of the store that is present. A complete and
    /// a truncated store are thus the same model at the same level.
    pub fn planes_at(&self, group: &Group, level: Level) -> Option<usize> {
        let last = self.sections_for(level)?.checked_sub(1)?;
        let end = self.sections.get(last)?.extents_end;
        let planes = group.extents.iter().rposition(|extent| extent.is_some_and(|e| e < end));
        Some(planes.map_or(0, |plane| plane + 1))
    }

    /// Returns the seed of an extent's hash.
    pub(super) fn seed(&self, extent: &Extent) -> Option<u64> {
        let group = &self.group_of(extent)?.id;
        let (layer, expert) = match group {
            // Assets have neither layer nor expert, so the group number is used.
            GroupId::Asset { .. } => (NONE, extent.group),
            _ => (group.layer().unwrap_or(NONE), group.expert().unwrap_or(NONE)),
        };
        let place = [u32::from(group.kind()), layer, expert, extent.plane as u32];
        Some(place_seed(self.id, place))
    }

    /// Returns a description of an extent for error messages.
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
