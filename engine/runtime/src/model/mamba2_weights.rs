//! Loading of Mamba-2 layers.

use nestling_formats::{FloatKind, MatrixKind};
use nestling_import::{Mamba2Config, ModelConfig, TokenMixer};

use super::activations::recurrent_buffers;
use super::floats::Floats;
use super::mixer::{RecurrentCore, RecurrentWeights};
use super::weights::Loader;
use nestling_core::backend::{Backend, Mamba2};
use nestling_core::error::EngineError;
use nestling_experts::expert::Matrices;

impl<B: Backend> Loader<'_, B> {
    /// Loads a layer's Mamba-2.
    pub(super) fn mamba2(
        &mut self,
        config: &ModelConfig,
        shape: &Mamba2Config,
        dense: &mut Matrices,
        floats: &Floats,
    ) -> Result<RecurrentWeights<B>, EngineError> {
        let (hidden, channels) = (config.hidden_size, shape.channels());
        let proj_bias = |kind, count| shape.proj_bias.then(|| floats.get(kind, count)).transpose();
        let input = dense.take(MatrixKind::Mamba2In, shape.inputs(), hidden)?;
        let in_bias = proj_bias(FloatKind::Mamba2InBias, shape.inputs())?;
        let output = dense.take(MatrixKind::Mamba2Out, hidden, shape.inner())?;
        // The output is added to the residual stream, so its bias is scaled like the product.
        let out_bias = proj_bias(FloatKind::Mamba2OutBias, hidden)?
            .map(|bias| bias.iter().map(|x| x * config.multipliers.residual).collect::<Vec<_>>());
        let conv = floats.by_tap(FloatKind::Mamba2Conv, channels, shape.conv_kernel)?;
        let conv_bias = shape.conv_bias.then(|| floats.get(FloatKind::Mamba2ConvBias, channels));
        let mut upload = |kind, count| floats.upload(self.backend, kind, count);
        let [rate, time_bias, skip] =
            [FloatKind::Mamba2Decay, FloatKind::Mamba2TimeBias, FloatKind::Mamba2Skip]
                .map(|kind| upload(kind, shape.num_heads));
        let norm = upload(FloatKind::Mamba2Norm, shape.inner())?;
        let mamba2 = Mamba2 {
            shape: *shape,
            conv: self.backend.upload_floats(&conv)?,
            bias: conv_bias.transpose()?.map(|b| self.backend.upload_floats(b)).transpose()?,
            rate: rate?,
            time_bias: time_bias?,
            skip: skip?,
            norm,
        };
        let inputs = vec![self.linear(MatrixKind::Mamba2In, &input, in_bias)?];
        let output = self.linear(MatrixKind::Mamba2Out, &output, out_bias.as_deref())?;
        let buffers = recurrent_buffers(config, &TokenMixer::Mamba2(*shape))?;
        Ok(RecurrentWeights { inputs, core: RecurrentCore::Mamba2(mamba2), output, buffers })
    }
}
