//! The K-quants: super-blocks of 256 weights with quantized scales per group.

use half::f16;

/// Returns a half-precision number of a block.
pub(super) fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Decodes 16 groups of 16 weights with `value(group, index in the block)`.
fn by_sixteen(out: &mut [f32; 256], value: impl Fn(usize, usize) -> f32) {
    for (at, out) in out.iter_mut().enumerate() {
        *out = value(at / 16, at);
    }
}

/// Returns the 2-bit field of a weight. Each 32 bytes hold four sets of 32 weights.
pub(super) fn two_bits(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 128 * 32 + at % 32] >> (2 * (at / 32 % 4)) & 3
}

/// Returns the bit of a weight. The 32 bytes hold eight sets of 32 weights.
fn one_bit(bytes: &[u8], at: usize) -> u8 {
    bytes[at % 32] >> (at / 32) & 1
}

/// Returns the 4-bit field of a weight. Each 32 bytes hold two sets of 32 weights.
fn four_bits(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 64 * 32 + at % 32] >> (4 * (at / 32 % 2)) & 15
}

pub fn q2(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, codes) = (&block[..16], &block[16..80]);
    let (scale, least) = (half(block, 80), half(block, 82));
    by_sixteen(out, |group, at| {
        let scale = scale * f32::from(scales[group] & 15);
        let least = least * f32::from(scales[group] >> 4);
        scale * f32::from(two_bits(codes, at)) - least
    });
}

/// Returns the scale of group 0 to 15 of Q3_K, 6 bits each, packed into 12 bytes.
pub(super) fn signed_scale(packed: &[u8], group: usize) -> i8 {
    let low = packed[group % 8] >> (4 * (group / 8)) & 15;
    let top = packed[8 + group % 4] >> (2 * (group / 4)) & 3;
    (low | top << 4) as i8 - 32
}

pub fn q3(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, codes, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let scale = half(block, 108);
    by_sixteen(out, |group, at| {
        let scale = scale * f32::from(signed_scale(scales, group));
        // A clear bit subtracts four.
        let code = i16::from(two_bits(codes, at)) - 4 * i16::from(one_bit(high, at) ^ 1);
        scale * f32::from(code)
    });
}

/// Returns scale and minimum of group 0 to 7, 6 bits each, packed into 12 bytes.
fn scale_and_least(packed: &[u8], group: usize) -> (u8, u8) {
    match group {
        0..4 => (packed[group] & 63, packed[group + 4] & 63),
        _ => {
            let (low, scale, least) = (packed[group + 4], packed[group - 4], packed[group]);
            (low & 15 | scale >> 2 & 48, low >> 4 | least >> 2 & 48)
        }
    }
}

/// Decodes 8 groups of 32 weights: `code(index)` times the group's scale, minus its minimum.
fn by_thirty_two(
    scale: f32,
    least: f32,
    packed: &[u8],
    out: &mut [f32; 256],
    code: impl Fn(usize) -> u8,
) {
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scales, leasts) = scale_and_least(packed, group);
        let (scale, least) = (scale * f32::from(scales), least * f32::from(leasts));
        for (at, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(code(32 * group + at)) - least;
        }
    }
}

pub fn q4(block: &[u8; 144], out: &mut [f32; 256]) {
    let codes = &block[16..];
    let (scale, least) = (half(block, 0), half(block, 2));
    by_thirty_two(scale, least, &block[4..16], out, |at| four_bits(codes, at));
}

pub fn q5(block: &[u8; 176], out: &mut [f32; 256]) {
    let (high, codes) = (&block[16..48], &block[48..]);
    let (scale, least) = (half(block, 0), half(block, 2));
    by_thirty_two(scale, least, &block[4..16], out, |at| {
        four_bits(codes, at) | one_bit(high, at) << 4
    });
}

pub fn q6(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let scale = half(block, 208);
    by_sixteen(out, |group, at| {
        // 64 bytes hold the low halves of 64 weights, then those of the following 64.
        let low = low[at / 128 * 64 + at % 64] >> (4 * (at / 64 % 2)) & 15;
        let code = low | two_bits(high, at) << 4;
        scale * f32::from(scales[group] as i8) * (f32::from(code) - 32.0)
    });
}
