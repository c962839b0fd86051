//! Writing of a store: temporary files next to the destination, a journal, and a rename at the end.

use crate::Invariant;
use crate::memory::try_zeroed;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::disk::{Disk, OsDisk};
use super::error::{StoreError, label};
use super::format::PLANES;
use super::hash::hash;
use super::index::{CodecSlot, Extent, GroupId, Index};
use super::journal::{PAYLOAD_BYTES_MAX, Record};
use super::partial::{PartialResults, ShardFile, journal_path};
use super::plan::StorePlan;
use super::shards::shard_header;
use crate::nested::NestedCodec;
use crate::{MatrixKind, Plane};

/// Writer of a store. Extents may be written in any order and from any thread.
///
/// All data goes to `<destination>.partial` until [`Self::finish`] renames it, so an incomplete store never
/// has the final name. `<destination>.journal` lists the written parts. After a crash or a full disk,
/// [`Self::resume`] continues from the journal, and the finished bytes are the same.
///
/// ```
/// use nestling_formats::store::{Store, StorePlan, StoreWriter};
///
/// let mut plan = StorePlan::new("source hash", "{}");
/// plan.add_asset("config.json", 2);
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("tiny.nest");
/// let writer = StoreWriter::create(&path, &plan)?;
/// writer.write_asset("config.json", b"{}")?;
/// writer.finish()?;
/// assert_eq!(Store::open(&path)?.config_json()?, b"{}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StoreWriter {
    disk: Arc<dyn Disk>,
    destination: PathBuf,
    pub(super) index: Index,
    pub(super) files: Vec<ShardFile>,
    state: Mutex<PartialResults>,
}

impl StoreWriter {
    /// Starts a new store, discarding any earlier attempt.
    ///
    /// # Errors
    /// [`StoreError::Plan`], [`StoreError::Busy`], [`StoreError::DiskFull`] or [`StoreError::Io`].
    pub fn create(destination: &Path, plan: &StorePlan) -> Result<Self, StoreError> {
        Self::open_on(Arc::new(OsDisk), destination, plan, false)
    }

    /// Resumes an interrupted store of the same plan, or starts a new one.
    ///
    /// Extents already written are read and checked; invalid ones count as not written.
    ///
    /// # Errors
    /// The errors of [`Self::create`].
    pub fn resume(destination: &Path, plan: &StorePlan) -> Result<Self, StoreError> {
        Self::open_on(Arc::new(OsDisk), destination, plan, true)
    }

    /// Runs [`Self::create`], or [`Self::resume`] if `resume` is set, on any kind of disk.
    ///
    /// # Errors
    /// The errors of [`Self::create`].
    pub fn open_on(
        disk: Arc<dyn Disk>,
        destination: &Path,
        plan: &StorePlan,
        resume: bool,
    ) -> Result<Self, StoreError> {
        let index = plan.index()?;
        let (files, state) = super::resume::open(&*disk, destination, &index, resume)?;
        let destination = destination.to_owned();
        Ok(Self { disk, destination, index, files, state: Mutex::new(state) })
    }

    /// Returns the index of the plan, with all offsets.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Returns the path of the finished store: the destination, or its first shard.
    pub fn final_path(&self) -> &Path {
        self.files.first().map_or(&self.destination, |file| &file.final_path)
    }

    /// Returns the size in bytes of the written extents, and of all extents.
    pub fn progress_bytes(&self) -> (u64, u64) {
        let state = self.state();
        let bytes = |extent: &Extent| extent.length;
        let written = self.index.extents.iter().zip(&state.hashes);
        let written = written.filter(|(_, hash)| hash.is_some()).map(|(extent, _)| bytes(extent));
        (written.sum(), self.index.extents.iter().map(bytes).sum())
    }

    /// Returns whether all extents of a group are written.
    pub fn is_group_written(&self, id: &GroupId) -> bool {
        let state = self.state();
        let Some(group) = self.index.group(id) else { return false };
        group.extents.iter().flatten().all(|extent| {
            let hash = usize::try_from(*extent).ok().and_then(|number| state.hashes.get(number));
            matches!(hash, Some(Some(_)))
        })
    }

    /// Returns the nested codec with a number, if it is known.
    pub fn codec(&self, codec: u32) -> Option<Arc<NestedCodec>> {
        let number = usize::try_from(codec).ok()?;
        self.state().codecs.get(number).cloned().flatten()
    }

