//! Weights of a store, read into owned memory or used directly from a mapped file.

use std::ops::Range;
use std::sync::Arc;

#[cfg(not(target_family = "wasm"))]
use nestling_formats::store::MappedStore;
use nestling_formats::store::{Digits, Encoding, Group, GroupId, Matrix, Part, PartItem, Store};
use nestling_formats::{ExpertId, Invariant, Level, MatrixKind, Plane, invariant};
use nestling_import::ModelConfig;

use super::owned::{GroupPlanes, GroupRequest, MERGED, Planes, read_groups};
use crate::reads::ArrivedPlane;
use crate::store_config::config_of;
use nestling_core::backend::PlanePart;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::weights::{ByteRegion, FloatMatrix, MatrixWeights, NestedMatrix, PlaneRegions};
use nestling_levels::allocation::Allocation;

/// Reason why each group of an opened index has parts.
const PARTS: &str = "the sizes of a group's parts were added up when its store was opened";

/// Matrices of one group: an expert, a layer, the embedding or the head.
#[derive(Clone, Debug)]
pub struct Matrices {
    /// Group of the matrices.
    pub group: GroupId,
    /// Matrices with their kinds, in source order.
    pub list: Vec<(MatrixKind, MatrixWeights)>,
}

impl Matrices {
    /// Removes and returns the matrix of a kind.
    ///
    /// # Errors
    /// [`EngineError::Mismatch`] if the group has no such matrix, or one of another size.
    pub fn take(
        &mut self,
        kind: MatrixKind,
        rows: usize,
        cols: usize,
    ) -> Result<MatrixWeights, EngineError> {
        let what = || format!("{kind:?} of {}", self.group);
        let Some(at) = self.list.iter().position(|(found, _)| *found == kind) else {
            return Err(EngineError::mismatch(what(), "a matrix", "none"));
        };
        let found = (self.list[at].1.rows(), self.list[at].1.cols());
        if found != (rows, cols) {
            let found = format!("[{}, {}]", found.0, found.1);
            return Err(EngineError::mismatch(what(), format!("[{rows}, {cols}]"), found));
        }
        Ok(self.list.swap_remove(at).1)
    }

    /// Adds a matrix under another kind as well, without copying its weights.
    pub fn share(&mut self, kind: MatrixKind, other: MatrixKind) {
        let found = self.list.iter().find(|(found, _)| *found == kind);
        let matrix = found.map(|(_, matrix)| (other, matrix.clone()));
        self.list.extend(matrix);
    }
}

/// Whether a base plane (P2) was already validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// Not validated: scales and tables are checked.
    Check,
    /// Validated before, with an unchanged checksum.
    Known,
}

/// Source of weights from a store, at any level that it contains.
pub struct StoreSource {
    pub(super) store: Arc<Store>,
    #[cfg(not(target_family = "wasm"))]
    pub(super) mapped: Option<MappedStore>,
    pub(super) config: ModelConfig,
    pub(super) level: Level,
    allocation: Option<Arc<Allocation>>,
}

impl StoreSource {
    /// Creates a source that reads and verifies the planes that `level` needs. The default is the highest
    /// level in the store.
    ///
    /// # Errors
    /// [`EngineError::LevelMissing`]. Also returns an error if the configuration is missing, damaged or not
    /// supported.
    pub fn owned(store: Arc<Store>, level: Option<Level>) -> Result<Self, EngineError> {
        let config = config_of(&store)?;
        Self::owned_as(store, config, level)
    }

    /// Works like [`StoreSource::owned`], with a configuration that was read before.
    ///
    /// # Errors
    /// [`EngineError::LevelMissing`].
    pub fn owned_as(
        store: Arc<Store>,
        config: ModelConfig,
        level: Option<Level>,
    ) -> Result<Self, EngineError> {
        let level = held_level(&store, level)?;
        Ok(Self {
            store,
            #[cfg(not(target_family = "wasm"))]
            mapped: None,
            config,
            level,
            allocation: None,
        })
    }

    /// Creates a source that uses planes from a mapped file. Experts are verified before first use, and all
    /// other weights when they are bound.
    ///
    /// # Errors
    /// Same errors as [`StoreSource::owned`].
    #[cfg(not(target_family = "wasm"))]
    pub fn mapped(mapped: MappedStore, level: Option<Level>) -> Result<Self, EngineError> {
        let config = config_of(mapped.store())?;
        Self::mapped_as(mapped, config, level)
    }

    /// Works like [`StoreSource::mapped`], with a configuration that was read before.
    ///
    /// # Errors
    /// [`EngineError::LevelMissing`].
    #[cfg(not(target_family = "wasm"))]
    pub fn mapped_as(
        mapped: MappedStore,
        config: ModelConfig,
        level: Option<Level>,
    ) -> Result<Self, EngineError> {
        let store = Arc::clone(mapped.store());
        let level = held_level(&store, level)?;
        Ok(Self { store, mapped: Some(mapped), config, level, allocation: None })
    }

