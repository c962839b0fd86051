//! Element types of GGUF tensors: blocks of numbers with scales, read one number at a time.
//!
//! What is decoded here is, bit for bit, what the `gguf` package's `dequantize` gives.

use super::k_quants::{self, half};

/// A type that packs several numbers of a row into a block of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum BlockType {
    /// 32 numbers of 4 bits, one scale.
    Q4_0,
    /// 32 numbers of 4 bits, scale and minimum.
    Q4_1,
    /// 32 numbers of 5 bits, one scale.
    Q5_0,
    /// 32 numbers of 5 bits, scale and minimum.
    Q5_1,
    /// 32 numbers of 8 bits, one scale.
    Q8_0,
    /// 256 numbers of 2 bits; scales and minima of 16 in 4 bits.
    Q2K,
    /// 256 numbers of 3 bits; scales of 16 in 6 bits.
    Q3K,
    /// 256 numbers of 4 bits; scales and minima of 32 in 6 bits.
    Q4K,
    /// 256 numbers of 5 bits; scales and minima of 32 in 6 bits.
    Q5K,
    /// 256 numbers of 6 bits; scales of 16 in 8 bits.
    Q6K,
    /// 32 numbers of 4 bits through a table, one scale.
    Iq4Nl,
    /// 256 numbers of 4 bits through a table; scales of 32 in 6 bits.
    Iq4Xs,
    /// 32 numbers of FP4 (E2M1), the scale a power of two.
    Mxfp4,
}

impl BlockType {
    /// All types, from the oldest on.
    pub const ALL: [Self; 13] = [
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
    ];

    /// The type's number in a tensor table.
    pub const fn number(self) -> u32 {
        match self {
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q2K => 10,
            Self::Q3K => 11,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Iq4Nl => 20,
            Self::Iq4Xs => 23,
            Self::Mxfp4 => 39,
        }
    }

    /// What llama.cpp calls the type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Iq4Nl => "IQ4_NL",
            Self::Iq4Xs => "IQ4_XS",
            Self::Mxfp4 => "MXFP4",
        }
    }

    /// Numbers of a block.
    pub const fn elements(self) -> usize {
        match self {
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::Iq4Xs => 256,
            _ => 32,
        }
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Iq4Xs => 136,
            Self::Mxfp4 => 17,
        }
    }

    /// Bits of a number's own code, without scales.
    pub const fn code_bits(self) -> u32 {
        match self {
            Self::Q2K => 2,
            Self::Q3K => 3,
            Self::Q4_0 | Self::Q4_1 | Self::Q4K | Self::Iq4Nl | Self::Iq4Xs | Self::Mxfp4 => 4,
            Self::Q5_0 | Self::Q5_1 | Self::Q5K => 5,
            Self::Q6K => 6,
            Self::Q8_0 => 8,
        }
    }

    /// Reads the numbers of whole blocks. What one of the two has too much is left alone.
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

/// The 4-bit codes of a block: low halves of all bytes, then high halves.
fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> + '_ {
    bytes.iter().map(|byte| byte & 15).chain(bytes.iter().map(|byte| byte >> 4))
}

/// The 5-bit codes of a block: the highest bits lie in a word of their own.
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

/// The values of the non-linear 4-bit types.
const IQ4_VALUES: [i8; 16] =
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

/// Twice the values of FP4 (E2M1).
const FP4_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    // Half of 2^(e - 127), since the values are doubled; the least two are subnormal.
    let scale = match block[0] {
        exponent @ 0..=1 => f32::from_bits(0x0020_0000 << exponent),
        exponent => f32::from_bits((u32::from(exponent) - 1) << 23),
    };
    for (out, code) in out.iter_mut().zip(nibbles(&block[1..])) {
        *out = scale * f32::from(FP4_DOUBLED[usize::from(code)]);
    }
}
