//! Digits of codes for AVX2, half a tile at a time.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::asm;
use std::arch::x86_64::*;

use nestling_formats::nested::TILE_ROWS;

use super::tables::{EVEN_BITS, LOWER_DIGITS, UPPER_DIGITS};
use super::{CodePlanes, MiddlePlanes};
use crate::rows::{QuantizedGroup, RowList};

pub mod panel;

/// Bytes of one group, by chunk of four columns and half of the tile.
pub type HalfTiles = [[__m256i; 2]; 8];

/// Products of one tile with some rows of activations.
pub struct TileWork<'a, W> {
    pub weights: &'a W,
    pub tile: usize,
    pub rows: RowList<'a>,
    pub out: &'a mut [[f32; TILE_ROWS]],
}

/// A function that computes one tile for `T` rows, given each row's groups.
type RowsTile<W, const T: usize> =
    unsafe fn(&W, usize, [&[QuantizedGroup]; T], &mut [[f32; TILE_ROWS]; T]);

impl<W> TileWork<'_, W> {
    /// Computes `T` rows. Returns false if there is no function, or if there are not `T` rows.
    ///
    /// # Safety
    /// Guarantees of the function.
    pub unsafe fn compute<const T: usize>(self, of_rows: Option<RowsTile<W, T>>) -> bool {
        let Self { weights, tile, rows, out } = self;
        match (of_rows, rows.rows().as_array::<T>(), out.as_mut_array()) {
            (Some(of_rows), Some(numbers), Some(out)) => {
                let x = numbers.map(|row| rows.source().row(row as usize));
                // SAFETY: guaranteed by the caller.
                unsafe { of_rows(weights, tile, x, out) };
                true
            }
            _ => false,
        }
    }
}

/// Loads the two halves of 16 floats.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn halves(floats: &[f32; TILE_ROWS]) -> [__m256; 2] {
    // SAFETY: both halves are in bounds.
    unsafe { [_mm256_loadu_ps(floats.as_ptr()), _mm256_loadu_ps(floats[8..].as_ptr())] }
}

/// Loads vector `half` of the 64-byte vector `index` of a plane.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn load(plane: &[u8], index: usize, half: usize) -> __m256i {
    // SAFETY: the caller's `index` is inside the plane.
    unsafe { _mm256_loadu_si256(plane.as_ptr().add(index * 64 + half * 32).cast()) }
}

/// Prefetch distance in groups, for matrices that come from memory (docs/perf/064).
pub const AHEAD: usize = 24;

/// Prefetches the codes of a later group. `last` is the number of bits in P6 and P8.
#[inline]
#[target_feature(enable = "avx2")]
pub fn prefetch_codes(planes: &CodePlanes, cell: usize, last: u8) {
    let cell = cell + AHEAD;
    prefetch_pair(planes.p2, cell);
    match planes.middle {
        MiddlePlanes::None => {}
        MiddlePlanes::P3(p3) => prefetch_line(p3, cell * 64),
        MiddlePlanes::Split(p3, p4) => {
            prefetch_line(p3, cell * 64);
            prefetch_line(p4, cell * 64);
        }
        MiddlePlanes::Merged(merged) => prefetch_pair(merged, cell),
    }
    match last {
        0 => {}
        1 => prefetch_line(planes.p6, cell * 64),
        _ => prefetch_pair(planes.p6, cell),
    }
    if last == 4 {
        prefetch_pair(planes.p8, cell);
    }
}

/// Prefetches the two lines of a group.
#[inline]
#[target_feature(enable = "avx2")]
fn prefetch_pair(plane: &[u8], cell: usize) {
    prefetch_line(plane, cell * 128);
    prefetch_line(plane, cell * 128 + 64);
}

/// Prefetches a line into the second-level cache. Beyond the end of `bytes` it has no effect.
#[inline]
#[target_feature(enable = "avx2")]
pub fn prefetch_line(bytes: &[u8], offset: usize) {
    _mm_prefetch::<_MM_HINT_T1>(bytes.as_ptr().wrapping_add(offset).cast());
}

/// Spreads four bits of each byte, 0 to 3 or 4 to 7, to its even bits.
#[inline]
#[target_feature(enable = "avx2")]
pub fn spread(bits: __m256i, vector: usize) -> __m256i {
    let table = indices(&EVEN_BITS);
    let bits = if vector == 0 { bits } else { _mm256_srli_epi16::<4>(bits) };
    _mm256_shuffle_epi8(table, _mm256_and_si256(bits, _mm256_set1_epi8(15)))
}

