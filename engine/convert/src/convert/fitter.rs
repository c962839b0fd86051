//! Fitters of codecs: a search for scales and values, or MXFP4 blocks with given ones.

use nestling_formats::nested::{
    CodecFitter, Mxfp4Fitter, NestedCodec, NestedError, QuantizeOptions,
};

pub(super) enum Fitter {
    /// Fitter for weights that are rounded.
    Searched(CodecFitter),
    /// Fitter for MXFP4 weights that stay MXFP4.
    Mxfp4(Mxfp4Fitter),
}

impl Fitter {
    pub fn new(is_mxfp4: bool, options: &QuantizeOptions) -> Self {
        match is_mxfp4 {
            true => Self::Mxfp4(Mxfp4Fitter::new(options)),
            false => Self::Searched(CodecFitter::new(options)),
        }
    }

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

    /// Merges the data of another fitter of the same codec.
    pub fn absorb(&mut self, other: Self) {
        match (self, other) {
            (Self::Searched(fitter), Self::Searched(other)) => fitter.absorb(other),
            (Self::Mxfp4(fitter), Self::Mxfp4(other)) => fitter.absorb(other),
            // All matrices of a codec have the same kind of source.
            _ => {}
        }
    }

    pub fn finish(self) -> Result<NestedCodec, NestedError> {
        match self {
            Self::Searched(fitter) => fitter.finish(),
            Self::Mxfp4(fitter) => fitter.finish(),
        }
    }
}
