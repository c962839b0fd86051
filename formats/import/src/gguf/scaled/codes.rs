//! Transcoding of blocks: codes, scales and minima, each into its part.

use super::codec::{IQ1_VALUES, IQ2_VALUES, form};
use super::parts::{PartSizes, ScaledRun};
use crate::gguf::BlockType;
use crate::gguf::i_quants::{self, IntegerBlock};
use crate::gguf::ternary;

/// A word of eight bytes 1.
const EACH: u64 = 0x0101_0101_0101_0101;

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
    #[inline(always)]
    fn scale(&mut self, bytes: &[u8]) {
        self.scale.copy_from_slice(bytes);
    }

    /// Writes the block's minimum or its factor, two bytes.
    #[inline(always)]
    fn least(&mut self, bytes: &[u8]) {
        self.least.copy_from_slice(bytes);
    }
}

/// Blocks with the destinations of their parts. An iterator, since the compiler may call what is passed as a
/// function, and then compiles it for the instructions that every machine has.
struct PartedBlocks<'a, const BYTES: usize, const N: usize> {
    blocks: std::slice::Iter<'a, [u8; BYTES]>,
    sizes: PartSizes,
    rest: ScaledRun<'a>,
}

impl<'a, const BYTES: usize, const N: usize> Iterator for PartedBlocks<'a, BYTES, N> {
    type Item = (&'a [u8; BYTES], BlockParts<'a, N>);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let (block, rest, sizes) = (self.blocks.next()?, &mut self.rest, self.sizes);
        let (codes, later) = std::mem::take(&mut rest.codes).split_first_chunk_mut()?;
        rest.codes = later;
        let parts = BlockParts {
            codes,
            scale: take(&mut rest.scales, sizes.scales)?,
            least: take(&mut rest.minima, sizes.minima)?,
            sub_scales: take(&mut rest.sub_scales, sizes.sub_scales)?,
            sub_minima: take(&mut rest.sub_minima, sizes.sub_minima)?,
        };
        Some((block, parts))
    }
}

#[inline(always)]
fn each<'a, const BYTES: usize, const N: usize>(
    blocks: &'a [u8],
    sizes: PartSizes,
    run: &'a mut ScaledRun<'_>,
) -> PartedBlocks<'a, BYTES, N> {
    let rest = ScaledRun {
        codes: &mut *run.codes,
        scales: &mut *run.scales,
        minima: &mut *run.minima,
        sub_scales: &mut *run.sub_scales,
        sub_minima: &mut *run.sub_minima,
    };
    PartedBlocks { blocks: blocks.as_chunks().0.iter(), sizes, rest }
}

/// Returns blocks and their codes like [`each`], for types with 32 codes and a leading scale, which it
/// copies. Such blocks are so numerous that handling the parts they lack would double the time.
#[inline(always)]
fn each_of_32<'a, const BYTES: usize>(
    blocks: &'a [u8],
    run: &'a mut ScaledRun<'_>,
) -> impl Iterator<Item = (&'a [u8; BYTES], &'a mut [u8; 32])> {
    let parts = run.scales.as_chunks_mut::<2>().0.iter_mut().zip(run.codes.as_chunks_mut().0);
    blocks.as_chunks::<BYTES>().0.iter().zip(parts).map(|(block, (scale, codes))| {
        scale.copy_from_slice(&block[..2]);
        (block, codes)
    })
}

/// Removes the first bytes from a slice. Returns `None` if it is too short.
#[inline(always)]
fn take<'a>(rest: &mut &'a mut [u8], bytes: usize) -> Option<&'a mut [u8]> {
    let (first, later) = std::mem::take(rest).split_at_mut_checked(bytes)?;
    *rest = later;
    Some(first)
}

