//! Reads matrices of quantized blocks as scaled integers, without rounding.

use std::ops::Range;

use nestling_formats::Invariant;
use nestling_formats::nested::{NestedError, ScaledPlanes, ScaledRows, TILE_ROWS};

use super::fetched::FetchedRuns;
use super::slices::{MatrixPlace, RowSlice};
use super::{CHUNK_BYTES, Checkpoint};
use crate::gguf::{BlockType, ScaledBlocks, ScaledRun, WrongBlock, take_units};
use crate::{ElementType, ImportError};

/// Columns of a tensor row that form a matrix row.
enum Columns {
    /// All columns in order.
    All,
    /// The listed column indices, in this order.
    Places(Vec<usize>),
}

/// Target size in bytes of one read on the way into tiles, small enough for a core's cache.
const READ_BYTES: usize = 1 << 17;

/// Target size in bytes of one direct read, each of which waits for the disk.
const DIRECT_BYTES: usize = 1 << 20;

/// Reusable buffers for reads of scaled integers.
#[derive(Debug, Default)]
pub struct ScaledScratch {
    blocks: Vec<u8>,
    /// Rows of the file before their columns are permuted.
    turned: ScaledRows,
    tile: ScaledRows,
}

/// A tile of sixteen rows, or the rest of a matrix.
#[derive(Clone, Copy, Debug)]
pub enum ScaledTile<'a> {
    /// Each byte has one code.
    Codes(&'a ScaledRows),
    /// Each byte has two codes of 4 bits, for [`ScaledPlanes::write_pairs`].
    Pairs(&'a ScaledRows),
}

impl ScaledTile<'_> {
    /// Writes the tile to planes, starting at row `first`.
    ///
    /// # Errors
    /// The errors of [`ScaledPlanes::write`] and [`ScaledPlanes::write_pairs`].
    pub fn write(self, first: usize, planes: &mut ScaledPlanes<'_>) -> Result<(), NestedError> {
        match self {
            Self::Codes(rows) => planes.write(first, rows),
            Self::Pairs(rows) => planes.write_pairs(first, rows),
        }
    }
}

/// Size of one read.
#[derive(Clone, Copy)]
struct ReadSteps<'a> {
    /// Approximate number of bytes.
    bytes: usize,
    /// Multiple to which the number of rows is rounded.
    rows: usize,
    /// Bytes that need no read.
    fetched: FetchedRuns<'a>,
}

/// Blocks of consecutive rows, with their location.
struct Blocks<'a> {
    part: &'a RowSlice<'a>,
    /// Indices of the column runs taken from a row, in order. `None` for whole rows.
    units: Option<&'a [usize]>,
    /// Index of the first block in its tensor.
    first: u64,
    bytes: &'a [u8],
    rows: usize,
}

impl MatrixPlace<'_> {
    /// Returns the block type of the matrix if it can be read as scaled integers. Returns `None` for floats,
    /// mixed types, transposed matrices, and permutations of fewer than 32 columns.
    pub fn blocks(&self) -> Option<ScaledBlocks> {
        let ElementType::Block(kind) = self.parts.first()?.tensor.element else { return None };
        let spans = self.parts.iter().map(|part| span_of(part, kind));
        let span = spans.reduce(|a, b| Some(a?.min(b?)))??;
        let companion = self.parts.iter().any(|part| part.companion.is_some());
        Some(ScaledBlocks { kind, span, companion })
    }
}

/// Returns the maximum number of 32-column groups that stay together in a part. `None` if the part has no
/// such groups.
fn span_of(part: &RowSlice<'_>, kind: BlockType) -> Option<u8> {
    let fits = part.tensor.element == ElementType::Block(kind)
        && part.scales.is_none()
        && !part.slice.transposed
        && part.source[1].is_multiple_of(kind.elements());
    let whole = ScaledBlocks::whole(kind).span;
    match columns(part).filter(|_| fits)? {
        Columns::All => Some(whole),
        Columns::Places(places) => {
            let mut spans = [8, 4, 2, 1].into_iter().filter(|span| *span <= whole);
            spans.find(|span| units(&places, *span).is_some())
        }
    }
}

/// Returns the columns taken from a part, or `None` if the selection is invalid.
fn columns(part: &RowSlice<'_>) -> Option<Columns> {
    let order = &part.slice.columns;
    if order.is_all() {
        return Some(Columns::All);
    }
    order.places(part.source[1]).map(Columns::Places)
}

/// Converts column indices to indices of runs of `span` groups of 32. Returns `None` if they are not such
/// runs.
fn units(places: &[usize], span: u8) -> Option<Vec<usize>> {
    let length = 32 * usize::from(span);
    let unit = |places: &[usize]| {
        let first = places[0];
        let follow = places.iter().zip(first..).all(|(place, expected)| *place == expected);
        let whole = places.len() == length && first.is_multiple_of(length);
        (follow && whole).then_some(first / length)
    };
    places.chunks(length).map(unit).collect()
}

