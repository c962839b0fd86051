//! Single rows of a matrix, read on demand. An embedding then takes no memory except for row checksums and
//! scales.

use std::ops::Range;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::index::{Encoding, Extent, Group};
use super::parts::PartItem;
use super::{Store, StoreError};
use crate::nested::{
    Codec, Layout, NestedError, NestedPlanes, NestedView, PlaneForm, ScaledParts, TILE_ROWS,
    base_parts,
};
use crate::{Level, Plane};

/// A run of bytes of equal length for each row, stored row after row.
#[derive(Clone, Debug)]
struct RowRun {
    /// Byte offset of the first row's bytes in the store.
    offset: u64,
    /// Bytes per row.
    bytes: usize,
    item: Item,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    /// Part of plane P2, with its byte range in a P2 of one row.
    Base(Range<usize>),
    /// Codes of a plane above P2.
    Codes(Plane),
}

/// Rows of a row-major matrix in a store.
#[derive(Debug)]
pub struct StoredRows {
    store: Arc<Store>,
    name: String,
    rows: usize,
    cols: usize,
    level: Level,
    codec: Codec,
    /// Nested code: row scales, f16, little-endian, `[rows]`.
    scales: Vec<u8>,
    /// Nested code: table of each tile, `[tiles]`.
    tables: Vec<u8>,
    pieces: Vec<RowRun>,
    /// Hash of each row's concatenated pieces.
    hashes: Vec<u64>,
}

/// Reusable buffers for reading rows.
#[derive(Clone, Debug, Default)]
pub struct RowScratch {
    base: Vec<u8>,
    planes: [Vec<u8>; 4],
}

/// An error of reading a row.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RowError {
    /// The row cannot be read, or has changed since the rows were opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The row's contents are invalid.
    #[error(transparent)]
    Nested(#[from] NestedError),
}

impl StoredRows {
    /// Opens the first matrix of a group for reading rows up to the prefix of `level`. Reads and verifies the
    /// matrix once and keeps a checksum per row. Returns `None` if the matrix is not stored as row-major
    /// codes or lacks planes of the prefix.
    ///
    /// Uses the memory of one extent temporarily, then about 10 bytes per row.
    ///
    /// # Errors
    /// The errors of [`Store::read_extent`]; [`NestedError`] if the size of a plane overflows.
    pub fn open(store: &Arc<Store>, group: &Group, level: Level) -> Result<Option<Self>, RowError> {
        let Some(matrix) = group.matrices.first() else { return Ok(None) };
        let Encoding::Nested { layout: Layout::RowMajor, .. } = matrix.encoding else {
            return Ok(None);
        };
        let Some(codec) = store.index().codec(matrix) else { return Ok(None) };
        let (rows, cols) = (matrix.rows, matrix.cols);
        let mut open = Self {
            store: Arc::clone(store),
            name: format!("{:?}", matrix.kind),
            rows,
            cols,
            level,
            codec: codec.clone(),
            scales: Vec::new(),
            tables: Vec::new(),
            pieces: Vec::new(),
            hashes: vec![0; rows],
        };
        for plane in Plane::ALL {
            if let Some(extent) = store.extent(group, plane) {
                open.take(group, plane, extent)?;
            }
        }
        let held = |plane: Plane| {
            open.pieces.iter().any(|piece| match piece.item {
                Item::Base(_) => plane == Plane::P2,
                Item::Codes(other) => plane == other,
            })
        };
        let planes = Level::ALL.into_iter().filter(|below| *below <= level).map(Level::plane);
        Ok(planes.into_iter().all(held).then_some(open))
    }

    /// Registers the planes of the first matrix in an extent.
    fn take(&mut self, group: &Group, plane: Plane, extent: &Extent) -> Result<(), RowError> {
        let (rows, cols) = (self.rows, self.cols);
        let shape = || NestedError::Shape { rows, cols };
        let parts = group.parts(plane).ok_or_else(shape)?;
        let wanted = parts.into_iter().filter_map(|part| match part.item {
            PartItem::Plane { matrix: 0, plane } if plane.level() <= self.level => {
                Some((plane, part.range))
            }
            _ => None,
        });
        let wanted: Vec<_> = wanted.collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let whole = self.store.read_extent_vec(extent)?;
        for (plane, range) in wanted {
            let bytes = whole.get(range.clone()).ok_or_else(shape)?;
            let start = extent.offset + range.start as u64;
            if plane == Plane::P2 {
                self.take_base(start, bytes)?;
            } else {
                self.add(Item::Codes(plane), start, bytes);
            }
        }
        Ok(())
    }

