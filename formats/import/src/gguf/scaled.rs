//! Conversion of all block types to scaled integers: bits are moved, and no number is rounded.
//!
//! The codec multiplies and adds in this order, in single precision: `(scale * sub_scale) * 2^unit * value`,
//! then `+ minimum`. In these terms the types are:
//!
//! | type | bits | scale | sub-scale | 2^unit * value | minimum |
//! |---|---|---|---|---|---|
//! | Q4_0, Q5_0, Q8_0 | 4, 5, 8 | f16 / 32 | | code - 8, - 16, - 128 | |
//! | Q4_1, Q5_1 | 4, 5 | f16 / 32 | | code | f16 / 32 |
//! | Q2_K | 2 | f16 / 256 | u4 / 16 | code | -(f16 / 256 * u4 / 16) |
//! | Q3_K | 3 | f16 / 256 | i6 / 16 | code - 4 | |
//! | Q4_K, Q5_K | 4, 5 | f16 / 256 | u6 / 32 | code | -(f16 / 256 * u6 / 32) |
//! | Q6_K | 6 | f16 / 256 | i8 / 16 | code - 32 | |
//! | IQ4_NL | 4 | f16 / 32 | | table | |
//! | IQ4_XS | 4 | f16 / 256 | i6 / 32 | table | |
//! | MXFP4 | 4 | | 2^(e - 127) / 32 | 1/2 * twice the value of E2M1 | |
//! | NVFP4 | 4 | f32 of the scale tensor, if any | E4M3 / 16 | 1/2 * twice the value of E2M1 | |
//! | IQ2_XXS, IQ2_XS, IQ2_S | 3 | f16 / 256 | 2 * u4 + 1 / 32, 16, 16 | 1/8 * {8, 25, 43} and a sign | |
//! | IQ3_XXS | 4 | f16 / 256 | 2 * u4 + 1 / 32 | 1/4 * {4, 12, 20, 28, 36, 44, 52, 62} and a sign | |
//! | IQ3_S | 4 | f16 / 256 | 2 * u4 + 1 / 32 | {1, 3, .. 15} and a sign | |
//! | IQ1_S, IQ1_M | 3 | f16 / 256 | 2 * u3 + 1 / 32, 16 | 1/8 * (8 * {-1, 0, 1} + {-1, 1}) | |
//! | TQ1_0, TQ2_0, Q2_0 | 2 | f16 / 256, 256, 64 | | code - 1 | |
//! | Q1_0 | 2 | f16 / 128 | | {-1, 1} | |
//!
//! An 11-bit scale times a factor of at most 7 bits and a value of at most 6 bits is exact in single
//! precision, and no such product is subnormal. The smallest MXFP4 scales are subnormal, but powers of two
//! stay exact there as well. The minimum is added last in both cases. The weights are therefore bit-exact
//! with those of [`BlockType::decode`], regardless of its order of multiplication.
//!
//! Codes ascend with the values. A 3-bit FP4 magnitude `m` has the code `8 + m` if positive and `7 - m` if
//! negative. The six values of IQ2 and IQ1 leave two codes unused.

mod codec;
mod codes;
mod columns;
mod parts;
mod wide;

use nestling_formats::memory::{OutOfMemory, try_reserve};
use nestling_formats::nested::{ScaleType, ScaledCodec, ScaledForm, ScaledRows, SubScale};

use super::BlockType;
use codec::{codec, form};
pub(crate) use columns::take_units;
use parts::PartSizes;
pub use parts::ScaledRun;

/// Maximum accepted exponent of an MXFP4 block. Up to it, an int8 times the scale is finite, as readers of
/// scaled integers require. Weights of real models are far smaller.
const MXFP4_EXPONENT_MAX: u8 = 247;

/// A block whose scale is not finite, or too large for finite weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WrongBlock {
    /// Index of the block in the input.
    pub block: usize,
    /// The scale.
    pub scale: f32,
}

/// Blocks of a matrix row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaledBlocks {
    /// Block type.
    pub kind: BlockType,
    /// Number of 32-column groups that share a scale in the matrix. It is that of a block, or smaller if a
    /// column permutation splits blocks.
    pub span: u8,
    /// True if a scale tensor multiplies the blocks. The matrix then has a scale per row and span.
    pub companion: bool,
}

impl ScaledBlocks {
    /// Returns the blocks in file order.
    pub fn whole(kind: BlockType) -> Self {
        Self { kind, span: form(kind).span, companion: false }
    }

    /// Returns the layout of the matrix's parts.
    pub fn form(self) -> ScaledForm {
        let form = form(self.kind);
        let scale = if self.companion { ScaleType::F32 } else { form.scale };
        ScaledForm { span: self.span, scale, ..form }
    }

    /// Returns the codec of scaled integers that represents the weights exactly.
    pub fn codec(self) -> ScaledCodec {
        let mut codec = codec(self.kind);
        codec.form = self.form();
        codec
    }

    /// Creates a zeroed matrix for this codec. `cols` must be a multiple of the span.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the allocation fails.
    pub fn rows(self, rows: usize, cols: usize) -> Result<ScaledRows, OutOfMemory> {
        let mut matrix = ScaledRows::default();
        self.resize(&mut matrix, rows, cols)?;
        Ok(matrix)
    }

