//! Kernels for AVX2 with FMA, and for AVX-VNNI.
//!
//! Half a tile, eight rows of four columns, fills one 256-bit vector. Weights are unsigned bytes, `byte *
//! stride - zero`; a code of five or six bits is its byte and needs no table. Without VNNI, `pmaddubsw` adds
//! in 16 bits. As many chunks of four columns as stay below 2^15 are added before they are widened. Bytes
//! above 64 are signed instead, as |w| times sign(x, w).
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::x86_64::*;

use nestling_formats::Level;

use super::super::planes::avx2::panel::{self, AddRows, GROUPS, Panel, PanelForm};
use super::super::planes::avx2::{
    HalfTiles, TileWork, broadcast, chunks_in_16_bits, halves, load, lookup_nibbles, middle,
    nibbles, pair_dots, prefetch_codes, two_bits,
};
use super::super::rows::{PACKED_ROWS, PackedGroup, QuantizedGroup};
use super::{GROUP, RUN, RowList, ScalePanel, ScaledWeights, TileValues, Unsigned};

mod k_quants;
mod row;
mod scales;

/// Number of activation rows that share one decoded group.
const BLOCK: usize = 16;

/// Defines the products of one tile. Parameters are a list of features, the number of rows up to which [`few_rows`] is
/// asked, the selection of a `MODE`, that of the function for packed rows, the modes, and the sums of a sub-block.
macro_rules! products_for {
    ($module:ident, $features:literal, $few:literal, $mode:expr, $many:expr, [$($some:literal)*], $dots:ident) => {
        pub mod $module {
            use super::*;

            /// Computes one tile for some rows.
            ///
            /// # Safety
            /// The machine must have the features, and [`super::super::fits`] must hold.
            #[target_feature(enable = $features)]
            pub unsafe fn tile(
                weights: &ScaledWeights,
                tile: usize,
                rows: RowList,
                out: &mut [TileValues],
            ) {
                // SAFETY: guaranteed by the caller.
                if rows.rows().len() <= $few && unsafe { few_rows(weights, tile, rows, out) } {
                    return;
                }
                let mode: usize = $mode(weights.table.unsigned.largest);
                let many = $many(panel_form(weights), mode);
                // SAFETY: guaranteed by the caller.
                unsafe {
                    if let Some(many) = many.filter(|_| !rows.packed().is_empty()) {
                        return panel_products(weights, tile, rows.packed(), out, many);
                    }
                    match (mode, weights.form.sub_blocks()) {
                        $(($some, 1) => products::<$some, 1>(weights, tile, rows, out),
                        ($some, _) => products::<$some, 2>(weights, tile, rows, out),)*
                        _ => {}
                    }
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn products<const MODE: usize, const SUBS: usize>(
                weights: &ScaledWeights,
                tile: usize,
                rows: RowList,
                out: &mut [TileValues],
            ) {
                let x = rows.source();
                let (mut panel, mut values) = (ScalePanel::ZERO, zero());
                let product = Product::new::<MODE>(weights);
                for (rows, out) in rows.rows().chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
                    let mut starts = [std::ptr::null(); BLOCK];
                    for (start, row) in starts.iter_mut().zip(rows) {
                        *start = x.row(*row as usize).as_ptr();
                    }
                    out.fill([0.0; 16]);
                    for group in 0..weights.groups {
                        if group.is_multiple_of(RUN) {
                            k_quants::fill::<SUBS>(weights, tile, group, &mut panel);
                        }
                        let cell = tile * weights.groups + group;
                        prefetch_codes(&weights.planes, cell, weights.last_bits());
                        // SAFETY: `group` is below the groups of the weights and of the rows.
                        unsafe {
                            decode(&product, cell, &mut values);
                            let decoded = DecodedGroup { panel: &panel, values: &values, group };
                            let (twos, last) = out.as_chunks_mut();
                            for (out, x) in twos.iter_mut().zip(starts.as_chunks().0) {
                                add_group::<MODE, SUBS, 2>(&product, decoded, x, out);
                            }
                            if let ([out], Some(x)) = (last, starts.get(rows.len() - 1)) {
                                let out = std::array::from_mut(out);
                                add_group::<MODE, SUBS, 1>(&product, decoded, &[*x], out);
                            }
                        }
                    }
                }
            }

            /// Adds a group to the sums of 16 rows of weights and `T` rows of activations, which share loads of
            /// the values.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn add_group<const MODE: usize, const SUBS: usize, const T: usize>(
                product: &Product,
                decoded: DecodedGroup,
                x: &[*const QuantizedGroup; T],
                out: &mut [TileValues; T],
            ) {
                let slot = decoded.group % RUN * SUBS;
                let (mut sums, mut sums_of_x) = ([[_mm256_setzero_ps(); 2]; T], [[0; 2]; T]);
                // SAFETY: the rows have the group.
                let x = unsafe { std::array::from_fn(|t| &*x[t].add(decoded.group)) };
                for t in 0..T {
                    sums_of_x[t] = self::sums_of_x::<SUBS>(x[t]);
                    // SAFETY: `out` has 16 floats for each row.
                    sums[t] = unsafe { halves(&out[t]) };
                }
                for sub in 0..SUBS {
                    // SAFETY: a slot is 16 floats.
                    let scales = unsafe { halves(&decoded.panel.scales[slot + sub]) };
                    let dots = $dots::<MODE, SUBS, T>(decoded.values, &x, sub);
                    for t in 0..T {
                        let start = _mm256_set1_epi32(-product.zero * sums_of_x[t][sub]);
                        for half in 0..2 {
                            let mut dots = dots[t][half];
                            if product.stride != 1 {
                                let stride = _mm256_set1_epi32(product.stride);
                                dots = _mm256_mullo_epi32(dots, stride);
                            }
                            let dots = _mm256_cvtepi32_ps(_mm256_add_epi32(dots, start));
                            let scale = _mm256_mul_ps(_mm256_set1_ps(x[t].scale), scales[half]);
                            sums[t][half] = _mm256_fmadd_ps(dots, scale, sums[t][half]);
                        }
                    }
                }
                if product.has_minima {
                    for sub in 0..SUBS {
                        // SAFETY: a slot is 16 floats.
                        let minima = unsafe { halves(&decoded.panel.minima[slot + sub]) };
                        for t in 0..T {
                            let x_sum = _mm256_set1_ps(x[t].scale * sums_of_x[t][sub] as f32);
                            for half in 0..2 {
                                sums[t][half] =
                                    _mm256_fmadd_ps(x_sum, minima[half], sums[t][half]);
                            }
                        }
                    }
                }
                for t in 0..T {
                    // SAFETY: `out` has 16 floats for each row.
                    unsafe {
                        _mm256_storeu_ps(out[t].as_mut_ptr(), sums[t][0]);
                        _mm256_storeu_ps(out[t][8..].as_mut_ptr(), sums[t][1]);
                    }
                }
            }
        }
    };
}

