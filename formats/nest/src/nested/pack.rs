//! Packing of a coded matrix into its planes.

use super::layout::{Grid, base_parts, plane_bytes};
use super::{GROUP, Layout, NestedError, QuantizedMatrix, TILE_ROWS};
use crate::Plane;

/// Packs one plane of `matrix` into `out`, which must have [`plane_bytes`] bytes.
pub fn pack_plane(
    matrix: &QuantizedMatrix,
    layout: Layout,
    plane: Plane,
    out: &mut [u8],
) -> Result<(), NestedError> {
    let grid = matrix.check()?;
    let shape = NestedError::Shape { rows: matrix.rows, cols: matrix.cols };
    let parts = base_parts(layout, matrix.rows, matrix.cols).ok_or(shape.clone())?;
    let expected = plane_bytes(layout, matrix.rows, matrix.cols, plane).ok_or(shape)?;
    if out.len() != expected {
        return Err(NestedError::PlaneLength { plane, expected, found: out.len() });
    }
    out.fill(0);
    if plane != Plane::P2 {
        pack_codes(matrix, &grid, layout, plane, out);
        return Ok(());
    }
    for (bytes, scale) in out[parts.row_scales].chunks_exact_mut(2).zip(&matrix.row_scales) {
        bytes.copy_from_slice(&scale.to_le_bytes());
    }
    out[parts.tile_tables].copy_from_slice(&matrix.tile_tables);
    match layout {
        Layout::Tile16 => {
            pack_step_low(matrix, &grid, &mut out[parts.steps]);
            pack_step_high(matrix, &grid, &mut out[parts.step_high]);
        }
        Layout::RowMajor => {
            let bytes = parts.steps.len();
            out[parts.steps].copy_from_slice(&matrix.steps[..bytes]);
        }
    }
    pack_codes(matrix, &grid, layout, plane, &mut out[parts.codes]);
    Ok(())
}

fn pack_step_low(matrix: &QuantizedMatrix, grid: &Grid, out: &mut [u8]) {
    for (cell, bytes) in out.chunks_exact_mut(8).enumerate() {
        for (lane, byte) in bytes.iter_mut().enumerate() {
            let step = |row: usize| {
                let row = cell / grid.groups * TILE_ROWS + row;
                matrix.steps[row * grid.groups + cell % grid.groups] & 15
            };
            *byte = step(lane) | step(lane + 8) << 4;
        }
    }
}

fn pack_step_high(matrix: &QuantizedMatrix, grid: &Grid, out: &mut [u8]) {
    for (cell, bytes) in out.chunks_exact_mut(2).enumerate() {
        let first_row = cell / grid.groups * TILE_ROWS;
        let bits = (0..TILE_ROWS).fold(0u16, |bits, row| {
            let step = matrix.steps[(first_row + row) * grid.groups + cell % grid.groups];
            bits | u16::from(step >> 4) << row
        });
        bytes.copy_from_slice(&bits.to_le_bytes());
    }
}

fn pack_codes(matrix: &QuantizedMatrix, grid: &Grid, layout: Layout, plane: Plane, out: &mut [u8]) {
    let rows = match layout {
        Layout::Tile16 => grid.tiles * TILE_ROWS,
        Layout::RowMajor => grid.rows,
    };
    let mask = (1u8 << plane.bits()) - 1;
    for (row, codes) in matrix.codes.chunks_exact(grid.groups * GROUP).take(rows).enumerate() {
        for (col, code) in codes.iter().enumerate() {
            let (byte, shift) = grid.position(layout, plane.bits(), row, col);
            out[byte] |= (code >> plane.shift() & mask) << shift;
        }
    }
}

/// Merges planes P3 and P4 into one 2-bit digit, `p3 << 1 | p4`. The output has the layout of a 2-bit plane.
///
/// `out` must be twice as long as each plane. In [`Layout::Tile16`] the lengths are multiples of 64 bytes.
pub fn merge_p3_p4(
    layout: Layout,
    p3: &[u8],
    p4: &[u8],
    out: &mut [u8],
) -> Result<(), NestedError> {
    let error = |plane, expected, found| Err(NestedError::PlaneLength { plane, expected, found });
    if p3.len() != p4.len() {
        return error(Plane::P4, p3.len(), p4.len());
    }
    if out.len() != p3.len() * 2 {
        return Err(NestedError::Length {
            what: "merged plane",
            expected: p3.len() * 2,
            found: out.len(),
        });
    }
    match layout {
        Layout::Tile16 => {
            if !p3.len().is_multiple_of(64) {
                return error(Plane::P3, p3.len().next_multiple_of(64), p3.len());
            }
            let planes = p3.chunks_exact(64).zip(p4.chunks_exact(64));
            for (out, (p3, p4)) in out.chunks_exact_mut(128).zip(planes) {
                let (low, high) = out.split_at_mut(64);
                for (lane, (b3, b4)) in p3.iter().zip(p4).enumerate() {
                    low[lane] = spread(*b3) << 1 | spread(*b4);
                    high[lane] = spread(*b3 >> 4) << 1 | spread(*b4 >> 4);
                }
            }
        }
        Layout::RowMajor => {
            for (out, (b3, b4)) in out.chunks_exact_mut(2).zip(p3.iter().zip(p4)) {
                out[0] = spread(*b3) << 1 | spread(*b4);
                out[1] = spread(*b3 >> 4) << 1 | spread(*b4 >> 4);
            }
        }
    }
    Ok(())
}

/// Moves bits 0 to 3 to bits 0, 2, 4 and 6.
const fn spread(nibble: u8) -> u8 {
    let pairs = (nibble & 3) | (nibble & 12) << 2;
    (pairs & 0x11) | (pairs & 0x22) << 1
}
