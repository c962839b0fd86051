//! Extents out of the blocks of a file.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use nestling_formats::nested::{
    Layout, NestedError, PlaneForm, ScaledForm, ScaledParts, ScaledRows, merged_bytes,
    pack_scaled_merged, pack_scaled_plane,
};
use nestling_formats::store::{
    Digits, Encoding, Extent, Group, GroupId, Index, Matrix, PartItem, Storage, StorageChanged,
};
use nestling_formats::{FloatId, Plane};
use nestling_import::checkpoint::Asset;
use nestling_import::{Checkpoint, ImportError};

use crate::convert::source_id;

/// The bytes of a store that lies nowhere.
pub struct InPlaceStorage {
    checkpoint: Arc<Checkpoint>,
    index: Index,
    digits: Digits,
    assets: Vec<Asset>,
}

/// Part of an extent that is asked for, and where it goes.
struct Wanted<'a> {
    /// Bytes of the extent.
    range: Range<usize>,
    out: &'a mut [u8],
}

impl Wanted<'_> {
    /// Takes what is asked for of the bytes that lie at `start` of the extent.
    fn take(&mut self, start: usize, bytes: &[u8]) {
        let from = self.range.start.max(start);
        let to = self.range.end.min(start + bytes.len());
        if from < to {
            let into = from - self.range.start..to - self.range.start;
            self.out[into].copy_from_slice(&bytes[from - start..to - start]);
        }
    }

    fn overlaps(&self, range: &Range<usize>) -> bool {
        range.start < self.range.end && self.range.start < range.end
    }
}

impl InPlaceStorage {
    /// The bytes of the extents of `index`, which was planned of the same checkpoint.
    pub fn new(
        checkpoint: Arc<Checkpoint>,
        index: Index,
        digits: Digits,
        assets: Vec<Asset>,
    ) -> Self {
        Self { checkpoint, index, digits, assets }
    }

    /// Fills what is asked for of one extent; what follows its bytes is zeros.
    fn read_extent(&self, extent: &Extent, mut wanted: Wanted<'_>) -> io::Result<()> {
        wanted.out.fill(0);
        let group = self.index.group_of(extent).ok_or_else(inconsistent)?;
        match &group.id {
            GroupId::Asset { name } => {
                let asset = self.assets.iter().find(|asset| asset.name == *name);
                wanted.take(0, &asset.ok_or_else(inconsistent)?.bytes);
                Ok(())
            }
            _ => self.read_group(group, &mut wanted),
        }
    }

    fn read_group(&self, group: &Group, wanted: &mut Wanted<'_>) -> io::Result<()> {
        let parts = group.parts_as(Plane::P2, self.digits).ok_or_else(inconsistent)?;
        let mut rows: Option<(usize, ScaledRows)> = None;
        for part in parts.into_iter().filter(|part| !part.range.is_empty()) {
            if !wanted.overlaps(&part.range) {
                continue;
            }
            let start = part.range.start;
            match part.item {
                PartItem::Tensor { tensor } => {
                    let id = FloatId { kind: group.tensors[tensor].kind, layer: group.id.layer() };
                    let bytes = self.checkpoint.read_float_bytes(id).map_err(failed)?;
                    wanted.take(start, &bytes);
                }
                PartItem::Floats { matrix } => {
                    let id = self.source(group, &group.matrices[matrix]);
                    let bytes = self.checkpoint.read_matrix_bytes(id).map_err(failed)?;
                    wanted.take(start, &bytes);
                }
                PartItem::Plane { matrix: number, .. } | PartItem::Merged { matrix: number } => {
                    let matrix = &group.matrices[number];
                    let Encoding::Nested { layout, form: PlaneForm::Scaled(form), .. } =
                        matrix.encoding
                    else {
                        return Err(inconsistent());
                    };
                    let bits = match part.item {
                        PartItem::Plane { plane, .. } => Bits::Of(plane),
                        _ => Bits::Merged,
                    };
                    let plane = PlaneOf { group, matrix, layout, form, bits };
                    if layout == Layout::RowMajor {
                        self.read_rows(&plane, part.range, wanted)?;
                        continue;
                    }
                    // All planes of a matrix are cut from the same rows.
                    if rows.as_ref().is_none_or(|(of, _)| *of != number) {
                        rows = Some((number, self.scaled(&plane, 0..matrix.rows)?));
                    }
                    let (_, rows) = rows.as_ref().ok_or_else(inconsistent)?;
                    plane.pack_wanted(rows, part.range, wanted)?;
                }
            }
        }
        Ok(())
    }

