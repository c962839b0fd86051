//! The weights of a model and their shapes, derived from the configuration.

use crate::config::{
    AttentionBias, AttentionConfig, BlockNorms, DeltaNetConfig, ExpertBias, ExpertVector,
    FeedForward, LatentConfig, Mamba2Config, ModelConfig, QkNorm, RouterInput, SharedExpert,
    SharedGate, ShortConvConfig, Sinks, TokenMixer, ValueSource,
};
use nestling_formats::{FloatId, FloatKind, MatrixId, MatrixKind};

/// A matrix and its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// Identity of the matrix.
    pub id: MatrixId,
    /// Number of outputs.
    pub rows: usize,
    /// Number of inputs.
    pub cols: usize,
}

/// A float tensor and its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloatShape {
    /// Identity of the tensor.
    pub id: FloatId,
    /// Number of rows of a router or convolution; 1 for a vector.
    pub rows: usize,
    /// Number of elements per row.
    pub cols: usize,
}

impl FloatShape {
    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.rows * self.cols
    }

    /// Returns the dimensions in a store. A router is always two-dimensional, even with a single row.
    pub fn dimensions(&self) -> Vec<usize> {
        match self.id.kind {
            FloatKind::Router => vec![self.rows, self.cols],
            _ if self.rows == 1 => vec![self.cols],
            _ => vec![self.rows, self.cols],
        }
    }
}

/// The weights of a model, in the order of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// Embedding, untied head, then for each layer: attention, dense feed-forward part or experts.
    pub matrices: Vec<MatrixShape>,
    /// Float tensors of each layer, then the final norm.
    pub floats: Vec<FloatShape>,
}

impl ModelShape {
    /// Lists the weights of a model. A tied head is omitted, because it is the embedding.
    ///
    /// ```
    /// use nestling_import::{Checkpoint, ModelShape};
    ///
    /// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../engine/runtime/tests/data");
    /// let checkpoint = Checkpoint::open(format!("{data}/tiny-qwen3-moe"))?;
    /// let shape = ModelShape::new(checkpoint.config());
    /// let experts = shape.matrices.iter().filter(|matrix| matrix.id.expert.is_some());
    /// assert_eq!(experts.count(), 2 * 5 * 3); // layers, experts, gate with up and down
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(config: &ModelConfig) -> Self {
        let mut shape = Self { matrices: Vec::new(), floats: Vec::new() };
        let (vocabulary, hidden) = (config.vocab_size, config.hidden_size);
        let model = |kind| MatrixId { kind, layer: None, expert: None };
        shape.matrix(model(MatrixKind::Embedding), vocabulary, hidden);
        if !config.tie_word_embeddings {
            shape.matrix(model(MatrixKind::Head), vocabulary, hidden);
        }
        for (layer, layer_config) in (0u32..).zip(&config.layers) {
            shape.vector(FloatKind::AttentionNorm, Some(layer), hidden);
            match &layer_config.mixer {
                TokenMixer::Attention(attention) => shape.attention(hidden, layer, attention),
                TokenMixer::Latent(latent) => shape.latent(hidden, layer, latent),
                TokenMixer::DeltaNet(delta_net) => shape.delta_net(hidden, layer, delta_net),
                TokenMixer::ShortConv(conv) => shape.short_conv(hidden, layer, conv),
                TokenMixer::Mamba2(mamba2) => shape.mamba2(hidden, layer, mamba2),
            }
            if layer_config.feed_forward != FeedForward::Absent {
                shape.vector(FloatKind::FeedForwardNorm, Some(layer), hidden);
            }
            shape.feed_forward(config, layer, layer_config.feed_forward);
            if config.block_norms != BlockNorms::Before {
                shape.vector(FloatKind::PostAttentionNorm, Some(layer), hidden);
                shape.vector(FloatKind::PostFeedForwardNorm, Some(layer), hidden);
            }
            if config.block_norms == BlockNorms::AroundScaled {
                shape.norms_of_experts(hidden, layer, layer_config.feed_forward);
                shape.vector(FloatKind::LayerScalar, Some(layer), 1);
            }
        }
        shape.vector(FloatKind::FinalNorm, None, hidden);
        shape
    }

    /// Returns the number of weights, including floats.
    pub fn weights(&self) -> u64 {
        let matrices = self.matrices.iter().map(|m| m.rows as u64 * m.cols as u64);
        let floats = self.floats.iter().map(|f| f.elements() as u64);
        matrices.chain(floats).sum()
    }

    fn matrix(&mut self, id: MatrixId, rows: usize, cols: usize) {
        self.matrices.push(MatrixShape { id, rows, cols });
    }

