//! Kernels for WebAssembly's SIMD128.
//!
//! A 128-bit vector holds four columns of four rows, a quarter of a tile. Levels 2 to 4 look values up by
//! `i8x16.swizzle`, levels 6 and 8 evaluate the formula in 16-bit lanes. Both multiply by `i32x4.dot_i16x8_s`,
//! with columns 0 and 2 separate from 1 and 3, so that each lane of a sum belongs to one row. Values that are looked up
//! have an offset of 128, for which the correction of the activations makes up: bytes without a sign are separated in
//! two operations.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::wasm32::*;

use nestling_formats::Level;

use super::super::planes::simd128::Quarter;
use super::super::rows::QuantizedGroup;
use super::super::vector::simd128::fma;
use super::{GROUP, NestedWeights, QuantizedRows, RowList, TILE_ROWS, TileValues};

/// Columns 0 and 2, and columns 1 and 3, of four rows in 16-bit lanes.
type Halves = [v128; 2];

/// Activations of a group in words of two 16-bit numbers: columns 0 and 2 of each chunk, and columns 1 and 3.
type Words = [[u32; GROUP / 4]; 2];

/// Computes one tile for some rows.
///
/// # Safety
/// [`super::fits`] must hold.
pub unsafe fn tile(weights: &NestedWeights, tile: usize, rows: RowList, out: &mut [TileValues]) {
    let x = rows.source();
    // Two rows share values that take a formula, not those of a table: there are too few registers for more sums.
    let block = if weights.level >= Level::L6 { 2 } else { 1 };
    for (rows, out) in rows.rows().chunks(block).zip(out.chunks_mut(block)) {
        // SAFETY: `fits` holds for a subset of the rows too.
        unsafe {
            match (weights.level, rows) {
                (Level::L2, [a, ..]) => products::<2, 1>(weights, tile, x, &[*a], out),
                (Level::L3 | Level::L4, [a, ..]) => products::<4, 1>(weights, tile, x, &[*a], out),
                (_, [a]) => products::<8, 1>(weights, tile, x, &[*a], out),
                (_, [a, b, ..]) => products::<8, 2>(weights, tile, x, &[*a, *b], out),
                (_, []) => {}
            }
        }
    }
}

