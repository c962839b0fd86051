//! Kernels for WebAssembly's SIMD128.
//!
//! A 128-bit vector holds four columns of four rows, a quarter of a tile. Levels 2 to 4 look values up by
//! `i8x16.swizzle`, levels 6 and 8 evaluate the formula in 16-bit lanes. Both multiply by `i32x4.dot_i16x8_s`,
//! with columns 0 and 2 separate from 1 and 3, so that each lane of a sum belongs to one row.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::wasm32::*;

use nestling_formats::Level;

use super::super::planes::simd128::{digits, insert, nibbles};
use super::super::rows::QuantizedGroup;
use super::super::vector::simd128::fma;
use super::{NestedWeights, QuantizedRows, RowList, TILE_ROWS, TileValues};

/// Number of activation rows that share one decoded vector.
const BLOCK: usize = 2;

/// Columns 0 and 2, and columns 1 and 3, of four rows in 16-bit lanes.
type Halves = [v128; 2];

/// Computes one tile for some rows.
///
/// # Safety
/// [`super::fits`] must hold.
pub unsafe fn tile(weights: &NestedWeights, tile: usize, rows: RowList, out: &mut [TileValues]) {
    let x = rows.source();
    for (rows, out) in rows.rows().chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
        // SAFETY: `fits` holds for a subset of the rows too.
        unsafe {
            match (weights.level, rows) {
                (Level::L2, [a]) => products::<2, 1>(weights, tile, x, &[*a], out),
                (Level::L2, [a, b, ..]) => products::<2, 2>(weights, tile, x, &[*a, *b], out),
                (Level::L3 | Level::L4, [a]) => products::<4, 1>(weights, tile, x, &[*a], out),
                (Level::L3 | Level::L4, [a, b, ..]) => {
                    products::<4, 2>(weights, tile, x, &[*a, *b], out);
                }
                (_, [a]) => products::<8, 1>(weights, tile, x, &[*a], out),
                (_, [a, b, ..]) => products::<8, 2>(weights, tile, x, &[*a, *b], out),
                (_, []) => {}
            }
        }
    }
}

/// Computes `T` rows. `BITS` is 2 at level 2, 4 at levels 3 and 4, and 8 at levels 6 and 8.
#[inline(always)]
unsafe fn products<const BITS: u8, const T: usize>(
    weights: &NestedWeights,
    tile: usize,
    x: &QuantizedRows,
    rows: &[u32; T],
    out: &mut [TileValues],
) {
    let x = rows.map(|row| x.row(row as usize));
    let (units, factors) = (weights.row_units(tile), weights.decode.steps.factors());
    // SAFETY: the table has 16 bytes.
    let table = unsafe { v128_load(weights.nibble_table(tile).as_ptr().cast()) };
    let mut sums = [[f32x4_splat(0.0); 4]; T];
    for group in 0..weights.groups {
        let cell = tile * weights.groups + group;
        let mut dots = [[i32x4_splat(0); 4]; T];
        let of_group = x.map(|x| &x[group]);
        // SAFETY: `group` is below the groups of the weights.
        unsafe {
            add_chunk::<BITS, 0, T>(weights, cell, table, of_group, &mut dots);
            add_chunk::<BITS, 1, T>(weights, cell, table, of_group, &mut dots);
            add_chunk::<BITS, 2, T>(weights, cell, table, of_group, &mut dots);
            add_chunk::<BITS, 3, T>(weights, cell, table, of_group, &mut dots);
            add_chunk::<BITS, 4, T>(weights, cell, table, of_group, &mut dots);
            add_chunk::<BITS, 5, T>(weights, cell, table, of_group, &mut dots);
            add_chunk::<BITS, 6, T>(weights, cell, table, of_group, &mut dots);
            add_chunk::<BITS, 7, T>(weights, cell, table, of_group, &mut dots);
        }
        let steps = weights.group_steps(cell);
        let scales: [f32; TILE_ROWS] =
            std::array::from_fn(|row| units[row] * factors[usize::from(steps[row] & 31)]);
        for quarter in 0..4 {
            // SAFETY: there are 16 scales.
            let scales = unsafe { v128_load(scales[4 * quarter..].as_ptr().cast()) };
            for t in 0..T {
                let scale = f32x4_mul(f32x4_splat(x[t][group].scale), scales);
                let dots = f32x4_convert_i32x4(dots[t][quarter]);
                sums[t][quarter] = fma(dots, scale, sums[t][quarter]);
            }
        }
    }
    for (out, sums) in out.iter_mut().zip(&sums) {
        for (out, sum) in out.as_chunks_mut::<4>().0.iter_mut().zip(sums) {
            // SAFETY: a chunk has four floats.
            unsafe { v128_store(out.as_mut_ptr().cast(), *sum) };
        }
    }
}