    /// Changes a matrix to this codec and shape, reusing its memory. Existing contents are not cleared.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the allocation fails.
    pub fn resize(
        self,
        matrix: &mut ScaledRows,
        rows: usize,
        cols: usize,
    ) -> Result<(), OutOfMemory> {
        self.resize_parts(matrix, [rows, cols], cols)
    }

    /// Changes a matrix like [`Self::resize`], with two codes to a byte.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the allocation fails.
    pub fn resize_pairs(
        self,
        matrix: &mut ScaledRows,
        rows: usize,
        cols: usize,
    ) -> Result<(), OutOfMemory> {
        self.resize_parts(matrix, [rows, cols], cols / 2)
    }

    fn resize_parts(
        self,
        matrix: &mut ScaledRows,
        [rows, cols]: [usize; 2],
        code_bytes: usize,
    ) -> Result<(), OutOfMemory> {
        let sizes = PartSizes::new(&self.form(), cols);
        (matrix.rows, matrix.cols) = (rows, cols);
        let ScaledRows { codes, scales, minima, sub_scales, sub_minima, .. } = matrix;
        for (part, of_row) in [
            (codes, code_bytes),
            (scales, sizes.scales),
            (minima, sizes.minima),
            (sub_scales, sizes.sub_scales),
            (sub_minima, sizes.sub_minima),
        ] {
            let bytes = rows * of_row;
            try_reserve(part, "scaled integers", bytes.saturating_sub(part.len()))?;
            part.resize(bytes, 0);
        }
        Ok(())
    }
}

impl BlockType {
    /// Transcodes blocks, in the order of a matrix's rows, into the parts of scaled integers. Excess input or
    /// output is ignored.
    ///
    /// # Errors
    /// Returns the first [`WrongBlock`].
    pub fn transcode(self, blocks: &[u8], run: &mut ScaledRun<'_>) -> Result<(), WrongBlock> {
        let sizes = PartSizes::new(&form(self), self.elements());
        wide::write(self, blocks, run);
        self.check_scales(blocks, sizes, run)
    }

    /// Returns true if [`Self::transcode_pairs`] takes blocks of this type.
    pub fn has_pairs(self) -> bool {
        self == Self::Q4K
    }

    /// Transcodes blocks like [`Self::transcode`], but leaves codes two to a byte, as
    /// [`ScaledPlanes::write_pairs`](nestling_formats::nested::ScaledPlanes::write_pairs) takes them. The type
    /// must have such pairs ([`Self::has_pairs`]).
    ///
    /// # Errors
    /// Returns the first [`WrongBlock`].
    pub fn transcode_pairs(self, blocks: &[u8], run: &mut ScaledRun<'_>) -> Result<(), WrongBlock> {
        debug_assert!(self.has_pairs(), "a type without pairs of codes");
        codes::write_pairs(blocks, run);
        self.check_scales(blocks, PartSizes::new(&form(self), self.elements()), run)
    }

    /// Checks for scales that are not finite or too large.
    fn check_scales(
        self,
        blocks: &[u8],
        sizes: PartSizes,
        run: &ScaledRun<'_>,
    ) -> Result<(), WrongBlock> {
        let count = blocks.len() / self.bytes();
        for (halves, bytes) in [(&*run.scales, sizes.scales), (&*run.minima, sizes.minima)] {
            // Default: if the run is too short, it was written completely.
            let halves = halves.get(..count * bytes).unwrap_or(halves);
            let halves = halves.as_chunks().0;
            // Without a branch for each scale, the check has vectors.
            let finite = |bytes: &[u8; 2]| u16::from_le_bytes(*bytes) & 0x7c00 != 0x7c00;
            if halves.iter().fold(true, |all, bytes| all & finite(bytes)) {
                continue;
            }
            let halves = halves.iter().map(|bytes| half::f16::from_le_bytes(*bytes));
            if let Some((at, scale)) = halves.enumerate().find(|(_, half)| !half.is_finite()) {
                return Err(WrongBlock {
                    block: 2 * at / sizes.scales.max(1),
                    scale: scale.to_f32(),
                });
            }
        }
        match form(self).sub_scale {
            SubScale::E8m0 | SubScale::E4m3 => self.check_small_floats(blocks),
            _ => Ok(()),
        }
    }

    /// Checks MXFP4 and NVFP4 blocks for NaN scales, and MXFP4 blocks for scales that are too large.
    fn check_small_floats(self, blocks: &[u8]) -> Result<(), WrongBlock> {
        let is_wrong = |bytes: &&[u8]| match self {
            Self::Nvfp4 => bytes[..4].contains(&0xff),
            _ => bytes[0] > MXFP4_EXPONENT_MAX,
        };
        let mut blocks = blocks.chunks_exact(self.bytes()).enumerate();
        let Some((block, bytes)) = blocks.find(|(_, bytes)| is_wrong(bytes)) else { return Ok(()) };
        let scale = match self {
            Self::Mxfp4 if bytes[0] != 0xff => SubScale::E8m0.factor(bytes[0]),
            _ => f32::NAN,
        };
        Err(WrongBlock { block, scale })
    }
}

#[cfg(test)]
mod tests;
