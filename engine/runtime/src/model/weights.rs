//! Weights bound to their place in the graph. Tensor names are not used outside this file.

use nestling_formats::store::GroupId;
use nestling_formats::{FloatKind, Invariant, Level, MatrixKind};
use nestling_import::{
    AttentionConfig, DeltaNetConfig, ExpertVector, FeedForward as FeedForwardConfig, LayerConfig,
    ModelConfig, Multipliers, QkNorm, RouterInput, SharedGate, Sinks, TokenMixer, ValueNorm,
    ValueSource,
};

use super::Embedding;
use super::activations::{attention_shapes, index_of, recurrent_buffers};
use super::attention_biases::AttentionBiases;
use super::floats::Floats;
use super::mixer::{AttentionWeights, MixerWeights, RecurrentCore, RecurrentWeights, attention};
use super::norms::NormsAfter;
use nestling_core::backend::{
    AttentionHeads, Backend, DeltaNet, FeedForward, HeadNorm, Linear, Router,
};
use nestling_core::batch::StepRows;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::group::ExpertDivision;
use nestling_core::kv_heads::{HeldHeads, KvDivision};
use nestling_core::weights::{ActivationMode, FloatMatrix, MatrixWeights};
use nestling_experts::expert::ExpertCache;
use nestling_experts::expert::{ExpertSource, GroupsAhead, Matrices};
use nestling_experts::reads::ReadOptions;
use nestling_math::rope::rope_kinds;

/// Epsilon added to the squared L2 norm of a DeltaNet layer's queries and keys.
const UNIT_EPS: f32 = 1e-6;

/// All weights except the experts.
pub struct Weights<B: Backend> {
    /// Token embedding, `[vocab_size, hidden_size]`.
    pub embedding: Embedding<B>,
    /// Weights of the layers.
    pub layers: Vec<LayerWeights<B>>,
    /// Norm before the head, `[hidden_size]`.
    pub final_norm: B::Floats,
    /// Head, a single matrix `[vocab_size, hidden_size]`.
    pub head: [Linear<B>; 1],
    /// Constant factors.
    pub multipliers: Multipliers,
    /// Soft cap of the logits, if any.
    pub softcap: Option<f32>,
}

/// Weights of one layer.
pub struct LayerWeights<B: Backend> {
    /// Norm before the mixer, `[hidden_size]`.
    pub attention_norm: B::Floats,
    /// Token mixer.
    pub mixer: MixerWeights<B>,
    /// Norm before the feed-forward part, `[hidden_size]`.
    pub feed_forward_norm: Option<B::Floats>,
    /// Dense feed-forward part, or the shared expert of a mixture.
    pub shared: Option<SharedWeights<B>>,
    /// Router. `None` in a dense layer.
    pub router: Option<Router<B>>,
    /// Norm of the router's inputs, `[hidden_size]`, if they differ from the experts' inputs.
    pub router_norm: Option<B::Floats>,
    /// Norms after the branches, in families that have them.
    pub norms_after: Option<NormsAfter<B>>,
}

/// Feed-forward weights applied to all tokens.
pub struct SharedWeights<B: Backend> {
    /// Matrices.
    pub ffn: FeedForward<B>,
    /// Gate with a single row: its sigmoid multiplies the output.
    pub gate: Option<Linear<B>>,
}

impl<B: Backend> Weights<B> {
    /// Returns the bytes that a step reads, excluding experts: each matrix once per level of its rows.
    ///
    /// For rows without requested logits, the last layer reads only its mixer.
    pub fn step_bytes(&self, rows: &StepRows, logit_rows: usize) -> u64 {
        let rows_of = |level: Level| rows.dense_levels.iter().filter(|l| **l == level).count();
        let bytes_of = |level: Level| {
            let row_bytes = self.embedding.row_bytes(&self.head[0], level);
            let mut bytes = row_bytes * rows_of(level) as u64;
            for (index, layer) in self.layers.iter().enumerate() {
                bytes += layer.mixer.read_bytes(level);
                if logit_rows > 0 || index + 1 < self.layers.len() {
                    bytes += layer.rest_bytes(level);
                }
            }
            let head = if logit_rows > 0 { &self.head[..] } else { &[] };
            bytes + head.iter().map(|head| B::matrix_bytes(&head.matrix, level)).sum::<u64>()
        };
        Level::ALL.into_iter().filter(|level| rows_of(*level) > 0).map(bytes_of).sum()
    }
}

