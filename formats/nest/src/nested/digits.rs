//! Extraction of code digits from a tile of sixteen rows for several planes at once.
//!
//! The codes of a group are first interleaved, four columns of each row at a time. After that, each plane
//! takes only shifts and masks of whole vectors.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "functions for instructions that were found present")
)]

use super::{GROUP, TILE_ROWS};

/// Four columns of sixteen rows, one byte per code.
pub(super) type Vector = [u32; TILE_ROWS];

const VECTOR_BYTES: usize = 4 * TILE_ROWS;

const CHUNKS: usize = GROUP / 4;

/// Groups that are interleaved before their digits are taken, so that choosing what to take costs little.
const BATCH: usize = 8;

/// Codes of sixteen rows, 32 bytes after 32 bytes; all rows have the same number of them.
pub(super) type TileRows<'a> = [&'a [[u8; GROUP]]; TILE_ROWS];

/// Output of one digit of each code.
pub(super) struct Digits<'a> {
    /// Width of a digit in bits: 1 or 2.
    pub bits: u8,
    /// Right shift that moves the digit to the bottom of a code.
    pub shift: u8,
    /// Digits of all tiles.
    pub out: &'a mut [u8],
}

/// Writes the digits of tile number `tile` to each output.
pub(super) fn write_tile(rows: &TileRows<'_>, tile: usize, digits: &mut [Digits<'_>]) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            // SAFETY: the processor supports these instructions.
            return unsafe { x86::write_avx512(rows, tile, digits) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor supports these instructions.
            return unsafe { x86::write_avx2(rows, tile, digits) };
        }
    }
    write(rows, tile, digits, side_by_side);
}

