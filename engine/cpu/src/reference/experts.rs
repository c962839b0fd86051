//! Experts, one at a time.

use nestling_formats::Level;

use super::{Reference, ReferenceBuffer, ReferenceEncoder, feed_forward};
use crate::math;
use nestling_core::backend::{Encoder, PinnedExpert, Routing};
use nestling_core::error::EngineError;

/// Implements [`Encoder::experts`].
pub(super) fn experts(
    encoder: &mut ReferenceEncoder,
    experts: &[PinnedExpert<'_, Reference>],
    routing: &Routing,
    x: &ReferenceBuffer,
    out: &mut ReferenceBuffer,
) -> Result<(), EngineError> {
    let per_token = routing.num_experts_per_tok;
    out.values.resize(routing.expert_weights.len() * out.cols, 0.0);
    for expert in experts {
        let rows: Vec<u32> = expert.uses.iter().map(|used| used.row).collect();
        let levels: Vec<Level> = expert.uses.iter().map(|used| used.level).collect();
        let mut gathered = ReferenceBuffer::new(0, x.cols);
        encoder.gather_rows(x, &rows, &mut gathered)?;
        let products = feed_forward(&expert.weights, &levels, &gathered)?;
        for (used, product) in expert.uses.iter().zip(products.rows()) {
            let row = used.row as usize * per_token + used.rank as usize;
            out.values[row * x.cols..][..x.cols].copy_from_slice(product);
        }
    }
    Ok(())
}

/// Implements [`Encoder::experts_sum`].
pub(super) fn experts_sum(
    routing: &Routing,
    expert_rows: &ReferenceBuffer,
    out: &mut ReferenceBuffer,
) -> Result<(), EngineError> {
    let per_token = routing.num_experts_per_tok;
    for (row, out) in out.rows_mut().enumerate() {
        let mut sum = vec![0.0; out.len()];
        for slot in row * per_token..(row + 1) * per_token {
            let product = &expert_rows.values[slot * out.len()..][..out.len()];
            math::add_scaled(&mut sum, routing.expert_weights[slot], product);
        }
        math::add(out, &sum);
    }
    Ok(())
}