/// Computes `T` rows. `BITS` is 2 at level 2, 4 at levels 3 and 4, and 8 at levels 6 and 8.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "indices name quarters and rows")]
unsafe fn products<const BITS: u8, const T: usize>(
    weights: &NestedWeights,
    tile: usize,
    x: &QuantizedRows,
    rows: &[u32; T],
    out: &mut [TileValues],
) {
    let x = rows.map(|row| x.row(row as usize));
    let (units, factors) = (weights.row_units(tile), weights.decode.steps.factors());
    // SAFETY: there are 16 units.
    let units = unsafe { [0, 4, 8, 12].map(|i| v128_load(units[i..].as_ptr().cast())) };
    // SAFETY: the table has 16 bytes.
    let table = unsafe { v128_load(weights.nibble_table(tile).as_ptr().cast()) };
    let table = v128_xor(table, u8x16_splat(128));
    let mut sums = [[f32x4_splat(0.0); 4]; T];
    for group in 0..weights.groups {
        let cell = tile * weights.groups + group;
        let (mut words, mut dots) = ([[[0; GROUP / 4]; 2]; T], [[i32x4_splat(0); 4]; T]);
        for t in 0..T {
            let x = &x[t][group];
            words[t] = self::words(x);
            if BITS < 8 {
                dots[t] = [i32x4_splat(x.correction); 4];
            }
        }
        for quarter in 0..4 {
            for vector in 0..2 {
                let part = Quarter { planes: &weights.planes, cell, quarter, vector };
                // SAFETY: `group` is below the groups of the weights.
                let values = unsafe { decode::<BITS>(weights, &part, table) };
                for t in 0..T {
                    add_chunks(&values, &words[t], vector, &mut dots[t][quarter]);
                }
            }
        }
        // SAFETY: as above.
        let steps = unsafe { steps(weights, cell) };
        for quarter in 0..4 {
            let [a, b, c, d] =
                std::array::from_fn(|i| factors[usize::from(steps[4 * quarter + i])]);
            let scales = f32x4_mul(units[quarter], f32x4(a, b, c, d));
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

/// Returns the steps of 16 rows in one group, below 32.
#[inline(always)]
unsafe fn steps(weights: &NestedWeights, cell: usize) -> [u8; TILE_ROWS] {
    // SAFETY: the caller's `cell` is inside both parts.
    let (nibbles, high) = unsafe {
        let nibbles = v128_load64_zero(weights.steps.as_ptr().add(cell * 8).cast());
        (nibbles, v128_load16_splat(weights.step_high.as_ptr().add(cell * 2).cast()))
    };
    let low = u8x16_splat(15);
    let upper = v128_and(u16x8_shr(nibbles, 4), low);
    let nibbles = i64x2_shuffle::<0, 2>(v128_and(nibbles, low), upper);
    let bytes = i8x16_swizzle(high, u8x16(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
    let bit = u8x16(1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128);
    let set = i8x16_eq(v128_and(bytes, bit), bit);
    let all = v128_or(nibbles, v128_and(set, u8x16_splat(16)));
    let mut steps = [0; TILE_ROWS];
    // SAFETY: there are sixteen bytes.
    unsafe { v128_store(steps.as_mut_ptr().cast(), all) };
    steps.map(|step| step & 31)
}

/// Separates the activations of a group.
#[inline(always)]
fn words(x: &QuantizedGroup) -> Words {
    let mut words = [[0; GROUP / 4]; 2];
    for half in 0..2 {
        // SAFETY: there are 32 activations, and as many numbers of 16 bits in `words`.
        unsafe {
            let x = v128_load(x.values[16 * half..].as_ptr().cast());
            let first = i16x8_shr(i16x8_shl(x, 8), 8);
            v128_store(words[0][4 * half..].as_mut_ptr().cast(), first);
            v128_store(words[1][4 * half..].as_mut_ptr().cast(), i16x8_shr(x, 8));
        }
    }
    words
}

/// Adds the products of four chunks of columns to the sums of four rows.
#[inline(always)]
fn add_chunks(values: &[Halves; 4], words: &Words, vector: usize, sums: &mut v128) {
    for (chunk, values) in values.iter().enumerate() {
        let x = words.map(|words| u32x4_splat(words[4 * vector + chunk]));
        let products =
            i32x4_add(i32x4_dot_i16x8(values[0], x[0]), i32x4_dot_i16x8(values[1], x[1]));
        *sums = i32x4_add(*sums, products);
    }
}

/// Returns the values of four chunks of four rows; up to level 4 with an offset of 128.
#[inline(always)]
unsafe fn decode<const BITS: u8>(
    weights: &NestedWeights,
    part: &Quarter,
    table: v128,
) -> [Halves; 4] {
    // SAFETY: the caller's group is inside the planes.
    unsafe {
        if BITS == 2 {
            return part.values_of_p2(table).map(unsigned_halves);
        }
        let upper = part.leading();
        if BITS == 4 {
            return upper.map(|index| unsigned_halves(i8x16_swizzle(table, index)));
        }
        let lower = part.last_nibbles();
        std::array::from_fn(|chunk| {
            let code = v128_or(u16x8_shl(upper[chunk], 4), lower[chunk]);
            [formula(weights, code), formula(weights, u16x8_shr(code, 8))]
        })
    }
}

/// Separates the bytes of 16-bit lanes: the lower ones, and the upper ones.
#[inline(always)]
fn unsigned_halves(bytes: v128) -> Halves {
    [v128_and(bytes, u16x8_splat(0xff)), u16x8_shr(bytes, 8)]
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
