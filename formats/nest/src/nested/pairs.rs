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
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor supports these instructions.
        return unsafe { x86::write_pairs(rows, planes) };
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
    let [even, odd, low] = [0x33, 0xcc, 0x0f].map(|byte| u32::from_le_bytes([byte; 4]));
    let mut out = [[[0; TILE_ROWS]; 2]; 2];
    let [[upper_first, upper_second], [lower_first, lower_second]] = &mut out;
    for lane in 0..TILE_ROWS {
        let (a, b, c, d) = (a[lane], b[lane], c[lane], d[lane]);
        let (ab, cd) = (a >> 2 & even | b & odd, c >> 2 & even | d & odd);
        upper_first[lane] = ab & low | (cd & low) << 4;
        upper_second[lane] = ab >> 4 & low | cd & !low;
        let (ab, cd) = (a & even | (b & even) << 2, c & even | (d & even) << 2);
        lower_first[lane] = ab & low | (cd & low) << 4;
        lower_second[lane] = ab >> 4 & low | cd & !low;
    }
    out
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::super::digits::x86::steps_of_eight_rows;
    use super::{DigitVector, PairPlanes, TILE_ROWS, TileRows, VECTORS};

    #[target_feature(enable = "avx2")]
    pub fn write_pairs(rows: &TileRows<'_>, planes: &mut PairPlanes<'_>) {
        let upper = planes.upper.as_chunks_mut::<VECTORS>().0.iter_mut();
        let units = upper.zip(planes.lower.as_chunks_mut::<VECTORS>().0);
        for (unit, (upper, lower)) in units.enumerate() {
            let rows = rows.map(|row| &row[unit]);
            for half in [0, TILE_ROWS / 2] {
                let steps = steps_of_eight_rows(&rows, half);
                for (vector, steps) in steps.into_iter().enumerate() {
                    let [low, high] = digits(upper_pairs(steps));
                    store(&mut upper[vector], half, low);
                    store(&mut upper[2 + vector], half, high);
                    let [low, high] = digits(lower_pairs(steps));
                    store(&mut lower[vector], half, low);
                    store(&mut lower[2 + vector], half, high);
                }
            }
        }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn store(vector: &mut DigitVector, half: usize, digits: __m256i) {
        // SAFETY: half a vector has 32 bytes.
        unsafe { _mm256_storeu_si256(vector[4 * half..].as_mut_ptr().cast(), digits) };
    }

    /// Returns the upper digits of two steps each, those of the first group in the lower half of a byte.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn upper_pairs([a, b, c, d]: [__m256i; 4]) -> [__m256i; 2] {
        let (even, odd) = (_mm256_set1_epi8(0x33), _mm256_set1_epi8(0xcc_u8.cast_signed()));
        let first = _mm256_and_si256(_mm256_srli_epi32::<2>(a), even);
        let third = _mm256_and_si256(_mm256_srli_epi32::<2>(c), even);
        [
            _mm256_or_si256(first, _mm256_and_si256(b, odd)),
            _mm256_or_si256(third, _mm256_and_si256(d, odd)),
        ]
    }

    /// Returns the lower digits of two steps each, like [`upper_pairs`].
    #[target_feature(enable = "avx2")]
    #[inline]
    fn lower_pairs([a, b, c, d]: [__m256i; 4]) -> [__m256i; 2] {
        let even = _mm256_set1_epi8(0x33);
        let second = _mm256_slli_epi32::<2>(_mm256_and_si256(b, even));
        let fourth = _mm256_slli_epi32::<2>(_mm256_and_si256(d, even));
        [
            _mm256_or_si256(_mm256_and_si256(a, even), second),
            _mm256_or_si256(_mm256_and_si256(c, even), fourth),
        ]
    }

    /// Returns the digits of both groups.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn digits([first, second]: [__m256i; 2]) -> [__m256i; 2] {
        let low = _mm256_set1_epi8(0x0f);
        let of_first = _mm256_slli_epi32::<4>(_mm256_and_si256(second, low));
        let of_second = _mm256_and_si256(_mm256_srli_epi32::<4>(first), low);
        [
            _mm256_or_si256(_mm256_and_si256(first, low), of_first),
            _mm256_or_si256(of_second, _mm256_andnot_si256(low, second)),
        ]
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
        let ways: [(&str, WritePairs); 2] = [("plain", write_plain), ("detected", write_pairs)];
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