fn blocks_of(place: &MatrixPlace<'_>) -> Result<ScaledBlocks, ImportError> {
    Ok(place.blocks().invariant("only matrices of blocks are scaled integers")?)
}

/// Returns the column runs taken from a part's rows, or `None` if all columns are taken in order.
fn taken_units(
    part: &RowSlice<'_>,
    blocks: ScaledBlocks,
) -> Result<Option<Vec<usize>>, ImportError> {
    let span = blocks.span;
    Ok(match columns(part).invariant("every part has blocks")? {
        Columns::All if span == ScaledBlocks::whole(blocks.kind).span => None,
        Columns::All => Some((0..part.source[1] / (32 * usize::from(span))).collect()),
        Columns::Places(places) => Some(units(&places, span).invariant("spans stay together")?),
    })
}

/// Returns true if all blocks of a matrix keep their codes two to a byte: none is divided or moved.
fn has_pairs(place: &MatrixPlace<'_>, blocks: ScaledBlocks) -> Result<bool, ImportError> {
    let mut are_in_order = blocks.kind.has_pairs() && !blocks.companion;
    for part in &place.parts {
        are_in_order = are_in_order && taken_units(part, blocks)?.is_none();
    }
    Ok(are_in_order)
}

impl Checkpoint {
    /// Reads `rows` rows of a matrix, starting at `first`, as scaled integers. The codec is that of
    /// [`MatrixPlace::blocks`], which must not be `None`.
    ///
    /// # Errors
    /// [`ImportError::Io`], [`ImportError::Changed`], [`ImportError::BlockScale`] for a scale that is
    /// infinite, NaN or too large, or [`ImportError::Limit`] if the matrix has too few rows.
    pub fn read_scaled_rows(
        &self,
        place: &MatrixPlace<'_>,
        first: usize,
        rows: usize,
    ) -> Result<ScaledRows, ImportError> {
        let rows = first..first.saturating_add(rows);
        self.check_end(place, &rows)?;
        let blocks = blocks_of(place)?;
        let mut out = blocks.rows(rows.len(), place.cols())?;
        let (mut bytes, mut turned, mut done) = (Vec::new(), ScaledRows::default(), 0);
        let steps = ReadSteps { bytes: CHUNK_BYTES, rows: 1, fetched: FetchedRuns::default() };
        self.visit_blocks(place, rows, steps, &mut bytes, |read| {
            self.transcode(blocks, &read, &mut turned, &mut ScaledRun::from_row(&mut out, done))?;
            done += read.rows;
            Ok::<_, ImportError>(())
        })?;
        Ok(out)
    }

