//! Matrices whose rows are blocks of quantized numbers, as scaled integers: no number is rounded.

use nestling_formats::Invariant;
use nestling_formats::nested::ScaledRows;

use super::slices::{MatrixPlace, RowSlice};
use super::{CHUNK_BYTES, Checkpoint};
use crate::gguf::{BlockType, ScaledRun, WrongBlock};
use crate::{ElementType, ImportError};

/// Which blocks of a row of the tensor make a row of the matrix.
enum BlockOrder {
    /// All of them, in their order.
    All,
    /// Those, one after the other.
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
    /// The type of the blocks that the matrix's rows are made of, if all of it is of one type and
    /// blocks stay whole; none for floats, for what is turned over, and where columns are put in
    /// another order within blocks.
    pub fn blocks(&self) -> Option<BlockType> {
        let ElementType::Block(kind) = self.parts.first()?.tensor.element else { return None };
        let whole = |part: &RowSlice<'_>| block_order(part, kind).is_some();
        self.parts.iter().all(whole).then_some(kind)
    }
}

/// The blocks of a row that are taken of a part; none if the part is not made of whole ones.
fn block_order(part: &RowSlice<'_>, kind: BlockType) -> Option<BlockOrder> {
    let fits = part.tensor.element == ElementType::Block(kind)
        && part.scales.is_none()
        && !part.slice.transposed
        && part.source[1].is_multiple_of(kind.elements());
    if !fits {
        return None;
    }
    if part.slice.columns.is_all() {
        return Some(BlockOrder::All);
    }
    let places = part.slice.columns.places(part.source[1])?;
    let block = |columns: &[usize]| {
        let first = columns[0];
        let follow = columns.iter().zip(first..).all(|(column, expected)| *column == expected);
        let whole = columns.len() == kind.elements() && first.is_multiple_of(kind.elements());
        (follow && whole).then_some(first / kind.elements())
    };
    Some(BlockOrder::Places(places.chunks(kind.elements()).map(block).collect::<Option<_>>()?))
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
        let kind = place.blocks().invariant("only matrices of whole blocks are scaled integers")?;
        let mut out = kind.scaled_rows(rows, place.cols());
        let mut start = 0;
        for part in &place.parts {
            let stop = start + part.taken[0];
            let (from, to) = (first.clamp(start, stop), end.clamp(start, stop));
            let rows = Rows { first: from - start, count: to - from, to: from.max(first) - first };
            self.read_blocks(part, kind, rows, &mut out)?;
            start = stop;
        }
        Ok(out)
    }

    /// Moves rows of a part into `out`.
    fn read_blocks(
        &self,
        part: &RowSlice<'_>,
        kind: BlockType,
        rows: Rows,
        out: &mut ScaledRows,
    ) -> Result<(), ImportError> {
        let order = block_order(part, kind).invariant("every part has whole blocks")?;
        let row_blocks = part.source[1] / kind.elements();
        let row_bytes = row_blocks * kind.bytes();
        let together = (CHUNK_BYTES / row_bytes.max(1)).max(1);
        let (mut bytes, mut ordered) = (Vec::new(), Vec::new());
        let mut done = 0;
        while done < rows.count {
            // Rows that follow each other in the file are one read.
            let place = |row: usize| part.slice.rows.place(rows.first + done + row);
            let start = place(0);
            let near = |count: &usize| *count <= together && place(count - 1) == start + count - 1;
            let count = (1..=rows.count - done).take_while(near).last().unwrap_or(1);
            bytes.resize(count * row_bytes, 0);
            let first_block = part.first_element(start) / kind.elements() as u64;
            self.read_into(part.tensor, first_block * kind.bytes() as u64, &mut bytes)?;
            let (taken, taken_blocks) = match &order {
                BlockOrder::All => (&bytes, row_blocks),
                BlockOrder::Places(places) => {
                    ordered.clear();
                    for row in bytes.chunks_exact(row_bytes) {
                        let block = |at: &usize| &row[at * kind.bytes()..][..kind.bytes()];
                        places.iter().for_each(|at| ordered.extend_from_slice(block(at)));
                    }
                    (&ordered, places.len())
                }
            };
            let mut run = ScaledRun::from_row(out, rows.to + done);
            kind.transcode(taken, &mut run).map_err(|WrongBlock { block, scale }| {
                let (row, column) = (block / taken_blocks, block % taken_blocks);
                let column = match &order {
                    BlockOrder::All => column,
                    BlockOrder::Places(places) => places[column],
                };
                let block = first_block + (row * row_blocks + column) as u64;
                self.wrong_scale(part.slice.name.clone(), part.tensor, block, scale)
            })?;
            done += count;
        }
        Ok(())
    }
}