products_for!(plain, "avx2,fma,f16c", 4, chunks_in_16_bits, panel::plain, [8 4 2 0], plain_dots);
products_for!(vnni, "avx2,fma,f16c,avxvnni", 4, |_| 8, panel::vnni, [8], vnni_dots);

/// Computes one tile for one row, or for up to four with frequent codes. Returns false for others.
///
/// # Safety
/// The machine must have AVX2, FMA and F16C, and [`super::fits`] must hold.
unsafe fn few_rows(
    weights: &ScaledWeights,
    tile: usize,
    rows: RowList,
    out: &mut [TileValues],
) -> bool {
    let work = TileWork { weights, tile, rows, out };
    // SAFETY: guaranteed by the caller.
    unsafe {
        match work.rows.rows().len() {
            1 => work.compute::<1>(row::tile(weights)),
            2 => work.compute::<2>(row::few(weights)),
            3 => work.compute::<3>(row::few(weights)),
            4 => work.compute::<4>(row::few(weights)),
            _ => false,
        }
    }
}

/// Returns the meaning of a panel's bytes.
fn panel_form(weights: &ScaledWeights) -> PanelForm {
    let Unsigned { stride, zero, .. } = weights.table.unsigned;
    let (subs, has_minima) = (weights.form.sub_blocks(), weights.has_minima());
    PanelForm { stride, zero, subs, has_minima }
}

