//! Extents built from the blocks of a file.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use nestling_core::sync::{Mutex, whole};
use nestling_formats::memory::try_zeroed;
use nestling_formats::nested::{
    Layout, NestedError, PlaneForm, ScaledForm, ScaledParts, ScaledPlanes, pack_scaled_plane,
};
use nestling_formats::store::{
    Digits, Encoding, Extent, Group, GroupId, Index, Matrix, Part, PartItem, RangeSource, Storage,
    StorageChanged,
};
use nestling_formats::{FloatId, Plane};
use nestling_import::checkpoint::{Asset, FetchedRuns, MatrixPlace, ScaledScratch, SourceRun};
use nestling_import::{Checkpoint, ImportError};

use crate::convert::matrix_id;

/// Storage of a virtual store: it builds bytes on demand.
pub struct InPlaceStorage {
    checkpoint: Arc<Checkpoint>,
    index: Index,
    digits: Digits,
    assets: Vec<Asset>,
    scratch: Mutex<Vec<ScaledScratch>>,
}

struct ReadTarget<'a> {
    /// Byte range in the extent.
    range: Range<usize>,
    out: &'a mut [u8],
    /// Blocks of the file that were read before.
    fetched: FetchedRuns<'a>,
}

impl ReadTarget<'_> {
    /// Copies the requested part of `bytes`, which are located at `start` of the extent.
    fn take(&mut self, start: usize, bytes: &[u8]) {
        let from = self.range.start.max(start);
        let to = self.range.end.min(start + bytes.len());
        if from < to {
            let into = from - self.range.start..to - self.range.start;
            self.out[into].copy_from_slice(&bytes[from - start..to - start]);
        }
    }

    /// Zeros the requested part of a byte range of the extent.
    fn clear(&mut self, range: Range<usize>) {
        let from = self.range.start.max(range.start);
        let to = self.range.end.min(range.end);
        if from < to {
            self.out[from - self.range.start..to - self.range.start].fill(0);
        }
    }

    fn overlaps(&self, range: &Range<usize>) -> bool {
        range.start < self.range.end && self.range.start < range.end
    }
}

impl InPlaceStorage {
    /// Creates the storage for the extents of `index`, which must be planned from the same checkpoint.
    pub fn new(
        checkpoint: Arc<Checkpoint>,
        index: Index,
        digits: Digits,
        assets: Vec<Asset>,
    ) -> Self {
        Self { checkpoint, index, digits, assets, scratch: Mutex::new(Vec::new()) }
    }

    /// Describes the source tensors of an extent with their byte offsets in the file. Returns `None` for
    /// extents that come from the header.
    fn tensors(&self, extent: &Extent) -> Option<String> {
        let group = self.index.group_of(extent)?;
        let mut told = Vec::new();
        for matrix in &group.matrices {
            let place = self.checkpoint.matrix(matrix_id(&group.id, matrix)).ok()?;
            let tensors = place.tensors();
            told.extend(tensors.map(|(name, offset)| format!("`{name}` from byte {offset}")));
        }
        for tensor in &group.tensors {
            let id = FloatId { kind: tensor.kind, layer: group.id.layer() };
            let place = self.checkpoint.float(id).ok()?;
            told.push(format!("`{}` from byte {}", place.name(), place.tensor.offset));
        }
        (!told.is_empty()).then(|| told.join(", "))
    }

    /// Fills the requested part of one extent. Padding after its bytes is zero.
    fn read_extent(&self, extent: &Extent, mut wanted: ReadTarget<'_>) -> io::Result<()> {
        let group = self.index.group_of(extent).ok_or_else(inconsistent)?;
        match &group.id {
            GroupId::Asset { name } => {
                let asset = self.assets.iter().find(|asset| asset.name == *name);
                let bytes = &asset.ok_or_else(inconsistent)?.bytes;
                wanted.take(0, bytes);
                wanted.clear(bytes.len()..usize::MAX);
                Ok(())
            }
            _ => self.read_group(group, &mut wanted),
        }
    }

