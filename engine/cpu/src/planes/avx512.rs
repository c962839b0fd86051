//! Digits of codes for AVX-512, a vector of four columns of 16 rows at a time.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::x86_64::*;

use super::{CodePlanes, MiddlePlanes};

/// Storage of planes P3 and P4: none, P3 only, separate, or merged.
pub const NONE: u8 = 0;
pub const P3: u8 = 1;
pub const SPLIT: u8 = 2;
pub const MERGED: u8 = 3;

/// Bit matrices that spread bits 0..4 or 4..8 of a byte to the odd or even bits of a byte.
const LOW_TO_ODD: i64 = 0x0001_0002_0004_0008;
const HIGH_TO_ODD: i64 = 0x0010_0020_0040_0080;
const LOW_TO_EVEN: i64 = 0x0100_0200_0400_0800;
const HIGH_TO_EVEN: i64 = 0x1000_2000_4000_8000;

/// `vpternlogd` operation that selects the first operand where the third has ones, or else the second.
pub const SELECT: i32 = 0xe4;

/// Addresses of one tile's first group.
#[derive(Clone, Copy)]
pub struct TilePlanes {
    p2: *const u8,
    /// P3, or P3 and P4 merged.
    middle: *const u8,
    p4: *const u8,
    pub p6: *const u8,
    pub p8: *const u8,
}

impl TilePlanes {
    /// Returns the planes of a tile whose first group has number `cell`. A group has `p6_bytes` of P6.
    pub fn new(planes: &CodePlanes, cell: usize, p6_bytes: usize) -> Self {
        let at = |plane: &[u8], bytes: usize| plane.as_ptr().wrapping_add(cell * bytes);
        let (middle, p4) = match planes.middle {
            MiddlePlanes::None => (std::ptr::null(), std::ptr::null()),
            MiddlePlanes::P3(p3) => (at(p3, 64), std::ptr::null()),
            MiddlePlanes::Split(p3, p4) => (at(p3, 64), at(p4, 64)),
            MiddlePlanes::Merged(merged) => (at(merged, 128), std::ptr::null()),
        };
        let (p6, p8) = (at(planes.p6, p6_bytes), at(planes.p8, 128));
        Self { p2: at(planes.p2, 128), middle, p4, p6, p8 }
    }
}

/// Lookup tables of value + 128, indexed by bits 0 to 3. At level 2 there are also tables indexed only by
/// bits 2 and 3 and by bits 4 and 5, which saves shifts.
pub struct NibbleTables {
    nibble: __m512i,
    bits_2: __m512i,
    bits_4: __m512i,
}

impl NibbleTables {
    /// Builds the tables from 16 values.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub fn new(values: &[i8; 16]) -> Self {
        // SAFETY: the array has 16 bytes.
        let nibble = unsafe { _mm_loadu_si128(values.as_ptr().cast()) };
        let nibble = _mm512_xor_si512(_mm512_broadcast_i32x4(nibble), _mm512_set1_epi8(-128));
        let fours =
            _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x0101_0101, 0x0202_0202, 0x0303_0303));
        let sixteens = _mm512_inserti32x4::<1>(_mm512_setzero_si512(), _mm_set1_epi8(1));
        let sixteens = _mm512_inserti32x4::<2>(sixteens, _mm_set1_epi8(2));
        let sixteens = _mm512_inserti32x4::<3>(sixteens, _mm_set1_epi8(3));
        Self {
            nibble,
            bits_2: _mm512_permutexvar_epi8(fours, nibble),
            bits_4: _mm512_permutexvar_epi8(sixteens, nibble),
        }
    }
}

/// Prefetches a line into the second-level cache, because the first level has only few fill buffers (docs/perf/026,
/// "Runs of gate and up").
#[inline]
#[target_feature(enable = "avx512f")]
pub fn prefetch_line(address: *const u8, offset: usize) {
    // A prefetch beyond the end of a plane has no effect.
    _mm_prefetch::<_MM_HINT_T1>(address.wrapping_add(offset).cast());
}

impl TilePlanes {
    /// Prefetches the data of a later group. LEVEL is 5 if P6 has one bit per weight.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn prefetch<const LEVEL: u8, const MIDDLE: u8>(&self, group: usize) {
        let pair = |plane: *const u8| {
            prefetch_line(plane, group * 128);
            prefetch_line(plane, group * 128 + 64);
        };
        pair(self.p2);
        match MIDDLE {
            NONE => {}
            P3 => prefetch_line(self.middle, group * 64),
            SPLIT => {
                prefetch_line(self.middle, group * 64);
                prefetch_line(self.p4, group * 64);
            }
            _ => pair(self.middle),
        }
        if LEVEL == 5 {
            prefetch_line(self.p6, group * 64);
        }
        if LEVEL >= 6 {
            pair(self.p6);
        }
        if LEVEL == 8 {
            pair(self.p8);
        }
    }
}

