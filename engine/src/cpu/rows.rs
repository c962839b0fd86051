//! Activations quantized to int8.

use nestling_formats::nested::GROUP;

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
    /// Makes room for `rows` rows of `cols` columns; what they hold is unspecified.
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
        self.cells.len().checked_div(self.groups).unwrap_or(0)
    }

    /// The groups of one row; none beyond the last row.
    pub fn row(&self, row: usize) -> &[QuantizedGroup] {
        self.cells.get(row * self.groups..(row + 1) * self.groups).unwrap_or_default()
    }

    /// The groups of one row, to fill.
    pub fn row_mut(&mut self, row: usize) -> &mut [QuantizedGroup] {
        self.cells.get_mut(row * self.groups..(row + 1) * self.groups).unwrap_or_default()
    }

    /// All rows, each a slice of [`Self::groups`] cells, for callers that fill them in parallel.
    pub fn cells_mut(&mut self) -> &mut [QuantizedGroup] {
        &mut self.cells
    }
}
