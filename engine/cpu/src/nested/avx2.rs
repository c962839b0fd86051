//! Kernels for AVX2 with FMA, and for AVX-VNNI.
//!
//! Half a tile, eight rows of four columns, fills one 256-bit vector. Levels 2 to 4 look values up by
//! `pshufb`. With VNNI the values are unsigned, value + 128, as for AVX-512. Without it the product is
//! `pmaddubsw` of |w| and sign(x, w), which is exact because two products fit in 15 bits. Levels 6 and 8
//! evaluate the formula in 16-bit lanes, with columns 0 and 2 separate from 1 and 3, and multiply by
//! `pmaddwd`.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::x86_64::*;

use nestling_formats::Level;

use super::super::planes::avx2::{
    HalfTiles, broadcast, load, lookup_nibbles, middle, multiply_add, nibbles,
};
use super::super::rows::QuantizedGroup;
use super::{NestedWeights, QuantizedRows, RowList, TileValues};

mod digits;
mod linear;
mod magnitudes;
mod row;
mod wide;

/// Number of activation rows that share one decoded group.
const BLOCK: usize = 4;

/// First bit of the exponent, from which a step's octave is subtracted.
const OCTAVE: i32 = 23;

/// Values of one group, by chunk of four columns and half of the tile. Levels 6 and 8 have 16-bit values:
/// columns 0 and 2 in `even`, 1 and 3 in `odd`. The other levels have bytes, only in `even`.
struct Group {
    even: HalfTiles,
    odd: HalfTiles,
}

/// Defines the products of one tile. Parameters are a list of features, whether one row alone is computed by
/// [`row::tile`], the offset that is added to values by flipping their upper bit, the start of a sum, and a
/// function that adds 32 products to eight sums.
macro_rules! products_for {
    ($module:ident, $features:literal, $row:literal, $flip:literal, $start:path, $multiply_add:path) => {
        pub mod $module {
            use super::*;

            /// Computes one tile for some rows.
            ///
            /// # Safety
            /// The machine must have the features, and [`super::super::fits`] must hold.
            #[target_feature(enable = $features)]
            pub unsafe fn tile(
                weights: &NestedWeights,
                tile: usize,
                rows: RowList,
                out: &mut [TileValues],
            ) {
                let x = rows.source();
                if let ($row, [row], [out]) = (true, rows.rows(), &mut *out) {
                    let of_row = row::tile(weights, tile);
                    // SAFETY: guaranteed by the caller.
                    return unsafe { of_row(weights, tile, x.row(*row as usize), out) };
                }
                for (rows, out) in rows.rows().chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
                    // SAFETY: `fits` holds for a subset of the rows too.
                    unsafe {
                        match *rows {
                            [a] => products(weights, tile, x, &[a], out),
                            [a, b] => products(weights, tile, x, &[a, b], out),
                            [a, b, c] => products(weights, tile, x, &[a, b, c], out),
                            [a, b, c, d, ..] => products(weights, tile, x, &[a, b, c, d], out),
                            [] => {}
                        }
                    }
                }
            }

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn products<const T: usize>(
                weights: &NestedWeights,
                tile: usize,
                x: &QuantizedRows,
                rows: &[u32; T],
                out: &mut [TileValues],
            ) {
                let x = rows.map(|row| x.row(row as usize).as_ptr());
                let wide = weights.level >= Level::L6;
                let units = weights.row_units(tile);
                // SAFETY: both arrays are as long as the loads.
                let (units, table) = unsafe {
                    let table = _mm_loadu_si128(weights.nibble_table(tile).as_ptr().cast());
                    let table = _mm_xor_si128(table, _mm_set1_epi8($flip));
                    let units =
                        [_mm256_loadu_ps(units.as_ptr()), _mm256_loadu_ps(units[8..].as_ptr())];
                    (units, _mm256_broadcastsi128_si256(table))
                };
                let mut values = Group::zero();
                let mut sums = [[_mm256_setzero_ps(); 2]; T];
                for group in 0..weights.groups {
                    let cell = tile * weights.groups + group;
                    // SAFETY: `group` is below the groups of the weights and of the rows of `x`.
                    unsafe {
                        if wide {
                            decode_wide(weights, cell, &mut values);
                        } else {
                            let two = weights.level == Level::L2;
                            lookup_nibbles(&weights.planes, two, cell, table, &mut values.even);
                        }
                        let scales = scales(weights, cell, units);
                        for t in 0..T {
                            let x = &*x[t].add(group);
                            let dots =
                                if wide { dot_wide(&values, x) } else { dot_narrow(&values, x) };
                            for half in 0..2 {
                                let scale = _mm256_mul_ps(_mm256_set1_ps(x.scale), scales[half]);
                                let dots = _mm256_cvtepi32_ps(dots[half]);
                                sums[t][half] = _mm256_fmadd_ps(dots, scale, sums[t][half]);
                            }
                        }
                    }
                }
                for (out, sum) in out.iter_mut().zip(&sums) {
                    // SAFETY: `out` has 16 floats.
                    unsafe {
                        _mm256_storeu_ps(out.as_mut_ptr(), sum[0]);
                        _mm256_storeu_ps(out[8..].as_mut_ptr(), sum[1]);
                    }
                }
            }

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn dot_narrow(values: &Group, x: &QuantizedGroup) -> [__m256i; 2] {
                let mut sums = [$start(x); 2];
                for chunk in 0..8 {
                    // SAFETY: there are eight chunks.
                    let x = unsafe { broadcast(x, chunk) };
                    for half in 0..2 {
                        sums[half] = $multiply_add(sums[half], values.even[chunk][half], x);
                    }
                }
                sums
            }
        }
    };
}

