//! Kernels for AVX-512 with VNNI, VBMI and GFNI (Ice Lake, Zen 4 and later).
//!
//! One 512-bit vector holds four columns of 16 rows; lane i of an accumulator is row i. Weights are unsigned
//! bytes, value + 128. They are looked up by `vpermb`, which ignores an index's two upper bits and needs no
//! mask if the table repeats; `vpdpbusd` starts from -128 * sum(x). Planes P3 and P4 that are not merged are
//! spread to 2-bit digits by one `gf2p8affineqb` per 256 weights. Levels 6 and 8 look up two digits of base
//! 128. Steps are unpacked for four groups at once, because they are most of the cost of level 2.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::x86_64::*;

use nestling_formats::Level;

use super::super::planes::MiddlePlanes;
use super::super::planes::avx512::{
    MERGED, NONE, NibbleTables, P3, SELECT, SPLIT, TilePlanes, narrow, nibbles, prefetch_line,
    six_bit_codes, two,
};
use super::super::rows::{PACKED_ROWS, PackedGroup, QuantizedGroup};
use super::{NestedWeights, RowList, TileValues};

mod panel;

/// Prefetch distance in groups, for few rows. Their matrices come from memory, and the hardware prefetcher
/// stops at page ends.
const AHEAD: usize = 24;

/// Prefetch distance of row scales in bytes. The scales of two tiles share a cache line.
const SCALES_AHEAD: usize = 4 * 32;

/// Number of rows from which activations are packed.
pub const PACKS_FROM: usize = 2;

/// Layout of a group of quantized activations in 32-bit words: offsets of scale and correction, and size.
const SCALE: usize = std::mem::offset_of!(QuantizedGroup, scale) / 4;
const CORRECTION: usize = std::mem::offset_of!(QuantizedGroup, correction) / 4;
const GROUP_WORDS: usize = size_of::<QuantizedGroup>() / 4;

// A packed group has the same words, each for eight rows.
const _: () = assert!(
    std::mem::offset_of!(PackedGroup, scales) == SCALE * 4 * PACKED_ROWS
        && std::mem::offset_of!(PackedGroup, corrections) == CORRECTION * 4 * PACKED_ROWS
        && size_of::<PackedGroup>() == GROUP_WORDS * 4 * PACKED_ROWS
);

/// Computes one tile for some rows.
///
/// # Safety
/// The machine must have the features, and [`super::fits`] must hold.
pub unsafe fn tile(weights: &NestedWeights, tile: usize, rows: RowList, out: &mut [TileValues]) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match (weights.level, weights.planes.middle) {
            (Level::L2, _) => blocks::<2, NONE>(weights, tile, rows, out),
            (Level::L3 | Level::L4, MiddlePlanes::Merged(_)) => {
                blocks::<4, MERGED>(weights, tile, rows, out);
            }
            (Level::L3 | Level::L4, MiddlePlanes::Split(..)) => {
                blocks::<4, SPLIT>(weights, tile, rows, out);
            }
            (Level::L3 | Level::L4, _) => blocks::<4, P3>(weights, tile, rows, out),
            (Level::L6, MiddlePlanes::Merged(_)) => blocks::<6, MERGED>(weights, tile, rows, out),
            (Level::L6, _) => blocks::<6, SPLIT>(weights, tile, rows, out),
            (Level::L8, MiddlePlanes::Merged(_)) => blocks::<8, MERGED>(weights, tile, rows, out),
            (Level::L8, _) => blocks::<8, SPLIT>(weights, tile, rows, out),
        }
    }
}

/// Addresses of one tile's first group.
#[derive(Clone, Copy)]
struct Source {
    groups: usize,
    planes: TilePlanes,
    steps: *const u8,
    step_high: *const u8,
}

impl Source {
    fn new(weights: &NestedWeights, tile: usize) -> Self {
        let cell = tile * weights.groups;
        let at = |plane: &[u8], bytes: usize| plane.as_ptr().wrapping_add(cell * bytes);
        Self {
            groups: weights.groups,
            planes: TilePlanes::new(&weights.planes, cell, 128),
            steps: at(weights.steps, 8),
            step_high: at(weights.step_high, 2),
        }
    }
}