impl<B: Backend> LayerWeights<B> {
    /// Returns the router and the norm of its inputs.
    pub fn routing(&self) -> Option<(&B::Floats, &Router<B>)> {
        let norm = self.router_norm.as_ref().or(self.feed_forward_norm.as_ref())?;
        self.router.as_ref().map(|router| (norm, router))
    }

    /// Returns the norm of the experts' inputs, if it differs from the dense part's norm.
    pub fn norm_before_experts(&self) -> Option<&B::Floats> {
        self.norms_after.as_ref().and_then(|norms| norms.before_experts.as_ref())
    }

    /// Returns the bytes of the layer after the mixer.
    fn rest_bytes(&self, level: Level) -> u64 {
        let shared = self.shared.as_ref().map_or(0, |shared| shared.ffn.read_bytes(level));
        let router = self.router.as_ref();
        shared + router.map_or(0, |router| B::matrix_bytes(&router.weights, level))
    }
}

/// Progress callback: parts done, total parts.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// Callback that loads a layer's feed-forward part.
type EachLayer<'a, L> =
    &'a mut dyn FnMut(&mut L, u32, FeedForwardConfig) -> Result<(), EngineError>;

/// Location of the embedding rows.
#[derive(Clone, Copy)]
enum Rows<'a> {
    Held,
    /// Rows in the store, read with these options.
    Stored(&'a ReadOptions),
}

/// Loads weights from a source to a device, layer by layer.
pub struct Loader<'a, B: Backend> {
    pub(super) backend: &'a mut B,
    pub(super) source: &'a dyn ExpertSource,
    pub(super) activations: ActivationMode,
    pub(super) threads: usize,
    division: ExpertDivision,
    pub(super) kv_division: KvDivision,
    /// Maximum replicated experts of each layer.
    replicas: usize,
    /// Groups being read in the background, if any.
    ahead: Option<&'a GroupsAhead<'a>>,
}

impl<'a, B: Backend> Loader<'a, B> {
    /// Creates a loader. `activations` is the arithmetic of nested matrices, and `threads` the number of
    /// reading threads.
    pub fn new(
        backend: &'a mut B,
        source: &'a dyn ExpertSource,
        activations: ActivationMode,
        threads: usize,
    ) -> Self {
        let (division, kv_division) = (ExpertDivision::default(), KvDivision::default());
        Self {
            backend,
            source,
            activations,
            threads,
            division,
            kv_division,
            replicas: 0,
            ahead: None,
        }
    }

    /// Sets the divisions of the experts and of attention over ranks.
    #[must_use]
    pub fn divided(self, division: ExpertDivision, kv_division: KvDivision) -> Self {
        Self { division, kv_division, ..self }
    }

    /// Sets the number of replicated experts of each layer.
    #[must_use]
    pub fn replicated(self, replicas: usize) -> Self {
        Self { replicas, ..self }
    }
}

