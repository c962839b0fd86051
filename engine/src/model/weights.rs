//! Weights bound to their place in the graph. No names of tensors beyond this file.

use nestling_formats::store::GroupId;
use nestling_formats::{
    FeedForward as FeedForwardConfig, FloatKind, Level, MatrixKind, ModelConfig, RopePairs,
};

use crate::backend::{AttentionHeads, Backend, FeedForward, Linear, Router};
use crate::batch::StepRows;
use crate::cancel::CancelToken;
use crate::error::EngineError;
use crate::expert::ExpertCache;
use crate::expert::source::{ExpertSource, Matrices};
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

impl<B: Backend> Weights<B> {
    /// Bytes that a step reads of everything but experts: each matrix once for each level of its
    /// rows. The last layer computes no more than keys and values for rows without logits.
    pub fn step_bytes(&self, rows: &StepRows, logit_rows: usize, vocab_size: usize) -> u64 {
        let rows_of = |level: Level| rows.dense_levels.iter().filter(|l| **l == level).count();
        let bytes_of = |level: Level| {
            let embedded = B::matrix_bytes(&self.embedding, level) / vocab_size.max(1) as u64;
            let mut bytes = embedded * rows_of(level) as u64;
            for (index, layer) in self.layers.iter().enumerate() {
                let qkv = layer.qkv.iter();
                bytes += qkv.map(|linear| B::matrix_bytes(&linear.matrix, level)).sum::<u64>();
                if logit_rows > 0 || index + 1 < self.layers.len() {
                    bytes += layer.rest_bytes(level);
                }
            }
            let head = if logit_rows > 0 { &self.head[..] } else { &[] };
            bytes + head.iter().map(|head| B::matrix_bytes(&head.matrix, level)).sum::<u64>()
        };
        let used = Level::ALL.into_iter().filter(|level| rows_of(*level) > 0);
        used.map(bytes_of).sum()
    }
}

impl<B: Backend> LayerWeights<B> {
    /// What decides which experts a token takes.
    pub fn routing(&self) -> Option<(&B::Floats, &Router<B>)> {
        self.router.as_ref().map(|router| (&self.feed_forward_norm, router))
    }

    /// Bytes of what comes after keys and values.
    fn rest_bytes(&self, level: Level) -> u64 {
        let shared = self.shared.as_ref().map_or(0, |shared| shared.read_bytes(level));
        let router = self.router.as_ref();
        let router = router.map_or(0, |router| B::matrix_bytes(&router.weights, level));
        B::matrix_bytes(&self.attention_out.matrix, level) + shared + router
    }
}

/// What loading reports: parts done, parts in all.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// What is done with each layer's feed-forward part.
type EachLayer<'a, L> =
    &'a mut dyn FnMut(&mut L, u32, FeedForwardConfig) -> Result<(), EngineError>;

/// Takes weights from a source to a device, layer by layer.
pub struct Loader<'a, B: Backend> {
    /// The device.
    pub backend: &'a mut B,
    /// The weights.
    pub source: &'a dyn ExpertSource,
    /// How nested matrices are multiplied.
    pub activations: ActivationMode,
    /// Threads that read.
    pub threads: usize,
}

