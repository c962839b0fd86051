//! Transposition of words of sixteen rows, which hold numbers of one, two or four bytes.
//!
//! Interleaving the first half of a list with the second half moves the highest bit of each index to the
//! bottom. The index of a number is that of its row, four bits, above that within the word: after four times the
//! row is the lower part.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "functions for instructions that every x86-64 processor has")
)]

use super::TILE_ROWS;

/// Transposes a word of each row, which holds numbers of `BYTES` bytes.
pub(super) fn transposed<const BYTES: usize>(words: [u64; TILE_ROWS]) -> [u64; TILE_ROWS] {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE2.
    return unsafe { x86::transposed::<BYTES>(words) };
    #[cfg(not(target_arch = "x86_64"))]
    transposed_plain::<BYTES>(words)
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn transposed_plain<const BYTES: usize>(words: [u64; TILE_ROWS]) -> [u64; TILE_ROWS] {
    let mut bytes = words.map(u64::to_le_bytes);
    for _ in 0..4 {
        let (above, below) = bytes.as_flattened().split_at(4 * TILE_ROWS);
        let numbers = above.as_chunks::<BYTES>().0.iter().zip(below.as_chunks::<BYTES>().0);
        let mut out = [[0; 8]; TILE_ROWS];
        let pairs = out.as_flattened_mut().chunks_exact_mut(2 * BYTES);
        for (pair, (first, second)) in pairs.zip(numbers) {
            pair[..BYTES].copy_from_slice(first);
            pair[BYTES..].copy_from_slice(second);
        }
        bytes = out;
    }
    bytes.map(u64::from_le_bytes)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::TILE_ROWS;

    const VECTORS: usize = TILE_ROWS / 2;

    #[target_feature(enable = "sse2")]
    pub fn transposed<const BYTES: usize>(words: [u64; TILE_ROWS]) -> [u64; TILE_ROWS] {
        let mut all = [_mm_setzero_si128(); VECTORS];
        for (all, [low, high]) in all.iter_mut().zip(words.as_chunks().0) {
            *all = _mm_set_epi64x(high.cast_signed(), low.cast_signed());
        }
        let all = shuffled::<BYTES>(shuffled::<BYTES>(all));
        let all = shuffled::<BYTES>(shuffled::<BYTES>(all));
        let mut out = [0; TILE_ROWS];
        for (out, vector) in out.as_chunks_mut().0.iter_mut().zip(all) {
            let high = _mm_unpackhi_epi64(vector, vector);
            *out = [_mm_cvtsi128_si64(vector), _mm_cvtsi128_si64(high)].map(i64::cast_unsigned);
        }
        out
    }

    /// Interleaves the two halves of all vectors.
    #[target_feature(enable = "sse2")]
    #[inline]
    fn shuffled<const BYTES: usize>(all: [__m128i; VECTORS]) -> [__m128i; VECTORS] {
        let mut out = all;
        for (k, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            *out = interleaved::<BYTES>(all[k], all[k + VECTORS / 2]);
        }
        out
    }

    /// Alternates the numbers of two vectors.
    #[target_feature(enable = "sse2")]
    #[inline]
    fn interleaved<const BYTES: usize>(a: __m128i, b: __m128i) -> [__m128i; 2] {
        match BYTES {
            1 => [_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b)],
            2 => [_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b)],
            _ => [_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<const BYTES: usize>() {
        let byte = |at: usize| ((at * 7919) >> 3) as u8;
        let words: [[u8; 8]; TILE_ROWS] =
            std::array::from_fn(|row| std::array::from_fn(|k| byte(8 * row + k)));
        let words = words.map(u64::from_le_bytes);
        for transposed in [transposed::<BYTES>, transposed_plain::<BYTES>] {
            let found = transposed(words).map(u64::to_le_bytes);
            for (at, found) in found.as_flattened().chunks(BYTES).enumerate() {
                let (number, row) = (at / TILE_ROWS, at % TILE_ROWS);
                let expected = (0..BYTES).map(|k| byte(8 * row + BYTES * number + k));
                assert!(found.iter().copied().eq(expected), "{BYTES}: {number} of {row}");
            }
        }
    }

    #[test]
    fn rows_alternate_whatever_the_size() {
        check::<1>();
        check::<2>();
        check::<4>();
    }
}
