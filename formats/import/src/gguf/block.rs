//! Block types of GGUF tensors: quantized weights with scales.
//!
//! Decoding is bit-exact with the `dequantize` function of the `gguf` package.

use super::i_quants::{self, IntegerBlock};
use super::k_quants::{self, half};
use super::ternary;

/// A quantized type that packs several weights of a row into a block of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum BlockType {
    /// 32 weights of 4 bits, one scale.
    Q4_0,
    /// 32 weights of 4 bits, scale and minimum.
    Q4_1,
    /// 32 weights of 5 bits, one scale.
    Q5_0,
    /// 32 weights of 5 bits, scale and minimum.
    Q5_1,
    /// 32 weights of 8 bits, one scale.
    Q8_0,
    /// 256 weights of 2 bits; 4-bit scales and minima per 16 weights.
    Q2K,
    /// 256 weights of 3 bits; 6-bit scales per 16 weights.
    Q3K,
    /// 256 weights of 4 bits; 6-bit scales and minima per 32 weights.
    Q4K,
    /// 256 weights of 5 bits; 6-bit scales and minima per 32 weights.
    Q5K,
    /// 256 weights of 6 bits; 8-bit scales per 16 weights.
    Q6K,
    /// 32 weights of 4 bits through a table, one scale.
    Iq4Nl,
    /// 256 weights of 4 bits through a table; 6-bit scales per 32 weights.
    Iq4Xs,
    /// 32 weights of FP4 (E2M1), the scale a power of two.
    Mxfp4,
    /// 256 weights from grids of eight, 2.06 bits per weight; 4-bit scales per 32 weights.
    Iq2Xxs,
    /// 256 weights from grids of eight, 2.31 bits per weight; 4-bit scales per 16 weights.
    Iq2Xs,
    /// 256 weights from grids of eight, 2.56 bits per weight; 4-bit scales per 16 weights.
    Iq2S,
    /// 256 weights from grids of four, 3.06 bits per weight; 4-bit scales per 32 weights.
    Iq3Xxs,
    /// 256 weights from grids of four, 3.44 bits per weight; 4-bit scales per 32 weights.
    Iq3S,
    /// 256 weights from grids of eight, 1.56 bits per weight; 3-bit scales per 32 weights.
    Iq1S,
    /// 256 weights from grids of eight, 1.75 bits per weight; 3-bit scales per 16 weights.
    Iq1M,
    /// 256 weights of -1, 0 and 1, five per byte, one scale.
    Tq1_0,
    /// 256 weights of -1, 0, 1 and 2, one scale.
    Tq2_0,
    /// 64 weights of FP4 (E2M1); scales per 16 weights in FP8 (E4M3) without a sign.
    Nvfp4,
    /// 128 weights of 1 bit, the sign of the scale.
    Q1_0,
    /// 64 weights of -1, 0, 1 and 2, one scale.
    Q2_0,
}

struct Facts {
    number: u32,
    name: &'static str,
    elements: usize,
    bytes: usize,
    code_bits: u32,
}

