//! Transcoding of blocks: codes, scales and minima, each into its part.

use super::codec::{IQ1_VALUES, IQ2_VALUES};
use super::parts::{PartSizes, ScaledRun};
use crate::gguf::BlockType;
use crate::gguf::i_quants::{self, IntegerBlock};
use crate::gguf::k_quants::signed_scale;
use crate::gguf::ternary;

/// Destination of the parts of one block.
pub(super) struct BlockParts<'a, const N: usize> {
    codes: &'a mut [u8; N],
    scale: &'a mut [u8],
    least: &'a mut [u8],
    sub_scales: &'a mut [u8],
    sub_minima: &'a mut [u8],
}

impl<const N: usize> BlockParts<'_, N> {
    /// Writes the block's scale, two bytes.
    fn scale(&mut self, bytes: &[u8]) {
        self.scale.copy_from_slice(bytes);
    }

    /// Writes the block's minimum or its factor, two bytes.
    fn least(&mut self, bytes: &[u8]) {
        self.least.copy_from_slice(bytes);
    }
}

fn each<const BYTES: usize, const N: usize>(
    blocks: &[u8],
    sizes: PartSizes,
    run: &mut ScaledRun<'_>,
    write: impl Fn(&[u8; BYTES], BlockParts<'_, N>),
) {
    let mut rest = ScaledRun {
        codes: &mut *run.codes,
        scales: &mut *run.scales,
        minima: &mut *run.minima,
        sub_scales: &mut *run.sub_scales,
        sub_minima: &mut *run.sub_minima,
    };
    for block in blocks.as_chunks().0 {
        let Some((codes, later)) = rest.codes.split_first_chunk_mut() else { break };
        rest.codes = later;
        let (Some(scale), Some(least), Some(sub_scales), Some(sub_minima)) = (
            take(&mut rest.scales, sizes.scales),
            take(&mut rest.minima, sizes.minima),
            take(&mut rest.sub_scales, sizes.sub_scales),
            take(&mut rest.sub_minima, sizes.sub_minima),
        ) else {
            break;
        };
        write(block, BlockParts { codes, scale, least, sub_scales, sub_minima });
    }
}

/// Transcodes blocks like [`each`], for types with 32 codes and a leading scale. Such blocks are so numerous
/// that handling the parts they lack would double the time.
fn each_of_32<const BYTES: usize>(
    blocks: &[u8],
    run: &mut ScaledRun<'_>,
    write: impl Fn(&[u8; BYTES], &mut [u8; 32]),
) {
    let parts = run.scales.as_chunks_mut::<2>().0.iter_mut().zip(run.codes.as_chunks_mut().0);
    for (block, (scale, codes)) in blocks.as_chunks::<BYTES>().0.iter().zip(parts) {
        scale.copy_from_slice(&block[..2]);
        write(block, codes);
    }
}

/// Removes the first bytes from a slice. Returns `None` if it is too short.
fn take<'a>(rest: &mut &'a mut [u8], bytes: usize) -> Option<&'a mut [u8]> {
    let (first, later) = std::mem::take(rest).split_at_mut_checked(bytes)?;
    *rest = later;
    Some(first)
}

