//! Blocks of every element type as scaled integers: bits are moved, no number is rounded.
//!
//! A codec of scaled integers multiplies and adds in this order, in single precision:
//! `(scale * sub_scale) * 2^unit * value`, then `+ minimum`. In these terms the types are:
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
//! | NVFP4 | 4 | | E4M3 / 16 | 1/2 * twice the value of E2M1 | |
//! | IQ2_XXS, IQ2_XS, IQ2_S | 3 | f16 / 256 | 2 * u4 + 1 / 32, 16, 16 | 1/8 * {8, 25, 43} and a sign | |
//! | IQ3_XXS | 4 | f16 / 256 | 2 * u4 + 1 / 32 | 1/4 * {4, 12, 20, 28, 36, 44, 52, 62} and a sign | |
//! | IQ3_S | 4 | f16 / 256 | 2 * u4 + 1 / 32 | {1, 3, .. 15} and a sign | |
//! | IQ1_S, IQ1_M | 3 | f16 / 256 | 2 * u3 + 1 / 32, 16 | 1/8 * (8 * {-1, 0, 1} + {-1, 1}) | |
//! | TQ1_0, TQ2_0, Q2_0 | 2 | f16 / 256, 256, 64 | | code - 1 | |
//! | Q1_0 | 2 | f16 / 128 | | {-1, 1} | |
//!
//! A scale of 11 bits times a factor of at most 7 and a value of at most 6 bits is exact in single
//! precision, and no such product is below its normal numbers. MXFP4's least scales are, where powers
//! of two stay exact as well. What a type adds is added last, as it is here. So the weights are
//! those of [`BlockType::decode`], bit for bit, whatever order that multiplies in.
//!
//! Codes ascend with the values. FP4's magnitude `m` of 3 bits is code `8 + m` where it is positive
//! and `7 - m` where it is negative. The six values of IQ2 and IQ1 leave two codes unused.

mod codec;
mod codes;
mod columns;
mod parts;

use nestling_formats::memory::{OutOfMemory, try_reserve};
use nestling_formats::nested::{ScaledCodec, ScaledForm, ScaledRows, SubScale};

use super::BlockType;
use codec::{codec, form};
use codes::write;
pub(crate) use columns::take_units;
use parts::PartSizes;
pub use parts::ScaledRun;

/// The largest exponent of a block of MXFP4 that is believed. With it, an int8 times the scale is a
/// finite number, as readers of scaled integers want; no weight that a model has comes near.
const MXFP4_EXPONENT_MAX: u8 = 247;

/// A block whose scale is no finite number, or too large for weights that are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WrongBlock {
    /// Its place in what was given.
    pub block: usize,
    /// The scale.
    pub scale: f32,
}

/// Blocks that a matrix is made of, as its rows have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaledBlocks {
    /// Their type.
    pub kind: BlockType,
    /// Groups of 32 columns that share a scale in the matrix: those of a block, or fewer where
    /// columns are put in an order that takes blocks apart.
    pub span: u8,
}

impl ScaledBlocks {
    /// Blocks in the order of their file.
    pub fn whole(kind: BlockType) -> Self {
        Self { kind, span: form(kind).span }
    }

    /// How the parts of the matrix are laid out.
    pub fn form(self) -> ScaledForm {
        ScaledForm { span: self.span, ..form(self.kind) }
    }

    /// The codec of scaled integers that holds their numbers exactly.
    pub fn codec(self) -> ScaledCodec {
        let mut codec = codec(self.kind);
        codec.form.span = self.span;
        codec
    }

    /// A matrix of that codec, of zeros. `cols` are whole spans.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn rows(self, rows: usize, cols: usize) -> Result<ScaledRows, OutOfMemory> {
        let mut matrix = ScaledRows::default();
        self.resize(&mut matrix, rows, cols)?;
        Ok(matrix)
    }

    /// Makes a matrix one of that codec and shape, in the memory that it has. What it holds of
    /// others stays in it.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn resize(
        self,
        matrix: &mut ScaledRows,
        rows: usize,
        cols: usize,
    ) -> Result<(), OutOfMemory> {
        let sizes = PartSizes::new(&self.form(), cols);
        (matrix.rows, matrix.cols) = (rows, cols);
        let ScaledRows { codes, scales, minima, sub_scales, sub_minima, .. } = matrix;
        for (part, of_row) in [
            (codes, cols),
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
    /// Moves blocks, which follow each other as the rows of a matrix do, into the parts of scaled
    /// integers. What one of the two has too much is left alone.
    ///
    /// # Errors
    /// The first [`WrongBlock`].
    pub fn transcode(self, blocks: &[u8], run: &mut ScaledRun<'_>) -> Result<(), WrongBlock> {
        let sizes = PartSizes::new(&form(self), self.elements());
        write(self, blocks, sizes, run);
        self.check_scales(blocks, sizes, run)
    }

    /// Finds scales that are not finite, or too large.
    fn check_scales(
        self,
        blocks: &[u8],
        sizes: PartSizes,
        run: &ScaledRun<'_>,
    ) -> Result<(), WrongBlock> {
        let count = blocks.len() / self.bytes();
        for (halves, bytes) in [(&*run.scales, sizes.scales), (&*run.minima, sizes.minima)] {
            // Default: of a run that is too short, all of it was written.
            let halves = halves.get(..count * bytes).unwrap_or(halves);
            let halves = halves.as_chunks().0.iter().map(|bytes| half::f16::from_le_bytes(*bytes));
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

    /// Finds scales of MXFP4 and NVFP4 that are no numbers, and those of MXFP4 that are too large.
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