    fn read_group(&self, group: &Group, wanted: &mut ReadTarget<'_>) -> io::Result<()> {
        let mut parts = group.parts_as(Plane::P2, self.digits).ok_or_else(inconsistent)?;
        parts.retain(|part| !part.range.is_empty());
        let mut end = 0;
        for parts in parts.chunk_by(are_of_one_matrix) {
            let (first, last) = (&parts[0], &parts[parts.len() - 1]);
            let range = first.range.start..last.range.end;
            wanted.clear(end..range.start);
            end = range.end;
            if !wanted.overlaps(&range) {
                continue;
            }
            match first.item {
                PartItem::Tensor { tensor } => {
                    let id = FloatId { kind: group.tensors[tensor].kind, layer: group.id.layer() };
                    let bytes = self.checkpoint.read_float_bytes(id).map_err(failed)?;
                    wanted.take(range.start, &bytes);
                }
                PartItem::Floats { matrix } => {
                    let id = matrix_id(&group.id, &group.matrices[matrix]);
                    let bytes = self.checkpoint.read_matrix_bytes(id).map_err(failed)?;
                    wanted.take(range.start, &bytes);
                }
                PartItem::Plane { matrix, .. } | PartItem::Merged { matrix } => {
                    let matrix = &group.matrices[matrix];
                    let Encoding::Nested { layout, form: PlaneForm::Scaled(form), .. } =
                        matrix.encoding
                    else {
                        return Err(inconsistent());
                    };
                    let source = Source { group, matrix, layout, form };
                    self.read_planes(&source, parts, wanted)?;
                }
            }
        }
        wanted.clear(end..usize::MAX);
        Ok(())
    }

    /// Reads consecutive planes of one matrix.
    fn read_planes(
        &self,
        source: &Source<'_>,
        parts: &[Part],
        wanted: &mut ReadTarget<'_>,
    ) -> io::Result<()> {
        let start = parts[0].range.start;
        let range = start..parts[parts.len() - 1].range.end;
        if wanted.range.start <= start && range.end <= wanted.range.end {
            let into = start - wanted.range.start..range.end - wanted.range.start;
            return self.fill(source, parts, wanted.fetched, &mut wanted.out[into]);
        }
        for part in parts {
            if !wanted.overlaps(&part.range) {
                continue;
            }
            if source.layout == Layout::RowMajor {
                let PartItem::Plane { plane, .. } = part.item else { return Err(inconsistent()) };
                self.read_rows(source, plane, part.range.clone(), wanted)?;
                continue;
            }
            let mut bytes = zeros(part.range.len())?;
            self.fill(source, std::slice::from_ref(part), wanted.fetched, &mut bytes)?;
            wanted.take(part.range.start, &bytes);
        }
        Ok(())
    }

    /// Fills `out` with some complete planes of a matrix, laid out as in the extent.
    fn fill(
        &self,
        source: &Source<'_>,
        parts: &[Part],
        fetched: FetchedRuns<'_>,
        out: &mut [u8],
    ) -> io::Result<()> {
        let Source { matrix, layout, form, .. } = source;
        let planes = ScaledPlanes::new(form, *layout, matrix.rows, matrix.cols);
        let (mut planes, mut rest, mut end) = (planes.map_err(wrong)?, out, parts[0].range.start);
        for Part { item, range } in parts {
            let (gap, from) = rest.split_at_mut(range.start - end);
            gap.fill(0);
            let (bytes, later) = from.split_at_mut(range.len());
            let added = match item {
                PartItem::Plane { plane, .. } => planes.add(*plane, bytes),
                PartItem::Merged { .. } => planes.add_merged(bytes),
                PartItem::Floats { .. } | PartItem::Tensor { .. } => return Err(inconsistent()),
            };
            added.map_err(wrong)?;
            (rest, end) = (later, range.end);
        }
        let place = self.place(source)?;
        // Default: the first read on a thread starts with an empty buffer.
        let mut scratch = whole(self.scratch.lock()).pop().unwrap_or_default();
        let read = self.checkpoint.read_scaled_tiles::<ReadError>(
            &place,
            0..matrix.rows,
            fetched,
            &mut scratch,
            |first, tile| tile.write(first, &mut planes).map_err(ReadError::Planes),
        );
        whole(self.scratch.lock()).push(scratch);
        read.map_err(|error| match error {
            ReadError::Import(error) => failed(error),
            ReadError::Planes(error) => wrong(error),
        })
    }

