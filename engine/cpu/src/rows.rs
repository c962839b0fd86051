//! Activations quantized to int8.

use nestling_formats::memory::{OutOfMemory, try_reserve};
use nestling_formats::nested::GROUP;

use super::aligned::STEP;

/// One group of a row's activations; one load address per row is all that a kernel needs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct QuantizedGroup {
    /// -127..=127; columns beyond the row are 0.
    pub values: [i8; GROUP],
    /// `amax / 127`.
    pub scale: f32,
    /// -128 times the sum of `values`: undoes the offset of unsigned weights.
    pub correction: i32,
}

/// Rows of quantized activations.
#[derive(Clone, Debug, Default)]
pub struct QuantizedRows {
    groups: usize,
    cells: Vec<QuantizedGroup>, // [rows, groups]
}

impl QuantizedRows {
    /// Takes the memory for `rows` rows of `cols` columns.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn try_reserve(&mut self, rows: usize, cols: usize) -> Result<(), OutOfMemory> {
        let more = (rows * cols.div_ceil(GROUP)).saturating_sub(self.cells.len());
        try_reserve(&mut self.cells, STEP, more)
    }

    /// Makes room for `rows` rows of `cols` columns; what they hold is unspecified. It takes no memory
    /// where [`Self::try_reserve`] was asked for it.
    pub fn resize(&mut self, rows: usize, cols: usize) {
        self.groups = cols.div_ceil(GROUP);
        self.cells.resize(rows * self.groups, QuantizedGroup::default());
    }

    /// Groups of a row.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        // Default: a buffer without columns has no rows.
        self.cells.len().checked_div(self.groups).unwrap_or(0)
    }

    /// The groups of one row; none beyond the last row.
    pub fn row(&self, row: usize) -> &[QuantizedGroup] {
        &self.cells[row * self.groups..(row + 1) * self.groups]
    }

    /// The groups of one row, to fill.
    pub fn row_mut(&mut self, row: usize) -> &mut [QuantizedGroup] {
        &mut self.cells[row * self.groups..(row + 1) * self.groups]
    }

    /// All rows, each a slice of [`Self::groups`] cells, for callers that fill them in parallel.
    pub fn cells_mut(&mut self) -> &mut [QuantizedGroup] {
        &mut self.cells
    }
}

/// Rows whose activations lie side by side in a [`PackedGroup`].
pub const PACKED_ROWS: usize = 8;

/// One group of eight rows: each number of a [`QuantizedGroup`] beside those of the other rows, so
/// that a kernel reaches all of them from one address.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct PackedGroup {
    /// Four values of each row as the bytes of a word, `[columns / 4, rows]`.
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

/// The rows of one block, `count` of them.
#[derive(Clone, Copy, Debug, Default)]
struct PackedBlock {
    rows: [u32; PACKED_ROWS],
    count: usize,
}

impl PackedRows {
    /// Forgets all blocks; those that follow have rows of `groups` groups.
    pub fn clear(&mut self, groups: usize) {
        self.groups = groups;
        self.blocks.clear();
    }

    /// Appends blocks for some rows and gives the first block's number.
    pub fn push(&mut self, rows: &[u32]) -> usize {
        let first = self.blocks.len();
        for some in rows.chunks(PACKED_ROWS) {
            let mut block = PackedBlock { count: some.len(), ..PackedBlock::default() };
            block.rows[..some.len()].copy_from_slice(some);
            self.blocks.push(block);
        }
        first
    }

    /// Takes the memory for the blocks' cells.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn try_reserve(&mut self) -> Result<(), OutOfMemory> {
        let more = (self.blocks.len() * self.groups).saturating_sub(self.cells.len());
        try_reserve(&mut self.cells, STEP, more)
    }

    /// Makes room for the blocks' cells and lends them beside the list of blocks.
    pub fn cells_mut(&mut self) -> (&mut [PackedGroup], PackedBlocks<'_>) {
        self.cells.resize(self.blocks.len() * self.groups, PackedGroup::default());
        (&mut self.cells, PackedBlocks(&self.blocks))
    }

    /// The cells of all blocks from one on.
    pub fn from_block(&self, block: usize) -> &[PackedGroup] {
        &self.cells[block * self.groups..]
    }
}

/// Which rows each block takes.
#[derive(Clone, Copy, Debug)]
pub struct PackedBlocks<'a>(&'a [PackedBlock]);

impl PackedBlocks<'_> {
    /// Copies one block's rows; rows that `x` lacks stay as they are.
    pub fn fill(&self, block: usize, x: &QuantizedRows, cells: &mut [PackedGroup]) {
        let block = &self.0[block];
        for (lane, row) in block.rows[..block.count].iter().enumerate() {
            for (cell, from) in cells.iter_mut().zip(x.row(*row as usize)) {
                cell.set(lane, from);
            }
        }
    }
}

/// Some rows of activations for a product, which are there.
#[derive(Clone, Copy, Debug)]
pub struct RowList<'a> {
    x: &'a QuantizedRows,
    rows: &'a [u32],
    /// The same in blocks of eight, `[blocks, groups]` and perhaps more; or nothing.
    packed: &'a [PackedGroup],
}

impl<'a> RowList<'a> {
    /// Rows that were not packed.
    ///
    /// # Panics
    /// With a row that `x` lacks.
    pub fn new(x: &'a QuantizedRows, rows: &'a [u32]) -> Self {
        let count = x.rows();
        assert!(rows.iter().all(|row| (*row as usize) < count), "a row of {count}");
        Self { x, rows, packed: &[] }
    }

    /// The same rows, which were packed from block `first` on.
    ///
    /// # Panics
    /// With other groups, or fewer blocks.
    #[must_use]
    pub fn with_packed(self, packed: &'a PackedRows, first: usize) -> Self {
        let (groups, packed) = (packed.groups, packed.from_block(first));
        let blocks = self.rows.len().div_ceil(PACKED_ROWS);
        assert!(groups == self.x.groups && packed.len() >= blocks * groups, "{blocks} blocks");
        Self { packed, ..self }
    }

    /// The quantized rows of which these are some.
    pub fn source(&self) -> &'a QuantizedRows {
        self.x
    }

    /// Their numbers.
    pub fn rows(&self) -> &'a [u32] {
        self.rows
    }

    /// Blocks of eight of these rows, at least as many as they fill, or nothing.
    pub fn packed(&self) -> &'a [PackedGroup] {
        self.packed
    }

    /// At most `size` rows at a time: all of them, or a multiple of eight.
    pub fn chunks(self, size: usize) -> impl Iterator<Item = Self> {
        (0..self.rows.len().div_ceil(size.max(1))).map(move |index| self.chunk(index, size))
    }

    /// The rows of one of [`Self::chunks`].
    pub fn chunk(self, index: usize, size: usize) -> Self {
        let (start, end) = (index * size, self.rows.len().min((index + 1) * size));
        let cells = start / PACKED_ROWS * self.x.groups();
        // Default: rows that were not packed lie in no cells.
        let packed = self.packed.get(cells..).unwrap_or_default();
        Self { x: self.x, rows: &self.rows[start..end], packed }
    }
}