    /// Sets a nested codec; it must have the planned number of tables.
    ///
    /// # Errors
    /// [`StoreError::Plan`] if the codec is invalid, does not match the plan, or is already set differently;
    /// [`StoreError::DiskFull`], [`StoreError::Io`].
    pub fn set_codec(&self, number: u32, codec: &NestedCodec) -> Result<(), StoreError> {
        let error = |reason: String| StoreError::plan(format!("codec {number}"), reason);
        codec.check().map_err(|fault| error(fault.to_string()))?;
        let bytes = codec.to_bytes();
        let slot = usize::try_from(number).ok().filter(|slot| *slot < self.index.codecs.len());
        let slot = slot.ok_or_else(|| error("is not planned".into()))?;
        if self.index.codecs[slot].codec.is_some() {
            return Err(error("was planned with its parameters".into()));
        }
        let planned = self.index.codecs[slot].bytes;
        if planned != bytes.len() {
            return Err(error(format!("has {} bytes, planned were {planned}", bytes.len())));
        }
        if let Some((matrix, rule)) = self.index.misfit(number, codec.into()) {
            let (kind, cols) = (matrix.kind, matrix.cols);
            return Err(error(format!(
                "does not suit {kind:?} of {cols} columns, expected {rule}"
            )));
        }
        let mut state = self.state();
        match &state.codecs[slot] {
            Some(known) if **known == *codec => return Ok(()),
            Some(_) => return Err(error("is already set to something else".into())),
            None => (),
        }
        self.append(&mut state, &Record::Codec { codec: number, bytes })?;
        state.codecs[slot] = Some(Arc::new(codec.clone()));
        Ok(())
    }

    /// Writes one extent, replacing earlier contents.
    ///
    /// # Errors
    /// [`StoreError::Absent`] if the extent is not planned; [`StoreError::Length`]; [`StoreError::DiskFull`]
    /// or [`StoreError::Io`], after which the call may be repeated.
    pub fn write_extent(&self, id: &GroupId, plane: Plane, bytes: &[u8]) -> Result<(), StoreError> {
        let (number, extent) = self.find(id, plane)?;
        if bytes.len() as u64 != extent.length {
            let what = self.index.describe(extent);
            let (expected, found) = (extent.length, bytes.len() as u64);
            return Err(StoreError::Length { what, expected, found });
        }
        let shard = self.files.iter().rev().find(|file| file.start <= extent.offset);
        let shard = shard.ok_or_else(|| self.absent(format!("a file for {id}")))?;
        let padding = extent.length.next_multiple_of(self.index.alignment) - extent.length;
        // Less than the alignment, which is at most 16 MiB.
        let padding = usize::try_from(padding).invariant("an alignment fits in memory")?;
        let zeros = try_zeroed("padding of a store", padding)?;
        let at = extent.offset - shard.start;
        shard.write(at, bytes)?;
        shard.write(at + extent.length, &zeros)?;
        let seed =
            self.index.seed(extent).invariant("every extent belongs to a group of its index")?;
        let hash = hash(seed, bytes);
        let mut state = self.state();
        self.append(&mut state, &Record::Extent { extent: number, hash })?;
        if let Some(slot) = usize::try_from(number).ok().and_then(|n| state.hashes.get_mut(n)) {
            *slot = Some(hash);
        }
        Ok(())
    }

    /// Writes an asset.
    ///
    /// # Errors
    /// The errors of [`Self::write_extent`].
    pub fn write_asset(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.write_extent(&GroupId::asset(name), Plane::P2, bytes)
    }

    /// Records the reduction of a group's output error by a plane.
    ///
    /// # Errors
    /// [`StoreError::Absent`] if the extent is not planned; [`StoreError::Plan`] unless `value` is finite and
    /// not negative; [`StoreError::DiskFull`], [`StoreError::Io`].
    pub fn set_error_drop(&self, id: &GroupId, plane: Plane, value: f32) -> Result<(), StoreError> {
        let (number, _) = self.find(id, plane)?;
        check_measure(value)?;
        let mut state = self.state();
        self.append(&mut state, &Record::ErrorDrop { extent: number, value })?;
        if let Some(slot) = usize::try_from(number).ok().and_then(|n| state.error_drops.get_mut(n))
        {
            *slot = Some(value);
        }
        Ok(())
    }