pub(super) fn write(kind: BlockType, blocks: &[u8], sizes: PartSizes, run: &mut ScaledRun<'_>) {
    use BlockType as T;
    match kind {
        T::Q4_0 | T::Iq4Nl => each_of_32(blocks, run, q4_0),
        T::Q4_1 => each(blocks, sizes, run, q4_1),
        T::Q5_0 => each_of_32(blocks, run, q5_0),
        T::Q5_1 => each(blocks, sizes, run, q5_1),
        T::Q8_0 => each_of_32(blocks, run, q8_0),
        T::Q2K => each(blocks, sizes, run, q2_k),
        T::Q3K => each(blocks, sizes, run, q3_k),
        T::Q4K => each(blocks, sizes, run, q4_k),
        T::Q5K => each(blocks, sizes, run, q5_k),
        T::Q6K => each(blocks, sizes, run, q6_k),
        T::Iq4Xs => each(blocks, sizes, run, iq4_xs),
        T::Mxfp4 => each(blocks, sizes, run, mxfp4),
        T::Nvfp4 => each(blocks, sizes, run, nvfp4),
        T::Iq2Xxs => integers(blocks, sizes, run, iq2_code, i_quants::iq2_xxs),
        T::Iq2Xs => integers(blocks, sizes, run, iq2_code, i_quants::iq2_xs),
        T::Iq2S => integers(blocks, sizes, run, iq2_code, i_quants::iq2_s),
        T::Iq3Xxs => integers(blocks, sizes, run, iq3_xxs_code, i_quants::iq3_xxs),
        T::Iq3S => integers(blocks, sizes, run, iq3_s_code, i_quants::iq3_s),
        T::Iq1S => integers(blocks, sizes, run, iq1_code, i_quants::iq1_s),
        T::Iq1M => integers(blocks, sizes, run, iq1_code, i_quants::iq1_m),
        T::Tq1_0 => each(blocks, sizes, run, |block, parts| {
            small(ternary::tq1_0(block), &block[52..54], parts);
        }),
        T::Tq2_0 => each(blocks, sizes, run, |block, parts| {
            small(ternary::tq2_0(block), &block[64..66], parts);
        }),
        T::Q1_0 => each(blocks, sizes, run, |block, parts| {
            // Prefixes 0 and 1 represent -1, 2 and 3 represent 1.
            small(ternary::q1_0(block).map(|bit| 2 * bit), &block[..2], parts);
        }),
        T::Q2_0 => each(blocks, sizes, run, |block, parts| {
            small(ternary::q2_0(block), &block[..2], parts);
        }),
    }
}

fn small<const N: usize>(codes: [u8; N], scale: &[u8], mut parts: BlockParts<'_, N>) {
    parts.scale(scale);
    *parts.codes = codes.map(|code| code << 6);
}

/// Transcodes blocks that are read as integers; `code` returns the code of a value.
fn integers<const BYTES: usize>(
    blocks: &[u8],
    sizes: PartSizes,
    run: &mut ScaledRun<'_>,
    code: impl Fn(i8) -> u8,
    read: impl Fn(&[u8; BYTES]) -> IntegerBlock,
) {
    each(blocks, sizes, run, |block, mut parts: BlockParts<'_, 256>| {
        let block = read(block);
        parts.scale(&block.scale.to_le_bytes());
        *parts.codes = block.values.map(&code);
        // Types with a factor per 32 weights have it twice in the decoded block.
        let step = block.factors.len() / parts.sub_scales.len();
        for (out, factor) in parts.sub_scales.iter_mut().zip(block.factors.iter().step_by(step)) {
            *out = *factor;
        }
    });
}

/// Returns, for each value as a byte, the 3-bit code of the first table value that is not below it.
const fn codes_of_eight(values: [i8; 8]) -> [u8; 256] {
    let mut codes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut place = 0;
        while place < 7 && values[place] < byte as u8 as i8 {
            place += 1;
        }
        codes[byte] = (place as u8) << 5;
        byte += 1;
    }
    codes
}

static IQ1_CODES: [u8; 256] = codes_of_eight(IQ1_VALUES);
static IQ2_CODES: [u8; 256] = codes_of_eight(IQ2_VALUES);

fn iq1_code(value: i8) -> u8 {
    IQ1_CODES[usize::from(value as u8)]
}

fn iq2_code(value: i8) -> u8 {
    IQ2_CODES[usize::from(value as u8)]
}

/// Returns the code of a value. The magnitudes are 4, 12, and so on in steps of 8, except the last, which is
/// 62 instead of 60.
fn iq3_xxs_code(value: i8) -> u8 {
    let magnitude = (value.unsigned_abs() - 4) / 8;
    signed_code(magnitude, value < 0)
}

fn iq3_s_code(value: i8) -> u8 {
    signed_code(value.unsigned_abs() / 2, value < 0)
}