/// Transcodes blocks. Everything but the types without vectors is inlined, so that a caller compiles it for
/// its own instructions.
#[inline(always)]
pub(super) fn write(kind: BlockType, blocks: &[u8], run: &mut ScaledRun<'_>) {
    use BlockType as T;
    macro_rules! each_block {
        ($kind:expr, $write:ident) => {
            for (block, parts) in each(blocks, const { sizes($kind) }, run) {
                $write(block, parts);
            }
        };
        ($write:ident) => {
            for (block, codes) in each_of_32(blocks, run) {
                $write(block, codes);
            }
        };
    }
    match kind {
        T::Q4_0 | T::Iq4Nl => each_block!(q4_0),
        T::Q4_1 => each_block!(T::Q4_1, q4_1),
        T::Q5_0 => each_block!(q5_0),
        T::Q5_1 => each_block!(T::Q5_1, q5_1),
        T::Q8_0 => each_block!(q8_0),
        T::Q2K => each_block!(T::Q2K, q2_k),
        T::Q3K => each_block!(T::Q3K, q3_k),
        T::Q4K => each_block!(T::Q4K, q4_k),
        T::Q5K => each_block!(T::Q5K, q5_k),
        T::Q6K => each_block!(T::Q6K, q6_k),
        T::Iq4Xs => each_block!(T::Iq4Xs, iq4_xs),
        T::Mxfp4 => each_block!(T::Mxfp4, mxfp4),
        T::Nvfp4 => each_block!(T::Nvfp4, nvfp4),
        _ => write_plain(kind, blocks, sizes(kind), run),
    }
}

const fn sizes(kind: BlockType) -> PartSizes {
    PartSizes::new(&form(kind), kind.elements())
}

