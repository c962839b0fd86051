//! The IQ types of 1 to 3 bits: groups of magnitudes from a grid, with signs and small scales.
//!
//! Blocks are decoded to integers. A weight is `d * factor * unit * value`: `d` is the block's half-precision
//! number, `factor` an odd number of at most 31, `unit` a power of two, and `value` a signed integer of at
//! most 6 bits. All products are exact in single precision, so they are bit-exact with those of the `gguf`
//! package, which multiplies in a different order.

use half::f16;

use super::grids;

/// Number of weights per block.
pub(super) const BLOCK: usize = 256;

/// Number of weights that share a factor. Types with a factor per 32 weights repeat it.
pub(super) const SUB_BLOCK: usize = 16;

/// A block decoded to integers.
pub(super) struct IntegerBlock {
    /// Half-precision number `d` of the block.
    pub scale: f16,
    /// Odd factor of each group of 16 weights.
    pub factors: [u8; BLOCK / SUB_BLOCK],
    /// Weights in units of `d * factor * unit`.
    pub values: [i8; BLOCK],
}

/// Value of `unit` for IQ1_S and IQ1_M: 1/8.
pub(super) const IQ1_UNIT: f32 = 0.125;

/// Value of `unit` for IQ2_XXS, IQ2_XS and IQ2_S: 1/8.
pub(super) const IQ2_UNIT: f32 = 0.125;

/// Value of `unit` for IQ3_XXS: 1/4.
pub(super) const IQ3_XXS_UNIT: f32 = 0.25;

/// Value of `unit` for IQ3_S: 1.
pub(super) const IQ3_S_UNIT: f32 = 1.0;

/// Magnitudes of IQ2_XXS, IQ2_XS and IQ2_S.
pub(super) const IQ2_MAGNITUDES: [i8; 4] = [8, 25, 43, 0];

pub(super) const IQ3_XXS_MAGNITUDES: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];

pub(super) const IQ3_S_MAGNITUDES: [i8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];

impl IntegerBlock {
    fn new(block: &[u8], at: usize) -> Self {
        Self {
            scale: f16::from_le_bytes([block[at], block[at + 1]]),
            factors: [1; BLOCK / SUB_BLOCK],
            values: [0; BLOCK],
        }
    }

    /// Computes the weights as floats.
    pub(super) fn decode(&self, unit: f32, out: &mut [f32; BLOCK]) {
        let parts = out.as_chunks_mut::<SUB_BLOCK>().0.iter_mut();
        let values = self.values.as_chunks::<SUB_BLOCK>().0;
        for ((out, values), factor) in parts.zip(values).zip(self.factors) {
            let scale = self.scale.to_f32() * f32::from(factor) * unit;
            for (out, value) in out.iter_mut().zip(values) {
                *out = scale * f32::from(*value);
            }
        }
    }

    /// Sets the factor of 32 weights.
    fn set_factor_of_32(&mut self, index: usize, factor: u8) {
        self.factors[2 * index..2 * index + 2].fill(factor);
    }

    /// Sets eight weights from 2-bit magnitudes and sign bits.
    fn set_eight(&mut self, index: usize, group: u16, signs: u8) {
        for (at, value) in self.values[8 * index..8 * index + 8].iter_mut().enumerate() {
            let magnitude = IQ2_MAGNITUDES[usize::from(group >> (2 * at) & 3)];
            *value = if signs >> at & 1 == 0 { magnitude } else { -magnitude };
        }
    }

    /// Sets eight weights from two groups of four 3-bit magnitudes and sign bits.
    fn set_twice_four(&mut self, index: usize, magnitudes: &[i8; 8], groups: [u16; 2], signs: u8) {
        for (at, value) in self.values[8 * index..8 * index + 8].iter_mut().enumerate() {
            let magnitude = magnitudes[usize::from(groups[at / 4] >> (3 * (at % 4)) & 7)];
            *value = if signs >> at & 1 == 0 { magnitude } else { -magnitude };
        }
    }

    /// Sets eight weights of -1, 0 or 1, each shifted by plus or minus 1/8, in eighths.
    fn set_ternary_eight(&mut self, index: usize, group: u16, is_less: bool) {
        let shift = if is_less { -1 } else { 1 };
        for (at, value) in self.values[8 * index..8 * index + 8].iter_mut().enumerate() {
            *value = 8 * ((group >> (2 * at) & 3) as i8 - 1) + shift;
        }
    }
}

/// Returns eight sign bits from seven: the number of set bits is even.
const fn even_signs(bits: u32) -> u8 {
    let bits = (bits & 127) as u8;
    bits | ((bits.count_ones() as u8 & 1) << 7)
}

const fn odd(code: u8) -> u8 {
    2 * code + 1
}

fn u16_at(bytes: &[u8], index: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]])
}

fn u32_at(bytes: &[u8], index: usize) -> u32 {
    u32::from(u16_at(bytes, 2 * index)) | u32::from(u16_at(bytes, 2 * index + 1)) << 16
}