/// Returns the ascending 4-bit code of a sign and a 3-bit magnitude, in the upper half of a byte.
const fn signed_code(magnitude: u8, is_negative: bool) -> u8 {
    let flip = if is_negative { 15 } else { 0 };
    ((8 | magnitude) ^ flip) << 4
}

/// Writes the nibbles of each `N` bytes to the upper four bits of 2 `N` codes, low halves first.
fn nibbles<const N: usize>(bytes: &[u8], codes: &mut [u8]) {
    for (bytes, codes) in bytes.as_chunks::<N>().0.iter().zip(pairs_of::<N>(codes)) {
        let [low, high] = codes else { continue };
        *low = bytes.map(|byte| byte << 4);
        *high = bytes.map(|byte| byte & 0xf0);
    }
}

/// Writes nibbles like [`nibbles`], to the four bits after the highest one.
fn later_nibbles<const N: usize>(bytes: &[u8], codes: &mut [u8]) {
    for (bytes, codes) in bytes.as_chunks::<N>().0.iter().zip(pairs_of::<N>(codes)) {
        let [low, high] = codes else { continue };
        *low = bytes.map(|byte| (byte & 15) << 3);
        *high = bytes.map(|byte| byte >> 1 & 0x78);
    }
}

/// Returns pairs of `N` codes each.
fn pairs_of<const N: usize>(codes: &mut [u8]) -> impl Iterator<Item = &mut [[u8; N]]> {
    codes.as_chunks_mut::<N>().0.chunks_exact_mut(2)
}

/// Sets the highest bit of the codes from the bits of a word.
fn first_bits(word: [u8; 4], codes: &mut [u8; 32]) {
    for (code, at) in codes.iter_mut().zip(0..) {
        *code |= ((u32::from_le_bytes(word) >> at & 1) as u8) << 7;
    }
}

fn q4_0(block: &[u8; 18], codes: &mut [u8; 32]) {
    nibbles::<16>(&block[2..], codes);
}

fn q4_1(block: &[u8; 20], mut parts: BlockParts<'_, 32>) {
    parts.scale(&block[..2]);
    parts.least(&block[2..4]);
    nibbles::<16>(&block[4..], parts.codes);
}

fn q5_0(block: &[u8; 22], codes: &mut [u8; 32]) {
    later_nibbles::<16>(&block[6..], codes);
    first_bits([block[2], block[3], block[4], block[5]], codes);
}

fn q5_1(block: &[u8; 24], mut parts: BlockParts<'_, 32>) {
    parts.scale(&block[..2]);
    parts.least(&block[2..4]);
    later_nibbles::<16>(&block[8..], parts.codes);
    first_bits([block[4], block[5], block[6], block[7]], parts.codes);
}

fn q8_0(block: &[u8; 34], codes: &mut [u8; 32]) {
    for (code, byte) in codes.iter_mut().zip(&block[2..]) {
        *code = byte ^ 0x80;
    }
}

/// Sets two bits of each code, shifted. Each 32 bytes hold four sets of 32 codes.
fn pairs_of_bits(bytes: &[u8], codes: &mut [u8; 256], shift: u32) {
    for (bytes, codes) in bytes.chunks_exact(32).zip(codes.as_chunks_mut::<128>().0) {
        for (codes, pair) in codes.as_chunks_mut::<32>().0.iter_mut().zip([0, 2, 4, 6]) {
            for (code, byte) in codes.iter_mut().zip(bytes) {
                *code |= (byte >> pair & 3) << shift;
            }
        }
    }
}

/// Sets one bit of each code, shifted. The 32 bytes hold eight sets of 32 codes.
fn single_bits(bytes: &[u8], codes: &mut [u8; 256], shift: u32) {
    for (codes, at) in codes.as_chunks_mut::<32>().0.iter_mut().zip(0..8) {
        for (code, byte) in codes.iter_mut().zip(bytes) {
            *code |= (byte >> at & 1) << shift;
        }
    }
}