/// Transcodes blocks of types whose loops have no vectors: those with grids, and the rare ones.
#[inline(never)]
fn write_plain(kind: BlockType, blocks: &[u8], sizes: PartSizes, run: &mut ScaledRun<'_>) {
    use BlockType as T;
    match kind {
        T::Iq2Xxs => integers(blocks, sizes, run, iq2_code, i_quants::iq2_xxs),
        T::Iq2Xs => integers(blocks, sizes, run, iq2_code, i_quants::iq2_xs),
        T::Iq2S => integers(blocks, sizes, run, iq2_code, i_quants::iq2_s),
        T::Iq3Xxs => integers(blocks, sizes, run, iq3_xxs_code, i_quants::iq3_xxs),
        T::Iq3S => integers(blocks, sizes, run, iq3_s_code, i_quants::iq3_s),
        T::Iq1S => integers(blocks, sizes, run, iq1_code, i_quants::iq1_s),
        T::Iq1M => integers(blocks, sizes, run, iq1_code, i_quants::iq1_m),
        T::Tq1_0 => {
            for (block, parts) in each(blocks, sizes, run) {
                small(ternary::tq1_0(block), &block[52..54], parts);
            }
        }
        T::Tq2_0 => {
            for (block, parts) in each(blocks, sizes, run) {
                small(ternary::tq2_0(block), &block[64..66], parts);
            }
        }
        T::Q1_0 => {
            for (block, parts) in each(blocks, sizes, run) {
                // Prefixes 0 and 1 represent -1, 2 and 3 represent 1.
                small(ternary::q1_0(block).map(|bit| 2 * bit), &block[..2], parts);
            }
        }
        T::Q2_0 => {
            for (block, parts) in each(blocks, sizes, run) {
                small(ternary::q2_0(block), &block[..2], parts);
            }
        }
        _ => debug_assert!(false, "a type with vectors"),
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
    for (block, mut parts) in each::<_, 256>(blocks, sizes, run) {
        let block = read(block);
        parts.scale(&block.scale.to_le_bytes());
        *parts.codes = block.values.map(&code);
        // Types with a factor per 32 weights have it twice in the decoded block.
        let step = block.factors.len() / parts.sub_scales.len();
        for (out, factor) in parts.sub_scales.iter_mut().zip(block.factors.iter().step_by(step)) {
            *out = *factor;
        }
    }
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

/// Computes codes from one byte each.
#[inline(always)]
fn from_bytes<const N: usize>(bytes: &[u8; N], code: impl Fn(u8) -> u8) -> [u8; N] {
    let mut out = [0; N];
    for (out, byte) in out.iter_mut().zip(bytes) {
        *out = code(*byte);
    }
    out
}

/// Computes codes from two bytes each.
#[inline(always)]
fn from_pairs<const N: usize>(
    first: &[u8; N],
    second: &[u8; N],
    code: impl Fn(u8, u8) -> u8,
) -> [u8; N] {
    let mut out = [0; N];
    for ((out, first), second) in out.iter_mut().zip(first).zip(second) {
        *out = code(*first, *second);
    }
    out
}

/// Writes the nibbles of each `N` bytes to the upper four bits of 2 `N` codes, low halves first.
#[inline(always)]
fn nibbles<const N: usize>(bytes: &[u8], codes: &mut [u8]) {
    for (bytes, codes) in bytes.as_chunks::<N>().0.iter().zip(pairs_of::<N>(codes)) {
        let [low, high] = codes else { continue };
        *low = from_bytes(bytes, |byte| byte << 4);
        *high = from_bytes(bytes, |byte| byte & 0xf0);
    }
}

/// Returns pairs of `N` codes each.
#[inline(always)]
fn pairs_of<const N: usize>(codes: &mut [u8]) -> impl Iterator<Item = &mut [[u8; N]]> {
    codes.as_chunks_mut::<N>().0.chunks_exact_mut(2)
}

/// Writes 5-bit codes from nibbles, low halves first, and from the bits of a word, their highest ones.
#[inline(always)]
fn five_bits(word: &[u8; 4], bytes: &[u8; 16], codes: &mut [u8; 32]) {
    let both = u128::from_le_bytes(*bytes);
    let (first, second) = (both as u64, (both >> 64) as u64);
    let lower = [first << 3, second << 3, first >> 1, second >> 1];
    for ((out, lower), byte) in codes.as_chunks_mut().0.iter_mut().zip(lower).zip(word) {
        // Byte k keeps bit k, and the sum moves it to the highest bit.
        let bits = (u64::from(*byte) * EACH) & 0x8040_2010_0804_0201;
        let highest = (bits + 0x7f * EACH) & (0x80 * EACH);
        *out = (lower & (0x78 * EACH) | highest).to_le_bytes();
    }
}

#[inline(always)]
fn q4_0(block: &[u8; 18], codes: &mut [u8; 32]) {
    nibbles::<16>(&block[2..], codes);
}

#[inline(always)]
fn q4_1(block: &[u8; 20], mut parts: BlockParts<'_, 32>) {
    parts.scale(&block[..2]);
    parts.least(&block[2..4]);
    nibbles::<16>(&block[4..], parts.codes);
}

#[inline(always)]
fn q5_0(block: &[u8; 22], codes: &mut [u8; 32]) {
    let [_, _, a, b, c, d, bytes @ ..] = block;
    five_bits(&[*a, *b, *c, *d], bytes, codes);
}

#[inline(always)]
fn q5_1(block: &[u8; 24], mut parts: BlockParts<'_, 32>) {
    parts.scale(&block[..2]);
    parts.least(&block[2..4]);
    let [_, _, _, _, a, b, c, d, bytes @ ..] = block;
    five_bits(&[*a, *b, *c, *d], bytes, parts.codes);
}

#[inline(always)]
fn q8_0(block: &[u8; 34], codes: &mut [u8; 32]) {
    let [_, _, bytes @ ..] = block;
    *codes = from_bytes(bytes, |byte| byte ^ 0x80);
}

#[inline(always)]
fn q2_k(block: &[u8; 84], mut parts: BlockParts<'_, 256>) {
    parts.scale(&block[80..82]);
    parts.least(&block[82..84]);
    // The scale is in the lower nibble and the minimum in the upper one, as in the codec.
    parts.sub_scales.copy_from_slice(&block[..16]);
    let sets = parts.codes.as_chunks_mut::<32>().0.chunks_exact_mut(4);
    for (bytes, codes) in block[16..80].as_chunks::<32>().0.iter().zip(sets) {
        let [a, b, c, d] = codes else { continue };
        *a = from_bytes(bytes, |byte| byte << 6);
        *b = from_bytes(bytes, |byte| byte << 4 & 0xc0);
        *c = from_bytes(bytes, |byte| byte << 2 & 0xc0);
        *d = from_bytes(bytes, |byte| byte & 0xc0);
    }
}

/// Writes the signed scales of 16 groups, four at a time; see [`crate::gguf::k_quants::signed_scale`].
#[inline(always)]
fn signed_scales(packed: &[u8], sub_scales: &mut [u8]) {
    let [low, two] = [0x0f0f_0f0f, 0x3030_3030];
    let (first, second, tops) = (word(packed, 0), word(packed, 4), word(packed, 8));
    let scales = [
        first & low | tops << 4 & two,
        second & low | tops << 2 & two,
        first >> 4 & low | tops & two,
        second >> 4 & low | tops >> 2 & two,
    ];
    for (out, scales) in sub_scales.as_chunks_mut().0.iter_mut().zip(scales) {
        // The highest bits keep each byte's borrow from the next one.
        let less = ((scales | 0x8080_8080) - 0x2020_2020) ^ 0x8080_8080;
        *out = less.to_le_bytes();
    }
}

#[inline(always)]
fn q3_k(block: &[u8; 110], mut parts: BlockParts<'_, 256>) {
    parts.scale(&block[108..]);
    signed_scales(&block[96..108], parts.sub_scales);
    // Default: never, a block has 110 bytes.
    let Some(high) = block.first_chunk::<32>() else { return };
    let sets = parts.codes.as_chunks_mut::<32>().0.chunks_exact_mut(4);
    for ((bytes, codes), at) in block[32..96].as_chunks().0.iter().zip(sets).zip([0, 4]) {
        let [a, b, c, d] = codes else { continue };
        let high = from_bytes(high, |byte| byte >> at);
        *a = from_pairs(bytes, &high, |byte, high| byte << 5 & 0x60 | high << 7);
        *b = from_pairs(bytes, &high, |byte, high| byte << 3 & 0x60 | high << 6 & 0x80);
        *c = from_pairs(bytes, &high, |byte, high| byte << 1 & 0x60 | high << 5 & 0x80);
        *d = from_pairs(bytes, &high, |byte, high| byte >> 1 & 0x60 | high << 4 & 0x80);
    }
}

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Writes the scales and minima of the groups of 32, four at a time.
#[inline(always)]
fn scales_of_32<const N: usize>(packed: &[u8], parts: &mut BlockParts<'_, N>) {
    let (first, second, halves) = (word(packed, 0), word(packed, 4), word(packed, 8));
    let [low, two] = [0x0f0f_0f0f, 0x3030_3030];
    let scales = [first & (low | two), halves & low | first >> 2 & two];
    let minima = [second & (low | two), halves >> 4 & low | second >> 2 & two];
    for (part, words) in [(&mut *parts.sub_scales, scales), (&mut *parts.sub_minima, minima)] {
        for (out, word) in part.as_chunks_mut().0.iter_mut().zip(words) {
            *out = word.to_le_bytes();
        }
    }
}

#[inline(always)]
fn q4_k(block: &[u8; 144], mut parts: BlockParts<'_, 256>) {
    q4_k_numbers(block, &mut parts);
    nibbles::<32>(&block[16..], parts.codes);
}

#[inline(always)]
fn q4_k_numbers<const N: usize>(block: &[u8; 144], parts: &mut BlockParts<'_, N>) {
    parts.scale(&block[..2]);
    parts.least(&block[2..4]);
    scales_of_32(&block[4..16], parts);
}

/// Transcodes blocks of Q4_K, whose codes stay two to a byte.
pub(super) fn write_pairs(blocks: &[u8], run: &mut ScaledRun<'_>) {
    for (block, mut parts) in each::<144, 128>(blocks, const { sizes(BlockType::Q4K) }, run) {
        q4_k_numbers(block, &mut parts);
        parts.codes.copy_from_slice(&block[16..]);
    }
}

#[inline(always)]
fn q5_k(block: &[u8; 176], mut parts: BlockParts<'_, 256>) {
    parts.scale(&block[..2]);
    parts.least(&block[2..4]);
    scales_of_32(&block[4..16], &mut parts);
    // Default: never, a block has more than 48 bytes.
    let Some(high) = block[16..].first_chunk::<32>() else { return };
    let bytes = block[48..].as_chunks::<32>().0.iter();
    for ((bytes, codes), at) in bytes.zip(pairs_of::<32>(parts.codes)).zip([0, 2, 4, 6]) {
        let [a, b] = codes else { continue };
        let high = from_bytes(high, |byte| byte >> at);
        *a = from_pairs(bytes, &high, |byte, high| byte << 3 & 0x78 | high << 7);
        *b = from_pairs(bytes, &high, |byte, high| byte >> 1 & 0x78 | high << 6 & 0x80);
    }
}

#[inline(always)]
fn q6_k(block: &[u8; 210], mut parts: BlockParts<'_, 256>) {
    parts.scale(&block[208..]);
    parts.sub_scales.copy_from_slice(&block[192..208]);
    let low = block[..128].as_chunks::<32>().0.chunks_exact(2);
    let high = block[128..192].as_chunks::<32>().0;
    let sets = parts.codes.as_chunks_mut::<32>().0.chunks_exact_mut(4);
    for ((low, high), codes) in low.zip(high).zip(sets) {
        // 64 bytes hold the low halves of 64 weights, then those of the following 64.
        let ([first, second], [a, b, c, d]) = (low, codes) else { continue };
        *a = from_pairs(first, high, |low, high| low << 2 & 0x3c | high << 6);
        *b = from_pairs(second, high, |low, high| low << 2 & 0x3c | high << 4 & 0xc0);
        *c = from_pairs(first, high, |low, high| low >> 2 & 0x3c | high << 2 & 0xc0);
        *d = from_pairs(second, high, |low, high| low >> 2 & 0x3c | high & 0xc0);
    }
}

#[inline(always)]
fn iq4_xs(block: &[u8; 136], mut parts: BlockParts<'_, 256>) {
    parts.scale(&block[..2]);
    let high = u16::from_le_bytes([block[2], block[3]]);
    for (group, out) in parts.sub_scales.iter_mut().enumerate() {
        let low = block[4 + group / 2] >> (4 * (group % 2)) & 15;
        *out = (low | ((high >> (2 * group) & 3) as u8) << 4).wrapping_sub(32);
    }
    nibbles::<16>(&block[8..], parts.codes);
}

/// Converts FP4 elements in the upper four bits of bytes to ascending codes. The sign is flipped, and so are
/// the other bits of negative elements.
#[inline(always)]
fn ascending(elements: u64) -> [u8; 8] {
    let signs = elements & (0x80 * EACH);
    (elements ^ (signs >> 1 | signs >> 2 | signs >> 3) ^ (0x80 * EACH)).to_le_bytes()
}

/// Returns the ascending codes of FP4 elements: those of the low halves, and those of the high halves.
#[inline(always)]
fn fp4(bytes: &[u8; 8]) -> [[u8; 8]; 2] {
    let bytes = u64::from_le_bytes(*bytes);
    [ascending(bytes << 4 & (0xf0 * EACH)), ascending(bytes & (0xf0 * EACH))]
}

#[inline(always)]
fn mxfp4(block: &[u8; 17], parts: BlockParts<'_, 32>) {
    parts.sub_scales.copy_from_slice(&block[..1]);
    // Default: never, a block has 32 codes and 17 bytes.
    let ([a, b, c, d], [first, second]) =
        (parts.codes.as_chunks_mut::<8>().0, block[1..].as_chunks().0)
    else {
        return;
    };
    [*a, *c] = fp4(first);
    [*b, *d] = fp4(second);
}

#[inline(always)]
fn nvfp4(block: &[u8; 36], parts: BlockParts<'_, 64>) {
    for (out, scale) in parts.sub_scales.iter_mut().zip(&block[..4]) {
        // NaN counts as zero, and signs are ignored.
        *out = if *scale == 0x7f { 0 } else { scale & 0x7f };
    }
    for (bytes, codes) in block[4..].as_chunks().0.iter().zip(pairs_of::<8>(parts.codes)) {
        codes.copy_from_slice(&fp4(bytes));
    }
}
