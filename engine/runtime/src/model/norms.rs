//! Norms after the branches of a layer.

use nestling_core::backend::Backend;
use nestling_core::error::EngineError;
use nestling_formats::FloatKind;
use nestling_import::{BlockNorms, FeedForward as FeedForwardConfig, ModelConfig};

use super::floats::Floats;

/// Norms after the branches of a layer, each `[hidden_size]`.
pub struct NormsAfter<B: Backend> {
    /// Norm after attention.
    pub attention: B::Floats,
    /// Norm after the sum of the feed-forward branches.
    pub feed_forward: B::Floats,
    /// Norm after the shared expert alone.
    pub shared: Option<B::Floats>,
    /// Norm before the experts.
    pub before_experts: Option<B::Floats>,
    /// Norm after the sum of the experts alone.
    pub experts: Option<B::Floats>,
    /// Factor of the layer's output.
    pub layer_scalar: f32,
}

impl<B: Backend> NormsAfter<B> {
    /// Loads the norms of a layer; `None` if its blocks have none after them.
    pub(super) fn of_layer(
        backend: &mut B,
        config: &ModelConfig,
        feed_forward: FeedForwardConfig,
        floats: &Floats,
    ) -> Result<Option<Self>, EngineError> {
        if config.block_norms == BlockNorms::Before {
            return Ok(None);
        }
        let (mixture, shared) = match (config.block_norms, feed_forward) {
            (BlockNorms::AroundScaled, FeedForwardConfig::Moe { shared, .. }) => {
                (true, shared.is_some())
            }
            _ => (false, false),
        };
        let hidden = config.hidden_size;
        let mut norm = |kind| floats.upload(backend, kind, hidden);
        Ok(Some(Self {
            attention: norm(FloatKind::PostAttentionNorm)?,
            feed_forward: norm(FloatKind::PostFeedForwardNorm)?,
            shared: shared.then(|| norm(FloatKind::PostSharedNorm)).transpose()?,
            before_experts: mixture.then(|| norm(FloatKind::PreExpertNorm)).transpose()?,
            experts: mixture.then(|| norm(FloatKind::PostExpertNorm)).transpose()?,
            layer_scalar: match config.block_norms {
                BlockNorms::AroundScaled => {
                    floats.get(FloatKind::LayerScalar, 1)?.first().copied().unwrap_or(1.0)
                }
                BlockNorms::Before | BlockNorms::Around => 1.0,
            },
        }))
    }
}