/// Adds the products of four columns of a tile. Shifts by constants are single instructions, so the chunk is one.
#[inline(always)]
unsafe fn add_chunk<const BITS: u8, const CHUNK: usize, const T: usize>(
    weights: &NestedWeights,
    cell: usize,
    table: v128,
    x: [&QuantizedGroup; T],
    dots: &mut [[v128; 4]; T],
) {
    let x: [Halves; T] = x.map(|x| halves(chunk_of(x, CHUNK)));
    for quarter in 0..4 {
        // SAFETY: guaranteed by the caller.
        let values = unsafe { decode::<BITS, CHUNK>(weights, cell, quarter, table) };
        for t in 0..T {
            let products =
                i32x4_add(i32x4_dot_i16x8(values[0], x[t][0]), i32x4_dot_i16x8(values[1], x[t][1]));
            dots[t][quarter] = i32x4_add(dots[t][quarter], products);
        }
    }
}

/// Returns the four activations of a chunk in each of the four 32-bit lanes.
#[inline(always)]
fn chunk_of(x: &QuantizedGroup, chunk: usize) -> v128 {
    let bytes: [u8; 4] = std::array::from_fn(|i| x.values[4 * chunk + i] as u8);
    u32x4_splat(u32::from_le_bytes(bytes))
}

/// Separates the bytes of 16-bit lanes: the lower ones, and the upper ones, both with their signs.
#[inline(always)]
fn halves(bytes: v128) -> Halves {
    [i16x8_shr(i16x8_shl(bytes, 8), 8), i16x8_shr(bytes, 8)]
}

/// Returns the values of four columns of four rows.
#[inline(always)]
unsafe fn decode<const BITS: u8, const CHUNK: usize>(
    weights: &NestedWeights,
    cell: usize,
    quarter: usize,
    table: v128,
) -> Halves {
    let planes = &weights.planes;
    // SAFETY: the caller's `cell` is inside the planes.
    unsafe {
        if BITS == 2 {
            let index = v128_and(digits(planes.p2, cell, CHUNK, quarter), u8x16_splat(3));
            return halves(i8x16_swizzle(table, index));
        }
        let upper = nibbles(planes, cell, CHUNK, quarter);
        if BITS == 4 {
            return halves(i8x16_swizzle(table, upper));
        }
        let last = match weights.level {
            Level::L8 => digits(planes.p8, cell, CHUNK, quarter),
            _ => u8x16_splat(0),
        };
        let lower = insert(digits(planes.p6, cell, CHUNK, quarter), 2, last);
        let code = insert(upper, 4, lower);
        [formula(weights, code), formula(weights, u16x8_shr(code, 8))]
    }
}

/// Returns the values of codes in the low bytes of 16-bit lanes: mulhrs(x, alpha_a + mulhrs(|x|, alpha_b)) with
/// x = 2048 * (four leading bits) + 8 * beta * (four last bits) - bias.
#[inline(always)]
fn formula(weights: &NestedWeights, code: v128) -> v128 {
    let [alpha_a, alpha_b, beta, bias] = weights.decode.formula;
    let upper = i16x8_shl(v128_and(code, i16x8_splat(0xf0)), 7);
    let lower = i16x8_mul(v128_and(code, i16x8_splat(15)), i16x8_splat(beta));
    let x = i16x8_sub(i16x8_add(upper, lower), i16x8_splat(bias));
    let slope = i16x8_q15mulr_sat(i16x8_abs(x), i16x8_splat(alpha_b));
    i16x8_q15mulr_sat(x, i16x8_add(slope, i16x8_splat(alpha_a)))
}