    /// Limits each matrix to its allocated level. The level given when the source was created still applies.
    ///
    /// # Errors
    /// [`EngineError::Mismatch`] if the allocation belongs to another store.
    pub fn allocated(self, allocation: Arc<Allocation>) -> Result<Self, EngineError> {
        allocation.check(self.store.id())?;
        Ok(Self { allocation: Some(allocation), ..self })
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Returns the number of a group's planes, from the first, that a level needs.
    pub fn planes_of(&self, group: &Group, level: Level) -> usize {
        // Default: a level that the store cannot provide has no planes.
        let planes = self.store.index().planes_at(group, level).unwrap_or(0);
        planes.min(self.planes(group))
    }

    /// Builds the matrices of an expert from its first planes, which were read and verified.
    ///
    /// # Errors
    /// Returns an error if the planes do not form the expert.
    pub fn bind_expert(
        &self,
        expert: ExpertId,
        arrived: &[Arc<ArrivedPlane>],
        scan: Scan,
    ) -> Result<Matrices, EngineError> {
        let group = self.group(&GroupId::Expert(expert))?;
        let mut planes: GroupPlanes = vec![Default::default(); group.matrices.len()];
        for (extent, bytes) in Plane::ALL.into_iter().zip(arrived) {
            let region = |range: Range<usize>| {
                ByteRegion::new(Arc::<ArrivedPlane>::clone(bytes), range.start, range.len())
            };
            self.place_parts(group, extent, &region, &mut planes)?;
        }
        self.bind_group(group, planes, scan)
    }

    /// Returns the byte ranges of the matrix planes in a plane of an expert.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the sizes of its parts overflow.
    pub fn plane_parts(
        &self,
        expert: ExpertId,
        plane: Plane,
    ) -> Result<Vec<PlanePart>, EngineError> {
        let Some(group) = self.store.group(&GroupId::Expert(expert)) else {
            return Ok(Vec::new());
        };
        invariant!(self.store.digits() == Digits::Apart, "slots of devices hold P3 and P4 apart");
        let part = |(matrix, plane, range): (&Matrix, _, _)| {
            let matrix = matrix.kind;
            PlanePart { matrix, plane, range }
        };
        Ok(self.parts_used(group, plane)?.map(part).collect())
    }

    /// Returns the number of a group's extents that the level, or the allocation, needs.
    pub(super) fn planes(&self, group: &Group) -> usize {
        // Default: a level that the store cannot provide has no planes.
        let planes = self.store.index().planes_at(group, self.level).unwrap_or(0);
        let allocated = self.allocation.as_ref().map(|allocation| allocation.extents(group));
        allocated.map_or(planes, |allocated| allocated.min(planes))
    }

    /// Returns the allocated levels of a group's matrices; empty without an allocation.
    pub(super) fn allocated_levels(&self, group: &Group) -> &[Level] {
        // Default: without an allocation, no levels are allocated.
        self.allocation.as_ref().map(|a| a.levels(&group.id)).unwrap_or_default()
    }

    pub(super) fn group(&self, id: &GroupId) -> Result<&Group, EngineError> {
        let missing = || EngineError::mismatch(id.to_string(), "in the store", "missing");
        self.store.group(id).ok_or_else(missing)
    }

    /// Reads the matrices of several groups into owned memory.
    pub(super) fn read(
        &self,
        groups: &[&Group],
        threads: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<Matrices>, EngineError> {
        let wanted = groups.iter().map(|group| GroupRequest {
            group,
            planes: self.planes(group),
            levels: self.allocated_levels(group).to_vec(),
        });
        let wanted: Vec<_> = wanted.collect();
        let read = read_groups(&self.store, &wanted, threads, cancel)?;
        let bind = |(group, planes): (&&Group, _)| self.bind_group(group, planes, Scan::Check);
        groups.iter().zip(read).map(bind).collect()
    }

    /// Returns the matrices of a group, backed by the mapped file.
    #[cfg(not(target_family = "wasm"))]
    pub(super) fn map(&self, mapped: &MappedStore, group: &Group) -> Result<Matrices, EngineError> {
        let mut planes: GroupPlanes = vec![Default::default(); group.matrices.len()];
        for extent in Plane::ALL.into_iter().take(self.planes(group)) {
            let found = self.store.index().extent(group, extent);
            let Some(found) = found.filter(|found| self.store.is_present(found)) else { continue };
            // Experts are verified before first use ([`super::mapped_checks`]).
            let found = match group.id {
                GroupId::Expert(_) => {
                    mapped.extent(found).invariant("a present extent is mapped")?
                }
                _ => mapped.checked_extent(found)?,
            };
            let region = |range: Range<usize>| {
                let start = found.range().start + range.start;
                ByteRegion::new(found.owner(), start, range.len())
            };
            self.place_parts(group, extent, &region, &mut planes)?;
        }
        self.bind_group(group, planes, Scan::Check)
    }

    /// Puts the parts of an extent in their matrices' places, skipping planes above an allocated level.
    pub(super) fn place_parts(
        &self,
        group: &Group,
        extent: Plane,
        region: &dyn Fn(Range<usize>) -> Option<ByteRegion>,
        planes: &mut GroupPlanes,
    ) -> Result<(), EngineError> {
        let levels = self.allocated_levels(group);
        for part in self.store.parts(group, extent).invariant(PARTS)? {
            match part.item {
                PartItem::Merged { matrix } => planes[matrix][MERGED] = region(part.range),
                PartItem::Plane { matrix, plane }
                    if levels.get(matrix).is_some_and(|level| plane.level() > *level) => {}
                PartItem::Plane { matrix, plane } => {
                    planes[matrix][plane.index()] = region(part.range);
                }
                PartItem::Floats { matrix } => planes[matrix][0] = region(part.range),
                PartItem::Tensor { .. } => {}
            }
        }
        Ok(())
    }

    /// Returns the matrix planes in an extent of a group, without those above an allocated level.
    pub(super) fn parts_used<'a>(
        &'a self,
        group: &'a Group,
        extent: Plane,
    ) -> Result<impl Iterator<Item = (&'a Matrix, Plane, Range<usize>)>, EngineError> {
        let levels = self.allocated_levels(group);
        let used = move |part: Part| match part.item {
            PartItem::Plane { matrix, plane } => {
                let above = levels.get(matrix).is_some_and(|level| plane.level() > *level);
                let matrix = group.matrices.get(matrix).filter(|_| !above)?;
                Some((matrix, plane, part.range))
            }
            _ => None,
        };
        Ok(group.parts(extent).invariant(PARTS)?.into_iter().filter_map(used))
    }

    pub(super) fn bind_group(
        &self,
        group: &Group,
        planes: GroupPlanes,
        scan: Scan,
    ) -> Result<Matrices, EngineError> {
        let mut list = Vec::with_capacity(group.matrices.len());
        for ((place, matrix), planes) in group.matrices.iter().enumerate().zip(planes) {
            let bound = self.bind(group, matrix, planes, scan)?;
            let bound = match &self.allocation {
                Some(allocation) => allocation.apply(&group.id, place, bound),
                None => bound,
            };
            list.push((matrix.kind, bound));
        }
        Ok(Matrices { group: group.id.clone(), list })
    }

    fn bind(
        &self,
        group: &Group,
        matrix: &Matrix,
        [p2, p3, p4, p6, p8, p34]: Planes<ByteRegion>,
        scan: Scan,
    ) -> Result<MatrixWeights, EngineError> {
        let (rows, cols) = (matrix.rows, matrix.cols);
        let missing = || {
            let what = format!("{:?} of {}", matrix.kind, group.id);
            EngineError::mismatch(what, "its first plane and its codec", "none")
        };
        let p2 = p2.ok_or_else(missing)?;
        let layout = match matrix.encoding {
            Encoding::Float(dtype) => {
                return Ok(MatrixWeights::Float(FloatMatrix::new(rows, cols, dtype, p2)?));
            }
            Encoding::Nested { layout, .. } => layout,
        };
        let codec = self.store.index().codec(matrix).ok_or_else(missing)?.clone();
        let regions = PlaneRegions { p2, p3, p4, p34, p6, p8 };
        let levels = self.levels(group, matrix);
        let make = match scan {
            Scan::Check => NestedMatrix::new,
            Scan::Known => NestedMatrix::new_checked,
        };
        Ok(MatrixWeights::Nested(make(rows, cols, layout, codec, regions, levels)?))
    }

    /// Returns the prefix of a matrix at each level of the model. The result depends on all sections of the
    /// original store, so a truncated store gives the same.
    pub(super) fn levels(&self, group: &Group, matrix: &Matrix) -> [Level; 5] {
        let mut best = Level::L2;
        Level::ALL.map(|level| {
            let planes = self.store.index().planes_at(group, level);
            best = planes.and_then(|planes| matrix.level_after(planes)).unwrap_or(best);
            best
        })
    }
}

/// Returns the requested level, or the highest one in the store.
fn held_level(store: &Store, level: Option<Level>) -> Result<Level, EngineError> {
    let held = store.level();
    let level = level.unwrap_or(held);
    if level > held {
        return Err(EngineError::LevelMissing { asked: level.bits(), held: held.bits() });
    }
    Ok(level)
}