    /// Reads rows in tiles of sixteen; the last tile may have fewer. `each` receives a tile and the index of
    /// its first row relative to `rows`. Bytes in `fetched` are not read again.
    ///
    /// # Errors
    /// The errors of [`Self::read_scaled_rows`], and errors returned by `each`.
    pub fn read_scaled_tiles<E: From<ImportError>>(
        &self,
        place: &MatrixPlace<'_>,
        rows: Range<usize>,
        fetched: FetchedRuns<'_>,
        scratch: &mut ScaledScratch,
        mut each: impl FnMut(usize, ScaledTile<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.check_end(place, &rows)?;
        let blocks = blocks_of(place)?;
        let has_pairs = has_pairs(place, blocks)?;
        let ScaledScratch { blocks: bytes, turned, tile } = scratch;
        let (count, cols) = (rows.len(), place.cols());
        let (mut done, mut filled) = (0, 0);
        let steps = ReadSteps { bytes: READ_BYTES, rows: TILE_ROWS, fetched };
        self.visit_blocks(place, rows, steps, bytes, |mut read| {
            let of_row = read.bytes.len() / read.rows;
            while read.rows > 0 {
                let of_tile = TILE_ROWS.min(count - done);
                let in_pairs = has_pairs && of_tile == TILE_ROWS;
                if filled == 0 {
                    let sized = match in_pairs {
                        true => blocks.resize_pairs(tile, of_tile, cols),
                        false => blocks.resize(tile, of_tile, cols),
                    };
                    sized.map_err(ImportError::from)?;
                }
                let now = read.rows.min(of_tile - filled);
                let (bytes, later) = read.bytes.split_at(now * of_row);
                let part = Blocks { bytes, rows: now, ..read };
                let mut run = ScaledRun::from_row(tile, filled);
                match in_pairs {
                    true => {
                        let moved = blocks.kind.transcode_pairs(bytes, &mut run);
                        moved.map_err(|wrong| self.wrong_block(&part, wrong))?;
                    }
                    false => self.transcode(blocks, &part, turned, &mut run)?,
                }
                let passed = bytes.len() / blocks.kind.bytes();
                read = Blocks {
                    first: read.first + passed as u64,
                    bytes: later,
                    rows: read.rows - now,
                    ..read
                };
                filled += now;
                if filled == of_tile {
                    let whole = match in_pairs {
                        true => ScaledTile::Pairs(tile),
                        false => ScaledTile::Codes(tile),
                    };
                    each(done, whole)?;
                    (done, filled) = (done + of_tile, 0);
                }
            }
            Ok(())
        })
    }

    fn check_end(&self, place: &MatrixPlace<'_>, rows: &Range<usize>) -> Result<(), ImportError> {
        if rows.end <= place.rows() {
            return Ok(());
        }
        Err(ImportError::Limit {
            file: self.directory.display().to_string(),
            what: "the end of a read of rows".into(),
            found: rows.end as u64,
            limit: place.rows() as u64,
        })
    }

    /// Reads rows into a buffer and calls `each` with each run of blocks.
    fn visit_blocks<E: From<ImportError>>(
        &self,
        place: &MatrixPlace<'_>,
        rows: Range<usize>,
        steps: ReadSteps<'_>,
        bytes: &mut Vec<u8>,
        mut each: impl FnMut(Blocks<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let blocks = blocks_of(place)?;
        let mut start = 0;
        for part in &place.parts {
            let stop = start + part.taken[0];
            let (from, to) = (rows.start.clamp(start, stop), rows.end.clamp(start, stop));
            let (mut row, end) = (from - start, to - start);
            start = stop;
            let units = taken_units(part, blocks)?;
            let kind = blocks.kind;
            let row_blocks = part.source[1] / kind.elements();
            let file = self.file_of(part.tensor)?;
            let passes = steps.fetched.is_empty() && file.passes_page_cache();
            let bytes_max = if passes { steps.bytes.max(DIRECT_BYTES) } else { steps.bytes };
            let together = (bytes_max / (row_blocks * kind.bytes()).max(1)).max(1);
            let together = together.next_multiple_of(steps.rows);
            while row < end {
                // Rows that are adjacent in the file are read together.
                let at = |row: usize| part.slice.rows.place(row);
                let near = |count: &usize| {
                    *count <= together && at(row + count - 1) == at(row) + count - 1
                };
                let count = (1..=end - row).take_while(near).last().unwrap_or(1);
                let length = count * row_blocks * kind.bytes();
                let first = part.first_element(at(row)) / kind.elements() as u64;
                let offset = first * kind.bytes() as u64;
                let at = part.tensor.offset.saturating_add(offset);
                let bytes = match steps.fetched.find(part.tensor.file, at, length) {
                    Some(bytes) => bytes,
                    None => {
                        let range = self.read_run(part.tensor, offset, length, bytes)?;
                        &bytes[range]
                    }
                };
                each(Blocks { part, units: units.as_deref(), first, bytes, rows: count })?;
                row += count;
            }
        }
        Ok(())
    }

    /// Transcodes the blocks of rows into `run`.
    fn transcode(
        &self,
        blocks: ScaledBlocks,
        read: &Blocks<'_>,
        turned: &mut ScaledRows,
        run: &mut ScaledRun<'_>,
    ) -> Result<(), ImportError> {
        let (kind, whole, part) = (blocks.kind, ScaledBlocks::whole(blocks.kind), read.part);
        let moved = match read.units {
            None => kind.transcode(read.bytes, run),
            Some(units) => {
                whole.resize(turned, read.rows, part.source[1])?;
                let moved = kind.transcode(read.bytes, &mut ScaledRun::from_row(turned, 0));
                take_units(turned, &whole.form(), blocks.span, units, run);
                moved
            }
        };
        if blocks.companion {
            let spans = part.taken[1].div_ceil(32 * usize::from(blocks.span));
            // Default: a part without a scale tensor is not scaled.
            let scale = part.companion.map_or(1.0, |(_, scale)| scale).to_le_bytes();
            let scales = run.scales.as_chunks_mut::<4>().0.iter_mut();
            scales.take(read.rows * spans).for_each(|out| *out = scale);
        }
        moved.map_err(|wrong| self.wrong_block(read, wrong))
    }

    fn wrong_block(&self, read: &Blocks<'_>, wrong: WrongBlock) -> ImportError {
        let WrongBlock { block, scale } = wrong;
        let (name, block) = (read.part.slice.name.clone(), read.first + block as u64);
        self.wrong_scale(name, read.part.tensor, block, scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_stay_together_are_units() {
        let turned: Vec<usize> = (128..256).chain(0..128).chain(384..512).collect();
        assert_eq!(units(&turned, 4), Some(vec![1, 0, 3]));
        assert_eq!(units(&turned, 2), Some(vec![2, 3, 0, 1, 6, 7]));
        assert_eq!(units(&turned, 8), None);
        let shifted: Vec<usize> = (16..48).collect();
        assert_eq!(units(&shifted, 1), None);
        assert_eq!(units(&turned[..40], 1), None);
    }
}
