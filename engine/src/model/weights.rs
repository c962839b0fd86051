//! Weights bound to their place in the graph. No names of tensors beyond this file.

use nestling_formats::{
    ExpertId, FeedForward as FeedForwardConfig, FloatId, FloatKind, MatrixKind,
};

use crate::backend::{AttentionHeads, Backend, FeedForward, Linear, Router};
use crate::cancel::CancelToken;
use crate::error::EngineError;
use crate::expert::source::{ExpertSource, layer_matrix, model_matrix};
use crate::expert::{ExpertCache, ExpertWeights};
use crate::weights::{ActivationMode, FloatMatrix, MatrixWeights};

/// Everything but the experts.
pub struct Weights<B: Backend> {
    /// `[vocab_size, hidden_size]`.
    pub embedding: B::Matrix,
    /// One entry per layer.
    pub layers: Vec<LayerWeights<B>>,
    /// `[hidden_size]`.
    pub final_norm: B::Floats,
    /// One matrix, `[vocab_size, hidden_size]`.
    pub head: [Linear<B>; 1],
}

/// One layer.
pub struct LayerWeights<B: Backend> {
    /// `[hidden_size]`.
    pub attention_norm: B::Floats,
    /// Queries, keys, values.
    pub qkv: [Linear<B>; 3],
    /// Shapes and norms of the heads.
    pub heads: AttentionHeads<B>,
    /// `[hidden_size, num_attention_heads * head_dim]`.
    pub attention_out: Linear<B>,
    /// `[hidden_size]`.
    pub feed_forward_norm: B::Floats,
    /// A dense feed-forward part, or one that every token passes beside its experts.
    pub shared: Option<FeedForward<B>>,
    /// How tokens choose experts; none in a dense layer.
    pub router: Option<Router<B>>,
}

/// What loading reports: parts done, parts in all.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// Takes weights from a source to a device, layer by layer.
pub struct Loader<'a, B: Backend> {
    /// The device.
    pub backend: &'a mut B,
    /// The weights.
    pub source: &'a dyn ExpertSource,
    /// How nested matrices are multiplied.
    pub activations: ActivationMode,
}