/// Returns a 4-bit field of a packed list, low halves first.
fn nibble(bytes: &[u8], index: usize) -> u8 {
    bytes[index / 2] >> (4 * (index % 2)) & 15
}

pub(super) fn iq2_xxs(block: &[u8; 66]) -> IntegerBlock {
    let mut out = IntegerBlock::new(block, 0);
    for part in 0..8 {
        let word = u32_at(&block[2..], 2 * part + 1);
        out.set_factor_of_32(part, odd((word >> 28) as u8));
        for eight in 0..4 {
            let group = grids::IQ2_XXS[usize::from(block[2 + 8 * part + eight])];
            out.set_eight(4 * part + eight, group, even_signs(word >> (7 * eight)));
        }
    }
    out
}

pub(super) fn iq2_xs(block: &[u8; 74]) -> IntegerBlock {
    let mut out = IntegerBlock::new(block, 0);
    for (index, factor) in out.factors.iter_mut().enumerate() {
        *factor = odd(nibble(&block[66..], index));
    }
    for eight in 0..32 {
        let code = u16_at(&block[2..], eight);
        let group = grids::IQ2_XS[usize::from(code & 511)];
        out.set_eight(eight, group, even_signs(u32::from(code >> 9)));
    }
    out
}

pub(super) fn iq2_s(block: &[u8; 82]) -> IntegerBlock {
    let mut out = IntegerBlock::new(block, 0);
    let (low, signs) = (&block[2..34], &block[34..66]);
    let (high, factors) = (&block[66..74], &block[74..]);
    for (index, factor) in out.factors.iter_mut().enumerate() {
        *factor = odd(nibble(factors, index));
    }
    for eight in 0..32 {
        let high = u16::from(high[eight / 4] >> (2 * (eight % 4)) & 3);
        let group = grids::IQ2_S[usize::from(u16::from(low[eight]) | high << 8)];
        out.set_eight(eight, group, signs[eight]);
    }
    out
}

pub(super) fn iq3_xxs(block: &[u8; 98]) -> IntegerBlock {
    let mut out = IntegerBlock::new(block, 0);
    let (codes, words) = (&block[2..66], &block[66..]);
    for part in 0..8 {
        let word = u32_at(words, part);
        out.set_factor_of_32(part, odd((word >> 28) as u8));
        for eight in 0..4 {
            let index = 4 * part + eight;
            let groups = [0, 1].map(|half| grids::IQ3_XXS[usize::from(codes[2 * index + half])]);
            let signs = even_signs(word >> (7 * eight));
            out.set_twice_four(index, &IQ3_XXS_MAGNITUDES, groups, signs);
        }
    }
    out
}

pub(super) fn iq3_s(block: &[u8; 110]) -> IntegerBlock {
    let mut out = IntegerBlock::new(block, 0);
    let (low, high) = (&block[2..66], &block[66..74]);
    let (signs, factors) = (&block[74..106], &block[106..]);
    for part in 0..8 {
        out.set_factor_of_32(part, odd(nibble(factors, part)));
    }
    for (index, signs) in signs.iter().enumerate() {
        let groups = [0, 1].map(|half| {
            let four = 2 * index + half;
            let high = u16::from(high[four / 8] >> (four % 8) & 1);
            grids::IQ3_S[usize::from(u16::from(low[four]) | high << 8)]
        });
        out.set_twice_four(index, &IQ3_S_MAGNITUDES, groups, *signs);
    }
    out
}

pub(super) fn iq1_s(block: &[u8; 50]) -> IntegerBlock {
    let mut out = IntegerBlock::new(block, 0);
    let (low, high) = (&block[2..34], &block[34..]);
    for part in 0..8 {
        let word = u16_at(high, part);
        out.set_factor_of_32(part, odd((word >> 12) as u8 & 7));
        for eight in 0..4 {
            let index = 4 * part + eight;
            let code = u16::from(low[index]) | (word >> (3 * eight) & 7) << 8;
            out.set_ternary_eight(index, grids::IQ1[usize::from(code)], word >> 15 == 1);
        }
    }
    out
}

pub(super) fn iq1_m(block: &[u8; 56]) -> IntegerBlock {
    let mut out = IntegerBlock::new(block, 0);
    let (low, high, factors) = (&block[..32], &block[32..48], &block[48..]);
    // The block's scale is spread over the highest four bits of four words, lowest bits first.
    let scale = (0..4).map(|index| u16_at(factors, index) >> 12 << (4 * index));
    out.scale = f16::from_bits(scale.fold(0, |bits, part| bits | part));
    for (index, factor) in out.factors.iter_mut().enumerate() {
        *factor = odd((u16_at(factors, index / 4) >> (3 * (index % 4)) & 7) as u8);
    }
    for (index, low) in low.iter().enumerate() {
        let high = nibble(high, index);
        let code = u16::from(*low) | u16::from(high & 7) << 8;
        out.set_ternary_eight(index, grids::IQ1[usize::from(code)], high >> 3 == 1);
    }
    out
}
