//! Products of one row of activations for AVX2 and AVX-VNNI, and of up to four for the most frequent codes.
//!
//! Each byte is used once or a few times, so four chunks of columns are decoded and multiplied in registers, and sums
//! stay in registers for all groups.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::x86_64::*;

use super::super::{QuantizedGroup, RUN, ScalePanel, ScaledWeights, TileValues};
use super::{Product, k_quants, one_bits, sums_of_x};
use crate::planes::avx2::{
    after, broadcast, chunks_in_16_bits, halves, load, lookup, lookup_two_bits, multiply_add,
    nibbles, prefetch_codes, spread, two_bits,
};
use crate::planes::{CodePlanes, MiddlePlanes};

/// Kinds of codes. Codes of two to four bits are looked up in a table, unless each nibble is its byte. P3 and
/// P4 are merged in codes of four bits and more.
const TWO: u8 = 0;
const THREE: u8 = 1;
const NIBBLE: u8 = 2;
const PLAIN_NIBBLE: u8 = 3;
const FIVE: u8 = 4;
const SIX: u8 = 5;
const EIGHT: u8 = 6;

/// A function that computes one tile for `T` rows, given each row's groups.
pub type RowsTile<const T: usize> =
    unsafe fn(&ScaledWeights, usize, [&[QuantizedGroup]; T], &mut [TileValues; T]);

/// Returns the kind of the codes, or `None` if P3 and P4 are separate.
fn codes(weights: &ScaledWeights) -> Option<u8> {
    let is_plain = weights.table.unsigned.bytes.iter().zip(0..).all(|(byte, index)| *byte == index);
    Some(match (weights.planes.middle, weights.last_bits()) {
        (MiddlePlanes::None, _) => TWO,
        (MiddlePlanes::P3(_), _) => THREE,
        (MiddlePlanes::Split(..), _) => return None,
        (MiddlePlanes::Merged(_), 1) => FIVE,
        (MiddlePlanes::Merged(_), 2) => SIX,
        (MiddlePlanes::Merged(_), 4) => EIGHT,
        (MiddlePlanes::Merged(_), _) if is_plain => PLAIN_NIBBLE,
        (MiddlePlanes::Merged(_), _) => NIBBLE,
    })
}

/// Returns the number of bits of codes below their leading four.
const fn last_bits(codes: u8) -> u8 {
    match codes {
        FIVE => 1,
        SIX => 2,
        EIGHT => 4,
        _ => 0,
    }
}

/// Returns the function for several rows, for codes of frequent files that need no table. It requires the features of
/// this module, and [`super::super::fits`] for a list of the rows.
pub fn few<'a, const T: usize>(weights: &ScaledWeights<'a>) -> Option<RowsTile<T>> {
    let is_whole = weights.form.sub_blocks() == 1;
    Some(match codes(weights)? {
        PLAIN_NIBBLE if is_whole => product::<PLAIN_NIBBLE, 8, 1, T>,
        PLAIN_NIBBLE => product::<PLAIN_NIBBLE, 8, 2, T>,
        FIVE if is_whole => product::<FIVE, 4, 1, T>,
        FIVE => product::<FIVE, 4, 2, T>,
        SIX if is_whole => product::<SIX, 2, 1, T>,
        SIX => product::<SIX, 2, 2, T>,
        _ => return None,
    })
}

/// Returns the function for one row and some weights, or `None` if P3 and P4 are separate, with the same requirements.
pub fn tile(weights: &ScaledWeights) -> Option<RowsTile<1>> {
    let codes = codes(weights)?;
    let mode = chunks_in_16_bits(weights.table.unsigned.largest);
    // Tables with values of both kinds of modes may be read as signed values.
    let mode = if codes < NIBBLE && mode != 8 { 0 } else { mode };
    let (one, two): (RowsTile<1>, RowsTile<1>) = match (codes, mode) {
        (TWO, 8) => (product::<TWO, 8, 1, 1>, product::<TWO, 8, 2, 1>),
        (TWO, _) => (product::<TWO, 0, 1, 1>, product::<TWO, 0, 2, 1>),
        (THREE, 8) => (product::<THREE, 8, 1, 1>, product::<THREE, 8, 2, 1>),
        (THREE, _) => (product::<THREE, 0, 1, 1>, product::<THREE, 0, 2, 1>),
        (NIBBLE, 8) => (product::<NIBBLE, 8, 1, 1>, product::<NIBBLE, 8, 2, 1>),
        (NIBBLE, 4) => (product::<NIBBLE, 4, 1, 1>, product::<NIBBLE, 4, 2, 1>),
        (NIBBLE, _) => (product::<NIBBLE, 0, 1, 1>, product::<NIBBLE, 0, 2, 1>),
        (PLAIN_NIBBLE, _) => (product::<PLAIN_NIBBLE, 8, 1, 1>, product::<PLAIN_NIBBLE, 8, 2, 1>),
        (FIVE, _) => (product::<FIVE, 4, 1, 1>, product::<FIVE, 4, 2, 1>),
        (SIX, _) => (product::<SIX, 2, 1, 1>, product::<SIX, 2, 2, 1>),
        _ => (product::<EIGHT, 0, 1, 1>, product::<EIGHT, 0, 2, 1>),
    };
    Some(if weights.form.sub_blocks() == 1 { one } else { two })
}

