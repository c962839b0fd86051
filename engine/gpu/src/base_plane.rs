//! The first plane of a matrix of codes, whatever its codec.

use std::ops::Range;

use nestling_formats::nested::{Layout, PlaneForm, ScaledParts, base_parts};

/// Parts of plane P2: the codes, and four before them.
pub const BASE_PARTS: usize = 5;

/// Where the parts of plane P2 lie, the codes last: in the nested code after row scales, tables of
/// tiles, steps and their high bits; with scaled integers after scales, minima, sub-scales and their
/// minima. None for a matrix that is empty or too large.
pub fn base_ranges(
    form: &PlaneForm,
    layout: Layout,
    rows: usize,
    cols: usize,
) -> Option<[Range<usize>; BASE_PARTS]> {
    match form {
        PlaneForm::Nested => {
            let parts = base_parts(layout, rows, cols)?;
            let (scales, tables) = (parts.row_scales, parts.tile_tables);
            Some([scales, tables, parts.steps, parts.step_high, parts.codes])
        }
        PlaneForm::Scaled(form) => {
            let parts = ScaledParts::new(form, layout, rows, cols)?;
            let (scales, minima) = (parts.scales, parts.minima);
            Some([scales, minima, parts.sub_scales, parts.sub_minima, parts.codes])
        }
    }
}