    /// Records the frequency of use of a group.
    ///
    /// # Errors
    /// The errors of [`Self::set_error_drop`].
    pub fn set_frequency(&self, id: &GroupId, value: f32) -> Result<(), StoreError> {
        let number = self.index.numbers.get(id).copied();
        let number = number.ok_or_else(|| self.absent(id.to_string()))?;
        check_measure(value)?;
        let mut state = self.state();
        self.append(&mut state, &Record::Frequency { group: number, value })?;
        if let Some(slot) = usize::try_from(number).ok().and_then(|n| state.frequencies.get_mut(n))
        {
            *slot = Some(value);
        }
        Ok(())
    }

    /// Records the mean square of the router's weight for a group when it is used.
    ///
    /// # Errors
    /// The errors of [`Self::set_error_drop`].
    pub fn set_weight_square(&self, id: &GroupId, value: f32) -> Result<(), StoreError> {
        let number = self.index.numbers.get(id).copied();
        let group = number.ok_or_else(|| self.absent(id.to_string()))?;
        check_measure(value)?;
        let mut state = self.state();
        self.append(&mut state, &Record::WeightSquare { group, value })?;
        if let Some(slot) =
            usize::try_from(group).ok().and_then(|n| state.weight_squares.get_mut(n))
        {
            *slot = Some(value);
        }
        Ok(())
    }

    /// Saves caller-defined bytes about a group in the journal, so that [`Self::note`] returns them even
    /// after an interruption. They are not part of the store.
    ///
    /// # Errors
    /// [`StoreError::Absent`] if the group is not planned; [`StoreError::Plan`] if there are more than 4096
    /// bytes; [`StoreError::DiskFull`], [`StoreError::Io`].
    pub fn set_note(&self, id: &GroupId, bytes: &[u8]) -> Result<(), StoreError> {
        let number = self.index.numbers.get(id).copied();
        let group = number.ok_or_else(|| self.absent(id.to_string()))?;
        if bytes.len() > PAYLOAD_BYTES_MAX {
            let reason = format!("has {} bytes, at most {PAYLOAD_BYTES_MAX} are kept", bytes.len());
            return Err(StoreError::plan(format!("note of {id}"), reason));
        }
        let mut state = self.state();
        self.append(&mut state, &Record::Note { group, bytes: bytes.to_vec() })?;
        if let Some(slot) = usize::try_from(group).ok().and_then(|n| state.notes.get_mut(n)) {
            *slot = Some(bytes.to_vec());
        }
        Ok(())
    }

    /// Returns the bytes saved by [`Self::set_note`] in this attempt or an earlier one.
    pub fn note(&self, id: &GroupId) -> Option<Vec<u8>> {
        let number = usize::try_from(*self.index.numbers.get(id)?).ok()?;
        self.state().notes.get(number).cloned().flatten()
    }

    /// Records the reduction of a group's output error by each plane of a matrix.
    ///
    /// # Errors
    /// The errors of [`Self::set_error_drop`]; [`StoreError::Absent`] if the plan does not have
    /// [`super::Measures::PerMatrix`].
    pub fn set_matrix_error_drops(
        &self,
        id: &GroupId,
        kind: MatrixKind,
        drops: [Option<f32>; PLANES],
    ) -> Result<(), StoreError> {
        let absent = || self.absent(format!("room for measures of {kind:?} of {id}"));
        let mut before = 0;
        let group = self.index.groups.iter().find(|group| {
            before += group.matrices.len();
            group.id == *id && !group.error_drops.is_empty()
        });
        let group = group.ok_or_else(absent)?;
        before -= group.matrices.len();
        let place = group.matrices.iter().position(|matrix| matrix.kind == kind);
        let place = before + place.ok_or_else(absent)?;
        drops.iter().flatten().try_for_each(|drop| check_measure(*drop))?;
        let matrix = u32::try_from(place).map_err(|_| absent())?;
        let mut state = self.state();
        self.append(&mut state, &Record::MatrixDrops { matrix, drops })?;
        if let Some(slot) = state.matrix_drops.get_mut(place) {
            *slot = Some(drops);
        }
        Ok(())
    }