/// Computes one tile for some rows.
///
/// # Safety
/// The machine must have the features, `CODES` must be those of the weights, and [`super::super::fits`] must
/// hold for a list of the rows.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn product<const CODES: u8, const MODE: usize, const SUBS: usize, const T: usize>(
    weights: &ScaledWeights,
    tile: usize,
    x: [&[QuantizedGroup]; T],
    out: &mut [TileValues; T],
) {
    let product = Product::new::<MODE>(weights);
    let middle = match weights.planes.middle {
        MiddlePlanes::P3(plane) | MiddlePlanes::Merged(plane) => plane,
        MiddlePlanes::None | MiddlePlanes::Split(..) => &[],
    };
    let mut panel = ScalePanel::ZERO;
    let mut sums = [[_mm256_setzero_ps(); 2]; T];
    // Constants of the kind of codes, so that the loop has no branches for planes.
    let known = match CODES {
        TWO => MiddlePlanes::None,
        THREE => MiddlePlanes::P3(middle),
        _ => MiddlePlanes::Merged(middle),
    };
    let planes = CodePlanes { middle: known, ..weights.planes };
    for group in 0..weights.groups {
        if group.is_multiple_of(RUN) {
            k_quants::fill::<SUBS>(weights, tile, group, &mut panel);
        }
        prefetch_codes(&planes, tile * weights.groups + group, last_bits(CODES));
        let cell = Cell { product: &product, middle, index: tile * weights.groups + group };
        let slot = group % RUN * SUBS;
        // SAFETY: there are as many groups of the weights as of each row, and one row uses both halves together.
        unsafe {
            let x = std::array::from_fn(|t| x[t].get_unchecked(group));
            if T == 1 {
                add_group::<CODES, MODE, SUBS, T, 0, 2>(cell, &panel, slot, &x, &mut sums);
            } else {
                add_group::<CODES, MODE, SUBS, T, 0, 1>(cell, &panel, slot, &x, &mut sums);
                add_group::<CODES, MODE, SUBS, T, 1, 2>(cell, &panel, slot, &x, &mut sums);
            }
        }
    }
    for t in 0..T {
        // SAFETY: `out` has 16 floats.
        unsafe {
            _mm256_storeu_ps(out[t].as_mut_ptr(), sums[t][0]);
            _mm256_storeu_ps(out[t][8..].as_mut_ptr(), sums[t][1]);
        }
    }
}

/// A group of a tile.
#[derive(Clone, Copy)]
struct Cell<'a> {
    product: &'a Product<'a>,
    /// Plane P3, or P3 and P4 merged; empty for codes of two bits.
    middle: &'a [u8],
    /// Index in the matrix.
    index: usize,
}

/// Adds a group, whose scales are in the panel from slot `slot` on, to the sums of halves `FROM` to `TO` of a tile. One
/// half at a time leaves registers for several rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
#[expect(clippy::needless_range_loop, reason = "indices name sub-blocks, halves and rows")]
unsafe fn add_group<
    const CODES: u8,
    const MODE: usize,
    const SUBS: usize,
    const T: usize,
    const FROM: usize,
    const TO: usize,
>(
    cell: Cell,
    panel: &ScalePanel,
    slot: usize,
    x: &[&QuantizedGroup; T],
    sums: &mut [[__m256; 2]; T],
) {
    let product = cell.product;
    let mut sums_of_x = [[0; 2]; T];
    for t in 0..T {
        sums_of_x[t] = self::sums_of_x::<SUBS>(x[t]);
    }
    let mut dots = Dots::<T, FROM, TO>::zero();
    for vector in 0..2 {
        let cell = Cell { index: after(cell.index, dots.pairs[0]), ..cell };
        let mut bytes = [[_mm256_setzero_si256(); 4]; 2];
        for half in FROM..TO {
            // SAFETY: the caller's group is inside the planes.
            bytes[half] = unsafe { quarter::<CODES>(cell, vector, half) };
        }
        let ends = SUBS == 2 || vector == 1;
        dots.add::<MODE>(&bytes, x, vector, ends);
        if !ends {
            continue;
        }
        let sub = if SUBS == 2 { vector } else { 0 };
        // SAFETY: a slot is 16 floats.
        let scales = unsafe { halves(&panel.scales[slot + sub]) };
        for t in 0..T {
            let scale_of_x = _mm256_set1_ps(x[t].scale);
            for half in FROM..TO {
                let mut wide = dots.wide[t][half];
                if CODES >= FIVE && product.stride != 1 {
                    wide = _mm256_mullo_epi32(wide, _mm256_set1_epi32(product.stride));
                }
                // Q4_K and Q4_1 have minima in place of a zero.
                if CODES != PLAIN_NIBBLE || product.zero != 0 {
                    let start = _mm256_set1_epi32(-product.zero * sums_of_x[t][sub]);
                    wide = _mm256_add_epi32(wide, start);
                }
                let scale = _mm256_mul_ps(scale_of_x, scales[half]);
                sums[t][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(wide), scale, sums[t][half]);
            }
        }
        dots = Dots::zero();
    }
    if product.has_minima {
        for sub in 0..SUBS {
            // SAFETY: a slot is 16 floats.
            let minima = unsafe { halves(&panel.minima[slot + sub]) };
            for t in 0..T {
                let x_sum = _mm256_set1_ps(x[t].scale * sums_of_x[t][sub] as f32);
                for half in FROM..TO {
                    sums[t][half] = _mm256_fmadd_ps(x_sum, minima[half], sums[t][half]);
                }
            }
        }
    }
}

