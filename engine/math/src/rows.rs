//! Activations quantized to int8.

use nestling_formats::memory::{OutOfMemory, try_reserve};
use nestling_formats::nested::GROUP;

use crate::aligned::STEP;

/// One group of a row's activations. A kernel needs a single load address per row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct QuantizedGroup {
    /// Values in -127..=127; columns beyond the row are 0.
    pub values: [i8; GROUP],
    /// Scale, `amax / 127`.
    pub scale: f32,
    /// Correction for the offset of unsigned weights: -128 times the sum of `values`.
    pub correction: i32,
}

/// Rows of quantized activations.
#[derive(Clone, Debug, Default)]
pub struct QuantizedRows {
    groups: usize,
    cells: Vec<QuantizedGroup>, // [rows, groups]
}

impl QuantizedRows {
    /// Reserves memory for `rows` rows of `cols` columns.
    ///
    /// # Errors
    /// Fails with [`OutOfMemory`].
    pub fn try_reserve(&mut self, rows: usize, cols: usize) -> Result<(), OutOfMemory> {
        let more = (rows * cols.div_ceil(GROUP)).saturating_sub(self.cells.len());
        try_reserve(&mut self.cells, STEP, more)
    }

    /// Sets the size to `rows` rows of `cols` columns, with unspecified contents. It does not allocate after
    /// a sufficient [`Self::try_reserve`].
    pub fn resize(&mut self, rows: usize, cols: usize) {
        self.groups = cols.div_ceil(GROUP);
        self.cells.resize(rows * self.groups, QuantizedGroup::default());
    }

    /// Returns the number of groups per row.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        // Default: a buffer without columns has no rows.
        self.cells.len().checked_div(self.groups).unwrap_or(0)
    }

    /// Returns the groups of one row.
    ///
    /// # Panics
    /// Panics if there is no such row.
    pub fn row(&self, row: usize) -> &[QuantizedGroup] {
        &self.cells[row * self.groups..(row + 1) * self.groups]
    }

    /// Returns the groups of one row for writing.
    ///
    /// # Panics
    /// Panics if there is no such row.
    pub fn row_mut(&mut self, row: usize) -> &mut [QuantizedGroup] {
        &mut self.cells[row * self.groups..(row + 1) * self.groups]
    }

    /// Returns all rows, each a slice of [`Self::groups`] cells, for callers that fill them in parallel.
    pub fn cells_mut(&mut self) -> &mut [QuantizedGroup] {
        &mut self.cells
    }
}

/// Number of rows that are interleaved in a [`PackedGroup`].
pub const PACKED_ROWS: usize = 8;

/// One group of eight rows. Each number of a [`QuantizedGroup`] is beside those of the other rows, so that a
/// kernel reaches all of them from one address.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct PackedGroup {
    /// Values, four of each row as the bytes of a word, `[columns / 4, rows]`.
    pub values: [[i32; PACKED_ROWS]; GROUP / 4],
    /// Scales of the rows.
    pub scales: [f32; PACKED_ROWS],
    /// Corrections of the rows.
    pub corrections: [i32; PACKED_ROWS],
}

impl PackedGroup {
    #[inline]
    fn set(&mut self, lane: usize, cell: &QuantizedGroup) {
        let words: [i32; GROUP / 4] = bytemuck::cast(cell.values);
        for (of_rows, word) in self.values.iter_mut().zip(words) {
            of_rows[lane] = word;
        }
        self.scales[lane] = cell.scale;
        self.corrections[lane] = cell.correction;
    }
}

/// Rows of quantized activations in blocks of eight, in an order that products choose.
#[derive(Clone, Debug, Default)]
pub struct PackedRows {
    groups: usize,
    blocks: Vec<PackedBlock>,
    cells: Vec<PackedGroup>, // [blocks, groups]
}

/// Rows of one block, `count` of them.
#[derive(Clone, Copy, Debug, Default)]
struct PackedBlock {
    rows: [u32; PACKED_ROWS],
    count: usize,
}

impl PackedRows {
    /// Removes all blocks. New ones have rows of `groups` groups.
    pub fn clear(&mut self, groups: usize) {
        self.groups = groups;
        self.blocks.clear();
    }

