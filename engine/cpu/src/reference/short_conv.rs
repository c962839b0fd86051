//! Gated short convolution, one token at a time.

use super::delta_net::each_token;
use super::{Reference, ReferenceBuffer};
use crate::states::CpuStates;
use nestling_core::backend::ShortConv;
use nestling_core::batch::StepRows;
use nestling_core::error::EngineError;

/// Computes the layer as `Lfm2MoeShortConv` of transformers does. For channel c of token t with the input
/// gate b, the output gate g and the input x:
///
/// ```text
/// u[t]   = b[t] * x[t]
/// v[t]   = bias + Σ_k fma(taps[k], u[t - window + k], ·)     k ascending; u is 0 before the first token
/// out[t] = g[t] * v[t]
/// ```
pub(super) fn short_conv(
    conv: &ShortConv<Reference>,
    rows: &StepRows,
    projected: &ReferenceBuffer,
    states: &mut CpuStates,
    out: &mut ReferenceBuffer,
) -> Result<(), EngineError> {
    out.resize(rows.len());
    let (channels, window) = (conv.shape.channels, conv.shape.window());
    each_token(rows, conv.shape.state_floats(), states, |row, state| {
        let projected = &projected.values[row * projected.cols..][..projected.cols];
        for channel in 0..channels {
            let [b, g, x] = [0, 1, 2].map(|part| projected[part * channels + channel]);
            let newest = b * x;
            // Default: a layer without a bias starts its sums at 0.
            let mut sum = conv.bias.as_ref().map_or(0.0, |bias| bias[channel]);
            for tap in 0..window {
                sum = conv.taps[tap * channels + channel]
                    .mul_add(state[tap * channels + channel], sum);
            }
            sum = conv.taps[window * channels + channel].mul_add(newest, sum);
            out.values[row * out.cols + channel] = g * sum;
            for tap in 1..window {
                state[(tap - 1) * channels + channel] = state[tap * channels + channel];
            }
            if let Some(last) = window.checked_sub(1) {
                state[last * channels + channel] = newest;
            }
        }
    })
}