    fn vector(&mut self, kind: FloatKind, layer: Option<u32>, cols: usize) {
        self.floats.push(FloatShape { id: FloatId { kind, layer }, rows: 1, cols });
    }

    fn attention(&mut self, hidden: usize, layer: u32, attention: &AttentionConfig) {
        let head_dim = attention.head_dim;
        let queries = attention.num_attention_heads * head_dim;
        let keys = attention.num_key_value_heads * head_dim;
        let dense = |kind| MatrixId { kind, layer: Some(layer), expert: None };
        self.matrix(dense(MatrixKind::Query), queries, hidden);
        self.matrix(dense(MatrixKind::Key), keys, hidden);
        if attention.values == ValueSource::Projection {
            self.matrix(dense(MatrixKind::Value), keys, hidden);
        }
        let gates = attention.output_gate.count(attention.num_attention_heads, head_dim);
        if gates > 0 {
            self.matrix(dense(MatrixKind::QueryGate), gates, hidden);
        }
        self.matrix(dense(MatrixKind::Output), hidden, queries);
        let at = Some(layer);
        let norms = match attention.qk_norm {
            QkNorm::Absent => None,
            QkNorm::PerHead | QkNorm::PerHeadAfterRope => Some((head_dim, head_dim)),
            QkNorm::FullWidth => Some((queries, keys)),
        };
        if let Some((queries, keys)) = norms {
            self.vector(FloatKind::QueryNorm, at, queries);
            self.vector(FloatKind::KeyNorm, at, keys);
        }
        if attention.bias != AttentionBias::Absent {
            self.vector(FloatKind::QueryBias, at, queries + gates);
            self.vector(FloatKind::KeyBias, at, keys);
            self.vector(FloatKind::ValueBias, at, keys);
        }
        if attention.bias == AttentionBias::All {
            self.vector(FloatKind::OutputBias, at, hidden);
        }
        if attention.sinks == Sinks::Present {
            self.vector(FloatKind::Sinks, at, attention.num_attention_heads);
        }
    }