/// Returns the leading digits of a group. At level 2 these are its two vectors of P2. Otherwise there are
/// four vectors of two nibbles each, which hold chunks 0 and 2, 1 and 3, 4 and 6, 5 and 7.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
pub unsafe fn nibbles<const LEVEL: u8, const MIDDLE: u8>(
    source: &TilePlanes,
    group: usize,
) -> [__m512i; 4] {
    // SAFETY: the caller's `group` is inside the planes that MIDDLE selects.
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
        let ([a, b], [c, d]) = (pairs(p2[0], digits[0]), pairs(p2[1], digits[1]));
        [a, b, c, d]
    }
}

/// Loads two vectors of 2-bit digits.
#[inline]
#[target_feature(enable = "avx512f")]
pub unsafe fn two(plane: *const u8, group: usize) -> [__m512i; 2] {
    // SAFETY: the caller's `group` is inside the plane.
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

/// Combines an upper and a lower digit to nibbles: of the bytes' even digits, and of the odd ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub fn pairs(upper: __m512i, lower: __m512i) -> [__m512i; 2] {
    let low_pairs = _mm512_set1_epi8(0x33);
    let even = _mm512_slli_epi16::<2>(upper);
    let odd = _mm512_srli_epi16::<2>(lower);
    [
        _mm512_ternarylogic_epi32::<SELECT>(lower, even, low_pairs),
        _mm512_ternarylogic_epi32::<SELECT>(odd, upper, low_pairs),
    ]
}

/// Decodes levels 2 to 4 to eight vectors of value + 128.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub fn narrow<const LEVEL: u8>(tables: &NibbleTables, nibbles: [__m512i; 4]) -> [__m512i; 8] {
    let value = |index: __m512i| _mm512_permutexvar_epi8(index, tables.nibble);
    let [a, b, c, d] = nibbles;
    if LEVEL == 2 {
        let chunks = |p2: __m512i| {
            [
                value(p2),
                _mm512_permutexvar_epi8(p2, tables.bits_2),
                _mm512_permutexvar_epi8(p2, tables.bits_4),
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

/// Returns codes of six bits by chunk, with unspecified higher bits: the nibble in bits 2 to 5, P6's digit
/// below.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub fn six_bit_codes(nibbles: [__m512i; 4], p6: [__m512i; 2]) -> [__m512i; 8] {
    let mut indices = [p6[0]; 8];
    for half in 0..2 {
        let (even, odd, digit) = (nibbles[2 * half], nibbles[2 * half + 1], p6[half]);
        let nibbles = [
            _mm512_slli_epi16::<2>(even),
            _mm512_slli_epi16::<2>(odd),
            _mm512_srli_epi16::<2>(even),
            _mm512_srli_epi16::<2>(odd),
        ];
        let digits = [
            digit,
            _mm512_srli_epi16::<2>(digit),
            _mm512_srli_epi16::<4>(digit),
            _mm512_srli_epi16::<6>(digit),
        ];
        for i in 0..4 {
            let mask = _mm512_set1_epi8(3);
            indices[4 * half + i] =
                _mm512_ternarylogic_epi32::<SELECT>(digits[i], nibbles[i], mask);
        }
    }
    indices
}

/// Returns codes of five bits by chunk, with unspecified higher bits, from a P6 of one bit per weight.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub fn five_bit_codes(nibbles: [__m512i; 4], p6: __m512i) -> [__m512i; 8] {
    let [a, b, c, d] = nibbles;
    let code = |nibble: __m512i, bit: __m512i| {
        _mm512_ternarylogic_epi32::<SELECT>(bit, nibble, _mm512_set1_epi8(1))
    };
    [
        code(_mm512_slli_epi16::<1>(a), p6),
        code(_mm512_slli_epi16::<1>(b), _mm512_srli_epi16::<1>(p6)),
        code(_mm512_srli_epi16::<3>(a), _mm512_srli_epi16::<2>(p6)),
        code(_mm512_srli_epi16::<3>(b), _mm512_srli_epi16::<3>(p6)),
        code(_mm512_slli_epi16::<1>(c), _mm512_srli_epi16::<4>(p6)),
        code(_mm512_slli_epi16::<1>(d), _mm512_srli_epi16::<5>(p6)),
        code(_mm512_srli_epi16::<3>(c), _mm512_srli_epi16::<6>(p6)),
        code(_mm512_srli_epi16::<3>(d), _mm512_srli_epi16::<7>(p6)),
    ]
}

/// Returns complete codes by chunk, with the digits of P6 and P8 below the nibbles.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub fn whole_codes(nibbles: [__m512i; 4], p6: [__m512i; 2], p8: [__m512i; 2]) -> [__m512i; 8] {
    let mut codes = [p6[0]; 8];
    for half in 0..2 {
        let last = pairs(p6[half], p8[half]);
        for i in 0..2 {
            let (first, low) = (nibbles[2 * half + i], _mm512_set1_epi8(15));
            codes[4 * half + i] =
                _mm512_ternarylogic_epi32::<SELECT>(last[i], _mm512_slli_epi16::<4>(first), low);
            codes[4 * half + i + 2] =
                _mm512_ternarylogic_epi32::<SELECT>(_mm512_srli_epi16::<4>(last[i]), first, low);
        }
    }
    codes
}