#[inline(always)]
fn write(
    rows: &TileRows<'_>,
    tile: usize,
    digits: &mut [Digits<'_>],
    interleave: impl Fn([&[u8; GROUP]; TILE_ROWS]) -> [Vector; CHUNKS] + Copy,
) {
    let groups = rows[0].len();
    let whole = groups - groups % BATCH;
    // Zeroed once: a batch overwrites what it takes.
    let mut codes = [[[0; TILE_ROWS]; CHUNKS]; BATCH];
    for group in (0..whole).step_by(BATCH) {
        write_batch(rows, tile * groups, group, digits, &mut codes, interleave);
    }
    // Default: never, a batch is not empty.
    let Some(one) = codes.first_chunk_mut::<1>() else { return };
    for group in whole..groups {
        write_batch(rows, tile * groups, group, digits, one, interleave);
    }
}

/// Writes the digits of `COUNT` groups from `group` on; `before` groups precede those of the tile. `codes` is
/// overwritten.
#[inline(always)]
fn write_batch<const COUNT: usize>(
    rows: &TileRows<'_>,
    before: usize,
    group: usize,
    digits: &mut [Digits<'_>],
    codes: &mut [[Vector; CHUNKS]; COUNT],
    interleave: impl Fn([&[u8; GROUP]; TILE_ROWS]) -> [Vector; CHUNKS] + Copy,
) {
    let mut batch = [&[[0; GROUP]; COUNT]; TILE_ROWS];
    for (batch, row) in batch.iter_mut().zip(rows) {
        // Default: never, the caller's groups are those of the rows.
        let Some(codes) = row[group..].first_chunk() else { return };
        *batch = codes;
    }
    for (k, codes) in codes.iter_mut().enumerate() {
        *codes = interleave(batch.map(|row| &row[k]));
    }
    for Digits { bits, shift, out } in &mut *digits {
        let bytes = usize::from(*bits) * VECTOR_BYTES;
        let start = (before + group) * bytes;
        let Some(out) = out.get_mut(start..start + COUNT * bytes) else { continue };
        let codes = codes.as_flattened();
        match (bits, shift) {
            (2, 6) => cut::<2, 6, 4>(codes, out),
            (2, 4) => cut::<2, 4, 4>(codes, out),
            (2, 2) => cut::<2, 2, 4>(codes, out),
            (2, 0) => cut::<2, 0, 4>(codes, out),
            (1, 5) => cut::<1, 5, 8>(codes, out),
            (1, 4) => cut::<1, 4, 8>(codes, out),
            (1, 3) => cut::<1, 3, 8>(codes, out),
            _ => debug_assert!(false, "a plane that no form has"),
        }
    }
}

/// Extracts digits of `BITS` bits, starting at bit `SHIFT`, `COUNT` to a byte.
#[inline(always)]
fn cut<const BITS: usize, const SHIFT: usize, const COUNT: usize>(
    codes: &[Vector],
    out: &mut [u8],
) {
    let mask = u32::from_le_bytes([(1 << BITS) - 1; 4]);
    let vectors = codes.as_chunks::<COUNT>().0;
    for (codes, out) in vectors.iter().zip(out.as_chunks_mut::<VECTOR_BYTES>().0) {
        let mut all = [0; TILE_ROWS];
        // Each step depends on the one before, so that the compiler makes vectors of rows. No digit
        // crosses a byte boundary: eight bits are all that is shifted in.
        for codes in codes.iter().rev() {
            for (all, code) in all.iter_mut().zip(codes) {
                *all = *all << BITS | code >> SHIFT & mask;
            }
        }
        for (out, word) in out.as_chunks_mut().0.iter_mut().zip(all) {
            *out = word.to_le_bytes();
        }
    }
}

/// Interleaves the codes of sixteen rows in units of four columns.
#[inline(always)]
pub(super) fn side_by_side(rows: [&[u8; GROUP]; TILE_ROWS]) -> [Vector; CHUNKS] {
    let mut out = [[0; TILE_ROWS]; CHUNKS];
    for (lane, row) in rows.iter().enumerate() {
        for (out, codes) in out.iter_mut().zip(row.as_chunks().0) {
            out[lane] = u32::from_le_bytes(*codes);
        }
    }
    out
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use std::arch::x86_64::*;

    use super::{CHUNKS, Digits, TileRows, write};
    use crate::nested::{GROUP, TILE_ROWS};

    #[target_feature(enable = "avx512f,avx512bw")]
    pub fn write_avx512(rows: &TileRows<'_>, tile: usize, digits: &mut [Digits<'_>]) {
        let interleave = |rows: [&[u8; GROUP]; TILE_ROWS]| {
            let mut out = [[0; TILE_ROWS]; CHUNKS];
            for (out, step) in out.iter_mut().zip(steps_of_sixteen_rows(&rows)) {
                // SAFETY: both have 64 bytes.
                unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), step) };
            }
            out
        };
        write(rows, tile, digits, interleave);
    }

    /// Interleaves sixteen rows in steps of four bytes.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    pub fn steps_of_sixteen_rows(rows: &[&[u8; GROUP]; TILE_ROWS]) -> [__m512i; CHUNKS] {
        // Each 16-byte lane holds four-column units: the first and last four of a row, then the same of
        // the row four below.
        let pair = |row: usize| {
            // SAFETY: both have 32 bytes.
            let (low, high) = unsafe {
                let load = |row: usize| _mm256_loadu_si256(rows[row].as_ptr().cast());
                (load(row), load(row + 4))
            };
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
        };
        let turn = |row: usize| {
            let [a, b, c, d] = [pair(row), pair(row + 1), pair(row + 2), pair(row + 3)];
            let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
            let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
            [
                _mm512_unpacklo_epi64(ab, cd),
                _mm512_unpackhi_epi64(ab, cd),
                _mm512_unpacklo_epi64(ab_high, cd_high),
                _mm512_unpackhi_epi64(ab_high, cd_high),
            ]
        };
        let (above, below) = (turn(0), turn(8));
        let mut out = [above[0]; CHUNKS];
        for (chunk, (above, below)) in above.into_iter().zip(below).enumerate() {
            out[chunk] = _mm512_shuffle_i64x2::<0b10_00_10_00>(above, below);
            out[chunk + 4] = _mm512_shuffle_i64x2::<0b11_01_11_01>(above, below);
        }
        out
    }

    #[target_feature(enable = "avx2")]
    pub fn write_avx2(rows: &TileRows<'_>, tile: usize, digits: &mut [Digits<'_>]) {
        let interleave = |rows: [&[u8; GROUP]; TILE_ROWS]| {
            let mut out = [[0; TILE_ROWS]; CHUNKS];
            for half in [0, 8] {
                let steps = steps_of_eight_rows(&rows, half);
                for (out, step) in out.iter_mut().zip(steps.as_flattened()) {
                    // SAFETY: half a vector has 32 bytes.
                    unsafe { _mm256_storeu_si256(out[half..].as_mut_ptr().cast(), *step) };
                }
            }
            out
        };
        write(rows, tile, digits, interleave);
    }

    /// Interleaves eight rows, from row `half` on, in steps of four bytes: the first four steps and the others.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub fn steps_of_eight_rows(
        rows: &[&[u8; GROUP]; TILE_ROWS],
        half: usize,
    ) -> [[__m256i; CHUNKS / 2]; 2] {
        // SAFETY: both have 32 bytes.
        let load = |row: usize| unsafe { _mm256_loadu_si256(rows[row].as_ptr().cast()) };
        let turn = |row: usize| {
            let [a, b, c, d] = [load(row), load(row + 1), load(row + 2), load(row + 3)];
            let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
            let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
            [
                _mm256_unpacklo_epi64(ab, cd),
                _mm256_unpackhi_epi64(ab, cd),
                _mm256_unpacklo_epi64(ab_high, cd_high),
                _mm256_unpackhi_epi64(ab_high, cd_high),
            ]
        };
        let (above, below) = (turn(half), turn(half + 4));
        let mut out = [above; 2];
        for (chunk, (a, b)) in above.into_iter().zip(below).enumerate() {
            out[0][chunk] = _mm256_permute2x128_si256::<0x20>(a, b);
            out[1][chunk] = _mm256_permute2x128_si256::<0x31>(a, b);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type WriteTile = fn(&TileRows<'_>, usize, &mut [Digits<'_>]);

    fn ways() -> Vec<(&'static str, WriteTile)> {
        let plain: WriteTile = |rows, tile, digits| write(rows, tile, digits, side_by_side);
        let mut ways = vec![("plain", plain), ("detected", write_tile)];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            let avx2: WriteTile = |rows, tile, digits| {
                // SAFETY: the processor supports these instructions.
                unsafe { x86::write_avx2(rows, tile, digits) }
            };
            ways.push(("AVX2", avx2));
        }
        ways
    }

    #[test]
    fn every_digit_lies_where_the_layout_has_it() {
        const GROUPS: usize = 2 * BATCH + 3;
        let code = |tile: usize, row: usize, col: usize| {
            ((tile * 7919 + row * 104_729 + col * 1_299_709 + row * col) >> 3) as u8
        };
        for (bits, shift) in [(2, 6), (2, 4), (2, 2), (2, 0), (1, 5), (1, 4), (1, 3)] {
            for (name, write) in ways() {
                let bytes = GROUPS * usize::from(bits) * VECTOR_BYTES;
                let mut out = vec![0xa5; 2 * bytes];
                let mut other = vec![0xa5; 2 * GROUPS * 2 * VECTOR_BYTES];
                for tile in [1, 0] {
                    let rows: Vec<Vec<[u8; GROUP]>> = (0..TILE_ROWS)
                        .map(|row| {
                            let group = |group: usize| {
                                std::array::from_fn(|k| code(tile, row, GROUP * group + k))
                            };
                            (0..GROUPS).map(group).collect()
                        })
                        .collect();
                    let rows: TileRows<'_> = std::array::from_fn(|row| rows[row].as_slice());
                    let mut digits = [
                        Digits { bits: 2, shift: 6, out: &mut other },
                        Digits { bits, shift, out: &mut out },
                    ];
                    write(&rows, tile, &mut digits);
                }
                let grid = crate::nested::layout::Grid::new(2 * TILE_ROWS, GROUPS * GROUP).unwrap();
                for row in 0..2 * TILE_ROWS {
                    for col in 0..GROUPS * GROUP {
                        let layout = crate::nested::Layout::Tile16;
                        let (at, low) = grid.position(layout, bits, row, col);
                        let found = out[at] >> low & ((1 << bits) - 1);
                        let code = code(row / TILE_ROWS, row % TILE_ROWS, col);
                        let expected = code >> shift & ((1 << bits) - 1);
                        assert_eq!(found, expected, "{name}: {bits} from {shift}: {row} {col}");
                    }
                }
            }
        }
    }
}
