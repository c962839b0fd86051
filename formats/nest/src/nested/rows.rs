//! Rows of a matrix as planes of their own.

use std::ops::Range;

use super::layout::{Grid, ScaledParts, base_parts};
use super::{CheckedSizes, Layout, PlaneForm, TILE_ROWS};
use crate::Plane;

/// Byte ranges of a plane that hold some of its rows, and their places in a plane of these rows alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaneRows {
    /// Size of the plane of these rows in bytes. Bytes that are not copied are zero.
    pub bytes: usize,
    /// Source range and destination offset of each part.
    pub copies: Vec<(Range<usize>, usize)>,
}

/// A part of plane P2, by what its bytes are proportional to.
struct Part {
    range: Range<usize>,
    is_per_tile: bool,
}

impl CheckedSizes {
    /// Returns where a plane holds the given rows: whole tiles, of which only the matrix's last may be short.
    /// `None` if they are not, or the plane lacks them.
    pub fn rows_of_plane(&self, plane: Plane, rows: Range<usize>) -> Option<PlaneRows> {
        let of = self.cut(&rows)?;
        if plane != Plane::P2 {
            let form = self.form();
            let all = form.plane_bytes(self.layout(), self.rows(), self.cols(), plane)?;
            let own = form.plane_bytes(self.layout(), rows.len(), self.cols(), plane)?;
            let start = self.offset_of(all, rows.start, self.layout() == Layout::Tile16);
            return Some(PlaneRows { bytes: own, copies: vec![(start..start + own, 0)] });
        }
        let all = self.base(self.rows())?;
        let own = self.base(of)?;
        let bytes = own.last()?.range.end;
        let copies = all.iter().zip(&own).map(|(all, own)| {
            let start =
                all.range.start + self.offset_of(all.range.len(), rows.start, all.is_per_tile);
            (start..start + own.range.len(), own.range.start)
        });
        Some(PlaneRows { bytes, copies: copies.collect() })
    }

    /// Returns where the merged plane of P3 and P4 holds the given rows, as [`Self::rows_of_plane`] does.
    pub fn rows_of_merged(&self, rows: Range<usize>) -> Option<PlaneRows> {
        let of = self.cut(&rows)?;
        let all = super::merged_bytes(self.layout(), self.rows(), self.cols())?;
        let own = super::merged_bytes(self.layout(), of, self.cols())?;
        let start = self.offset_of(all, rows.start, self.layout() == Layout::Tile16);
        Some(PlaneRows { bytes: own, copies: vec![(start..start + own, 0)] })
    }

    /// Returns the number of rows of a range, if it consists of whole tiles.
    fn cut(&self, rows: &Range<usize>) -> Option<usize> {
        let is_whole = |row: usize| row.is_multiple_of(TILE_ROWS) || row == self.rows();
        let fits = rows.start < rows.end && rows.end <= self.rows();
        (fits && is_whole(rows.start) && is_whole(rows.end)).then_some(rows.len())
    }

    /// Returns the offset of a row in `bytes` bytes that are divided evenly over tiles or rows.
    fn offset_of(&self, bytes: usize, row: usize, is_per_tile: bool) -> usize {
        match is_per_tile {
            true => bytes / self.rows().div_ceil(TILE_ROWS) * (row / TILE_ROWS),
            false => bytes / self.rows() * row,
        }
    }

    /// Returns the parts of plane P2 of a matrix with `rows` rows.
    fn base(&self, rows: usize) -> Option<Vec<Part>> {
        Grid::new(rows, self.cols())?;
        let tiles = self.layout() == Layout::Tile16;
        let part = |range, is_per_tile| Part { range, is_per_tile };
        Some(match self.form() {
            PlaneForm::Nested => {
                let parts = base_parts(self.layout(), rows, self.cols())?;
                vec![
                    part(parts.row_scales, tiles),
                    part(parts.tile_tables, true),
                    part(parts.steps, tiles),
                    part(parts.step_high, tiles),
                    part(parts.codes, tiles),
                ]
            }
            PlaneForm::Scaled(form) => {
                let parts = ScaledParts::new(&form, self.layout(), rows, self.cols())?;
                let ScaledParts { scales, minima, sub_scales, sub_minima, codes } = parts;
                let all = [scales, minima, sub_scales, sub_minima, codes];
                all.into_iter().map(|range| part(range, tiles)).collect()
            }
        })
    }
}