/// Computes one tile for packed rows. The panel has a stack frame of its own, so that calls with few rows do not touch
/// its pages.
///
/// # Safety
/// The machine must have the features of `add_rows` and F16C, and [`super::fits`] must hold.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn panel_products(
    weights: &ScaledWeights,
    tile: usize,
    x: &[PackedGroup],
    out: &mut [TileValues],
    add_rows: AddRows,
) {
    let (mut panel, mut run, form) = (Panel::zero(), ScalePanel::ZERO, panel_form(weights));
    // Bytes are unsigned in every mode but 0, for which there is no panel.
    let product = Product::new::<8>(weights);
    out.fill([0.0; 16]);
    for first in (0..weights.groups).step_by(GROUPS) {
        let count = GROUPS.min(weights.groups - first);
        for group in 0..count {
            // SAFETY: the group is below the groups of the weights.
            unsafe {
                let cell = tile * weights.groups + first + group;
                decode(&product, cell, &mut panel.values[group]);
            }
        }
        for start in (0..count).step_by(RUN) {
            scales::fill(weights, tile, first + start, &mut run);
            let slots = start * form.subs..GROUPS.min(start + RUN) * form.subs;
            panel.scales[slots.clone()].copy_from_slice(&run.scales[..slots.len()]);
            if form.has_minima {
                panel.minima[slots.clone()].copy_from_slice(&run.minima[..slots.len()]);
            }
        }
        for (block, out) in out.chunks_mut(PACKED_ROWS).enumerate() {
            let x = &x[block * weights.groups + first..][..count];
            // SAFETY: the panel has as many groups as are used of `x`.
            unsafe { add_rows(&panel, form, x, out) };
        }
    }
}

/// A decoded group and its scales.
#[derive(Clone, Copy)]
struct DecodedGroup<'a> {
    panel: &'a ScalePanel,
    values: &'a HalfTiles,
    /// Index of the group in its rows.
    group: usize,
}

/// Common data of the products of all groups.
struct Product<'a> {
    weights: &'a ScaledWeights<'a>,
    /// Bytes indexed by nibble at levels 2 to 4.
    table: __m256i,
    /// Mask that flips the upper bit of 8-bit codes to make them signed.
    flip: __m256i,
    stride: i32,
    zero: i32,
    has_minima: bool,
}

impl<'a> Product<'a> {
    /// Creates the common data. With MODE 0, bytes are signed: the values themselves.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new<const MODE: usize>(weights: &'a ScaledWeights<'a>) -> Self {
        let Unsigned { bytes, stride, zero, .. } = weights.table.unsigned;
        let (values, _) = weights.table.values.as_chunks::<16>();
        let (stride, zero) = if MODE == 0 { (1, 0) } else { (stride, zero) };
        // SAFETY: both tables have 16 bytes.
        let table = unsafe {
            match MODE {
                0 => _mm_loadu_si128(values[0].as_ptr().cast()),
                _ => _mm_loadu_si128(bytes.as_ptr().cast()),
            }
        };
        let flip = _mm256_set1_epi8(if MODE == 0 { -128 } else { 0 });
        let (table, has_minima) = (_mm256_broadcastsi128_si256(table), weights.has_minima());
        Self { weights, table, flip, stride, zero, has_minima }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn zero() -> HalfTiles {
    [[_mm256_setzero_si256(); 2]; 8]
}

#[inline]
#[target_feature(enable = "avx2")]
fn sums_of_x<const SUBS: usize>(x: &QuantizedGroup) -> [i32; 2] {
    if SUBS == 1 {
        return [-(x.correction >> 7); 2];
    }
    const { assert!(GROUP == 32) };
    // SAFETY: there are 32 activations.
    let x = unsafe { _mm256_loadu_si256(x.values.as_ptr().cast()) };
    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), x);
    let fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    let eights = _mm256_add_epi32(fours, _mm256_shuffle_epi32::<0b1011_0001>(fours));
    let halves = _mm256_add_epi32(eights, _mm256_shuffle_epi32::<0b0100_1110>(eights));
    [_mm256_extract_epi32::<0>(halves), _mm256_extract_epi32::<4>(halves)]
}