    fn latent(&mut self, hidden: usize, layer: u32, latent: &LatentConfig) {
        let heads = latent.num_attention_heads;
        let queries = heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim);
        let dense = |kind| MatrixId { kind, layer: Some(layer), expert: None };
        let at = Some(layer);
        // Matrices with the same inputs are adjacent.
        match latent.q_lora_rank {
            None => self.matrix(dense(MatrixKind::Query), queries, hidden),
            Some(rank) => self.matrix(dense(MatrixKind::QueryDown), rank, hidden),
        }
        self.matrix(dense(MatrixKind::LatentDown), latent.key_dim(), hidden);
        if let Some(rank) = latent.q_lora_rank {
            self.matrix(dense(MatrixKind::QueryUp), queries, rank);
            self.vector(FloatKind::QueryLatentNorm, at, rank);
        }
        let rank = latent.kv_lora_rank;
        self.matrix(dense(MatrixKind::KeyUp), heads * rank, latent.qk_nope_head_dim);
        self.matrix(dense(MatrixKind::ValueUp), heads * latent.v_head_dim, rank);
        self.matrix(dense(MatrixKind::Output), hidden, heads * latent.v_head_dim);
        self.vector(FloatKind::LatentNorm, at, rank);
    }

    fn delta_net(&mut self, hidden: usize, layer: u32, delta_net: &DeltaNetConfig) {
        let (heads, value_dim) = (delta_net.num_value_heads, delta_net.value_dim());
        let dense = |kind| MatrixId { kind, layer: Some(layer), expert: None };
        self.matrix(dense(MatrixKind::DeltaIn), delta_net.channels(), hidden);
        self.matrix(dense(MatrixKind::DeltaGate), value_dim, hidden);
        self.matrix(dense(MatrixKind::DeltaBetaDecay), 2 * heads, hidden);
        self.matrix(dense(MatrixKind::DeltaOut), hidden, value_dim);
        let at = Some(layer);
        let id = FloatId { kind: FloatKind::DeltaConv, layer: at };
        let (rows, cols) = (delta_net.channels(), delta_net.conv_kernel_dim);
        self.floats.push(FloatShape { id, rows, cols });
        self.vector(FloatKind::DeltaDecay, at, heads);
        self.vector(FloatKind::DeltaTimeBias, at, heads);
        self.vector(FloatKind::DeltaNorm, at, delta_net.value_head_dim);
    }

    fn short_conv(&mut self, hidden: usize, layer: u32, conv: &ShortConvConfig) {
        let dense = |kind| MatrixId { kind, layer: Some(layer), expert: None };
        self.matrix(dense(MatrixKind::ShortConvIn), conv.inputs(), hidden);
        self.matrix(dense(MatrixKind::ShortConvOut), hidden, conv.channels);
        let at = Some(layer);
        let id = FloatId { kind: FloatKind::ShortConvTaps, layer: at };
        self.floats.push(FloatShape { id, rows: conv.channels, cols: conv.taps });
        if conv.bias {
            self.vector(FloatKind::ShortConvBias, at, conv.channels);
            self.vector(FloatKind::ShortConvInBias, at, conv.inputs());
            self.vector(FloatKind::ShortConvOutBias, at, hidden);
        }
    }

    fn mamba2(&mut self, hidden: usize, layer: u32, mamba2: &Mamba2Config) {
        let dense = |kind| MatrixId { kind, layer: Some(layer), expert: None };
        self.matrix(dense(MatrixKind::Mamba2In), mamba2.inputs(), hidden);
        self.matrix(dense(MatrixKind::Mamba2Out), hidden, mamba2.inner());
        let at = Some(layer);
        let id = FloatId { kind: FloatKind::Mamba2Conv, layer: at };
        self.floats.push(FloatShape { id, rows: mamba2.channels(), cols: mamba2.conv_kernel });
        if mamba2.conv_bias {
            self.vector(FloatKind::Mamba2ConvBias, at, mamba2.channels());
        }
        if mamba2.proj_bias {
            self.vector(FloatKind::Mamba2InBias, at, mamba2.inputs());
            self.vector(FloatKind::Mamba2OutBias, at, hidden);
        }
        for kind in [FloatKind::Mamba2Decay, FloatKind::Mamba2TimeBias, FloatKind::Mamba2Skip] {
            self.vector(kind, at, mamba2.num_heads);
        }
        self.vector(FloatKind::Mamba2Norm, at, mamba2.inner());
    }

    fn feed_forward(&mut self, config: &ModelConfig, layer: u32, feed_forward: FeedForward) {
        let (hidden, at) = (config.hidden_size, Some(layer));
        if let Some(intermediate_size) = feed_forward.dense_size() {
            self.part(config, layer, None, intermediate_size);
        }
        // Default: a dense layer has no router and no experts.
        let (FeedForward::Moe { num_experts, moe_intermediate_size, shared, .. }, Some(router)) =
            (feed_forward, &config.router)
        else {
            return;
        };
        let id = FloatId { kind: FloatKind::Router, layer: at };
        self.floats.push(FloatShape { id, rows: num_experts, cols: hidden });
        for (vector, kind) in [
            (router.logit_bias, FloatKind::RouterLogitBias),
            (router.selection_bias, FloatKind::RouterBias),
            (router.expert_scale, FloatKind::ExpertScale),
        ] {
            if vector == ExpertVector::Present {
                self.vector(kind, at, num_experts);
            }
        }
        if config.expert_bias == ExpertBias::Present {
            for (kind, cols) in [
                (FloatKind::ExpertGateBias, moe_intermediate_size),
                (FloatKind::ExpertUpBias, moe_intermediate_size),
                (FloatKind::ExpertDownBias, hidden),
            ] {
                let id = FloatId { kind, layer: at };
                self.floats.push(FloatShape { id, rows: num_experts, cols });
            }
        }
        if router.input == RouterInput::Own {
            self.vector(FloatKind::RouterInputScale, at, hidden);
        }
        if let Some(SharedExpert { gate: SharedGate::Sigmoid, .. }) = shared {
            self.vector(FloatKind::SharedGate, at, hidden);
        }
        for expert in (0u32..).take(num_experts) {
            self.part(config, layer, Some(expert), moe_intermediate_size);
        }
    }

    fn norms_of_experts(&mut self, hidden: usize, layer: u32, feed_forward: FeedForward) {
        let at = Some(layer);
        if let FeedForward::Moe { shared, .. } = feed_forward {
            if shared.is_some() {
                self.vector(FloatKind::PostSharedNorm, at, hidden);
            }
            self.vector(FloatKind::PreExpertNorm, at, hidden);
            self.vector(FloatKind::PostExpertNorm, at, hidden);
        }
    }

    fn part(&mut self, config: &ModelConfig, layer: u32, expert: Option<u32>, intermediate: usize) {
        let (hidden, id) =
            (config.hidden_size, |kind| MatrixId { kind, layer: Some(layer), expert });
        for &kind in config.activation.matrices() {
            match kind {
                MatrixKind::Down => self.matrix(id(kind), hidden, intermediate),
                _ => self.matrix(id(kind), intermediate, hidden),
            }
        }
    }
}