fn q2_k(block: &[u8; 84], mut parts: BlockParts<'_, 256>) {
    parts.scale(&block[80..82]);
    parts.least(&block[82..84]);
    // The scale is in the lower nibble and the minimum in the upper one, as in the codec.
    parts.sub_scales.copy_from_slice(&block[..16]);
    parts.codes.fill(0);
    pairs_of_bits(&block[16..80], parts.codes, 6);
}

fn q3_k(block: &[u8; 110], mut parts: BlockParts<'_, 256>) {
    parts.scale(&block[108..]);
    for (group, out) in parts.sub_scales.iter_mut().enumerate() {
        *out = signed_scale(&block[96..108], group).to_le_bytes()[0];
    }
    parts.codes.fill(0);
    single_bits(&block[..32], parts.codes, 7);
    pairs_of_bits(&block[32..96], parts.codes, 5);
}

/// Writes the scales and minima of the groups of 32, four at a time.
fn scales_of_32(packed: &[u8], parts: &mut BlockParts<'_, 256>) {
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| packed[at + byte]));
    let (first, second, halves) = (word(0), word(4), word(8));
    let [low, two] = [0x0f0f_0f0f, 0x3030_3030];
    let scales = [first & (low | two), halves & low | first >> 2 & two];
    let minima = [second & (low | two), halves >> 4 & low | second >> 2 & two];
    for (part, words) in [(&mut *parts.sub_scales, scales), (&mut *parts.sub_minima, minima)] {
        for (out, word) in part.as_chunks_mut().0.iter_mut().zip(words) {
            *out = word.to_le_bytes();
        }
    }
}

fn q4_k(block: &[u8; 144], mut parts: BlockParts<'_, 256>) {
    parts.scale(&block[..2]);
    parts.least(&block[2..4]);
    scales_of_32(&block[4..16], &mut parts);
    nibbles::<32>(&block[16..], parts.codes);
}

fn q5_k(block: &[u8; 176], mut parts: BlockParts<'_, 256>) {
    parts.scale(&block[..2]);
    parts.least(&block[2..4]);
    scales_of_32(&block[4..16], &mut parts);
    later_nibbles::<32>(&block[48..], parts.codes);
    single_bits(&block[16..48], parts.codes, 7);
}

fn q6_k(block: &[u8; 210], mut parts: BlockParts<'_, 256>) {
    parts.scale(&block[208..]);
    parts.sub_scales.copy_from_slice(&block[192..208]);
    for (bytes, codes) in block[..128].as_chunks::<64>().0.iter().zip(parts.codes.chunks_mut(128)) {
        let (low, high) = codes.split_at_mut(64);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
            (*low, *high) = ((byte & 15) << 2, byte >> 2 & 0x3c);
        }
    }
    pairs_of_bits(&block[128..192], parts.codes, 6);
}

fn iq4_xs(block: &[u8; 136], mut parts: BlockParts<'_, 256>) {
    parts.scale(&block[..2]);
    let high = u16::from_le_bytes([block[2], block[3]]);
    for (group, out) in parts.sub_scales.iter_mut().enumerate() {
        let low = block[4 + group / 2] >> (4 * (group % 2)) & 15;
        *out = (low | ((high >> (2 * group) & 3) as u8) << 4).wrapping_sub(32);
    }
    nibbles::<16>(&block[8..], parts.codes);
}

/// Converts FP4 elements in the upper four bits to ascending codes.
fn ascending(codes: &mut [u8]) {
    for code in codes {
        *code = signed_code(*code >> 4 & 7, *code >> 7 == 1);
    }
}

fn mxfp4(block: &[u8; 17], parts: BlockParts<'_, 32>) {
    parts.sub_scales.copy_from_slice(&block[..1]);
    nibbles::<16>(&block[1..], parts.codes);
    ascending(parts.codes);
}

fn nvfp4(block: &[u8; 36], parts: BlockParts<'_, 64>) {
    for (out, scale) in parts.sub_scales.iter_mut().zip(&block[..4]) {
        // NaN counts as zero, and signs are ignored.
        *out = if *scale == 0x7f { 0 } else { scale & 0x7f };
    }
    nibbles::<8>(&block[4..], parts.codes);
    ascending(parts.codes);
}