    /// Reads only the requested rows of a plane with consecutive rows.
    fn read_rows(
        &self,
        source: &Source<'_>,
        plane: Plane,
        range: Range<usize>,
        wanted: &mut ReadTarget<'_>,
    ) -> io::Result<()> {
        let (form, layout) = (&source.form, source.layout);
        let all = source.runs(plane, source.matrix.rows).ok_or_else(inconsistent)?;
        let place = self.place(source)?;
        for (number, run) in all.iter().enumerate().filter(|(_, run)| !run.is_empty()) {
            let run = range.start + run.start..range.start + run.end;
            if !wanted.overlaps(&run) {
                continue;
            }
            let of_row = run.len() / source.matrix.rows;
            let first = wanted.range.start.saturating_sub(run.start) / of_row;
            let last = (wanted.range.end.min(run.end) - run.start).div_ceil(of_row);
            let rows = self.checkpoint.read_scaled_rows(&place, first, last - first);
            let rows = rows.map_err(failed)?;
            let runs = source.runs(plane, last - first).ok_or_else(inconsistent)?;
            let bytes = source.bytes(plane, last - first).ok_or_else(inconsistent)?;
            let mut packed = zeros(bytes)?;
            pack_scaled_plane(&rows, form, layout, plane, &mut packed).map_err(wrong)?;
            wanted.take(run.start + first * of_row, &packed[runs[number].clone()]);
        }
        Ok(())
    }

    fn place(&self, source: &Source<'_>) -> io::Result<MatrixPlace<'_>> {
        let id = matrix_id(&source.group.id, source.matrix);
        self.checkpoint.matrix(id).map_err(failed)
    }
}

fn are_of_one_matrix(a: &Part, b: &Part) -> bool {
    let matrix = |part: &Part| match part.item {
        PartItem::Plane { matrix, .. } | PartItem::Merged { matrix } => Some(matrix),
        PartItem::Floats { .. } | PartItem::Tensor { .. } => None,
    };
    matrix(a).is_some() && matrix(a) == matrix(b)
}

struct Source<'a> {
    group: &'a Group,
    matrix: &'a Matrix,
    layout: Layout,
    form: ScaledForm,
}

impl Source<'_> {
    /// Returns the size in bytes of a plane of `rows` rows.
    fn bytes(&self, plane: Plane, rows: usize) -> Option<usize> {
        let form = PlaneForm::Scaled(self.form);
        form.plane_bytes(self.layout, rows, self.matrix.cols, plane)
    }

    /// Returns the byte ranges of a row-major plane of `rows` rows. Rows are consecutive within each range.
    fn runs(&self, plane: Plane, rows: usize) -> Option<[Range<usize>; 5]> {
        if plane != Plane::P2 {
            return Some([0..0, 0..0, 0..0, 0..0, 0..self.bytes(plane, rows)?]);
        }
        let parts = ScaledParts::new(&self.form, self.layout, rows, self.matrix.cols)?;
        let ScaledParts { scales, minima, sub_scales, sub_minima, codes } = parts;
        Some([scales, minima, sub_scales, sub_minima, codes])
    }
}

/// An error while building planes from blocks.
enum ReadError {
    Import(ImportError),
    Planes(NestedError),
}

impl From<ImportError> for ReadError {
    fn from(error: ImportError) -> Self {
        Self::Import(error)
    }
}