    /// Rows of a plane whose rows follow each other: those alone that are asked for.
    fn read_rows(
        &self,
        plane: &PlaneOf<'_>,
        range: Range<usize>,
        wanted: &mut Wanted<'_>,
    ) -> io::Result<()> {
        let all = plane.runs(plane.matrix.rows).ok_or_else(inconsistent)?;
        for (number, run) in all.iter().enumerate().filter(|(_, run)| !run.is_empty()) {
            let run = range.start + run.start..range.start + run.end;
            if !wanted.overlaps(&run) {
                continue;
            }
            let of_row = run.len() / plane.matrix.rows;
            let first = wanted.range.start.saturating_sub(run.start) / of_row;
            let last = (wanted.range.end.min(run.end) - run.start).div_ceil(of_row);
            let rows = self.scaled(plane, first..last)?;
            let runs = plane.runs(last - first).ok_or_else(inconsistent)?;
            let bytes = plane.bytes(last - first).ok_or_else(inconsistent)?;
            let mut packed = vec![0; bytes];
            plane.pack(&rows, &mut packed)?;
            wanted.take(run.start + first * of_row, &packed[runs[number].clone()]);
        }
        Ok(())
    }

    fn scaled(&self, plane: &PlaneOf<'_>, rows: Range<usize>) -> io::Result<ScaledRows> {
        let place = self.checkpoint.matrix(self.source(plane.group, plane.matrix));
        let place = place.map_err(failed)?;
        self.checkpoint.read_scaled_rows(&place, rows.start, rows.len()).map_err(failed)
    }

    fn source(&self, group: &Group, matrix: &Matrix) -> nestling_formats::MatrixId {
        source_id(self.checkpoint.config(), &group.id, matrix.kind)
    }
}

/// Which bits of codes.
#[derive(Clone, Copy, PartialEq)]
enum Bits {
    Of(Plane),
    /// Those of P3 and P4 as one digit.
    Merged,
}

/// One plane of a matrix.
struct PlaneOf<'a> {
    group: &'a Group,
    matrix: &'a Matrix,
    layout: Layout,
    form: ScaledForm,
    bits: Bits,
}

impl PlaneOf<'_> {
    /// Bytes of the plane of so many rows of the matrix.
    fn bytes(&self, rows: usize) -> Option<usize> {
        let (form, cols) = (PlaneForm::Scaled(self.form), self.matrix.cols);
        match self.bits {
            Bits::Of(plane) => form.plane_bytes(self.layout, rows, cols, plane),
            Bits::Merged => merged_bytes(self.layout, rows, cols),
        }
    }

    /// The runs of a row-major plane of so many rows, in each of which rows follow each other.
    fn runs(&self, rows: usize) -> Option<[Range<usize>; 5]> {
        if self.bits != Bits::Of(Plane::P2) {
            return Some([0..0, 0..0, 0..0, 0..0, 0..self.bytes(rows)?]);
        }
        let parts = ScaledParts::new(&self.form, self.layout, rows, self.matrix.cols)?;
        let ScaledParts { scales, minima, sub_scales, sub_minima, codes } = parts;
        Some([scales, minima, sub_scales, sub_minima, codes])
    }

    fn pack(&self, rows: &ScaledRows, out: &mut [u8]) -> io::Result<()> {
        let packed = match self.bits {
            Bits::Of(plane) => pack_scaled_plane(rows, &self.form, self.layout, plane, out),
            Bits::Merged => pack_scaled_merged(rows, &self.form, self.layout, out),
        };
        packed.map_err(wrong)
    }

    /// Packs the plane, which lies at `range` of its extent, where it goes if all of it is asked for.
    fn pack_wanted(
        &self,
        rows: &ScaledRows,
        range: Range<usize>,
        wanted: &mut Wanted<'_>,
    ) -> io::Result<()> {
        if wanted.range.start <= range.start && range.end <= wanted.range.end {
            let into = range.start - wanted.range.start..range.end - wanted.range.start;
            return self.pack(rows, &mut wanted.out[into]);
        }
        let mut packed = vec![0; range.len()];
        self.pack(rows, &mut packed)?;
        wanted.take(range.start, &packed);
        Ok(())
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
            self.read_extent(extent, Wanted { range: start..start + count, out })?;
            done += count;
        }
        // Checked after the read: what was read before a change is what was opened.
        self.check_unchanged(offset, out.len() as u64)
    }

    fn check_unchanged(&self, _: u64, _: u64) -> io::Result<()> {
        self.checkpoint.check_unchanged().map_err(failed)
    }
}

/// An error of the checkpoint as one of reading.
fn failed(error: ImportError) -> io::Error {
    match error {
        ImportError::Changed { .. } => io::Error::other(StorageChanged),
        ImportError::Io { source, .. } => source,
        error => io::Error::new(io::ErrorKind::InvalidData, error),
    }
}

fn wrong(error: NestedError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Plan and checkpoint that do not fit together: a mistake of the program.
fn inconsistent() -> io::Error {
    io::Error::other("the plan is not that of the checkpoint")
}
