//! Sizes of gated short convolutions and their recurrent states.

/// Sizes of a gated short convolution (LFM2): a causal convolution of each channel between two elementwise
/// gates, all three projected from the layer's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShortConvConfig {
    /// Number of channels: the width of both gates and of the convolved inputs.
    pub channels: usize,
    /// Kernel size of the convolution in positions, including the current token (`conv_L_cache`).
    pub taps: usize,
    /// True if both projections and the convolution have biases (`conv_bias`).
    pub bias: bool,
}

impl ShortConvConfig {
    /// Returns the number of columns of the input projection: input gates, output gates and inputs.
    pub fn inputs(&self) -> usize {
        3 * self.channels
    }

    /// Returns the number of rows before the current token that the convolution reads.
    pub fn window(&self) -> usize {
        self.taps.saturating_sub(1)
    }

    /// Returns the size of a layer's recurrent state in floats: the gated inputs of the last rows, `[window,
    /// channels]`, oldest first.
    pub fn state_floats(&self) -> usize {
        self.window() * self.channels
    }
}
