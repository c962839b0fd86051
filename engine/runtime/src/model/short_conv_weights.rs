//! Loading of gated short convolutions.

use nestling_formats::{FloatKind, MatrixKind};
use nestling_import::{ModelConfig, ShortConvConfig, TokenMixer};

use super::activations::recurrent_buffers;
use super::floats::Floats;
use super::mixer::{RecurrentCore, RecurrentWeights};
use super::weights::Loader;
use nestling_core::backend::{Backend, ShortConv};
use nestling_core::error::EngineError;
use nestling_experts::expert::Matrices;

impl<B: Backend> Loader<'_, B> {
    /// Loads a layer's gated short convolution.
    pub(super) fn short_conv(
        &mut self,
        config: &ModelConfig,
        shape: &ShortConvConfig,
        dense: &mut Matrices,
        floats: &Floats,
    ) -> Result<RecurrentWeights<B>, EngineError> {
        let (hidden, channels) = (config.hidden_size, shape.channels);
        let bias = |kind, count| shape.bias.then(|| floats.get(kind, count)).transpose();
        let input = dense.take(MatrixKind::ShortConvIn, shape.inputs(), hidden)?;
        let in_bias = bias(FloatKind::ShortConvInBias, shape.inputs())?;
        let output = dense.take(MatrixKind::ShortConvOut, hidden, channels)?;
        // The output is added to the residual stream, so its bias is scaled like the product.
        let out_bias = bias(FloatKind::ShortConvOutBias, hidden)?
            .map(|bias| bias.iter().map(|x| x * config.multipliers.residual).collect::<Vec<_>>());
        let taps = floats.by_tap(FloatKind::ShortConvTaps, channels, shape.taps)?;
        let conv_bias = bias(FloatKind::ShortConvBias, channels)?;
        let conv = ShortConv {
            shape: *shape,
            taps: self.backend.upload_floats(&taps)?,
            bias: conv_bias.map(|bias| self.backend.upload_floats(bias)).transpose()?,
        };
        let inputs = vec![self.linear(MatrixKind::ShortConvIn, &input, in_bias)?];
        let output = self.linear(MatrixKind::ShortConvOut, &output, out_bias.as_deref())?;
        let buffers = recurrent_buffers(config, &TokenMixer::ShortConv(*shape))?;
        Ok(RecurrentWeights { inputs, core: RecurrentCore::ShortConv(conv), output, buffers })
    }
}