impl Storage for InPlaceStorage {
    fn name(&self) -> String {
        let first = self.checkpoint.files().next();
        first.unwrap_or(self.checkpoint.directory()).display().to_string()
    }

    fn len(&self) -> u64 {
        self.index.length()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let extent = self.index.extent_at(at).ok_or(io::ErrorKind::UnexpectedEof)?;
            let end = extent.offset + extent.length.next_multiple_of(self.index.alignment());
            let left = usize::try_from(end.saturating_sub(at)).map_err(io::Error::other)?;
            if left == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let count = left.min(out.len() - done);
            let start = usize::try_from(at - extent.offset).map_err(io::Error::other)?;
            let out = &mut out[done..done + count];
            let fetched = FetchedRuns::default();
            self.read_extent(extent, ReadTarget { range: start..start + count, out, fetched })?;
            done += count;
        }
        // Checked after the read, so that data read before a change is known to be valid.
        self.check_unchanged(offset, out.len() as u64)
    }

    fn origin(&self, offset: u64) -> Option<String> {
        let tensors = self.index.extent_at(offset).and_then(|extent| self.tensors(extent));
        tensors.or_else(|| Some("the file's header".into()))
    }

    fn source(&self, offset: u64, length: u64) -> Option<Box<dyn RangeSource + '_>> {
        let extent = self.index.extent_at(offset);
        let extent = extent.filter(|it| it.offset == offset && it.length == length)?;
        let group = self.index.group_of(extent).filter(|group| group.id.expert().is_some())?;
        let (mut runs, mut bytes) = (Vec::new(), 0usize);
        for matrix in &group.matrices {
            let place = self.checkpoint.matrix(matrix_id(&group.id, matrix)).ok()?;
            for run in self.checkpoint.source_runs(&place)? {
                bytes = bytes.checked_add(run.buffer_bytes()?)?;
                runs.push(run);
            }
        }
        Some(Box::new(ExtentSource { storage: self, extent, runs, bytes }))
    }

    fn pass_page_cache(&self, passes: bool) {
        self.checkpoint.pass_page_cache(passes);
    }

    fn passes_page_cache(&self) -> bool {
        self.checkpoint.passes_page_cache()
    }

    fn check_unchanged(&self, _: u64, _: u64) -> io::Result<()> {
        self.checkpoint.check_unchanged().map_err(failed)
    }
}

/// Blocks of the file that one expert is built from.
struct ExtentSource<'a> {
    storage: &'a InPlaceStorage,
    extent: &'a Extent,
    runs: Vec<SourceRun>,
    /// Buffer size in bytes of the runs.
    bytes: usize,
}

impl RangeSource for ExtentSource<'_> {
    fn buffer_bytes(&self) -> usize {
        self.bytes
    }

    fn read(&self, buffer: &mut [u8]) -> io::Result<()> {
        self.storage.checkpoint.fetch_runs(&self.runs, buffer).map_err(failed)
    }

    fn build(&self, buffer: &[u8], out: &mut [u8]) -> io::Result<()> {
        let fetched = FetchedRuns::new(&self.runs, buffer);
        self.storage.read_extent(self.extent, ReadTarget { range: 0..out.len(), out, fetched })
    }
}

/// Converts an error of the checkpoint to an I/O error.
fn failed(error: ImportError) -> io::Error {
    match error {
        ImportError::Changed { .. } => io::Error::other(StorageChanged),
        ImportError::Io { source, .. } => source,
        error => io::Error::new(io::ErrorKind::InvalidData, error),
    }
}

fn zeros(bytes: usize) -> io::Result<Vec<u8>> {
    try_zeroed("a part of a plane", bytes).map_err(|_| io::ErrorKind::OutOfMemory.into())
}

fn wrong(error: NestedError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Returns the error for a plan that does not match the checkpoint, which is a bug.
fn inconsistent() -> io::Error {
    io::Error::other("the plan is not that of the checkpoint")
}
