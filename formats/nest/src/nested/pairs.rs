//! Planes of a tile of sixteen rows whose 4-bit codes lie two to a byte, as in blocks of Q4_K: a unit of 32
//! bytes has the codes of two groups, those of the first one in the lower halves.
//!
//! Codes need not be unpacked for this. A byte holds two digits of each group, and both planes take one of
//! them, so that most shifts and masks serve both groups.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "functions for instructions that were found present")
)]

use super::TILE_ROWS;
use super::digits::{TileRows, Vector, side_by_side};

/// Digits of sixteen columns of sixteen rows: each byte has those of columns 0, 4, 8 and 12 after its own.
pub(super) type DigitVector = [u8; 4 * TILE_ROWS];

/// Vectors of a unit: each of its groups has 32 columns.
const VECTORS: usize = 4;

/// 2-bit digits of a tile: the upper ones of its codes and the lower ones. Both have four vectors for a unit.
pub(super) struct PairPlanes<'a> {
    pub upper: &'a mut [DigitVector],
    pub lower: &'a mut [DigitVector],
}

/// Writes the digits of a tile.
pub(super) fn write_pairs(rows: &TileRows<'_>, planes: &mut PairPlanes<'_>) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            // SAFETY: the processor supports these instructions.
            return unsafe { x86::write_pairs_avx512(rows, planes) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor supports these instructions.
            return unsafe { x86::write_pairs_avx2(rows, planes) };
        }
    }
    write_plain(rows, planes);
}

fn write_plain(rows: &TileRows<'_>, planes: &mut PairPlanes<'_>) {
    let upper = planes.upper.as_chunks_mut::<VECTORS>().0.iter_mut();
    let units = upper.zip(planes.lower.as_chunks_mut::<VECTORS>().0);
    for (unit, (upper, lower)) in units.enumerate() {
        let steps = side_by_side(rows.map(|row| &row[unit]));
        for (vector, steps) in steps.as_chunks().0.iter().enumerate() {
            let [above, below] = digits_of_steps(steps);
            for (group, (above, below)) in above.into_iter().zip(below).enumerate() {
                let bytes = |words: Vector| words.map(u32::to_le_bytes);
                upper[2 * group + vector].copy_from_slice(bytes(above).as_flattened());
                lower[2 * group + vector].copy_from_slice(bytes(below).as_flattened());
            }
        }
    }
}

/// Returns the upper and the lower digits of four steps of four columns, those of each group.
fn digits_of_steps([a, b, c, d]: &[Vector; 4]) -> [[Vector; 2]; 2] {
    let mut out = [[[0; TILE_ROWS]; 2]; 2];
    let [[upper_first, upper_second], [lower_first, lower_second]] = &mut out;
    for lane in 0..TILE_ROWS {
        let [lower_ab, upper_ab] = exchanged::<2>(a[lane], b[lane], 0x33);
        let [lower_cd, upper_cd] = exchanged::<2>(c[lane], d[lane], 0x33);
        [upper_first[lane], upper_second[lane]] = exchanged::<4>(upper_ab, upper_cd, 0x0f);
        [lower_first[lane], lower_second[lane]] = exchanged::<4>(lower_ab, lower_cd, 0x0f);
    }
    out
}