    /// Appends blocks for some rows and returns the index of the first block.
    pub fn push(&mut self, rows: &[u32]) -> usize {
        let first = self.blocks.len();
        for some in rows.chunks(PACKED_ROWS) {
            let mut block = PackedBlock { count: some.len(), ..PackedBlock::default() };
            block.rows[..some.len()].copy_from_slice(some);
            self.blocks.push(block);
        }
        first
    }

    /// Reserves memory for the blocks' cells.
    ///
    /// # Errors
    /// Fails with [`OutOfMemory`].
    pub fn try_reserve(&mut self) -> Result<(), OutOfMemory> {
        let more = (self.blocks.len() * self.groups).saturating_sub(self.cells.len());
        try_reserve(&mut self.cells, STEP, more)
    }

    /// Resizes the blocks' cells and returns them together with the list of blocks.
    pub fn cells_mut(&mut self) -> (&mut [PackedGroup], PackedBlocks<'_>) {
        self.cells.resize(self.blocks.len() * self.groups, PackedGroup::default());
        (&mut self.cells, PackedBlocks(&self.blocks))
    }

    /// Returns the cells of all blocks from `block` on.
    pub fn from_block(&self, block: usize) -> &[PackedGroup] {
        &self.cells[block * self.groups..]
    }
}

/// Rows of each block.
#[derive(Clone, Copy, Debug)]
pub struct PackedBlocks<'a>(&'a [PackedBlock]);

impl PackedBlocks<'_> {
    /// Copies the rows of one block. Unused lanes are unchanged.
    pub fn fill(&self, block: usize, x: &QuantizedRows, cells: &mut [PackedGroup]) {
        let block = &self.0[block];
        for (lane, row) in block.rows[..block.count].iter().enumerate() {
            for (cell, from) in cells.iter_mut().zip(x.row(*row as usize)) {
                cell.set(lane, from);
            }
        }
    }
}

/// Valid indices of rows of activations, for a product.
#[derive(Clone, Copy, Debug)]
pub struct RowList<'a> {
    x: &'a QuantizedRows,
    rows: &'a [u32],
    /// The same rows in blocks of eight, `[blocks, groups]` and possibly more; empty if not packed.
    packed: &'a [PackedGroup],
}

impl<'a> RowList<'a> {
    /// Creates a list of rows that are not packed.
    ///
    /// # Panics
    /// Panics if a row is beyond those of `x`.
    pub fn new(x: &'a QuantizedRows, rows: &'a [u32]) -> Self {
        let count = x.rows();
        assert!(rows.iter().all(|row| (*row as usize) < count), "a row of {count}");
        Self { x, rows, packed: &[] }
    }

    /// Returns the same rows, packed from block `first` on.
    ///
    /// # Panics
    /// Panics if the number of groups differs or if there are fewer blocks.
    #[must_use]
    pub fn with_packed(self, packed: &'a PackedRows, first: usize) -> Self {
        let (groups, packed) = (packed.groups, packed.from_block(first));
        let blocks = self.rows.len().div_ceil(PACKED_ROWS);
        assert!(groups == self.x.groups && packed.len() >= blocks * groups, "{blocks} blocks");
        Self { packed, ..self }
    }

    /// Returns the quantized rows that the list refers to.
    pub fn source(&self) -> &'a QuantizedRows {
        self.x
    }

    /// Returns the indices of the rows.
    pub fn rows(&self) -> &'a [u32] {
        self.rows
    }

    /// Returns the rows in blocks of eight, with at least the required number of blocks; empty if not packed.
    pub fn packed(&self) -> &'a [PackedGroup] {
        self.packed
    }

    /// Splits the list into chunks of at most `size` rows. `size` is a multiple of eight, or at least the
    /// number of rows.
    pub fn chunks(self, size: usize) -> impl Iterator<Item = Self> {
        (0..self.rows.len().div_ceil(size.max(1))).map(move |index| self.chunk(index, size))
    }

    /// Returns one of [`Self::chunks`].
    pub fn chunk(self, index: usize, size: usize) -> Self {
        let (start, end) = (index * size, self.rows.len().min((index + 1) * size));
        let cells = start / PACKED_ROWS * self.x.groups();
        // Default: rows that are not packed have no cells.
        let packed = self.packed.get(cells..).unwrap_or_default();
        Self { x: self.x, rows: &self.rows[start..end], packed }
    }
}
