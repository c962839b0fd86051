//! Mamba-2, one token at a time.

use super::delta_net::each_token;
use super::{Reference, ReferenceBuffer};
use crate::delta_net::step_factors;
use crate::math;
use crate::states::CpuStates;
use nestling_core::backend::Mamba2;
use nestling_core::batch::StepRows;
use nestling_core::error::EngineError;

/// Computes the layer as `Mamba2Mixer` of transformers does, in its recurrent form. For a token with the gates
/// z, the channels u and the times of the heads:
///
/// ```text
/// x, B, C    = silu(bias + Σ_k fma(conv[k], u[t - window + k], ·))   k ascending; u is 0 before the first token
/// step       = ln(1 + e^(time + time_bias)) of a head
/// S[n][p]    = fma(B[n], step * x[p], e^(rate * step) * S[n][p])     B and C are those of the head's group
/// y[p]       = fma(D, x[p], Σ_n fma(C[n], S[n][p], ·))               n ascending
/// out        = norm(y * silu(z))                                     of all heads of a group together
/// ```
pub(super) fn mamba2(
    mamba2: &Mamba2<Reference>,
    rows: &StepRows,
    projected: &ReferenceBuffer,
    states: &mut CpuStates,
    out: &mut ReferenceBuffer,
) -> Result<(), EngineError> {
    out.resize(rows.len());
    each_token(rows, mamba2.shape.state_floats(), states, |row, state| {
        let projected = &projected.values[row * projected.cols..][..projected.cols];
        token(mamba2, projected, state, &mut out.values[row * out.cols..][..out.cols]);
    })
}

fn token(mamba2: &Mamba2<Reference>, projected: &[f32], state: &mut [f32], out: &mut [f32]) {
    let shape = &mamba2.shape;
    let (channels, window) = (shape.channels(), shape.window());
    let (gates, rest) = projected.split_at(shape.inner());
    let (newest, times) = rest.split_at(channels);
    let (before, matrices) = state.split_at_mut(window * channels);

    let mut mixed = vec![0.0; channels];
    for (channel, mixed) in mixed.iter_mut().enumerate() {
        // Default: a layer without a bias starts its sums at 0.
        let mut sum = mamba2.bias.as_ref().map_or(0.0, |bias| bias[channel]);
        for tap in 0..=window {
            let input =
                if tap < window { before[tap * channels + channel] } else { newest[channel] };
            sum = mamba2.conv[tap * channels + channel].mul_add(input, sum);
        }
        *mixed = math::silu(sum);
        for tap in 1..window {
            before[(tap - 1) * channels + channel] = before[tap * channels + channel];
        }
        if let Some(last) = window.checked_sub(1) {
            before[last * channels + channel] = newest[channel];
        }
    }

    let (x, b_c) = mixed.split_at(shape.inner());
    let (b, c) = b_c.split_at(shape.groups_dim());
    for head in 0..shape.num_heads {
        let group = head * shape.n_groups / shape.num_heads * shape.state_size;
        let [decay, step] = step_factors(mamba2.rate[head], mamba2.time_bias[head], times[head]);
        let matrix = &mut matrices[head * shape.state_size * shape.head_dim..];
        for p in 0..shape.head_dim {
            let at = head * shape.head_dim + p;
            let mut sum = 0.0;
            for n in 0..shape.state_size {
                let place = &mut matrix[n * shape.head_dim + p];
                *place = b[group + n].mul_add(step * x[at], decay * *place);
                sum = c[group + n].mul_add(*place, sum);
            }
            out[at] = mamba2.skip[head].mul_add(x[at], sum) * math::silu(gates[at]);
        }
    }
    let group = shape.norm_group();
    for (out, weight) in out.chunks_exact_mut(group).zip(mamba2.norm.chunks_exact(group)) {
        math::rms_norm_in_place(out, weight, shape.norm_eps);
    }
}