impl<B: Backend> Loader<'_, B> {
    /// Loads all of a model. `cancel` is looked at once per group.
    ///
    /// # Errors
    /// [`EngineError::Cancelled`]; weights that cannot be had, do not have the size that the
    /// configuration says, or that the device cannot hold.
    pub fn load(
        mut self,
        cancel: &CancelToken,
        progress: Progress<'_>,
    ) -> Result<(Weights<B>, ExpertCache<B>), EngineError> {
        let config = self.source.config().clone();
        let mut experts = Vec::new();
        let weights = self.parts(cancel, progress, &mut |loader, layer, feed_forward| {
            experts.push(loader.experts(&config, layer, feed_forward, cancel)?);
            Ok(())
        })?;
        Ok((weights, ExpertCache::resident(experts)))
    }

    /// Loads everything but the experts.
    ///
    /// # Errors
    /// As [`Loader::load`].
    pub fn load_dense(
        mut self,
        cancel: &CancelToken,
        progress: Progress<'_>,
    ) -> Result<Weights<B>, EngineError> {
        self.parts(cancel, progress, &mut |_, _, _| Ok(()))
    }

    /// Everything but the experts, which `each_layer` is for.
    fn parts(
        &mut self,
        cancel: &CancelToken,
        progress: Progress<'_>,
        each_layer: EachLayer<'_, Self>,
    ) -> Result<Weights<B>, EngineError> {
        let config = self.source.config().clone();
        let table_size = (config.vocab_size, config.hidden_size);
        let parts = config.num_hidden_layers + 1;
        let table =
            self.group(&GroupId::Embedding, cancel)?.take(MatrixKind::Embedding, table_size)?;
        let embedding = self.backend.upload_matrix(&table, self.activations)?;
        let head = match table {
            // A tied head of floats is the embedding itself.
            MatrixWeights::Float(_) if config.tie_word_embeddings => table,
            _ => self.group(&GroupId::Head, cancel)?.take(MatrixKind::Head, table_size)?,
        };
        let matrix = self.backend.upload_matrix(&head, self.activations)?;
        let final_norm = Floats::read(self.source, None)?;
        let final_norm = final_norm.upload(self.backend, FloatKind::FinalNorm, table_size.1)?;
        progress(1, parts);
        let mut layers = Vec::new();
        for (layer, layer_config) in (0u32..).zip(&config.layers) {
            layers.push(self.layer(&config, layer, cancel)?);
            each_layer(self, layer, layer_config.feed_forward)?;
            progress(layers.len() + 1, parts);
        }
        let head = [Linear { matrix, bias: None }];
        Ok(Weights { embedding, layers, final_norm, head })
    }

    fn group(&self, group: &GroupId, cancel: &CancelToken) -> Result<Matrices, EngineError> {
        if cancel.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        self.source.matrices(group)
    }

    /// Everything of a layer but its experts.
    ///
    /// # Errors
    /// As [`Loader::load`].
    pub fn layer(
        &mut self,
        config: &ModelConfig,
        layer: u32,
        cancel: &CancelToken,
    ) -> Result<LayerWeights<B>, EngineError> {
        let mut dense = self.group(&GroupId::Dense { layer }, cancel)?;
        let floats = Floats::read(self.source, Some(layer))?;
        let (hidden, head_dim) = (config.hidden_size, config.head_dim);
        let queries = config.num_attention_heads * head_dim;
        let keys = config.num_key_value_heads * head_dim;
        let mut linear = |kind, bias, rows, cols| -> Result<Linear<B>, EngineError> {
            let matrix = dense.take(kind, (rows, cols))?;
            let bias = config.attention_bias.then_some((bias, rows));
            let bias = bias.map(|(kind, size)| floats.upload(self.backend, kind, size));
            let matrix = self.backend.upload_matrix(&matrix, self.activations)?;
            Ok(Linear { matrix, bias: bias.transpose()? })
        };
        let qkv = [
            linear(MatrixKind::Query, FloatKind::QueryBias, queries, hidden)?,
            linear(MatrixKind::Key, FloatKind::KeyBias, keys, hidden)?,
            linear(MatrixKind::Value, FloatKind::ValueBias, keys, hidden)?,
        ];
        let attention_out = linear(MatrixKind::Output, FloatKind::OutputBias, hidden, queries)?;
        let feed_forward = config.layers.get(layer as usize).map(|layer| layer.feed_forward);
        let shared = match feed_forward {
            Some(FeedForwardConfig::Dense { intermediate_size }) => {
                Some(self.feed_forward(dense, hidden, intermediate_size)?)
            }
            _ => None,
        };
        Ok(LayerWeights {
            attention_norm: floats.upload(self.backend, FloatKind::AttentionNorm, hidden)?,
            qkv,
            heads: self.heads(config, &floats)?,
            attention_out,
            feed_forward_norm: floats.upload(self.backend, FloatKind::FeedForwardNorm, hidden)?,
            shared,
            router: self.router(config, feed_forward, &floats)?,
        })
    }

    fn heads(
        &mut self,
        config: &ModelConfig,
        floats: &Floats,
    ) -> Result<AttentionHeads<B>, EngineError> {
        let head_dim = config.head_dim;
        let mut norm = |kind| {
            let norm = config.qk_norm.then(|| floats.upload(self.backend, kind, head_dim));
            norm.transpose()
        };
        Ok(AttentionHeads {
            num_attention_heads: config.num_attention_heads,
            num_key_value_heads: config.num_key_value_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            rope_first: 0,
            rope_pairs: RopePairs::Halves,
            eps: config.rms_norm_eps,
            query_norm: norm(FloatKind::QueryNorm)?,
            key_norm: norm(FloatKind::KeyNorm)?,
        })
    }

    fn router(
        &mut self,
        config: &ModelConfig,
        feed_forward: Option<FeedForwardConfig>,
        floats: &Floats,
    ) -> Result<Option<Router<B>>, EngineError> {
        let Some(FeedForwardConfig::Moe { num_experts, num_experts_per_tok, .. }) = feed_forward
        else {
            return Ok(None);
        };
        let values = floats.get(FloatKind::Router, num_experts * config.hidden_size)?;
        let matrix = FloatMatrix::from_f32(num_experts, config.hidden_size, values)?.compact();
        let weights = MatrixWeights::Float(matrix);
        let weights = self.backend.upload_matrix(&weights, ActivationMode::Float)?;
        let norm_topk_prob = config.router.norm_topk_prob;
        Ok(Some(Router { weights, num_experts_per_tok, norm_topk_prob }))
    }

    fn experts(
        &mut self,
        config: &ModelConfig,
        layer: u32,
        feed_forward: FeedForwardConfig,
        cancel: &CancelToken,
    ) -> Result<Vec<FeedForward<B>>, EngineError> {
        let FeedForwardConfig::Moe { num_experts, moe_intermediate_size, .. } = feed_forward else {
            return Ok(Vec::new());
        };
        let count = u32::try_from(num_experts).unwrap_or(u32::MAX);
        let groups = self.source.experts(layer, count, self.threads, cancel)?;
        let (hidden, intermediate) = (config.hidden_size, moe_intermediate_size);
        let upload = |group| self.feed_forward(group, hidden, intermediate);
        groups.into_iter().map(upload).collect()
    }

    /// A feed-forward part out of its group.
    ///
    /// # Errors
    /// As [`Loader::load`].
    pub fn feed_forward(
        &mut self,
        mut group: Matrices,
        hidden: usize,
        intermediate: usize,
    ) -> Result<FeedForward<B>, EngineError> {
        let mut upload = |kind, rows, cols| -> Result<Linear<B>, EngineError> {
            let weights = group.take(kind, (rows, cols))?;
            let matrix = self.backend.upload_matrix(&weights, self.activations)?;
            Ok(Linear { matrix, bias: None })
        };
        Ok(FeedForward {
            gate: upload(MatrixKind::Gate, intermediate, hidden)?,
            up: upload(MatrixKind::Up, intermediate, hidden)?,
            down: upload(MatrixKind::Down, hidden, intermediate)?,
        })
    }
}

/// The float tensors of a layer.
struct Floats {
    layer: Option<u32>,
    list: Vec<(FloatKind, Vec<f32>)>,
}

impl Floats {
    fn read(source: &dyn ExpertSource, layer: Option<u32>) -> Result<Self, EngineError> {
        Ok(Self { layer, list: source.floats(layer)? })
    }

    fn get(&self, kind: FloatKind, size: usize) -> Result<&[f32], EngineError> {
        let found = self.list.iter().find(|(found, _)| *found == kind);
        let values = found.map(|(_, values)| values.as_slice()).unwrap_or_default();
        if values.len() == size {
            return Ok(values);
        }
        let layer = self.layer.map_or("the model".into(), |layer| format!("layer {layer}"));
        let what = format!("{kind:?} of {layer}");
        Err(EngineError::mismatch(what, format!("{size} values"), values.len()))
    }

    fn upload<B: Backend>(
        &self,
        backend: &mut B,
        kind: FloatKind,
        size: usize,
    ) -> Result<B::Floats, EngineError> {
        backend.upload_floats(self.get(kind, size)?)
    }
}
