//! Gated DeltaNet, one token at a time.

use nestling_import::DeltaNetConfig;

use super::{Reference, ReferenceBuffer};
use crate::delta_net::{convolve, factors};
use crate::math;
use crate::states::CpuStates;
use nestling_core::backend::DeltaNet;
use nestling_core::batch::StepRows;
use nestling_core::batch::runs;
use nestling_core::error::EngineError;

pub(super) fn delta_net(
    net: &DeltaNet<Reference>,
    rows: &StepRows,
    projected: &ReferenceBuffer,
    states: &mut CpuStates,
    out: &mut ReferenceBuffer,
) -> Result<(), EngineError> {
    out.resize(rows.len());
    each_token(rows, net.shape.state_floats(), states, |row, state| {
        let projected = &projected.values[row * projected.cols..][..projected.cols];
        token(net, projected, state, &mut out.values[row * out.cols..][..out.cols]);
    })
}

/// Passes each row with the state of its sequence, in order, and stores the states that the step writes.
pub(super) fn each_token(
    rows: &StepRows,
    state_floats: usize,
    states: &mut CpuStates,
    mut token: impl FnMut(usize, &mut [f32]),
) -> Result<(), EngineError> {
    let mut parts = Vec::new();
    runs(rows, &mut parts)?;
    let mut state = Vec::new();
    for run in parts {
        if run.depth == 0 {
            state = match run.from {
                Some(from) => states.get(from)?.to_vec(),
                None => vec![0.0; state_floats],
            };
        }
        run.rows.for_each(|row| token(row, &mut state));
        states.check_place(run.to)?;
        states.put(run.to, state.clone());
    }
    Ok(())
}

/// Processes one row: its convolution, the update of each head's state, its norm and gate.
fn token(net: &DeltaNet<Reference>, projected: &[f32], state: &mut [f32], out: &mut [f32]) {
    let shape = &net.shape;
    let DeltaNetConfig { num_key_heads, num_value_heads, key_head_dim, value_head_dim, .. } =
        *shape;
    let (inputs, rest) = projected.split_at(shape.channels());
    let (gates, beta_alpha) = rest.split_at(shape.value_dim());
    let (beta, alpha) = beta_alpha.split_at(num_value_heads);
    let (window, matrices) = state.split_at_mut(shape.window() * shape.channels());

    let mut mixed = vec![0.0; shape.channels()];
    let taps: Vec<&[f32]> = window.chunks_exact(shape.channels()).chain([inputs]).collect();
    convolve(&taps, &net.conv, None, &mut mixed);
    window.rotate_left(shape.channels().min(window.len()));
    if let Some(newest) = window.chunks_exact_mut(shape.channels()).next_back() {
        newest.copy_from_slice(inputs);
    }

    let (queries_keys, values) = mixed.split_at_mut(2 * shape.key_dim());
    for (head, x) in queries_keys.chunks_exact_mut(key_head_dim).enumerate() {
        let weight = if head < num_key_heads { &net.query_norm } else { &net.key_norm };
        math::rms_norm_in_place(x, weight, net.unit_eps);
    }
    let (queries, keys) = queries_keys.split_at(shape.key_dim());
    let heads = matrices.chunks_exact_mut(key_head_dim * value_head_dim);
    for (head, (matrix, value)) in heads.zip(values.chunks_exact(value_head_dim)).enumerate() {
        let shared = head * num_key_heads / num_value_heads * key_head_dim;
        let (query, key) = (&queries[shared..][..key_head_dim], &keys[shared..][..key_head_dim]);
        let [decay, beta] = factors(net.rate[head], net.time_bias[head], alpha[head], beta[head]);
        let out = &mut out[head * value_head_dim..][..value_head_dim];
        for (col, out) in out.iter_mut().enumerate() {
            let mut seen = 0.0;
            for (row, key) in key.iter().enumerate() {
                seen = key.mul_add(matrix[row * value_head_dim + col], seen);
            }
            let delta = (-decay).mul_add(seen, value[col]) * beta;
            *out = 0.0;
            for (row, (key, query)) in key.iter().zip(query).enumerate() {
                let place = &mut matrix[row * value_head_dim + col];
                *place = key.mul_add(delta, decay * *place);
                *out = query.mul_add(*place, *out);
            }
        }
        math::rms_norm_in_place(out, &net.norm, net.eps);
        let gate = &gates[head * value_head_dim..][..value_head_dim];
        out.iter_mut().zip(gate).for_each(|(out, gate)| *out *= math::silu(*gate));
    }
}