products_for!(plain, "avx2,fma", true, 0, zero, multiply_add);
products_for!(vnni, "avx2,fma,avxvnni", false, -128, correction, _mm256_dpbusd_avx_epi32);

#[inline]
#[target_feature(enable = "avx2")]
fn zero(_: &QuantizedGroup) -> __m256i {
    _mm256_setzero_si256()
}

/// Returns the start of a sum that compensates for the offset of 128 of unsigned weights.
#[inline]
#[target_feature(enable = "avx2")]
fn correction(x: &QuantizedGroup) -> __m256i {
    _mm256_set1_epi32(x.correction)
}

impl Group {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn zero() -> Self {
        let zero = _mm256_setzero_si256();
        Self { even: [[zero; 2]; 8], odd: [[zero; 2]; 8] }
    }
}

/// Returns the weight scales of the two halves of a tile in one group. A step's factor is one of the first
/// eight, with its exponent lowered once for each multiple of eight steps.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn scales(weights: &NestedWeights, cell: usize, units: [__m256; 2]) -> [__m256; 2] {
    // SAFETY: the caller's `cell` is inside both parts.
    let (nibbles, high) = unsafe {
        let nibbles = _mm_loadl_epi64(weights.steps.as_ptr().add(cell * 8).cast());
        (nibbles, weights.step_high.as_ptr().add(cell * 2).cast::<[u8; 2]>().read())
    };
    let steps = weights.decode.steps;
    // SAFETY: the table has 32 floats.
    let fractions = unsafe { _mm256_loadu_si256(steps.factors().as_ptr().cast()) };
    let eight_steps = _mm_cvtsi32_si128(OCTAVE + steps.eight_steps() as i32);
    let nibbles = _mm256_cvtepu8_epi32(nibbles);
    let halves =
        [_mm256_and_si256(nibbles, _mm256_set1_epi32(15)), _mm256_srli_epi32::<4>(nibbles)];
    let mut out = units;
    for half in 0..2 {
        let bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        let set = _mm256_and_si256(_mm256_set1_epi32(i32::from(high[half])), bit);
        let upper = _mm256_and_si256(_mm256_cmpeq_epi32(set, bit), _mm256_set1_epi32(16));
        let step = _mm256_or_si256(halves[half], upper);
        let fraction = _mm256_permutevar8x32_epi32(fractions, step);
        let octave = _mm256_sll_epi32(_mm256_srli_epi32::<3>(step), eight_steps);
        let zero = _mm256_cmpeq_epi32(step, _mm256_set1_epi32(31));
        let factor = _mm256_andnot_si256(zero, _mm256_sub_epi32(fraction, octave));
        out[half] = _mm256_mul_ps(units[half], _mm256_castsi256_ps(factor));
    }
    out
}

/// Decodes levels 6 and 8: value = mulhrs(x, alpha_a + mulhrs(|x|, alpha_b)) with x = 2048 * (four leading
/// bits) + 8 * beta * (four last bits) - bias.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn decode_wide(weights: &NestedWeights, cell: usize, out: &mut Group) {
    for vector in 0..2 {
        for half in 0..2 {
            // SAFETY: the caller's `cell` is inside the planes.
            let (p2, digits, p6, p8) = unsafe {
                let p2 = load(weights.planes.p2, cell * 2 + vector, half);
                let p6 = load(weights.planes.p6, cell * 2 + vector, half);
                let p8 = if weights.level == Level::L8 {
                    load(weights.planes.p8, cell * 2 + vector, half)
                } else {
                    _mm256_setzero_si256()
                };
                (p2, middle(&weights.planes, cell, vector, half), p6, p8)
            };
            let (upper, lower) = (nibbles(p2, digits), nibbles(p6, p8));
            for i in 0..4 {
                let code = _mm256_or_si256(_mm256_slli_epi16::<4>(upper[i]), lower[i]);
                out.even[vector * 4 + i][half] = formula(weights, code);
                out.odd[vector * 4 + i][half] = formula(weights, _mm256_srli_epi16::<8>(code));
            }
        }
    }
}

/// Returns the values of codes in the low bytes of 16-bit lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn formula(weights: &NestedWeights, code: __m256i) -> __m256i {
    let [alpha_a, alpha_b, beta, bias] = weights.decode.formula;
    let upper = _mm256_slli_epi16::<7>(_mm256_and_si256(code, _mm256_set1_epi16(0xf0)));
    let lower = _mm256_and_si256(code, _mm256_set1_epi16(15));
    let lower = _mm256_mullo_epi16(lower, _mm256_set1_epi16(beta));
    let x = _mm256_sub_epi16(_mm256_add_epi16(upper, lower), _mm256_set1_epi16(bias));
    let slope = _mm256_mulhrs_epi16(_mm256_abs_epi16(x), _mm256_set1_epi16(alpha_b));
    _mm256_mulhrs_epi16(x, _mm256_add_epi16(slope, _mm256_set1_epi16(alpha_a)))
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn dot_wide(values: &Group, x: &QuantizedGroup) -> [__m256i; 2] {
    let mut sums = [_mm256_setzero_si256(); 2];
    for chunk in 0..8 {
        // SAFETY: there are eight chunks.
        let x = unsafe { broadcast(x, chunk) };
        let even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x));
        let odd = _mm256_srai_epi16::<8>(x);
        for (half, sum) in sums.iter_mut().enumerate() {
            let dots = _mm256_add_epi32(
                _mm256_madd_epi16(values.even[chunk][half], even),
                _mm256_madd_epi16(values.odd[chunk][half], odd),
            );
            *sum = _mm256_add_epi32(*sum, dots);
        }
    }
    sums
}
