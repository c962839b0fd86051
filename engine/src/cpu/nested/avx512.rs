//! AVX-512 with VNNI, VBMI and GFNI (Ice Lake, Zen 4 and later).
//!
//! One 512-bit vector holds four columns of 16 rows; lane i of an accumulator is row i. Weights are
//! unsigned bytes, value + 128, looked up by `vpermb`, which ignores an index's two upper bits and
//! needs no mask where the table repeats; `vpdpbusd` starts from -128 * sum(x). Planes P3 and P4
//! that are not merged are spread to 2-bit digits by one `gf2p8affineqb` per 256 weights. Levels 6
//! and 8 look up two digits of base 128.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::x86_64::*;

use nestling_formats::Level;
use nestling_formats::nested::STEPS;

use super::{Middle, NestedWeights, QuantizedGroup, QuantizedRows, TileValues};

/// What P3 and P4 look like.
const NONE: u8 = 0;
const P3: u8 = 1;
const SPLIT: u8 = 2;
const MERGED: u8 = 3;

/// Bit matrices: spread bits 0..4 or 4..8 of a byte to the odd or even bits of a byte.
const LOW_TO_ODD: i64 = 0x0001_0002_0004_0008;
const HIGH_TO_ODD: i64 = 0x0010_0020_0040_0080;
const LOW_TO_EVEN: i64 = 0x0100_0200_0400_0800;
const HIGH_TO_EVEN: i64 = 0x1000_2000_4000_8000;

/// `vpternlogd` that takes the first operand where the third has ones, else the second.
const SELECT: i32 = 0xe4;

/// One tile for the rows of `x` that `rows` names.
///
/// # Safety
/// The machine has the features, and [`super::fits`] holds.
pub unsafe fn tile(
    weights: &NestedWeights,
    tile: usize,
    x: &QuantizedRows,
    rows: &[u32],
    out: &mut [TileValues],
) {
    // SAFETY: the caller's promise is the callee's condition.
    unsafe {
        match (weights.level, weights.middle) {
            (Level::L2, _) => blocks::<2, NONE>(weights, tile, x, rows, out),
            (Level::L3 | Level::L4, Middle::Merged(_)) => {
                blocks::<4, MERGED>(weights, tile, x, rows, out);
            }
            (Level::L3 | Level::L4, Middle::Split(..)) => {
                blocks::<4, SPLIT>(weights, tile, x, rows, out);
            }
            (Level::L3 | Level::L4, _) => blocks::<4, P3>(weights, tile, x, rows, out),
            (Level::L6, Middle::Merged(_)) => blocks::<6, MERGED>(weights, tile, x, rows, out),
            (Level::L6, _) => blocks::<6, SPLIT>(weights, tile, x, rows, out),
            (Level::L8, Middle::Merged(_)) => blocks::<8, MERGED>(weights, tile, x, rows, out),
            (Level::L8, _) => blocks::<8, SPLIT>(weights, tile, x, rows, out),
        }
    }
}

/// Addresses of one tile's first group.
#[derive(Clone, Copy)]
struct Source {
    groups: usize,
    p2: *const u8,
    /// P3, or P3 and P4 merged.
    middle: *const u8,
    p4: *const u8,
    p6: *const u8,
    p8: *const u8,
    steps: *const u8,
    step_high: *const u8,
}

impl Source {
    fn new(weights: &NestedWeights, tile: usize) -> Self {
        let cell = tile * weights.groups;
        let at = |plane: &[u8], bytes: usize| plane.as_ptr().wrapping_add(cell * bytes);
        let (middle, p4) = match weights.middle {
            Middle::None => (std::ptr::null(), std::ptr::null()),
            Middle::P3(p3) => (at(p3, 64), std::ptr::null()),
            Middle::Split(p3, p4) => (at(p3, 64), at(p4, 64)),
            Middle::Merged(merged) => (at(merged, 128), std::ptr::null()),
        };
        Self {
            groups: weights.groups,
            p2: at(weights.p2, 128),
            middle,
            p4,
            p6: at(weights.p6, 128),
            p8: at(weights.p8, 128),
            steps: at(weights.steps, 8),
            step_high: at(weights.step_high, 2),
        }
    }
}