impl BlockType {
    /// All types, in rough order of introduction, with the grid-based types after the common ones.
    pub const ALL: [Self; 25] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
        Self::Iq2Xxs,
        Self::Iq2Xs,
        Self::Iq2S,
        Self::Iq3Xxs,
        Self::Iq3S,
        Self::Iq1S,
        Self::Iq1M,
        Self::Tq1_0,
        Self::Tq2_0,
        Self::Nvfp4,
        Self::Q1_0,
        Self::Q2_0,
    ];

    const fn facts(self) -> Facts {
        let (number, name, elements, bytes, code_bits) = match self {
            Self::Q4_0 => (2, "Q4_0", 32, 18, 4),
            Self::Q4_1 => (3, "Q4_1", 32, 20, 4),
            Self::Q5_0 => (6, "Q5_0", 32, 22, 5),
            Self::Q5_1 => (7, "Q5_1", 32, 24, 5),
            Self::Q8_0 => (8, "Q8_0", 32, 34, 8),
            Self::Q2K => (10, "Q2_K", 256, 84, 2),
            Self::Q3K => (11, "Q3_K", 256, 110, 3),
            Self::Q4K => (12, "Q4_K", 256, 144, 4),
            Self::Q5K => (13, "Q5_K", 256, 176, 5),
            Self::Q6K => (14, "Q6_K", 256, 210, 6),
            Self::Iq2Xxs => (16, "IQ2_XXS", 256, 66, 3),
            Self::Iq2Xs => (17, "IQ2_XS", 256, 74, 3),
            Self::Iq3Xxs => (18, "IQ3_XXS", 256, 98, 4),
            Self::Iq1S => (19, "IQ1_S", 256, 50, 3),
            Self::Iq4Nl => (20, "IQ4_NL", 32, 18, 4),
            Self::Iq3S => (21, "IQ3_S", 256, 110, 4),
            Self::Iq2S => (22, "IQ2_S", 256, 82, 3),
            Self::Iq4Xs => (23, "IQ4_XS", 256, 136, 4),
            Self::Iq1M => (29, "IQ1_M", 256, 56, 3),
            Self::Tq1_0 => (34, "TQ1_0", 256, 54, 2),
            Self::Tq2_0 => (35, "TQ2_0", 256, 66, 2),
            Self::Mxfp4 => (39, "MXFP4", 32, 17, 4),
            Self::Nvfp4 => (40, "NVFP4", 64, 36, 4),
            Self::Q1_0 => (41, "Q1_0", 128, 18, 2),
            Self::Q2_0 => (42, "Q2_0", 64, 18, 2),
        };
        Facts { number, name, elements, bytes, code_bits }
    }

    /// Returns the type's number in a tensor table.
    pub const fn number(self) -> u32 {
        self.facts().number
    }

    /// Returns llama.cpp's name of the type.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// Returns the number of weights per block.
    pub const fn elements(self) -> usize {
        self.facts().elements
    }

    /// Returns the size of a block in bytes.
    pub const fn bytes(self) -> usize {
        self.facts().bytes
    }

    /// Returns the number of bits that distinguish the values of a weight, without scales. If several weights
    /// share a code, this is the number for each weight alone.
    pub const fn code_bits(self) -> u32 {
        self.facts().code_bits
    }

    /// Decodes whole blocks. Excess bytes or elements are ignored.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::Q4_0 => each(bytes, out, q4_0),
            Self::Q4_1 => each(bytes, out, q4_1),
            Self::Q5_0 => each(bytes, out, q5_0),
            Self::Q5_1 => each(bytes, out, q5_1),
            Self::Q8_0 => each(bytes, out, q8_0),
            Self::Q2K => each(bytes, out, k_quants::q2),
            Self::Q3K => each(bytes, out, k_quants::q3),
            Self::Q4K => each(bytes, out, k_quants::q4),
            Self::Q5K => each(bytes, out, k_quants::q5),
            Self::Q6K => each(bytes, out, k_quants::q6),
            Self::Iq4Nl => each(bytes, out, iq4_nl),
            Self::Iq4Xs => each(bytes, out, iq4_xs),
            Self::Mxfp4 => each(bytes, out, mxfp4),
            Self::Nvfp4 => decode_nvfp4(bytes, 1.0, out),
            Self::Iq2Xxs => each_integer(bytes, out, i_quants::IQ2_UNIT, i_quants::iq2_xxs),
            Self::Iq2Xs => each_integer(bytes, out, i_quants::IQ2_UNIT, i_quants::iq2_xs),
            Self::Iq2S => each_integer(bytes, out, i_quants::IQ2_UNIT, i_quants::iq2_s),
            Self::Iq3Xxs => each_integer(bytes, out, i_quants::IQ3_XXS_UNIT, i_quants::iq3_xxs),
            Self::Iq3S => each_integer(bytes, out, i_quants::IQ3_S_UNIT, i_quants::iq3_s),
            Self::Iq1S => each_integer(bytes, out, i_quants::IQ1_UNIT, i_quants::iq1_s),
            Self::Iq1M => each_integer(bytes, out, i_quants::IQ1_UNIT, i_quants::iq1_m),
            Self::Tq1_0 => each(bytes, out, |block, out| {
                small(half(block, 52), ternary::tq1_0(block), out);
            }),
            Self::Tq2_0 => each(bytes, out, |block, out| {
                small(half(block, 64), ternary::tq2_0(block), out);
            }),
            Self::Q1_0 => each(bytes, out, |block, out| {
                // Bits 0 and 1 represent -1 and 1.
                small(half(block, 0), ternary::q1_0(block).map(|bit| 2 * bit), out);
            }),
            Self::Q2_0 => each(bytes, out, |block, out| {
                small(half(block, 0), ternary::q2_0(block), out);
            }),
        }
    }
}

fn each<const BYTES: usize, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; N]),
) {
    for (block, out) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        decode(block, out);
    }
}

/// Decodes blocks like [`each`], for types that are read as integers.
fn each_integer<const BYTES: usize>(
    bytes: &[u8],
    out: &mut [f32],
    unit: f32,
    read: impl Fn(&[u8; BYTES]) -> IntegerBlock,
) {
    each(bytes, out, |block, out| read(block).decode(unit, out));
}