    /// Writes the index, syncs all files and renames them to their final names.
    ///
    /// # Errors
    /// [`StoreError::Unfinished`] if a part was not written; [`StoreError::DiskFull`] or [`StoreError::Io`],
    /// after which the store can be resumed.
    pub fn finish(self) -> Result<(), StoreError> {
        let index = self.complete_index()?;
        let encoded = index.encode();
        let header = index.header(&encoded);
        for (number, file) in (0u32..).zip(&self.files) {
            let mut front = if number == 0 {
                let mut front = header.encode();
                front.extend_from_slice(&encoded);
                front
            } else {
                shard_header(&index, number).invariant("every file is a shard")?.encode()
            };
            front.resize(front.len().next_multiple_of(self.alignment()), 0);
            file.write(0, &front)?;
            file.sync()?;
        }
        // The first shard is renamed last: without it the others cannot be opened.
        for file in self.files.iter().rev() {
            let renamed = self.disk.rename(&file.temporary, &file.final_path);
            renamed.map_err(|error| StoreError::io(&file.name, "rename", 0, 0, error))?;
        }
        if let Err(error) = self.disk.sync_folder_of(&self.destination) {
            // The durability of the names is unknown, so the store is unfinished and can be resumed.
            for file in &self.files {
                let _ = self.disk.rename(&file.final_path, &file.temporary);
            }
            return Err(StoreError::io(label(&self.destination), "finish", 0, 0, error));
        }
        // The store is complete; a leftover journal is harmless.
        let _ = self.disk.remove(&journal_path(&self.destination));
        Ok(())
    }

    /// Removes the temporary files and the journal.
    ///
    /// # Errors
    /// [`StoreError::Io`] if a file cannot be removed.
    pub fn abandon(self) -> Result<(), StoreError> {
        let temporaries = self.files.iter().map(|file| file.temporary.clone());
        for path in temporaries.chain([journal_path(&self.destination)]) {
            let removed = self.disk.remove(&path);
            removed.map_err(|error| StoreError::io(label(&path), "remove", 0, 0, error))?;
        }
        Ok(())
    }

    /// Returns the index with codecs, hashes and measurements; the error names the first missing part.
    fn complete_index(&self) -> Result<Index, StoreError> {
        let mut index = self.index.clone();
        let state = self.state();
        let unfinished = |what| StoreError::Unfinished { file: label(&self.destination), what };
        for (number, hash) in state.hashes.iter().enumerate() {
            let what = || unfinished(index.describe(&index.extents[number]));
            let hash = hash.ok_or_else(what)?;
            index.extents[number].hash = hash;
            index.extents[number].error_drop = state.error_drops[number];
        }
        for (number, codec) in state.codecs.iter().enumerate() {
            if index.codecs[number].codec.is_some() {
                continue;
            }
            let codec = codec.clone().ok_or_else(|| unfinished(format!("codec {number}")))?;
            let bytes = index.codecs[number].bytes;
            index.codecs[number] = CodecSlot { bytes, codec: Some(codec.into()) };
        }
        let measured = state.frequencies.iter().zip(&state.weight_squares);
        let mut drops = state.matrix_drops.iter();
        for (group, (frequency, weight_square)) in index.groups.iter_mut().zip(measured) {
            group.frequency = *frequency;
            group.weight_square = weight_square.filter(|square| *square > 0.0);
            let of_group = drops.by_ref().take(group.matrices.len());
            for (slot, drops) in group.error_drops.iter_mut().zip(of_group) {
                // Default: a matrix without measurements has no drops.
                *slot = drops.unwrap_or_default();
            }
        }
        Ok(index)
    }

    fn find(&self, id: &GroupId, plane: Plane) -> Result<(u32, &Extent), StoreError> {
        let group = self.index.group(id);
        let number = group.and_then(|group| group.extents[plane.index()]);
        let extent = group.and_then(|group| self.index.extent(group, plane));
        match (number, extent) {
            (Some(number), Some(extent)) => Ok((number, extent)),
            _ => Err(self.absent(format!("plane {plane:?} of {id} in its plan"))),
        }
    }

    fn append(&self, state: &mut PartialResults, record: &Record) -> Result<(), StoreError> {
        state.journal.append(record).map_err(|error| {
            StoreError::io(label(&journal_path(&self.destination)), "write", 0, 0, error)
        })
    }

    fn state(&self) -> MutexGuard<'_, PartialResults> {
        // A panic on another thread leaves the state consistent, since each change is a single assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn alignment(&self) -> usize {
        usize::try_from(self.index.alignment).unwrap_or(1)
    }

    fn absent(&self, what: String) -> StoreError {
        StoreError::Absent { file: label(&self.destination), what }
    }
}

impl std::fmt::Debug for StoreWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StoreWriter({})", self.destination.display())
    }
}

fn check_measure(value: f32) -> Result<(), StoreError> {
    if value.is_finite() && value.is_sign_positive() {
        return Ok(());
    }
    Err(StoreError::plan("measured value", format!("{value} is not a finite, positive number")))
}