/// Lookup tables of one tile, in registers.
#[derive(Clone, Copy)]
struct Tables {
    /// Levels 2 to 4: value + 128.
    nibble: __m512i,
    /// Levels 6 and 8: high and low digits + 128, 64 entries each for the four last digits.
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
    x: &QuantizedRows,
    rows: &[u32],
    out: &mut [TileValues],
) {
    let source = Source::new(weights, tile);
    let tables = tables(weights, tile);
    let (mut rows, mut out) = (rows, out);
    // SAFETY: `fits` holds, so every plane has the tile's groups and `x` every named row.
    unsafe {
        while let Some((block, rest)) = rows.split_first_chunk::<8>() {
            let (block_out, rest_out) = out.split_at_mut(8);
            products::<LEVEL, MIDDLE, 8>(source, &tables, x, block, block_out);
            (rows, out) = (rest, rest_out);
        }
        if let Some((block, rest)) = rows.split_first_chunk::<4>() {
            let (block_out, rest_out) = out.split_at_mut(4);
            products::<LEVEL, MIDDLE, 4>(source, &tables, x, block, block_out);
            (rows, out) = (rest, rest_out);
        }
        if let Some((block, rest)) = rows.split_first_chunk::<2>() {
            let (block_out, rest_out) = out.split_at_mut(2);
            products::<LEVEL, MIDDLE, 2>(source, &tables, x, block, block_out);
            (rows, out) = (rest, rest_out);
        }
        if let [row] = rows {
            products::<LEVEL, MIDDLE, 1>(source, &tables, x, &[*row], out);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn tables(weights: &NestedWeights, tile: usize) -> Tables {
    let units = weights.row_units(tile);
    let decode = weights.decode;
    // SAFETY: every load is inside of its array.
    unsafe {
        let nibble = _mm_loadu_si128(weights.nibble_table(tile).as_ptr().cast());
        let load =
            |digits: &[u8; 256], i: usize| _mm512_loadu_si512(digits[64 * i..].as_ptr().cast());
        Tables {
            nibble: _mm512_xor_si512(_mm512_broadcast_i32x4(nibble), _mm512_set1_epi8(-128)),
            high: std::array::from_fn(|i| load(&decode.high, i)),
            low: std::array::from_fn(|i| load(&decode.low, i)),
            units: _mm512_loadu_ps(units.as_ptr()),
            steps_low: _mm512_loadu_ps(STEPS.as_ptr()),
            steps_high: _mm512_loadu_ps(STEPS[16..].as_ptr()),
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,gfni,fma")]
unsafe fn products<const LEVEL: u8, const MIDDLE: u8, const T: usize>(
    source: Source,
    tables: &Tables,
    x: &QuantizedRows,
    rows: &[u32; T],
    out: &mut [TileValues],
) {
    let x: [*const QuantizedGroup; T] = std::array::from_fn(|t| x.row(rows[t] as usize).as_ptr());
    let mut sums = [_mm512_setzero_ps(); T];
    // Wide levels have 16 vectors per group, narrow ones 8: the compiler drops what is not read.
    let mut low = [_mm512_setzero_si512(); 8];
    for group in 0..source.groups {
        // SAFETY: `group` is below the groups of every plane and of every row of `x`.
        unsafe {
            let scales = scales(&source, tables, group);
            let nibbles = nibbles::<LEVEL, MIDDLE>(&source, group);
            let high = if LEVEL >= 6 {
                wide::<LEVEL>(&source, tables, group, nibbles, &mut low)
            } else {
                narrow::<LEVEL>(tables, nibbles)
            };
            for t in 0..T {
                let x = &*x[t].add(group);
                let x_values: *const i32 = x.values.as_ptr().cast();
                let mut sum = _mm512_set1_epi32(x.correction);
                let mut sum_low = sum;
                for chunk in 0..8 {
                    let x = _mm512_set1_epi32(x_values.add(chunk).read_unaligned());
                    sum = _mm512_dpbusd_epi32(sum, high[chunk], x);
                    if LEVEL >= 6 {
                        sum_low = _mm512_dpbusd_epi32(sum_low, low[chunk], x);
                    }
                }
                if LEVEL >= 6 {
                    sum = _mm512_add_epi32(_mm512_slli_epi32::<7>(sum), sum_low);
                }
                let scale = _mm512_mul_ps(_mm512_set1_ps(x.scale), scales);
                sums[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, sums[t]);
            }
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        // SAFETY: `out` has 16 floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sum) };
    }
}

/// Weight scales of the 16 rows in one group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn scales(source: &Source, tables: &Tables, group: usize) -> __m512 {
    // SAFETY: the caller's `group` is inside of both parts.
    let (low, high) = unsafe {
        let low = _mm_loadl_epi64(source.steps.add(group * 8).cast());
        (low, source.step_high.add(group * 2).cast::<[u8; 2]>().read())
    };
    let nibbles =
        _mm_and_si128(_mm_unpacklo_epi64(low, _mm_srli_epi16::<4>(low)), _mm_set1_epi8(15));
    let steps = _mm512_cvtepu8_epi32(nibbles);
    let low = _mm512_permutexvar_ps(steps, tables.steps_low);
    let high = u16::from_le_bytes(high);
    _mm512_mul_ps(tables.units, _mm512_mask_permutexvar_ps(low, high, steps, tables.steps_high))
}

/// The leading digits of a group: at level 2 its two vectors of P2, else four vectors of two
/// nibbles each, holding chunks 0 and 2, 1 and 3, 4 and 6, 5 and 7.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn nibbles<const LEVEL: u8, const MIDDLE: u8>(
    source: &Source,
    group: usize,
) -> [__m512i; 4] {
    // SAFETY: the caller's `group` is inside of the planes that MIDDLE names.
    unsafe {
        let p2 = two(source.p2, group);
        if LEVEL == 2 {
            return [p2[0], p2[1], p2[0], p2[1]];
        }
        let digits = match MIDDLE {
            P3 => {
                let p3 = _mm512_loadu_si512(source.middle.add(group * 64).cast());
                [spread::<LOW_TO_ODD>(p3), spread::<HIGH_TO_ODD>(p3)]
            }
            SPLIT => {
                let p3 = _mm512_loadu_si512(source.middle.add(group * 64).cast());
                let p4 = _mm512_loadu_si512(source.p4.add(group * 64).cast());
                [
                    _mm512_or_si512(spread::<LOW_TO_ODD>(p3), spread::<LOW_TO_EVEN>(p4)),
                    _mm512_or_si512(spread::<HIGH_TO_ODD>(p3), spread::<HIGH_TO_EVEN>(p4)),
                ]
            }
            _ => two(source.middle, group),
        };
        let low_pairs = _mm512_set1_epi8(0x33);
        let pair = |upper: __m512i, lower: __m512i| {
            let even = _mm512_slli_epi16::<2>(upper);
            let odd = _mm512_srli_epi16::<2>(lower);
            [
                _mm512_ternarylogic_epi32::<SELECT>(lower, even, low_pairs),
                _mm512_ternarylogic_epi32::<SELECT>(odd, upper, low_pairs),
            ]
        };
        let ([a, b], [c, d]) = (pair(p2[0], digits[0]), pair(p2[1], digits[1]));
        [a, b, c, d]
    }
}

/// Two vectors of 2-bit digits.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn two(plane: *const u8, group: usize) -> [__m512i; 2] {
    // SAFETY: the caller's `group` is inside of the plane.
    unsafe {
        let plane = plane.add(group * 128);
        [_mm512_loadu_si512(plane.cast()), _mm512_loadu_si512(plane.add(64).cast())]
    }
}

#[inline]
#[target_feature(enable = "avx512f,gfni")]
fn spread<const MATRIX: i64>(bits: __m512i) -> __m512i {
    _mm512_gf2p8affine_epi64_epi8::<0>(bits, _mm512_set1_epi64(MATRIX))
}

/// Levels 2 to 4: eight vectors of value + 128.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn narrow<const LEVEL: u8>(tables: &Tables, nibbles: [__m512i; 4]) -> [__m512i; 8] {
    let value = |index: __m512i| _mm512_permutexvar_epi8(index, tables.nibble);
    let [a, b, c, d] = nibbles;
    if LEVEL == 2 {
        // The table repeats every four entries.
        let chunks = |p2: __m512i| {
            [
                value(p2),
                value(_mm512_srli_epi16::<2>(p2)),
                value(_mm512_srli_epi16::<4>(p2)),
                value(_mm512_srli_epi16::<6>(p2)),
            ]
        };
        let ([e, f, g, h], [i, j, k, l]) = (chunks(a), chunks(b));
        return [e, f, g, h, i, j, k, l];
    }
    [
        value(a),
        value(b),
        value(_mm512_srli_epi16::<4>(a)),
        value(_mm512_srli_epi16::<4>(b)),
        value(c),
        value(d),
        value(_mm512_srli_epi16::<4>(c)),
        value(_mm512_srli_epi16::<4>(d)),
    ]
}

/// Levels 6 and 8: eight vectors of high digits + 128, and in `low` of low digits + 128.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn wide<const LEVEL: u8>(
    source: &Source,
    tables: &Tables,
    group: usize,
    nibbles: [__m512i; 4],
    low: &mut [__m512i; 8],
) -> [__m512i; 8] {
    let [a, b, c, d] = nibbles;
    // SAFETY: the caller's `group` is inside of P6, and of P8 at level 8.
    let (p6, p8) = unsafe {
        let p6 = two(source.p6, group);
        (p6, if LEVEL == 8 { two(source.p8, group) } else { p6 })
    };
    // Bits 2 to 5 of each index are the nibble, bits 0 and 1 the digit of P6.
    let index = |nibble: __m512i, digit: __m512i| {
        _mm512_ternarylogic_epi32::<SELECT>(digit, nibble, _mm512_set1_epi8(3))
    };
    let half = |even: __m512i, odd: __m512i, p6: __m512i| {
        [
            index(_mm512_slli_epi16::<2>(even), p6),
            index(_mm512_slli_epi16::<2>(odd), _mm512_srli_epi16::<2>(p6)),
            index(_mm512_srli_epi16::<2>(even), _mm512_srli_epi16::<4>(p6)),
            index(_mm512_srli_epi16::<2>(odd), _mm512_srli_epi16::<6>(p6)),
        ]
    };
    let ([e, f, g, h], [i, j, k, l]) = (half(a, b, p6[0]), half(c, d, p6[1]));
    let indices = [e, f, g, h, i, j, k, l];
    if LEVEL == 6 {
        *low = indices.map(|index| _mm512_permutexvar_epi8(index, tables.low[0]));
        return indices.map(|index| _mm512_permutexvar_epi8(index, tables.high[0]));
    }
    // Bit 6 is the lower bit of P8's digit; its upper bit chooses between two pairs of tables.
    let [m, n, o, p] = last_digits(p8[0]);
    let [q, r, s, t] = last_digits(p8[1]);
    let last = [m, n, o, p, q, r, s, t];
    let mut high = indices;
    for chunk in 0..8 {
        let (bit_6, upper) = last[chunk];
        let index =
            _mm512_ternarylogic_epi32::<SELECT>(bit_6, indices[chunk], _mm512_set1_epi8(0x40));
        low[chunk] = lookup_256(index, upper, &tables.low);
        high[chunk] = lookup_256(index, upper, &tables.high);
    }
    high
}

/// For four chunks: the lower bit of P8's digit at bit 6, and the upper bit as a mask.
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