/// Exchanges the upper digits of `BITS` bits in the bytes of `a` with the lower ones in those of `b`, which `low` masks.
fn exchanged<const BITS: u32>(a: u32, b: u32, low: u8) -> [u32; 2] {
    let differing = (a >> BITS ^ b) & u32::from_le_bytes([low; 4]);
    [a ^ differing << BITS, b ^ differing]
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::super::digits::x86::{steps_of_eight_rows, steps_of_sixteen_rows};
    use super::{DigitVector, PairPlanes, TILE_ROWS, TileRows, VECTORS};

    #[target_feature(enable = "avx2")]
    pub fn write_pairs_avx2(rows: &TileRows<'_>, planes: &mut PairPlanes<'_>) {
        let upper = planes.upper.as_chunks_mut::<VECTORS>().0.iter_mut();
        let units = upper.zip(planes.lower.as_chunks_mut::<VECTORS>().0);
        for (unit, (upper, lower)) in units.enumerate() {
            let rows = rows.map(|row| &row[unit]);
            for half in [0, TILE_ROWS / 2] {
                let steps = steps_of_eight_rows(&rows, half);
                for (vector, [a, b, c, d]) in steps.into_iter().enumerate() {
                    let [lower_ab, upper_ab] = exchanged::<2>(a, b, 0x33);
                    let [lower_cd, upper_cd] = exchanged::<2>(c, d, 0x33);
                    store(exchanged::<4>(upper_ab, upper_cd, 0x0f), half, vector, upper);
                    store(exchanged::<4>(lower_ab, lower_cd, 0x0f), half, vector, lower);
                }
            }
        }
    }

    /// Computes [`super::exchanged`].
    #[target_feature(enable = "avx2")]
    #[inline]
    fn exchanged<const BITS: i32>(a: __m256i, b: __m256i, low: i8) -> [__m256i; 2] {
        let differing = _mm256_xor_si256(_mm256_srli_epi32::<BITS>(a), b);
        let differing = _mm256_and_si256(differing, _mm256_set1_epi8(low));
        let a = _mm256_xor_si256(a, _mm256_slli_epi32::<BITS>(differing));
        [a, _mm256_xor_si256(b, differing)]
    }

    /// Writes the digits of both groups in half a tile.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn store(
        [first, second]: [__m256i; 2],
        half: usize,
        vector: usize,
        out: &mut [DigitVector; VECTORS],
    ) {
        for (digits, vector) in [(first, vector), (second, 2 + vector)] {
            // SAFETY: half a vector has 32 bytes.
            unsafe { _mm256_storeu_si256(out[vector][4 * half..].as_mut_ptr().cast(), digits) };
        }
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    pub fn write_pairs_avx512(rows: &TileRows<'_>, planes: &mut PairPlanes<'_>) {
        let upper = planes.upper.as_chunks_mut::<VECTORS>().0.iter_mut();
        let units = upper.zip(planes.lower.as_chunks_mut::<VECTORS>().0);
        for (unit, (upper, lower)) in units.enumerate() {
            let steps = steps_of_sixteen_rows(&rows.map(|row| &row[unit]));
            for (vector, &[a, b, c, d]) in steps.as_chunks().0.iter().enumerate() {
                let [lower_ab, upper_ab] = exchanged_512::<2>(a, b, 0x33);
                let [lower_cd, upper_cd] = exchanged_512::<2>(c, d, 0x33);
                store_512(exchanged_512::<4>(upper_ab, upper_cd, 0x0f), vector, upper);
                store_512(exchanged_512::<4>(lower_ab, lower_cd, 0x0f), vector, lower);
            }
        }
    }

    /// Computes [`super::exchanged`].
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn exchanged_512<const BITS: u32>(a: __m512i, b: __m512i, low: i8) -> [__m512i; 2] {
        // Selects the first operand where the third has ones, or else the second.
        const SELECT: i32 = 0xe4;
        let low = _mm512_set1_epi8(low);
        [
            _mm512_ternarylogic_epi32::<SELECT>(a, _mm512_slli_epi32::<BITS>(b), low),
            _mm512_ternarylogic_epi32::<SELECT>(_mm512_srli_epi32::<BITS>(a), b, low),
        ]
    }

    /// Writes the digits of both groups.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn store_512([first, second]: [__m512i; 2], vector: usize, out: &mut [DigitVector; VECTORS]) {
        for (digits, vector) in [(first, vector), (second, 2 + vector)] {
            // SAFETY: a vector has 64 bytes.
            unsafe { _mm512_storeu_si512(out[vector].as_mut_ptr().cast(), digits) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nested::layout::Grid;
    use crate::nested::{GROUP, Layout};

    type WritePairs = fn(&TileRows<'_>, &mut PairPlanes<'_>);

    const UNITS: usize = 3;

    #[test]
    fn every_digit_lies_where_the_layout_has_it() {
        let byte = |row: usize, at: usize| ((row * 104_729 + at * 1_299_709 + row * at) >> 3) as u8;
        let rows: Vec<Vec<[u8; GROUP]>> = (0..TILE_ROWS)
            .map(|row| {
                let unit = |unit: usize| std::array::from_fn(|k| byte(row, GROUP * unit + k));
                (0..UNITS).map(unit).collect()
            })
            .collect();
        let rows: TileRows<'_> = std::array::from_fn(|row| rows[row].as_slice());
        let grid = Grid::new(TILE_ROWS, 2 * UNITS * GROUP).unwrap();
        let mut ways: Vec<(&str, WritePairs)> =
            vec![("plain", write_plain), ("detected", write_pairs)];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            ways.push(("AVX2", |rows, planes| {
                // SAFETY: the processor supports these instructions.
                unsafe { x86::write_pairs_avx2(rows, planes) }
            }));
        }
        for (name, write) in ways {
            let mut upper = [[0xa5; 4 * TILE_ROWS]; VECTORS * UNITS];
            let mut lower = upper;
            write(&rows, &mut PairPlanes { upper: &mut upper, lower: &mut lower });
            for row in 0..TILE_ROWS {
                for col in 0..2 * UNITS * GROUP {
                    let (unit, group) = (col / GROUP / 2, col / GROUP % 2);
                    let code = byte(row, GROUP * unit + col % GROUP) >> (4 * group) & 15;
                    let (at, low) = grid.position(Layout::Tile16, 2, row, col);
                    let digits = [&upper, &lower].map(|out| out.as_flattened()[at] >> low & 3);
                    assert_eq!(digits, [code >> 2, code & 3], "{name}: {row} {col}");
                }
            }
        }
    }
}