impl<B: Backend> Loader<'_, B> {
    /// Loads all of a model. `cancel` is looked at once per expert.
    ///
    /// # Errors
    /// [`EngineError::Cancelled`]; weights that cannot be had or that the device cannot hold.
    pub fn load(
        mut self,
        cancel: &CancelToken,
        progress: Progress<'_>,
    ) -> Result<(Weights<B>, ExpertCache<B>), EngineError> {
        let config = self.source.config().clone();
        let parts = config.num_hidden_layers + 1;
        let table = self.source.dense(model_matrix(MatrixKind::Embedding))?;
        let embedding = self.backend.upload_matrix(&table, self.activations)?;
        let head = match &table {
            // A tied head of floats is the embedding itself.
            MatrixWeights::Float(_) if config.tie_word_embeddings => table,
            _ => self.source.dense(model_matrix(MatrixKind::Head))?,
        };
        let matrix = self.backend.upload_matrix(&head, self.activations)?;
        let final_norm = self.vector(FloatKind::FinalNorm, None)?;
        progress(1, parts);
        let (mut layers, mut experts) = (Vec::new(), Vec::new());
        for layer in (0u32..).take(config.num_hidden_layers) {
            layers.push(self.layer(layer)?);
            experts.push(self.experts(layer, cancel)?);
            progress(layers.len() + 1, parts);
        }
        let head = [Linear { matrix, bias: None }];
        let weights = Weights { embedding, layers, final_norm, head };
        Ok((weights, ExpertCache::resident(experts)))
    }

    fn layer(&mut self, layer: u32) -> Result<LayerWeights<B>, EngineError> {
        let at = Some(layer);
        let dense = match self.source.config().layers.get(layer as usize) {
            Some(config) => matches!(config.feed_forward, FeedForwardConfig::Dense { .. }),
            None => false,
        };
        Ok(LayerWeights {
            attention_norm: self.vector(FloatKind::AttentionNorm, at)?,
            qkv: [
                self.linear(MatrixKind::Query, FloatKind::QueryBias, layer)?,
                self.linear(MatrixKind::Key, FloatKind::KeyBias, layer)?,
                self.linear(MatrixKind::Value, FloatKind::ValueBias, layer)?,
            ],
            heads: self.heads(layer)?,
            attention_out: self.linear(MatrixKind::Output, FloatKind::OutputBias, layer)?,
            feed_forward_norm: self.vector(FloatKind::FeedForwardNorm, at)?,
            shared: if dense { Some(self.dense_feed_forward(layer)?) } else { None },
            router: self.router(layer)?,
        })
    }

    fn heads(&mut self, layer: u32) -> Result<AttentionHeads<B>, EngineError> {
        let config = self.source.config();
        let (qk_norm, head_dim, at) = (config.qk_norm, config.head_dim, Some(layer));
        Ok(AttentionHeads {
            num_attention_heads: config.num_attention_heads,
            num_key_value_heads: config.num_key_value_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            eps: config.rms_norm_eps,
            query_norm: match qk_norm {
                true => Some(self.vector(FloatKind::QueryNorm, at)?),
                false => None,
            },
            key_norm: match qk_norm {
                true => Some(self.vector(FloatKind::KeyNorm, at)?),
                false => None,
            },
        })
    }

    fn router(&mut self, layer: u32) -> Result<Option<Router<B>>, EngineError> {
        let config = self.source.config();
        let Some(FeedForwardConfig::Moe { num_experts, num_experts_per_tok, .. }) =
            config.layers.get(layer as usize).map(|layer| layer.feed_forward)
        else {
            return Ok(None);
        };
        let (hidden_size, norm_topk_prob) = (config.hidden_size, config.router.norm_topk_prob);
        let id = FloatId { kind: FloatKind::Router, layer: Some(layer) };
        let values = self.source.floats(id)?;
        let matrix = FloatMatrix::from_f32(num_experts, hidden_size, &values)?;
        let weights = MatrixWeights::Float(matrix);
        let weights = self.backend.upload_matrix(&weights, ActivationMode::Float)?;
        Ok(Some(Router { weights, num_experts_per_tok, norm_topk_prob }))
    }

    fn experts(
        &mut self,
        layer: u32,
        cancel: &CancelToken,
    ) -> Result<Vec<FeedForward<B>>, EngineError> {
        let Some(FeedForwardConfig::Moe { num_experts, .. }) =
            self.source.config().layers.get(layer as usize).map(|layer| layer.feed_forward)
        else {
            return Ok(Vec::new());
        };
        let mut experts = Vec::with_capacity(num_experts);
        for expert in (0u32..).take(num_experts) {
            if cancel.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            let weights = self.source.expert(ExpertId { layer, expert })?;
            experts.push(self.feed_forward(&weights)?);
        }
        Ok(experts)
    }

    fn dense_feed_forward(&mut self, layer: u32) -> Result<FeedForward<B>, EngineError> {
        let weights = ExpertWeights {
            gate: self.source.dense(layer_matrix(MatrixKind::Gate, layer))?,
            up: self.source.dense(layer_matrix(MatrixKind::Up, layer))?,
            down: self.source.dense(layer_matrix(MatrixKind::Down, layer))?,
        };
        self.feed_forward(&weights)
    }

    fn feed_forward(&mut self, weights: &ExpertWeights) -> Result<FeedForward<B>, EngineError> {
        let mut upload = |weights| -> Result<Linear<B>, EngineError> {
            let matrix = self.backend.upload_matrix(weights, self.activations)?;
            Ok(Linear { matrix, bias: None })
        };
        Ok(FeedForward {
            gate: upload(&weights.gate)?,
            up: upload(&weights.up)?,
            down: upload(&weights.down)?,
        })
    }

    fn linear(
        &mut self,
        kind: MatrixKind,
        bias: FloatKind,
        layer: u32,
    ) -> Result<Linear<B>, EngineError> {
        let weights = self.source.dense(layer_matrix(kind, layer))?;
        let matrix = self.backend.upload_matrix(&weights, self.activations)?;
        let bias = match self.source.config().attention_bias {
            true => Some(self.vector(bias, Some(layer))?),
            false => None,
        };
        Ok(Linear { matrix, bias })
    }

    fn vector(&mut self, kind: FloatKind, layer: Option<u32>) -> Result<B::Floats, EngineError> {
        let values = self.source.floats(FloatId { kind, layer })?;
        self.backend.upload_floats(&values)
    }
}
