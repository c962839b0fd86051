//! What a layer's feed-forward part adds to the residual stream besides the experts themselves:
//!
//! ```text
//! x += dense(norm(x)) + Σ weight · expert(norm(x))
//! x += norm(norm(dense(norm(x))) + norm(Σ weight · expert(norm(x))))    with norms after parts
//! ```

use nestling_formats::Level;

use super::activations::Activations;
use super::weights::LayerWeights;
use nestling_core::backend::{Backend, Encoder, Router, Write};
use nestling_core::error::EngineError;

/// The inputs of a dense part, and what it gives: a part of its own, or an expert that every token
/// passes.
pub(super) fn begin<B: Backend>(
    enc: &mut B::Encoder<'_>,
    lw: &LayerWeights<B>,
    (levels, eps): (&[Level], f32),
    act: &mut Activations<B>,
) -> Result<(), EngineError> {
    enc.rms_norm(&act.x, &lw.feed_forward_norm, eps, Write::Set, &mut act.normed)?;
    let (norm, out) = match &lw.norms_after {
        None => (None, &mut act.x),
        Some(norms) => {
            enc.clear(levels.len(), &mut act.branch)?;
            (norms.shared.as_ref(), &mut act.branch)
        }
    };
    let Some(shared) = &lw.shared else { return Ok(()) };
    match (&shared.gate, norm) {
        (None, None) => enc.ffn(&shared.ffn, levels, &act.normed, Write::Add, out),
        (None, Some(norm)) => {
            enc.ffn(&shared.ffn, levels, &act.normed, Write::Set, &mut act.shared)?;
            enc.rms_norm(&act.shared, norm, eps, Write::Add, out)
        }
        (Some(gate), None) => {
            let gate = std::slice::from_ref(gate);
            enc.matmul(gate, levels, &act.normed, Write::Set, &mut act.gate)?; // [T, 1]
            enc.ffn(&shared.ffn, levels, &act.normed, Write::Set, &mut act.shared)?;
            enc.add_gated(&act.gate, &act.shared, out)
        }
        (Some(_), Some(_)) => {
            let what = "a shared expert with a gate";
            Err(EngineError::mismatch(what, "no norm after it", "one"))
        }
    }
}

/// Chooses the experts of every row, and leaves their inputs in `act.normed`.
pub fn route<B: Backend>(
    enc: &mut B::Encoder<'_>,
    (lw, router): (&LayerWeights<B>, &Router<B>),
    eps: f32,
    act: &mut Activations<B>,
) -> Result<(), EngineError> {
    match &lw.router_norm {
        None => enc.route(router, &act.normed, &mut act.routing)?, // [T, K]
        Some(norm) => {
            enc.rms_norm(&act.x, norm, eps, Write::Set, &mut act.ahead)?;
            enc.route(router, &act.ahead, &mut act.routing)?;
        }
    }
    match lw.norm_before_experts() {
        None => Ok(()),
        Some(norm) => enc.rms_norm(&act.x, norm, eps, Write::Set, &mut act.normed),
    }
}

/// Adds the outputs of the experts.
pub(super) fn add_experts<B: Backend>(
    enc: &mut B::Encoder<'_>,
    lw: &LayerWeights<B>,
    (rows, eps): (usize, f32),
    act: &mut Activations<B>,
) -> Result<(), EngineError> {
    let (norm, out) = match &lw.norms_after {
        None => (None, &mut act.x),
        Some(norms) => (norms.experts.as_ref(), &mut act.branch),
    };
    let Some(norm) = norm else {
        return enc.experts_sum(&act.routing, &act.expert_rows, out);
    };
    enc.clear(rows, &mut act.shared)?;
    enc.experts_sum(&act.routing, &act.expert_rows, &mut act.shared)?;
    enc.rms_norm(&act.shared, norm, eps, Write::Add, out)
}

/// Adds what the parts gave together, where that has a norm.
pub(super) fn end<B: Backend>(
    enc: &mut B::Encoder<'_>,
    lw: &LayerWeights<B>,
    eps: f32,
    act: &mut Activations<B>,
) -> Result<(), EngineError> {
    let Some(norms) = &lw.norms_after else { return Ok(()) };
    enc.rms_norm(&act.branch, &norms.feed_forward, eps, Write::Add, &mut act.x)?;
    enc.scale(norms.layer_scalar, &mut act.x)
}