/// Computes the exact sums of a sub-block by halves of the tile without VNNI.
#[inline]
#[target_feature(enable = "avx2")]
fn plain_dots<const MODE: usize, const SUBS: usize, const T: usize>(
    values: &HalfTiles,
    x: &[&QuantizedGroup; T],
    sub: usize,
) -> [[__m256i; 2]; T] {
    pair_dots::<MODE, SUBS, T>(values, x, sub, _mm256_set1_epi16(1))
}

/// Computes the same sums with VNNI, for any bytes.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn vnni_dots<const MODE: usize, const SUBS: usize, const T: usize>(
    values: &HalfTiles,
    x: &[&QuantizedGroup; T],
    sub: usize,
) -> [[__m256i; 2]; T] {
    let (count, mut sums) = (8 / SUBS, [[_mm256_setzero_si256(); 2]; T]);
    for (chunk, values) in values.iter().enumerate().skip(sub * count).take(count) {
        for (sums, x) in sums.iter_mut().zip(x) {
            // SAFETY: there are eight chunks.
            let x = unsafe { broadcast(x, chunk) };
            for half in 0..2 {
                sums[half] = _mm256_dpbusd_avx_epi32(sums[half], values[half], x);
            }
        }
    }
    sums
}

/// Decodes one group to bytes.
#[inline]
#[target_feature(enable = "avx2")]
#[expect(clippy::needless_range_loop, reason = "indices name chunks and halves")]
unsafe fn decode(product: &Product, cell: usize, out: &mut HalfTiles) {
    let (weights, planes) = (product.weights, &product.weights.planes);
    let last = weights.last_bits();
    if last == 0 {
        // SAFETY: the caller's `cell` is inside the planes.
        return unsafe {
            lookup_nibbles(planes, weights.level == Level::L2, cell, product.table, out);
        };
    }
    for vector in 0..2 {
        for half in 0..2 {
            // SAFETY: as above.
            let (first, last_digits) = unsafe {
                let p2 = load(planes.p2, cell * 2 + vector, half);
                let first = nibbles(p2, middle(planes, cell, vector, half));
                let last_digits = match last {
                    1 => one_bits(load(planes.p6, cell, half), vector),
                    2 => two_bits(load(planes.p6, cell * 2 + vector, half)),
                    _ => nibbles(
                        load(planes.p6, cell * 2 + vector, half),
                        load(planes.p8, cell * 2 + vector, half),
                    ),
                };
                (first, last_digits)
            };
            let shift = _mm_cvtsi32_si128(i32::from(last));
            for i in 0..4 {
                // A nibble shifted by up to four bits stays within its byte.
                let code = _mm256_or_si256(_mm256_sll_epi16(first[i], shift), last_digits[i]);
                out[vector * 4 + i][half] =
                    if last == 4 { _mm256_xor_si256(code, product.flip) } else { code };
            }
        }
    }
}

/// Returns the four 1-bit digits of bytes that one half of the chunks uses.
#[inline]
#[target_feature(enable = "avx2")]
fn one_bits(bytes: __m256i, vector: usize) -> [__m256i; 4] {
    let bytes = if vector == 0 { bytes } else { _mm256_srli_epi16::<4>(bytes) };
    let digit = _mm256_set1_epi8(1);
    [
        _mm256_and_si256(bytes, digit),
        _mm256_and_si256(_mm256_srli_epi16::<1>(bytes), digit),
        _mm256_and_si256(_mm256_srli_epi16::<2>(bytes), digit),
        _mm256_and_si256(_mm256_srli_epi16::<3>(bytes), digit),
    ]
}