/// Lookup tables of one tile, in registers.
struct Tables {
    /// Values at levels 2 to 4.
    nibble: NibbleTables,
    /// High and low digits + 128 at levels 6 and 8, with 64 entries for each value of the last two bits.
    high: [__m512i; 4],
    low: [__m512i; 4],
    /// Row scale times unit, and the factors of steps 0 to 15 and 16 to 31.
    units: __m512,
    steps_low: __m512,
    steps_high: __m512,
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,gfni,fma")]
unsafe fn blocks<const LEVEL: u8, const MIDDLE: u8>(
    weights: &NestedWeights,
    tile: usize,
    rows: RowList,
    out: &mut [TileValues],
) {
    let source = Source::new(weights, tile);
    let tables = tables::<LEVEL>(weights, tile);
    let (source, tables) = (&source, &tables);
    // SAFETY: `fits` holds, so that all planes, listed rows and packed blocks have the tile's groups.
    unsafe {
        if rows.packed().is_empty() {
            for index in 0..out.len() {
                let x = rows.source().row(rows.rows()[index] as usize).as_ptr().cast();
                products::<LEVEL, MIDDLE, 1, 1>(source, tables, x, &mut out[index..=index]);
            }
            return;
        }
        // The digits of more than four rows do not fit in the registers.
        let most = if LEVEL >= 6 { 4 } else { PACKED_ROWS };
        if out.len() > most {
            return panel::products::<LEVEL, MIDDLE>(source, tables, rows.packed(), out);
        }
        let x = rows.packed().as_ptr().cast();
        macro_rules! packed {
            ($($count:literal)*) => {
                match out.len() {
                    $($count => {
                        products::<LEVEL, MIDDLE, $count, PACKED_ROWS>(source, tables, x, out);
                    })*
                    _ => {}
                }
            };
        }
        if LEVEL >= 6 { packed!(1 2 3 4) } else { packed!(1 2 3 4 5 6 7 8) }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn tables<const LEVEL: u8>(weights: &NestedWeights, tile: usize) -> Tables {
    let decode = weights.decode;
    let factors = decode.steps.factors();
    let scales = weights.row_scales[tile * 32..][..32].as_ptr();
    _mm_prefetch::<_MM_HINT_T0>(scales.wrapping_add(SCALES_AHEAD).cast());
    // SAFETY: all loads are inside their arrays.
    unsafe {
        let scales = _mm512_cvtph_ps(_mm256_loadu_si256(scales.cast()));
        let (mut high, mut low) = ([_mm512_setzero_si512(); 4], [_mm512_setzero_si512(); 4]);
        if LEVEL >= 6 {
            for i in 0..4 {
                high[i] = _mm512_loadu_si512(decode.high[64 * i..].as_ptr().cast());
                low[i] = _mm512_loadu_si512(decode.low[64 * i..].as_ptr().cast());
            }
        }
        Tables {
            nibble: NibbleTables::new(weights.nibble_table(tile)),
            high,
            low,
            units: _mm512_mul_ps(scales, _mm512_set1_ps(weights.unit())),
            steps_low: _mm512_loadu_ps(factors.as_ptr()),
            steps_high: _mm512_loadu_ps(factors[16..].as_ptr()),
        }
    }
}

/// Multiplies with `T` rows of activations, `[groups, 10, LANES]` words: values, a scale and a correction of
/// each row. `LANES` rows are interleaved.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,gfni,fma")]
unsafe fn products<const LEVEL: u8, const MIDDLE: u8, const T: usize, const LANES: usize>(
    source: &Source,
    tables: &Tables,
    mut x: *const i32,
    out: &mut [TileValues],
) {
    let mut sums = [_mm512_setzero_ps(); T];
    // Wide levels have 16 vectors per group, narrow ones 8. The compiler removes unused ones.
    let mut low = [_mm512_setzero_si512(); 8];
    for first in (0..source.groups).step_by(4) {
        // SAFETY: `first` is below the groups of the matrix.
        let mut steps = unsafe { steps_of_four(source, first) };
        for group in first..source.groups.min(first + 4) {
            // SAFETY: `group` is below the groups of every plane and of the activations.
            unsafe {
                prefetch::<LEVEL, MIDDLE>(source, group + AHEAD);
                let scales = scales(tables, steps);
                steps = _mm512_srli_epi32::<8>(steps);
                let high = decode::<LEVEL, MIDDLE>(source, tables, group, &mut low);
                let group = group_sums::<LEVEL, T, LANES>(&high, &low, x);
                for t in 0..T {
                    let factor = _mm512_set1_ps(*x.add(SCALE * LANES + t).cast());
                    let scale = _mm512_mul_ps(factor, scales);
                    sums[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(group[t]), scale, sums[t]);
                }
                // A single advancing address: a sum of two would split each product into two operations.
                x = x.add(GROUP_WORDS * LANES);
            }
        }
    }
    for (out, sum) in out.iter_mut().zip(&sums) {
        // SAFETY: `out` has 16 floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), *sum) };
    }
}

/// Computes the exact sums of one group for `T` rows. All rows execute a step before the next one, so that
/// dependent products of one row overlap with other rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn group_sums<const LEVEL: u8, const T: usize, const LANES: usize>(
    high: &[__m512i; 8],
    low: &[__m512i; 8],
    x: *const i32,
) -> [__m512i; T] {
    let mut sums = [_mm512_setzero_si512(); T];
    // Sums of the low digits at levels 6 and 8. At other levels, sums of the last chunks, which shorten the
    // dependency chain for few rows.
    let mut others = [_mm512_setzero_si512(); T];
    let halves = LEVEL < 6 && T <= 4;
    // SAFETY: the caller's group has `LANES` rows.
    unsafe {
        for t in 0..T {
            sums[t] = _mm512_set1_epi32(*x.add(CORRECTION * LANES + t));
            if LEVEL >= 6 {
                others[t] = sums[t];
            }
        }
        // Unrolled by hand: the compiler does not always unroll a loop around the loop over rows.
        macro_rules! chunks {
            ($($chunk:literal)*) => {
                $(for t in 0..T {
                    let x = _mm512_set1_epi32(*x.add($chunk * LANES + t));
                    if halves && $chunk >= 4 {
                        others[t] = _mm512_dpbusd_epi32(others[t], high[$chunk], x);
                    } else {
                        sums[t] = _mm512_dpbusd_epi32(sums[t], high[$chunk], x);
                    }
                    if LEVEL >= 6 {
                        others[t] = _mm512_dpbusd_epi32(others[t], low[$chunk], x);
                    }
                })*
            };
        }
        chunks!(0 1 2 3 4 5 6 7);
    }
    for t in 0..T {
        if LEVEL >= 6 {
            sums[t] = _mm512_slli_epi32::<7>(sums[t]);
        }
        if LEVEL >= 6 || halves {
            sums[t] = _mm512_add_epi32(sums[t], others[t]);
        }
    }
    sums
}

/// Returns the steps of up to four groups from `group` on. Byte j of lane r is the step of row r in `group +
/// j`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
unsafe fn steps_of_four(source: &Source, group: usize) -> __m512i {
    // SAFETY: loads are masked to the existing groups.
    let (low, high) = unsafe {
        let (low, high) = (source.steps.add(group * 8), source.step_high.add(group * 2));
        let live = (1u8 << (source.groups - group).min(4)) - 1;
        let high = _mm_maskz_loadu_epi16(live, high.cast());
        (_mm256_maskz_loadu_epi64(live, low.cast()), _mm_cvtsi128_si64(high).cast_unsigned())
    };
    let twice = _mm512_permutexvar_epi64(
        _mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3),
        _mm512_castsi256_si512(low),
    );
    let nibbles = _mm512_srlv_epi64(twice, _mm512_setr_epi64(0, 4, 0, 4, 0, 4, 0, 4));
    let nibbles = _mm512_and_si512(nibbles, _mm512_set1_epi8(15));
    let steps = _mm512_mask_add_epi8(nibbles, high, nibbles, _mm512_set1_epi8(16));
    let rows = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let multiples = _mm512_mullo_epi32(rows, _mm512_set1_epi32(0x0101_0101));
    let bytes = _mm512_add_epi32(multiples, _mm512_set1_epi32(0x3020_1000));
    _mm512_permutexvar_epi8(bytes, steps)
}

/// Returns the weight scales of the 16 rows, from steps in the lanes' low bytes.
#[inline]
#[target_feature(enable = "avx512f")]
fn scales(tables: &Tables, steps: __m512i) -> __m512 {
    let factors = _mm512_permutex2var_ps(tables.steps_low, steps, tables.steps_high);
    _mm512_mul_ps(tables.units, factors)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn prefetch<const LEVEL: u8, const MIDDLE: u8>(source: &Source, group: usize) {
    source.planes.prefetch::<LEVEL, MIDDLE>(group);
    if group.is_multiple_of(8) {
        prefetch_line(source.steps, group * 8);
        prefetch_line(source.step_high, group * 2);
    }
}

/// Decodes a group to eight vectors of value + 128. At levels 6 and 8 these are high digits + 128, with low
/// digits + 128 in `low`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
unsafe fn decode<const LEVEL: u8, const MIDDLE: u8>(
    source: &Source,
    tables: &Tables,
    group: usize,
    low: &mut [__m512i; 8],
) -> [__m512i; 8] {
    // SAFETY: the caller's `group` is inside the planes that LEVEL and MIDDLE select.
    unsafe {
        let nibbles = nibbles::<LEVEL, MIDDLE>(&source.planes, group);
        if LEVEL >= 6 {
            wide::<LEVEL>(source, tables, group, nibbles, low)
        } else {
            narrow::<LEVEL>(&tables.nibble, nibbles)
        }
    }
}

/// Decodes levels 6 and 8: returns eight vectors of high digits + 128, and stores low digits + 128 in `low`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn wide<const LEVEL: u8>(
    source: &Source,
    tables: &Tables,
    group: usize,
    nibbles: [__m512i; 4],
    low: &mut [__m512i; 8],
) -> [__m512i; 8] {
    // SAFETY: the caller's `group` is inside P6, and inside P8 at level 8.
    let (p6, p8) = unsafe {
        let p6 = two(source.planes.p6, group);
        (p6, if LEVEL == 8 { two(source.planes.p8, group) } else { p6 })
    };
    let indices = six_bit_codes(nibbles, p6);
    // Loops instead of closures: a closure passed to a function without these instructions may become a call,
    // with all vectors passed through memory.
    let mut high = indices;
    if LEVEL == 6 {
        for chunk in 0..8 {
            low[chunk] = _mm512_permutexvar_epi8(indices[chunk], tables.low[0]);
            high[chunk] = _mm512_permutexvar_epi8(indices[chunk], tables.high[0]);
        }
        return high;
    }
    // Bit 6 is the lower bit of P8's digit. Its upper bit selects one of two pairs of tables.
    let [m, n, o, p] = last_digits(p8[0]);
    let [q, r, s, t] = last_digits(p8[1]);
    let last = [m, n, o, p, q, r, s, t];
    for chunk in 0..8 {
        let (bit_6, upper) = last[chunk];
        let index =
            _mm512_ternarylogic_epi32::<SELECT>(bit_6, indices[chunk], _mm512_set1_epi8(0x40));
        low[chunk] = lookup_256(index, upper, &tables.low);
        high[chunk] = lookup_256(index, upper, &tables.high);
    }
    high
}

/// Returns, for four chunks, the lower bit of P8's digit at bit 6, and the upper bit as a mask.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn last_digits(p8: __m512i) -> [(__m512i, __mmask64); 4] {
    let upper = |bit: i8| _mm512_test_epi8_mask(p8, _mm512_set1_epi8(bit));
    [
        (_mm512_slli_epi16::<6>(p8), upper(0x02)),
        (_mm512_slli_epi16::<4>(p8), upper(0x08)),
        (_mm512_slli_epi16::<2>(p8), upper(0x20)),
        (p8, upper(-128)),
    ]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn lookup_256(index: __m512i, upper: __mmask64, table: &[__m512i; 4]) -> __m512i {
    let lower = _mm512_mask2_permutex2var_epi8(table[0], index, !upper, table[1]);
    _mm512_mask2_permutex2var_epi8(table[2], lower, upper, table[3])
}
