//! Matrices whose rows are blocks of quantized numbers, as scaled integers: no number is rounded.

use nestling_formats::Invariant;
use nestling_formats::nested::ScaledRows;

use super::slices::{MatrixPlace, RowSlice};
use super::{CHUNK_BYTES, Checkpoint};
use crate::gguf::{BlockType, ScaledBlocks, ScaledRun, WrongBlock, take_units};
use crate::{ElementType, ImportError};

/// Which columns of a row of the tensor make a row of the matrix.
enum Columns {
    /// All of them, in their order.
    All,
    /// Those places, one after the other.
    Places(Vec<usize>),
}

/// Rows of a matrix that are read next, and where they go.
struct Rows {
    /// The first row, in the part that they are taken of.
    first: usize,
    count: usize,
    /// The row of what is read that the first one becomes.
    to: usize,
}

impl MatrixPlace<'_> {
    /// The blocks that the matrix's rows are made of, if all of it is of one type; none for floats,
    /// for what is turned over, and where less than 32 columns move together.
    pub fn blocks(&self) -> Option<ScaledBlocks> {
        let ElementType::Block(kind) = self.parts.first()?.tensor.element else { return None };
        let spans = self.parts.iter().map(|part| span_of(part, kind));
        let span = spans.reduce(|a, b| Some(a?.min(b?)))??;
        Some(ScaledBlocks { kind, span })
    }
}

/// The most groups of 32 columns that stay together in a part; none if it is not made of such.
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

/// The columns that are taken of a part; none if they cannot be.
fn columns(part: &RowSlice<'_>) -> Option<Columns> {
    let order = &part.slice.columns;
    if order.is_all() {
        return Some(Columns::All);
    }
    order.places(part.source[1]).map(Columns::Places)
}

/// Places as numbers of runs of `span` groups of 32, if they are that.
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

impl Checkpoint {
    /// `rows` rows of a matrix from `first` on, as integers of the codec of
    /// [`MatrixPlace::blocks`], which must be there.
    ///
    /// # Errors
    /// [`ImportError::Io`], [`ImportError::Changed`]; [`ImportError::BlockScale`] for a scale that
    /// is infinite, not a number or too large; [`ImportError::Limit`] if the matrix ends before.
    pub fn read_scaled_rows(
        &self,
        place: &MatrixPlace<'_>,
        first: usize,
        rows: usize,
    ) -> Result<ScaledRows, ImportError> {
        let end = first.saturating_add(rows);
        if end > place.rows() {
            return Err(ImportError::Limit {
                file: self.directory.display().to_string(),
                what: "the end of a read of rows".into(),
                found: end as u64,
                limit: place.rows() as u64,
            });
        }
        let blocks = place.blocks().invariant("only matrices of blocks are scaled integers")?;
        let mut out = blocks.rows(rows, place.cols());
        let mut start = 0;
        for part in &place.parts {
            let stop = start + part.taken[0];
            let (from, to) = (first.clamp(start, stop), end.clamp(start, stop));
            let rows = Rows { first: from - start, count: to - from, to: from.max(first) - first };
            self.read_blocks(part, blocks, rows, &mut out)?;
            start = stop;
        }
        Ok(out)
    }

    /// Moves rows of a part into `out`.
    fn read_blocks(
        &self,
        part: &RowSlice<'_>,
        blocks: ScaledBlocks,
        rows: Rows,
        out: &mut ScaledRows,
    ) -> Result<(), ImportError> {
        let (kind, whole) = (blocks.kind, ScaledBlocks::whole(blocks.kind));
        let units = match columns(part).invariant("every part has blocks")? {
            Columns::All if blocks == whole => None,
            Columns::All => Some((0..part.source[1] / (32 * usize::from(blocks.span))).collect()),
            Columns::Places(places) => {
                Some(units(&places, blocks.span).invariant("spans stay together")?)
            }
        };
        let row_blocks = part.source[1] / kind.elements();
        let together = (CHUNK_BYTES / (row_blocks * kind.bytes()).max(1)).max(1);
        let mut bytes = Vec::new();
        let mut done = 0;
        while done < rows.count {
            // Rows that follow each other in the file are one read.
            let place = |row: usize| part.slice.rows.place(rows.first + done + row);
            let start = place(0);
            let near = |count: &usize| *count <= together && place(count - 1) == start + count - 1;
            let count = (1..=rows.count - done).take_while(near).last().unwrap_or(1);
            bytes.resize(count * row_blocks * kind.bytes(), 0);
            let first_block = part.first_element(start) / kind.elements() as u64;
            self.read_into(part.tensor, first_block * kind.bytes() as u64, &mut bytes)?;
            let mut run = ScaledRun::from_row(out, rows.to + done);
            let moved = match &units {
                None => kind.transcode(&bytes, &mut run),
                Some(units) => {
                    let mut all = whole.rows(count, part.source[1]);
                    let moved = kind.transcode(&bytes, &mut ScaledRun::from_row(&mut all, 0));
                    take_units(&all, &whole.codec().form, blocks.span, units, &mut run);
                    moved
                }
            };
            moved.map_err(|WrongBlock { block, scale }| {
                let (name, block) = (part.slice.name.clone(), first_block + block as u64);
                self.wrong_scale(name, part.tensor, block, scale)
            })?;
            done += count;
        }
        Ok(())
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
