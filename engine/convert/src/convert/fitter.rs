//! What a codec is fitted by: a search for scales and values, or blocks that have theirs.

use nestling_formats::nested::{
    CodecFitter, Mxfp4Fitter, NestedCodec, NestedError, QuantizeOptions,
};

/// The fitter of one codec.
pub(super) enum Fitter {
    /// Of weights that are rounded.
    Searched(CodecFitter),
    /// Of weights that are MXFP4 and stay so.
    Mxfp4(Mxfp4Fitter),
}

impl Fitter {
    /// A fitter that has seen no weights.
    pub fn new(is_mxfp4: bool, options: &QuantizeOptions) -> Self {
        match is_mxfp4 {
            true => Self::Mxfp4(Mxfp4Fitter::new(options)),
            false => Self::Searched(CodecFitter::new(options)),
        }
    }

    /// Adds some rows of a matrix.
    pub fn add(
        &mut self,
        weights: &[f32],
        rows: usize,
        cols: usize,
        importance: Option<&[f32]>,
    ) -> Result<(), NestedError> {
        match self {
            Self::Searched(fitter) => fitter.add(weights, rows, cols, importance),
            Self::Mxfp4(fitter) => fitter.add(weights, rows, cols, importance),
        }
    }

    /// Takes what another fitter of the same codec was given.
    pub fn absorb(&mut self, other: Self) {
        match (self, other) {
            (Self::Searched(fitter), Self::Searched(other)) => fitter.absorb(other),
            (Self::Mxfp4(fitter), Self::Mxfp4(other)) => fitter.absorb(other),
            // A codec belongs to matrices of one kind of source.
            _ => {}
        }
    }

    /// The codec.
    pub fn finish(self) -> Result<NestedCodec, NestedError> {
        match self {
            Self::Searched(fitter) => fitter.finish(),
            Self::Mxfp4(fitter) => fitter.finish(),
        }
    }
}
