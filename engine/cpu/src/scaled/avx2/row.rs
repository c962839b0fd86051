//! Products of one row of activations for AVX2 without VNNI.
//!
//! Each byte is used once, so four chunks of columns are decoded and multiplied in registers, and sums stay in
//! registers for all groups.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::x86_64::*;

use super::super::{QuantizedGroup, RUN, ScalePanel, ScaledWeights, TileValues, Unsigned};
use super::{Product, chunks_in_16_bits, halves, one_bits, scales, sums_of_x};
use crate::planes::MiddlePlanes;
use crate::planes::avx2::{after, broadcast, load, multiply_add, nibbles, spread, two_bits};

/// Kinds of codes. Codes of two to four bits are looked up in a table, unless each nibble is its byte. P3 and
/// P4 are merged in codes of four bits and more.
const TWO: u8 = 0;
const THREE: u8 = 1;
const NIBBLE: u8 = 2;
const PLAIN_NIBBLE: u8 = 3;
const FIVE: u8 = 4;
const SIX: u8 = 5;
const EIGHT: u8 = 6;

/// Bytes of four chunks of columns in the halves of a tile.
type Quarters = [[__m256i; 4]; 2];

/// A function that computes one tile for one row, given the row's groups.
pub type RowTile = unsafe fn(&ScaledWeights, usize, &[QuantizedGroup], &mut TileValues);

/// Returns the function for some weights, or `None` if P3 and P4 are separate. It requires the features of
/// this module, and [`super::super::fits`] for a list of the row.
pub fn tile(weights: &ScaledWeights) -> Option<RowTile> {
    let Unsigned { bytes, largest, .. } = weights.table.unsigned;
    let is_plain = bytes.iter().zip(0..).all(|(byte, index)| *byte == index);
    let codes = match (weights.planes.middle, weights.last_bits()) {
        (MiddlePlanes::None, _) => TWO,
        (MiddlePlanes::P3(_), _) => THREE,
        (MiddlePlanes::Split(..), _) => return None,
        (MiddlePlanes::Merged(_), 1) => FIVE,
        (MiddlePlanes::Merged(_), 2) => SIX,
        (MiddlePlanes::Merged(_), 4) => EIGHT,
        (MiddlePlanes::Merged(_), _) if is_plain => PLAIN_NIBBLE,
        (MiddlePlanes::Merged(_), _) => NIBBLE,
    };
    let mode = chunks_in_16_bits(largest);
    // Tables with values of both kinds of modes may be read as signed values.
    let mode = if codes < NIBBLE && mode != 8 { 0 } else { mode };
    let (one, two): (RowTile, RowTile) = match (codes, mode) {
        (TWO, 8) => (product::<TWO, 8, 1>, product::<TWO, 8, 2>),
        (TWO, _) => (product::<TWO, 0, 1>, product::<TWO, 0, 2>),
        (THREE, 8) => (product::<THREE, 8, 1>, product::<THREE, 8, 2>),
        (THREE, _) => (product::<THREE, 0, 1>, product::<THREE, 0, 2>),
        (NIBBLE, 8) => (product::<NIBBLE, 8, 1>, product::<NIBBLE, 8, 2>),
        (NIBBLE, 4) => (product::<NIBBLE, 4, 1>, product::<NIBBLE, 4, 2>),
        (NIBBLE, _) => (product::<NIBBLE, 0, 1>, product::<NIBBLE, 0, 2>),
        (PLAIN_NIBBLE, _) => (product::<PLAIN_NIBBLE, 8, 1>, product::<PLAIN_NIBBLE, 8, 2>),
        (FIVE, _) => (product::<FIVE, 4, 1>, product::<FIVE, 4, 2>),
        (SIX, _) => (product::<SIX, 2, 1>, product::<SIX, 2, 2>),
        _ => (product::<EIGHT, 0, 1>, product::<EIGHT, 0, 2>),
    };
    Some(if weights.form.sub_blocks() == 1 { one } else { two })
}