/// Returns 16 bytes in both halves of a vector.
#[inline]
#[target_feature(enable = "avx2")]
fn indices(bytes: &[u8; 16]) -> __m256i {
    // SAFETY: there are sixteen bytes.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

/// Returns P3's bits above P4's as 2-bit digits. P4 counts as 0 if the level does not need it.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn middle(planes: &CodePlanes, cell: usize, vector: usize, half: usize) -> __m256i {
    // SAFETY: the caller's `cell` is inside the planes.
    unsafe {
        match planes.middle {
            MiddlePlanes::None => _mm256_setzero_si256(),
            MiddlePlanes::P3(p3) => _mm256_slli_epi16::<1>(spread(load(p3, cell, half), vector)),
            MiddlePlanes::Split(p3, p4) => {
                let upper = _mm256_slli_epi16::<1>(spread(load(p3, cell, half), vector));
                _mm256_or_si256(upper, spread(load(p4, cell, half), vector))
            }
            MiddlePlanes::Merged(merged) => load(merged, cell * 2 + vector, half),
        }
    }
}

/// Returns `index` after `sums` have been computed. Otherwise the compiler loads all vectors of a group first,
/// for which there are too few registers.
#[inline]
#[target_feature(enable = "avx2")]
pub fn after(mut index: usize, sums: [__m256i; 2]) -> usize {
    // SAFETY: there are no instructions.
    unsafe {
        asm!(
            "/* {} {} {} */",
            inout(reg) index,
            in(ymm_reg) sums[0],
            in(ymm_reg) sums[1],
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    index
}

/// Combines two digits to nibbles: returns chunks 0 to 3 of a pair of vectors.
#[inline]
#[target_feature(enable = "avx2")]
pub fn nibbles(upper: __m256i, lower: __m256i) -> [__m256i; 4] {
    let ([even, odd], low) = (nibble_pairs(upper, lower), _mm256_set1_epi8(15));
    [
        _mm256_and_si256(even, low),
        _mm256_and_si256(odd, low),
        _mm256_and_si256(_mm256_srli_epi16::<4>(even), low),
        _mm256_and_si256(_mm256_srli_epi16::<4>(odd), low),
    ]
}

/// Combines two digits to nibbles: returns chunks 0 and 2 in the low and the high half of each byte, and chunks 1
/// and 3.
#[inline]
#[target_feature(enable = "avx2")]
pub fn nibble_pairs(upper: __m256i, lower: __m256i) -> [__m256i; 2] {
    // Upper digits 0 and 2 change places with lower digits 1 and 3.
    let places = _mm256_set1_epi8(0x33);
    let shifted = _mm256_srli_epi16::<2>(lower);
    let differing = _mm256_and_si256(_mm256_xor_si256(shifted, upper), places);
    let even = _mm256_xor_si256(lower, _mm256_slli_epi16::<2>(differing));
    let odd = _mm256_xor_si256(upper, differing);
    [even, odd]
}

/// Broadcasts a chunk of four activations to all lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn broadcast(x: &QuantizedGroup, chunk: usize) -> __m256i {
    let values: *const i32 = x.values.as_ptr().cast();
    // SAFETY: there are eight chunks of four bytes.
    _mm256_set1_epi32(unsafe { values.add(chunk).read_unaligned() })
}

/// Adds the products of four values and activations to `sum` in each lane. The result is exact since both are
/// within -127..=127.
#[inline]
#[target_feature(enable = "avx2")]
pub fn multiply_add(sum: __m256i, weights: __m256i, x: __m256i) -> __m256i {
    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
    _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}

/// Returns the number of chunks that `pmaddubsw` may add in 16 bits, by the largest byte; 0 for signed bytes.
pub fn chunks_in_16_bits(largest: u8) -> usize {
    match largest {
        0..=15 => 8,
        16..=31 => 4,
        32..=64 => 2,
        _ => 0,
    }
}

/// Computes the exact sums of one of `SUBS` parts of a group by halves of the tile, from bytes and `T` rows of
/// activations. `MODE` chunks are added in 16 bits ([`chunks_in_16_bits`]), and sums are multiplied by the stride. With
/// 0, bytes are signed and the stride is not used.
#[inline]
#[target_feature(enable = "avx2")]
#[expect(clippy::needless_range_loop, reason = "indices name chunks, halves and rows")]
pub fn pair_dots<const MODE: usize, const SUBS: usize, const T: usize>(
    values: &HalfTiles,
    x: &[&QuantizedGroup; T],
    sub: usize,
    stride: __m256i,
) -> [[__m256i; 2]; T] {
    let (count, mut sums) = (8 / SUBS, [[_mm256_setzero_si256(); 2]; T]);
    let (first, run) = (sub * count, if MODE == 0 { 1 } else { MODE.min(count) });
    for start in (first..first + count).step_by(run) {
        let mut pairs = [[_mm256_setzero_si256(); 2]; T];
        for chunk in start..start + run {
            for t in 0..T {
                // SAFETY: there are eight chunks.
                let x = unsafe { broadcast(x[t], chunk) };
                for half in 0..2 {
                    let weights = values[chunk][half];
                    if MODE == 0 {
                        sums[t][half] = multiply_add(sums[t][half], weights, x);
                    } else {
                        let some = _mm256_maddubs_epi16(weights, x);
                        pairs[t][half] = _mm256_add_epi16(pairs[t][half], some);
                    }
                }
                if MODE == 0 {
                    in_registers(&mut sums[t]);
                } else {
                    in_registers(&mut pairs[t]);
                }
            }
        }
        for t in 0..T {
            for half in 0..2 {
                if MODE != 0 {
                    let fours = _mm256_madd_epi16(pairs[t][half], stride);
                    sums[t][half] = _mm256_add_epi32(sums[t][half], fours);
                }
            }
        }
    }
    sums
}

/// Keeps sums in registers one chunk after another. Otherwise the compiler adds chunks as a tree, whose products
/// need more registers than there are.
#[inline]
#[target_feature(enable = "avx2")]
pub fn in_registers(sums: &mut [__m256i; 2]) {
    // SAFETY: there are no instructions.
    unsafe {
        asm!(
            "/* {} {} */",
            inout(ymm_reg) sums[0],
            inout(ymm_reg) sums[1],
            options(pure, nomem, nostack, preserves_flags),
        );
    }
}

/// Looks up the table entries for the leading digits of codes: two bits at level 2, otherwise four. Inlined, it would take
/// registers from the products of many rows.
#[inline(never)]
#[target_feature(enable = "avx2")]
#[expect(clippy::needless_range_loop, reason = "indices name chunks and halves")]
pub unsafe fn lookup_nibbles(
    planes: &CodePlanes,
    level_2: bool,
    cell: usize,
    table: __m256i,
    out: &mut HalfTiles,
) {
    for vector in 0..2 {
        for half in 0..2 {
            // SAFETY: the caller's `cell` is inside the planes.
            let p2 = unsafe { load(planes.p2, cell * 2 + vector, half) };
            let values = if level_2 {
                lookup_two_bits(table, p2)
            } else {
                // SAFETY: as above.
                lookup(table, nibbles(p2, unsafe { middle(planes, cell, vector, half) }))
            };
            for i in 0..4 {
                out[vector * 4 + i][half] = values[i];
            }
        }
    }
}

/// Looks up the bytes of four vectors of indices.
#[inline]
#[target_feature(enable = "avx2")]
pub fn lookup(table: __m256i, indices: [__m256i; 4]) -> [__m256i; 4] {
    let mut bytes = indices;
    for i in 0..4 {
        bytes[i] = _mm256_shuffle_epi8(table, indices[i]);
    }
    bytes
}

/// Looks up the table entries for the four 2-bit digits of bytes. Two digits at a time are an index of two tables: one
/// has the entry for the lower digit, the other that for the upper one.
#[inline]
#[target_feature(enable = "avx2")]
pub fn lookup_two_bits(table: __m256i, digits: __m256i) -> [__m256i; 4] {
    let by_lower = _mm256_shuffle_epi8(table, indices(&LOWER_DIGITS));
    let by_upper = _mm256_shuffle_epi8(table, indices(&UPPER_DIGITS));
    let low = _mm256_set1_epi8(15);
    let (first, second) =
        (_mm256_and_si256(digits, low), _mm256_and_si256(_mm256_srli_epi16::<4>(digits), low));
    [
        _mm256_shuffle_epi8(by_lower, first),
        _mm256_shuffle_epi8(by_upper, first),
        _mm256_shuffle_epi8(by_lower, second),
        _mm256_shuffle_epi8(by_upper, second),
    ]
}

/// Returns the four 2-bit digits of bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub fn two_bits(bytes: __m256i) -> [__m256i; 4] {
    let digit = _mm256_set1_epi8(3);
    [
        _mm256_and_si256(bytes, digit),
        _mm256_and_si256(_mm256_srli_epi16::<2>(bytes), digit),
        _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), digit),
        _mm256_and_si256(_mm256_srli_epi16::<6>(bytes), digit),
    ]
}