/// Exact sums of a sub-block in halves `FROM` to `TO` of a tile.
struct Dots<const T: usize, const FROM: usize, const TO: usize> {
    /// Sums of pairs of products in 16 bits, not yet part of `wide`.
    pairs: [[__m256i; 2]; T],
    wide: [[__m256i; 2]; T],
}

impl<const T: usize, const FROM: usize, const TO: usize> Dots<T, FROM, TO> {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn zero() -> Self {
        let zero = [[_mm256_setzero_si256(); 2]; T];
        Self { pairs: zero, wide: zero }
    }

    /// Adds the products of vector `vector` of a group, four chunks of columns. `ends` means that no others follow.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn add<const MODE: usize>(
        &mut self,
        bytes: &[[__m256i; 4]; 2],
        x: &[&QuantizedGroup; T],
        vector: usize,
        ends: bool,
    ) {
        for chunk in 0..4 {
            for t in 0..T {
                // SAFETY: there are eight chunks.
                let x = unsafe { broadcast(x[t], vector * 4 + chunk) };
                for half in FROM..TO {
                    let bytes = bytes[half][chunk];
                    if MODE == 0 {
                        self.wide[t][half] = multiply_add(self.wide[t][half], bytes, x);
                    } else {
                        let pairs = _mm256_maddubs_epi16(bytes, x);
                        self.pairs[t][half] = _mm256_add_epi16(self.pairs[t][half], pairs);
                    }
                }
            }
            let full = MODE != 0 && MODE <= 4 && (chunk + 1).is_multiple_of(MODE);
            if full || (MODE == 8 && ends && chunk == 3) {
                self.widen();
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn widen(&mut self) {
        for t in 0..T {
            for half in FROM..TO {
                let fours = _mm256_madd_epi16(self.pairs[t][half], _mm256_set1_epi16(1));
                self.wide[t][half] = _mm256_add_epi32(self.wide[t][half], fours);
                self.pairs[t][half] = _mm256_setzero_si256();
            }
        }
    }
}

/// Decodes four chunks of half a tile to bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn quarter<const CODES: u8>(cell: Cell, vector: usize, half: usize) -> [__m256i; 4] {
    let Cell { product, middle, index: cell } = cell;
    let (planes, index) = (&product.weights.planes, cell * 2 + vector);
    // SAFETY: the caller's cell is inside the planes.
    unsafe {
        let p2 = load(planes.p2, index, half);
        let table = product.table;
        if CODES == TWO {
            return lookup_two_bits(table, p2);
        }
        let first = match CODES {
            THREE => {
                let bits = spread(load(middle, cell, half), vector);
                nibbles(p2, _mm256_slli_epi16::<1>(bits))
            }
            _ => nibbles(p2, load(middle, index, half)),
        };
        match CODES {
            THREE | NIBBLE => lookup(table, first),
            PLAIN_NIBBLE => first,
            FIVE => below::<1>(first, one_bits(load(planes.p6, cell, half), vector)),
            SIX => below::<2>(first, two_bits(load(planes.p6, index, half))),
            _ => {
                let last = nibbles(load(planes.p6, index, half), load(planes.p8, index, half));
                let mut codes = below::<4>(first, last);
                for code in &mut codes {
                    *code = _mm256_xor_si256(*code, product.flip);
                }
                codes
            }
        }
    }
}

/// Appends the last `BITS` bits to nibbles. A nibble shifted by up to four bits stays within its byte.
#[inline]
#[target_feature(enable = "avx2")]
fn below<const BITS: i32>(first: [__m256i; 4], last: [__m256i; 4]) -> [__m256i; 4] {
    let mut codes = first;
    for i in 0..4 {
        codes[i] = _mm256_or_si256(_mm256_slli_epi16::<BITS>(first[i]), last[i]);
    }
    codes
}