/// Computes one tile for one row.
///
/// # Safety
/// The machine must have the features, `CODES` must be those of the weights, and [`super::super::fits`] must
/// hold for a list of the row.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn product<const CODES: u8, const MODE: usize, const SUBS: usize>(
    weights: &ScaledWeights,
    tile: usize,
    x: &[QuantizedGroup],
    out: &mut TileValues,
) {
    let product = Product::new::<MODE>(weights);
    let middle = match weights.planes.middle {
        MiddlePlanes::P3(plane) | MiddlePlanes::Merged(plane) => plane,
        MiddlePlanes::None | MiddlePlanes::Split(..) => &[],
    };
    let mut panel = ScalePanel::ZERO;
    let mut sums = [_mm256_setzero_ps(); 2];
    for (run, x) in x.chunks(RUN).enumerate() {
        scales::fill(weights, tile, run * RUN, &mut panel);
        let first = tile * weights.groups + run * RUN;
        for (group, x) in x.iter().enumerate() {
            // SAFETY: there are as many groups of the weights as of `x`.
            unsafe {
                let cell = Cell { product: &product, middle, index: first + group };
                sums = add_group::<CODES, MODE, SUBS>(cell, &panel, group, x, sums);
            }
        }
    }
    // SAFETY: `out` has 16 floats.
    unsafe {
        _mm256_storeu_ps(out.as_mut_ptr(), sums[0]);
        _mm256_storeu_ps(out[8..].as_mut_ptr(), sums[1]);
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

/// Adds a group, which is group `group` of the panel, to the sums of 16 rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
#[expect(clippy::needless_range_loop, reason = "indices name sub-blocks and halves")]
unsafe fn add_group<const CODES: u8, const MODE: usize, const SUBS: usize>(
    cell: Cell,
    panel: &ScalePanel,
    group: usize,
    x: &QuantizedGroup,
    mut sums: [__m256; 2],
) -> [__m256; 2] {
    let product = cell.product;
    let (sums_of_x, scale_of_x) = (sums_of_x::<SUBS>(x), _mm256_set1_ps(x.scale));
    let mut dots = Dots::zero();
    for vector in 0..2 {
        let cell = Cell { index: after(cell.index, dots.pairs), ..cell };
        // SAFETY: the caller's group is inside the planes.
        let bytes =
            unsafe { [quarter::<CODES>(cell, vector, 0), quarter::<CODES>(cell, vector, 1)] };
        let ends = SUBS == 2 || vector == 1;
        dots.add::<MODE>(&bytes, x, vector, ends);
        if !ends {
            continue;
        }
        let sub = if SUBS == 2 { vector } else { 0 };
        // SAFETY: a slot is 16 floats.
        let scales = unsafe { halves(&panel.scales[group * SUBS + sub]) };
        let mut wide = dots.wide;
        if CODES >= FIVE && product.stride != 1 {
            let stride = _mm256_set1_epi32(product.stride);
            wide = [_mm256_mullo_epi32(wide[0], stride), _mm256_mullo_epi32(wide[1], stride)];
        }
        let start = _mm256_set1_epi32(-product.zero * sums_of_x[sub]);
        for half in 0..2 {
            let dots = _mm256_cvtepi32_ps(_mm256_add_epi32(wide[half], start));
            let scale = _mm256_mul_ps(scale_of_x, scales[half]);
            sums[half] = _mm256_fmadd_ps(dots, scale, sums[half]);
        }
        dots = Dots::zero();
    }
    if product.has_minima {
        for sub in 0..SUBS {
            // SAFETY: a slot is 16 floats.
            let minima = unsafe { halves(&panel.minima[group * SUBS + sub]) };
            let x_sum = _mm256_set1_ps(x.scale * sums_of_x[sub] as f32);
            for half in 0..2 {
                sums[half] = _mm256_fmadd_ps(x_sum, minima[half], sums[half]);
            }
        }
    }
    sums
}

/// Exact sums of a sub-block by halves of the tile.
struct Dots {
    /// Sums of pairs of products in 16 bits, not yet part of `wide`.
    pairs: [__m256i; 2],
    wide: [__m256i; 2],
}

impl Dots {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn zero() -> Self {
        let zero = [_mm256_setzero_si256(); 2];
        Self { pairs: zero, wide: zero }
    }

    /// Adds the products of vector `vector` of a group. `ends` means that no others follow.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn add<const MODE: usize>(
        &mut self,
        bytes: &Quarters,
        x: &QuantizedGroup,
        vector: usize,
        ends: bool,
    ) {
        for chunk in 0..4 {
            // SAFETY: there are eight chunks.
            let x = unsafe { broadcast(x, vector * 4 + chunk) };
            for half in 0..2 {
                let bytes = bytes[half][chunk];
                if MODE == 0 {
                    self.wide[half] = multiply_add(self.wide[half], bytes, x);
                } else {
                    let pairs = _mm256_maddubs_epi16(bytes, x);
                    self.pairs[half] = _mm256_add_epi16(self.pairs[half], pairs);
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
        for half in 0..2 {
            let fours = _mm256_madd_epi16(self.pairs[half], _mm256_set1_epi16(1));
            self.wide[half] = _mm256_add_epi32(self.wide[half], fours);
            self.pairs[half] = _mm256_setzero_si256();
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
            return lookup(table, two_bits(p2));
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

/// Looks up the bytes of four vectors of indices.
#[inline]
#[target_feature(enable = "avx2")]
fn lookup(table: __m256i, indices: [__m256i; 4]) -> [__m256i; 4] {
    let mut bytes = indices;
    for i in 0..4 {
        bytes[i] = _mm256_shuffle_epi8(table, indices[i]);
    }
    bytes
}