/// Decodes weights whose codes are one more than their values.
fn small<const N: usize>(scale: f32, codes: [u8; N], out: &mut [f32; N]) {
    for (out, code) in out.iter_mut().zip(codes) {
        *out = scale * (f32::from(code) - 1.0);
    }
}

/// Returns the 4-bit codes of a block: low halves of all bytes, then high halves.
fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> + '_ {
    bytes.iter().map(|byte| byte & 15).chain(bytes.iter().map(|byte| byte >> 4))
}

/// Returns the 5-bit codes of a block, whose highest bits are in a separate word.
fn with_fifth(high: [u8; 4], low: &[u8]) -> impl Iterator<Item = u8> {
    let high = u32::from_le_bytes(high);
    nibbles(low).zip(0..32).map(move |(code, at)| code | ((high >> at & 1) as u8) << 4)
}

fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    for (out, code) in out.iter_mut().zip(nibbles(&block[2..])) {
        *out = scale * (f32::from(code) - 8.0);
    }
}

fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, least) = (half(block, 0), half(block, 2));
    for (out, code) in out.iter_mut().zip(nibbles(&block[4..])) {
        *out = scale * f32::from(code) + least;
    }
}

fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    for (out, code) in
        out.iter_mut().zip(with_fifth([block[2], block[3], block[4], block[5]], &block[6..]))
    {
        *out = scale * (f32::from(code) - 16.0);
    }
}

fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, least) = (half(block, 0), half(block, 2));
    for (out, code) in
        out.iter_mut().zip(with_fifth([block[4], block[5], block[6], block[7]], &block[8..]))
    {
        *out = scale * f32::from(code) + least;
    }
}

fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    for (out, code) in out.iter_mut().zip(&block[2..]) {
        *out = f32::from(*code as i8) * scale;
    }
}

/// Values of the non-linear 4-bit types.
pub(super) const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    for (out, code) in out.iter_mut().zip(nibbles(&block[2..])) {
        *out = scale * f32::from(IQ4_VALUES[usize::from(code)]);
    }
}

fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let scale = half(block, 0);
    let high = u16::from_le_bytes([block[2], block[3]]);
    let groups = block[8..].as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<32>().0);
    for (group, (codes, out)) in groups.enumerate() {
        let low = block[4 + group / 2] >> (4 * (group % 2)) & 15;
        let part = low | ((high >> (2 * group) & 3) as u8) << 4;
        let scale = scale * (f32::from(part) - 32.0);
        for (out, code) in out.iter_mut().zip(nibbles(codes)) {
            *out = scale * f32::from(IQ4_VALUES[usize::from(code)]);
        }
    }
}

/// Values of FP4 (E2M1), doubled.
const FP4_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    // The scale is half of 2^(e - 127), because the values are doubled. The two smallest scales are
    // subnormal.
    let scale = match block[0] {
        exponent @ 0..=1 => f32::from_bits(0x0020_0000 << exponent),
        exponent => f32::from_bits((u32::from(exponent) - 1) << 23),
    };
    for (out, code) in out.iter_mut().zip(nibbles(&block[1..])) {
        *out = scale * f32::from(FP4_DOUBLED[usize::from(code)]);
    }
}

/// Returns half of an NVFP4 scale, because the values are doubled. The scale is an E4M3 number without a
/// sign.
///
/// The highest bit is ignored. The byte 0x7f, a NaN in E4M3, counts as 0.
fn half_e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (byte >> 3 & 15, f32::from(byte & 7));
    match exponent {
        _ if byte == 0x7f => 0.0,
        0 => mantissa * (0.5 / 512.0),
        // (8 + mantissa) / 8 * 2^(exponent - 7) / 2.
        _ => (8.0 + mantissa) * f32::from_bits((u32::from(exponent) + 127 - 11) << 23),
    }
}

/// Decodes whole NVFP4 blocks, multiplied by `factor`.
///
/// The order of the products is that of scaled integers, so that the weights have the same bits: scale of the
/// tensor times scale of the sub-block, halved, times the doubled value.
pub(crate) fn decode_nvfp4(bytes: &[u8], factor: f32, out: &mut [f32]) {
    each(bytes, out, |block, out| nvfp4(block, factor, out));
}

fn nvfp4(block: &[u8; 36], factor: f32, out: &mut [f32; 64]) {
    let (scales, codes) = (&block[..4], &block[4..]);
    let groups = scales.iter().zip(codes.as_chunks::<8>().0);
    for ((scale, codes), out) in groups.zip(out.as_chunks_mut::<16>().0) {
        let scale = factor * (2.0 * half_e4m3(*scale)) * 0.5;
        for (out, code) in out.iter_mut().zip(nibbles(codes)) {
            *out = scale * f32::from(FP4_DOUBLED[usize::from(code)]);
        }
    }
}