impl<B: Backend> Loader<'_, B> {
    /// Loads a whole model. `cancel` is checked once per group.
    ///
    /// # Errors
    /// Fails with [`EngineError::Cancelled`]. Returns an error for weights that are unavailable, do not have
    /// the size in the configuration, or exceed the device memory.
    pub fn load(
        mut self,
        cancel: &CancelToken,
        progress: Progress<'_>,
    ) -> Result<(Weights<B>, ExpertCache<B>), EngineError> {
        let config = self.source.config().clone();
        let placement = self.source.placement(self.backend.share());
        let placement = placement.divided(self.division, &config);
        let placement = placement.replicated(self.replicas, &config);
        let mut experts = Vec::new();
        let embedding = Rows::Held;
        let weights =
            self.parts(embedding, cancel, progress, &mut |loader, layer, feed_forward| {
                let loaded = loader.experts(&config, layer, feed_forward, &placement, cancel)?;
                experts.push(loaded);
                Ok(())
            })?;
        Ok((weights, ExpertCache::resident(experts, placement)))
    }

    /// Loads all weights except the experts. The embedding stays in the store if it can be read by rows.
    ///
    /// # Errors
    /// Fails as [`Loader::load`] does.
    pub fn load_dense(
        self,
        reads: &ReadOptions,
        cancel: &CancelToken,
        progress: Progress<'_>,
    ) -> Result<Weights<B>, EngineError> {
        let config = self.source.config();
        let layers = (0..config.num_hidden_layers as u32).map(|layer| GroupId::Dense { layer });
        let groups = std::iter::once(GroupId::Head).chain(layers).collect();
        let threads = self.threads;
        let ahead = GroupsAhead::new::<B>(self.source, groups, threads);
        let mut loader = Loader { ahead: Some(&ahead), ..self };
        let rows = Rows::Stored(reads);
        ahead.run(threads, || loader.parts(rows, cancel, progress, &mut |_, _, _| Ok(())))
    }

    /// Loads all weights except the experts, which are left to `each_layer`.
    fn parts(
        &mut self,
        rows: Rows<'_>,
        cancel: &CancelToken,
        progress: Progress<'_>,
        each_layer: EachLayer<'_, Self>,
    ) -> Result<Weights<B>, EngineError> {
        let config = self.source.config().clone();
        let (vocab_size, hidden_size) = (config.vocab_size, config.hidden_size);
        let parts = config.num_hidden_layers + 1;
        let embedding = self.embedding(rows, vocab_size, hidden_size, cancel)?;
        let head = self.head(vocab_size, hidden_size, cancel)?;
        let final_norm = Floats::read(self.source, None)?;
        let final_norm = final_norm.upload(self.backend, FloatKind::FinalNorm, hidden_size)?;
        progress(1, parts);
        let mut layers = Vec::new();
        for (layer, layer_config) in (0u32..).zip(&config.layers) {
            layers.push(self.layer(&config, layer, cancel)?);
            each_layer(self, layer, layer_config.feed_forward)?;
            progress(layers.len() + 1, parts);
        }
        let multipliers = config.multipliers;
        let softcap = config.final_logit_softcapping;
        Ok(Weights { embedding, layers, final_norm, head, multipliers, softcap })
    }

    /// Loads the embedding, unless it is tied to the head.
    fn embedding(
        &mut self,
        rows: Rows<'_>,
        vocab_size: usize,
        hidden_size: usize,
        cancel: &CancelToken,
    ) -> Result<Embedding<B>, EngineError> {
        if self.source.is_tied() {
            return Ok(Embedding::Head);
        }
        if let Rows::Stored(options) = rows
            && let Some(stored) = self.source.embedding_rows(options)?
            && (stored.rows(), stored.cols()) == (vocab_size, hidden_size)
        {
            return Ok(Embedding::Stored(stored));
        }
        let mut table = self.group(&GroupId::Embedding, cancel)?;
        let table = table.take(MatrixKind::Embedding, vocab_size, hidden_size)?;
        self.linear(MatrixKind::Embedding, &table, None).map(Embedding::Held)
    }

    pub(super) fn group(
        &self,
        group: &GroupId,
        cancel: &CancelToken,
    ) -> Result<Matrices, EngineError> {
        if cancel.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        match self.ahead {
            Some(ahead) => ahead.take(group),
            None => self.source.matrices(group),
        }
    }

    /// Loads a layer except its experts.
    ///
    /// # Errors
    /// Fails as [`Loader::load`] does.
    pub fn layer(
        &mut self,
        config: &ModelConfig,
        layer: u32,
        cancel: &CancelToken,
    ) -> Result<LayerWeights<B>, EngineError> {
        let mut dense = self.group(&GroupId::Dense { layer }, cancel)?;
        let floats = Floats::read(self.source, Some(layer))?;
        let hidden = config.hidden_size;
        let no_layer = || EngineError::mismatch("layer", config.layers.len(), layer);
        let layer = config.layers.get(layer as usize).ok_or_else(no_layer)?;
        let mixer = match &layer.mixer {
            TokenMixer::Attention(heads) => {
                let held = self.kv_division.held_heads(layer, self.backend.share());
                let held = held.as_ref();
                MixerWeights::Attention(self.attention(config, heads, held, &mut dense, &floats)?)
            }
            TokenMixer::Latent(latent) => {
                let weights = self.latent_attention(config, latent, &mut dense, &floats)?;
                MixerWeights::Latent(weights)
            }
            TokenMixer::DeltaNet(shape) => {
                MixerWeights::Recurrent(self.delta_net(config, shape, &mut dense, &floats)?)
            }
            TokenMixer::ShortConv(shape) => {
                MixerWeights::Recurrent(self.short_conv(config, shape, &mut dense, &floats)?)
            }
            TokenMixer::Mamba2(shape) => {
                MixerWeights::Recurrent(self.mamba2(config, shape, &mut dense, &floats)?)
            }
        };
        let shared = match layer.feed_forward.dense_size() {
            Some(intermediate_size) => {
                let ffn = self.rank_feed_forward(dense, hidden, intermediate_size, None)?;
                Some(SharedWeights { ffn, gate: self.shared_gate(config, layer, &floats)? })
            }
            None => None,
        };
        let norm = (layer.feed_forward != FeedForwardConfig::Absent)
            .then(|| floats.upload(self.backend, FloatKind::FeedForwardNorm, hidden));
        Ok(LayerWeights {
            attention_norm: floats.upload(self.backend, FloatKind::AttentionNorm, hidden)?,
            mixer,
            feed_forward_norm: norm.transpose()?,
            shared,
            router: self.router(config, layer.feed_forward, &floats)?,
            router_norm: self.router_norm(config, layer.feed_forward, &floats)?,
            norms_after: NormsAfter::of_layer(self.backend, config, layer.feed_forward, &floats)?,
        })
    }

    fn attention(
        &mut self,
        config: &ModelConfig,
        heads: &AttentionConfig,
        held: Option<&HeldHeads>,
        dense: &mut Matrices,
        floats: &Floats,
    ) -> Result<AttentionWeights<B>, EngineError> {
        let (hidden, head_dim) = (config.hidden_size, heads.head_dim);
        let queries = heads.num_attention_heads * head_dim;
        let keys = heads.num_key_value_heads * head_dim;
        if heads.values == ValueSource::Keys {
            dense.share(MatrixKind::Key, MatrixKind::Value);
        }
        let gates = heads.output_gate.count(heads.num_attention_heads, head_dim);
        let biases = AttentionBiases::read(config, heads, floats)?;
        let mut linear = |kind, rows, cols| -> Result<Linear<B>, EngineError> {
            let (matrix, bias) = (dense.take(kind, rows, cols)?, biases.of(kind));
            match held.and_then(|held| held.rows(kind)) {
                Some(rows) => self.linear_of_heads(&matrix, bias, rows),
                None => self.linear(kind, &matrix, bias),
            }
        };
        let qkv = [
            linear(MatrixKind::Query, queries, hidden)?,
            linear(MatrixKind::Key, keys, hidden)?,
            linear(MatrixKind::Value, keys, hidden)?,
        ];
        let output = linear(MatrixKind::Output, hidden, queries)?;
        let gate = match heads.output_gate.function() {
            None => None,
            Some(function) => {
                let projection = linear(MatrixKind::QueryGate, gates, hidden)?;
                let of_own_heads = held.is_some_and(|held| held.gates.is_some());
                Some(attention::GateWeights { function, projection, of_own_heads })
            }
        };
        let heads_of = self.heads(config, heads, held, floats)?;
        let rope = index_of(&rope_kinds(config), &heads.rope)?;
        let shapes = attention_shapes(config, self.kv_division, self.backend.share());
        let buffers = index_of(&shapes, &attention::shape_of(heads, held))?;
        let key_heads_of_all = held.map(|_| heads.num_key_value_heads);
        Ok(AttentionWeights { qkv, gate, heads: heads_of, key_heads_of_all, output, rope, buffers })
    }

    fn delta_net(
        &mut self,
        config: &ModelConfig,
        shape: &DeltaNetConfig,
        dense: &mut Matrices,
        floats: &Floats,
    ) -> Result<RecurrentWeights<B>, EngineError> {
        let (hidden, heads) = (config.hidden_size, shape.num_value_heads);
        let (channels, value_dim) = (shape.channels(), shape.value_dim());
        let mut linear = |kind, rows, cols| -> Result<Linear<B>, EngineError> {
            self.linear(kind, &dense.take(kind, rows, cols)?, None)
        };
        let inputs = vec![
            linear(MatrixKind::DeltaIn, channels, hidden)?,
            linear(MatrixKind::DeltaGate, value_dim, hidden)?,
            linear(MatrixKind::DeltaBetaDecay, 2 * heads, hidden)?,
        ];
        let output = linear(MatrixKind::DeltaOut, hidden, value_dim)?;
        let kernel = shape.conv_kernel_dim;
        let conv = floats.by_tap(FloatKind::DeltaConv, channels, kernel)?;
        // L2 normalization equals an RMS norm times 1 / sqrt(n) for n elements. Queries are also scaled by 1
        // / sqrt(n).
        let unit = 1.0 / shape.key_head_dim as f32;
        let [query_norm, key_norm] = [unit, unit.sqrt()].map(|w| vec![w; shape.key_head_dim]);
        let net = DeltaNet {
            shape: *shape,
            conv: self.backend.upload_floats(&conv)?,
            query_norm: self.backend.upload_floats(&query_norm)?,
            key_norm: self.backend.upload_floats(&key_norm)?,
            unit_eps: UNIT_EPS * unit,
            rate: floats.upload(self.backend, FloatKind::DeltaDecay, heads)?,
            time_bias: floats.upload(self.backend, FloatKind::DeltaTimeBias, heads)?,
            norm: floats.upload(self.backend, FloatKind::DeltaNorm, shape.value_head_dim)?,
            eps: config.rms_norm_eps,
        };
        let buffers = recurrent_buffers(config, &TokenMixer::DeltaNet(*shape))?;
        Ok(RecurrentWeights { inputs, core: RecurrentCore::DeltaNet(net), output, buffers })
    }

    fn heads(
        &mut self,
        config: &ModelConfig,
        heads: &AttentionConfig,
        held: Option<&HeldHeads>,
        floats: &Floats,
    ) -> Result<AttentionHeads<B>, EngineError> {
        let head_dim = heads.head_dim;
        let (queries, keys) = (heads.num_attention_heads, heads.num_key_value_heads);
        let (queries, keys) =
            held.map_or((0..queries, 0..keys), |held| (held.queries.clone(), held.keys.clone()));
        // The norm of values has no learned weights.
        let has_norm = heads.value_norm == ValueNorm::PerHead;
        let value_norm = has_norm.then(|| self.backend.upload_floats(&vec![1.0; head_dim]));
        let mut norm = |kind, count: usize| -> Result<HeadNorm<B>, EngineError> {
            Ok(match heads.qk_norm {
                QkNorm::Absent => HeadNorm::Absent,
                QkNorm::PerHead => {
                    HeadNorm::PerHead(floats.upload(self.backend, kind, head_dim)?)
                }
                QkNorm::PerHeadAfterRope => {
                    HeadNorm::PerHeadAfterRope(floats.upload(self.backend, kind, head_dim)?)
                }
                QkNorm::FullWidth => {
                    HeadNorm::FullWidth(floats.upload(self.backend, kind, count * head_dim)?)
                }
            })
        };
        Ok(AttentionHeads {
            num_attention_heads: queries.len(),
            num_key_value_heads: keys.len(),
            head_dim,
            scale: heads.scale,
            rope_first: 0,
            rope_pairs: heads.rope_pairs,
            eps: config.rms_norm_eps,
            query_norm: norm(FloatKind::QueryNorm, heads.num_attention_heads)?,
            key_norm: norm(FloatKind::KeyNorm, heads.num_key_value_heads)?,
            value_norm: value_norm.transpose()?,
            sliding_window: heads.sliding_window,
            sinks: match heads.sinks {
                Sinks::Absent => None,
                Sinks::Present => {
                    let sinks = floats.get(FloatKind::Sinks, heads.num_attention_heads)?;
                    Some(self.backend.upload_floats(&sinks[queries])?)
                }
            },
        })
    }

    /// Uploads a float matrix, multiplied with float activations in all modes.
    fn float_matrix(
        &mut self,
        rows: usize,
        cols: usize,
        values: &[f32],
    ) -> Result<B::Matrix, EngineError> {
        let matrix = FloatMatrix::from_f32(rows, cols, values)?.compact()?;
        self.backend.upload_matrix(&MatrixWeights::Float(matrix), ActivationMode::Float)
    }

    fn shared_gate(
        &mut self,
        config: &ModelConfig,
        layer: &LayerConfig,
        floats: &Floats,
    ) -> Result<Option<Linear<B>>, EngineError> {
        let FeedForwardConfig::Moe { shared: Some(shared), .. } = layer.feed_forward else {
            return Ok(None);
        };
        match shared.gate {
            SharedGate::Open => Ok(None),
            SharedGate::Sigmoid => {
                let hidden = config.hidden_size;
                let row = floats.get(FloatKind::SharedGate, hidden)?;
                Ok(Some(Linear::new(self.float_matrix(1, hidden, row)?, None)))
            }
        }
    }

    fn router(
        &mut self,
        config: &ModelConfig,
        feed_forward: FeedForwardConfig,
        floats: &Floats,
    ) -> Result<Option<Router<B>>, EngineError> {
        let FeedForwardConfig::Moe { num_experts, num_experts_per_tok, .. } = feed_forward else {
            return Ok(None);
        };
        let values = floats.get(FloatKind::Router, num_experts * config.hidden_size)?;
        let weights = self.float_matrix(num_experts, config.hidden_size, values)?;
        let mut rule = config.router.invariant("a mixture has a router")?;
        // The weighted sum of experts is added to the residual stream, so its multiplier is folded into the
        // weights.
        rule.scale *= config.multipliers.residual;
        let mut bias = |vector, kind| match vector {
            ExpertVector::Absent => Ok(None),
            ExpertVector::Present => floats.upload(self.backend, kind, num_experts).map(Some),
        };
        Ok(Some(Router {
            weights,
            num_experts_per_tok,
            rule,
            logit_bias: bias(rule.logit_bias, FloatKind::RouterLogitBias)?,
            selection_bias: bias(rule.selection_bias, FloatKind::RouterBias)?,
            expert_scale: bias(rule.expert_scale, FloatKind::ExpertScale)?,
        }))
    }

    fn router_norm(
        &mut self,
        config: &ModelConfig,
        feed_forward: FeedForwardConfig,
        floats: &Floats,
    ) -> Result<Option<B::Floats>, EngineError> {
        // Default: a dense layer has no router.
        let FeedForwardConfig::Moe { .. } = feed_forward else { return Ok(None) };
        if config.router.is_none_or(|router| router.input == RouterInput::Shared) {
            return Ok(None);
        }
        let hidden = config.hidden_size;
        let factor = 1.0 / (hidden as f32).sqrt();
        let scale = floats.get(FloatKind::RouterInputScale, hidden)?;
        let weights: Vec<f32> = scale.iter().map(|scale| scale * factor).collect();
        self.backend.upload_floats(&weights).map(Some)
    }
}
