//! Conversion of a row-major matrix to the tiled layout that products read.

use nestling_core::arena::AlignedBytes;
use nestling_core::error::EngineError;
use nestling_core::weights::{ByteRegion, NestedMatrix, PlaneRegions};
use nestling_formats::memory::{try_filled, try_zeroed};
use nestling_formats::nested::{
    CodecRef, GROUP, Layout, NestedError, NestedView, QuantizedMatrix, ScaledForm, ScaledRows,
    TILE_ROWS, ZERO_STEP, merge_p3_p4, merged_bytes, pack_plane, pack_scaled_plane,
};
use nestling_formats::{Invariant, Plane};

enum Codes {
    Nested(QuantizedMatrix),
    Scaled(ScaledRows, ScaledForm),
}

impl Codes {
    fn of(view: &NestedView) -> Result<Self, EngineError> {
        Ok(match view.codec() {
            CodecRef::Nested(_) => Self::Nested(nested(view)?),
            CodecRef::Scaled(codec) => Self::Scaled(view.scaled_rows()?, codec.form),
        })
    }

    fn pack(&self, plane: Plane, out: &mut [u8]) -> Result<(), NestedError> {
        match self {
            Self::Nested(codes) => pack_plane(codes, Layout::Tile16, plane, out),
            Self::Scaled(rows, form) => pack_scaled_plane(rows, form, Layout::Tile16, plane, out),
        }
    }
}

fn nested(view: &NestedView) -> Result<QuantizedMatrix, EngineError> {
    let (rows, cols) = (view.rows(), view.cols());
    let (tiles, groups) = (view.tiles(), view.groups());
    let (padded_rows, padded_cols) = (tiles * TILE_ROWS, groups * GROUP);
    let mut codes = QuantizedMatrix {
        rows,
        cols,
        codes: try_zeroed("codes of a matrix", padded_rows * padded_cols)?,
        row_scales: try_zeroed("scales of a matrix", padded_rows)?,
        steps: try_filled("steps of a matrix", ZERO_STEP, padded_rows * groups)?,
        tile_tables: (0..tiles).map(|tile| view.tile_table(tile)).collect(),
    };
    for row in 0..rows {
        view.unpack_row_codes(view.level(), row, &mut codes.codes[row * padded_cols..][..cols])?;
        codes.row_scales[row] = view.row_scale(row);
        for group in 0..groups {
            codes.steps[row * groups + group] = view.step(row, group);
        }
    }
    Ok(codes)
}

/// Returns the same codes in the tiled layout.
pub(super) fn tiled(matrix: &NestedMatrix) -> Result<NestedMatrix, EngineError> {
    let view = matrix.view();
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let codes = Codes::of(&view)?;
    let pack = |plane: Plane| {
        let length = matrix.codec().form().plane_bytes(Layout::Tile16, rows, cols, plane);
        let length = length.invariant("a matrix that is held has a size")?;
        let mut bytes = AlignedBytes::zeroed("weights", length)?;
        codes.pack(plane, bytes.bytes_mut())?;
        Ok::<_, EngineError>(ByteRegion::from_aligned(bytes))
    };
    let held = |plane: Plane| (plane.level() <= view.level()).then(|| pack(plane)).transpose();
    let (p3, p4) = (held(Plane::P3)?, held(Plane::P4)?);
    let merged = match (&p3, &p4) {
        (Some(p3), Some(p4)) => Some(merge(rows, cols, Layout::Tile16, p3, p4)?),
        _ => None,
    };
    let (p3, p4) = if merged.is_some() { (None, None) } else { (p3, p4) };
    let (p2, p6, p8) = (pack(Plane::P2)?, held(Plane::P6)?, held(Plane::P8)?);
    let regions = PlaneRegions { p2, p3, p4, p34: merged, p6, p8 };
    matrix.with_layout(Layout::Tile16, regions)
}

pub(super) fn merge(
    rows: usize,
    cols: usize,
    layout: Layout,
    p3: &ByteRegion,
    p4: &ByteRegion,
) -> Result<ByteRegion, EngineError> {
    let length = merged_bytes(layout, rows, cols).invariant("planes that are held have sizes")?;
    let mut merged = AlignedBytes::zeroed("weights", length)?;
    merge_p3_p4(layout, p3.bytes(), p4.bytes(), merged.bytes_mut())?;
    Ok(ByteRegion::from_aligned(merged))
}