    /// Registers plane P2, which starts at offset `start`.
    fn take_base(&mut self, start: u64, bytes: &[u8]) -> Result<(), RowError> {
        let (rows, cols) = (self.rows, self.cols);
        let shape = || NestedError::Shape { rows, cols };
        let part = |range: &Range<usize>| bytes.get(range.clone()).ok_or_else(shape);
        let pieces = match self.codec.form() {
            PlaneForm::Nested => {
                let all = base_parts(Layout::RowMajor, rows, cols).ok_or_else(shape)?;
                let one = base_parts(Layout::RowMajor, 1, cols).ok_or_else(shape)?;
                self.scales = part(&all.row_scales)?.to_vec();
                self.tables = part(&all.tile_tables)?.to_vec();
                vec![(all.steps, one.steps), (all.codes, one.codes)]
            }
            PlaneForm::Scaled(form) => {
                let parts = |rows| ScaledParts::new(&form, Layout::RowMajor, rows, cols);
                let (all, one) = (parts(rows).ok_or_else(shape)?, parts(1).ok_or_else(shape)?);
                vec![
                    (all.scales, one.scales),
                    (all.minima, one.minima),
                    (all.sub_scales, one.sub_scales),
                    (all.sub_minima, one.sub_minima),
                    (all.codes, one.codes),
                ]
            }
        };
        for (of_all, of_one) in pieces.into_iter().filter(|(of_all, _)| !of_all.is_empty()) {
            let bytes = part(&of_all)?;
            self.add(Item::Base(of_one), start + of_all.start as u64, bytes);
        }
        Ok(())
    }

    fn add(&mut self, item: Item, offset: u64, all: &[u8]) {
        let bytes = all.len() / self.rows.max(1);
        for (hash, row) in self.hashes.iter_mut().zip(all.chunks_exact(bytes.max(1))) {
            *hash = xxh3_64_with_seed(row, *hash);
        }
        self.pieces.push(RowRun { offset, bytes, item });
    }

    /// Returns the rows of the matrix.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the columns of the matrix.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the highest level that rows can be read at.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Returns the number of bytes read per row.
    pub fn row_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes as u64).sum()
    }

    /// Returns the size in bytes of the retained scales, tables and hashes.
    pub fn kept_bytes(&self) -> u64 {
        (self.scales.len() + self.tables.len() + size_of::<u64>() * self.hashes.len()) as u64
    }

    /// Decodes the weights of a row into `out` `[cols]`, with the same result as from the whole matrix.
    ///
    /// # Errors
    /// [`RowError::Store`] if the row cannot be read or has changed; [`RowError::Nested`] if the row or level
    /// does not exist.
    pub fn read(
        &self,
        level: Level,
        row: usize,
        scratch: &mut RowScratch,
        out: &mut [f32],
    ) -> Result<(), RowError> {
        if row >= self.rows || out.len() != self.cols {
            return Err(NestedError::Shape { rows: row, cols: out.len() }.into());
        }
        let RowScratch { base, planes } = scratch;
        let shape = || NestedError::Shape { rows: 1, cols: self.cols };
        let form = self.codec.form();
        let bytes = form.plane_bytes(Layout::RowMajor, 1, self.cols, Plane::P2);
        base.clear();
        base.resize(bytes.ok_or_else(shape)?, 0);
        let mut hash = 0;
        for piece in &self.pieces {
            let into = match &piece.item {
                Item::Base(range) => &mut base[range.clone()],
                Item::Codes(plane) => {
                    let into = &mut planes[plane.index() - 1];
                    into.resize(piece.bytes, 0);
                    &mut into[..]
                }
            };
            self.store.read_bytes(piece.offset + (row * piece.bytes) as u64, into)?;
            hash = xxh3_64_with_seed(into, hash);
        }
        if hash != self.hashes[row] {
            return Err(self.damaged(row).into());
        }
        if form == PlaneForm::Nested {
            let parts = base_parts(Layout::RowMajor, 1, self.cols).ok_or_else(shape)?;
            base[parts.row_scales].copy_from_slice(&self.scales[2 * row..2 * row + 2]);
            base[parts.tile_tables].copy_from_slice(&self.tables[row / TILE_ROWS..][..1]);
        }
        let held = |plane: Plane| {
            let bytes = form.plane_bytes(Layout::RowMajor, 1, self.cols, plane);
            let all = &planes[plane.index() - 1];
            (plane.level() <= self.level && Some(all.len()) == bytes).then_some(&all[..])
        };
        let planes = NestedPlanes {
            p2: base,
            p3: held(Plane::P3),
            p4: held(Plane::P4),
            p34: None,
            p6: held(Plane::P6),
            p8: held(Plane::P8),
        };
        let view = NestedView::new(1, self.cols, Layout::RowMajor, &self.codec, planes)?;
        view.check()?;
        Ok(view.dequantize_row(level, 0, out)?)
    }

    /// Returns file, offset and length of the first piece of a row.
    pub fn place(&self, row: usize) -> (String, u64, u64) {
        let first = self.pieces.first();
        let length = first.map_or(0, |piece| piece.bytes as u64);
        let offset = first.map_or(0, |piece| piece.offset) + row as u64 * length;
        (self.store.name().to_owned(), offset, length)
    }

    fn damaged(&self, row: usize) -> StoreError {
        let (file, offset, length) = self.place(row);
        let what = format!("row {row} of {}", self.name);
        StoreError::Damaged { file, what, offset, length }
    }
}
