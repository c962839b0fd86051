//! Loading of latent attention weights.

use nestling_formats::{FloatKind, MatrixKind};
use nestling_import::{LatentConfig, ModelConfig};

use super::activations::{index_of, latent_shapes};
use super::floats::Floats;
use super::mixer::{LatentWeights, latent};
use super::weights::Loader;
use nestling_core::backend::{AttentionHeads, Backend, HeadMatrices, HeadNorm};
use nestling_core::error::EngineError;
use nestling_experts::expert::Matrices;
use nestling_math::rope::rope_kinds;

impl<B: Backend> Loader<'_, B> {
    pub(super) fn latent_attention(
        &mut self,
        config: &ModelConfig,
        latent: &LatentConfig,
        dense: &mut Matrices,
        floats: &Floats,
    ) -> Result<LatentWeights<B>, EngineError> {
        let (hidden, heads) = (config.hidden_size, latent.num_attention_heads);
        let (rank, values) = (latent.kv_lora_rank, latent.v_head_dim);
        let queries = heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim);
        let mut linear = |kind, rows, cols| self.linear(kind, &dense.take(kind, rows, cols)?, None);
        let (down, query) = match latent.q_lora_rank {
            None => (None, linear(MatrixKind::Query, queries, hidden)?),
            Some(rank) => {
                let down = linear(MatrixKind::QueryDown, rank, hidden)?;
                (Some((down, rank)), linear(MatrixKind::QueryUp, queries, rank)?)
            }
        };
        let latent_down = linear(MatrixKind::LatentDown, latent.key_dim(), hidden)?;
        let output = linear(MatrixKind::Output, hidden, heads * values)?;
        let mut heads_of = |kind, rows, cols| {
            let matrix = dense.take(kind, rows, cols)?;
            let matrix = self.backend.upload_matrix(&matrix, self.activations)?;
            Ok::<_, EngineError>(HeadMatrices { matrix, heads })
        };
        let key_up = heads_of(MatrixKind::KeyUp, heads * rank, latent.qk_nope_head_dim)?;
        let value_up = heads_of(MatrixKind::ValueUp, heads * values, rank)?;
        let query_down = match down {
            None => None,
            Some((down, rank)) => {
                Some((down, floats.upload(self.backend, FloatKind::QueryLatentNorm, rank)?))
            }
        };
        let norm = floats.upload(self.backend, FloatKind::LatentNorm, rank)?;
        let shape = latent::shape(latent);
        Ok(LatentWeights {
            query_down,
            query,
            latent: latent_down,
            key_up,
            value_up,
            heads: latent_heads(latent, norm),
            output,
            rope: index_of(&rope_kinds(config), &latent.rope)?,
            buffers: index_of(&latent_shapes(config), &shape)?,
        })
    }
}

/// Returns the head configuration: all query heads share one key head.
fn latent_heads<B: Backend>(latent: &LatentConfig, norm: B::Floats) -> AttentionHeads<B> {
    AttentionHeads {
        num_attention_heads: latent.num_attention_heads,
        num_key_value_heads: 1,
        head_dim: latent.key_dim(),
        scale: latent.scale,
        rope_first: latent.kv_lora_rank,
        rope_pairs: latent.rope_pairs,
        eps: latent.norm_eps,
        query_norm: HeadNorm::Absent,
        key_norm: HeadNorm::PerHead(norm),
        value_norm: None,
        sliding_window: None,
        sinks: None,
    }
}
