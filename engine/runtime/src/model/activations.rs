//! Activation buffers of a step.

use nestling_formats::{InternalError, Invariant};
use nestling_import::{ModelConfig, TokenMixer};

use super::mixer::attention::{self, AttentionBuffers, AttentionShape};
use super::mixer::latent::{self, LatentBuffers, LatentShape};
use super::mixer::recurrent::{RecurrentBuffers, RecurrentShape};
use nestling_core::backend::{Backend, Encoder};
use nestling_core::error::EngineError;
use nestling_core::group::RankShare;
use nestling_core::kv_heads::KvDivision;
use nestling_math::rope::rope_kinds;

/// Activation buffers of a step. T = rows of the step.
pub struct Activations<B: Backend> {
    /// Residual stream.
    pub x: B::Buffer, // [T, hidden_size]
    /// Rows of `x` with requested logits.
    pub tail: B::Buffer, // [rows with logits, hidden_size]
    /// `x` after a norm.
    pub normed: B::Buffer, // [T, hidden_size]
    /// Buffers of attention, one set per head shape.
    pub attention: Vec<AttentionBuffers<B>>,
    /// Buffers of latent attention, one set per shape.
    pub latent: Vec<LatentBuffers<B>>,
    /// Buffers of recurrent mixers, one set per shape.
    pub recurrent: Vec<RecurrentBuffers<B>>,
    /// RoPE cosines and sines of the positions, one buffer per kind of angles.
    pub ropes: Vec<B::Buffer>, // [T, dims]
    /// The same for the rows with requested logits.
    pub ropes_tail: Vec<B::Buffer>, // [rows with logits, dims]
    /// Gate values that shared experts' outputs are multiplied by.
    pub gate: B::Buffer, // [T, 1]
    /// Outputs of shared experts before the gate, or of any branch before its norm.
    pub shared: B::Buffer, // [T, hidden_size]
    /// Sum of a layer's feed-forward branches, in families with norms after them.
    pub branch: B::Buffer, // [T, hidden_size]
    /// Chosen experts of the rows.
    pub routing: B::Routing, // [T, K]
    /// Inputs of a router with a separate norm. Then inputs of a later layer's router for prediction,
    /// computed as if the layers between had no experts.
    pub ahead: B::Buffer, // [T, hidden_size]
    /// Experts predicted for a later layer.
    pub predicted: B::Routing, // [T, K]
    /// Outputs of the experts before the weighted sum.
    pub expert_rows: B::Buffer, // [T * K, hidden_size]
    /// Logits of the rows with requested logits.
    pub logits: B::Buffer, // [rows with logits, vocab_size]
}

impl<B: Backend> Activations<B> {
    /// Allocates buffers for steps of up to `rows_max` rows.
    pub fn new(
        backend: &mut B,
        config: &ModelConfig,
        division: KvDivision,
        rows_max: usize,
    ) -> Result<Self, EngineError> {
        let experts_per_token = config.experts_per_token_max();
        let mut attention = Vec::new();
        for shape in attention_shapes(config, division, backend.share()) {
            attention.push(AttentionBuffers::new(backend, shape, rows_max)?);
        }
        let mut latent = Vec::new();
        for shape in latent_shapes(config) {
            latent.push(LatentBuffers::new(backend, shape, rows_max)?);
        }
        let mut recurrent = Vec::new();
        for shape in recurrent_shapes(config) {
            recurrent.push(RecurrentBuffers::new(backend, shape, rows_max)?);
        }
        let kinds = rope_kinds(config);
        let mut ropes = || -> Result<Vec<B::Buffer>, EngineError> {
            kinds.iter().map(|rope| backend.buffer(rows_max, rope.dims)).collect()
        };
        let (ropes, ropes_tail) = (ropes()?, ropes()?);
        Ok(Self {
            x: backend.buffer(rows_max, config.hidden_size)?,
            tail: backend.buffer(rows_max, config.hidden_size)?,
            normed: backend.buffer(rows_max, config.hidden_size)?,
            attention,
            latent,
            recurrent,
            ropes,
            ropes_tail,
            gate: backend.buffer(rows_max, 1)?,
            shared: backend.buffer(rows_max, config.hidden_size)?,
            branch: backend.buffer(rows_max, config.hidden_size)?,
            routing: backend.routing(rows_max, experts_per_token)?,
            ahead: backend.buffer(rows_max, config.hidden_size)?,
            predicted: backend.routing(rows_max, experts_per_token)?,
            expert_rows: backend.buffer(rows_max * experts_per_token, config.hidden_size)?,
            logits: backend.buffer(rows_max, config.vocab_size)?,
        })
    }
}

impl<B: Backend> Activations<B> {
    /// Reduces the inputs of the rest of the last layer to the rows with requested logits.
    pub fn keep(&mut self, encoder: &mut B::Encoder<'_>, rows: &[u32]) -> Result<(), EngineError> {
        let Self { x, normed, tail, ropes, ropes_tail, .. } = self;
        for buffer in [x, normed] {
            encoder.gather_rows(buffer, rows, tail)?;
            std::mem::swap(buffer, tail);
        }
        for (rope, tail) in ropes.iter_mut().zip(ropes_tail) {
            encoder.gather_rows(rope, rows, tail)?;
            std::mem::swap(rope, tail);
        }
        Ok(())
    }
}

/// Returns the distinct head shapes of a model's attention layers.
pub(super) fn attention_shapes(
    config: &ModelConfig,
    division: KvDivision,
    share: RankShare,
) -> Vec<AttentionShape> {
    config.distinct(|layer| attention::shape(layer, division, share))
}

/// Returns the distinct shapes of a model's latent attention layers.
pub(super) fn latent_shapes(config: &ModelConfig) -> Vec<LatentShape> {
    config.distinct(|layer| match &layer.mixer {
        TokenMixer::Latent(latent) => Some(latent::shape(latent)),
        _ => None,
    })
}

/// Returns the distinct shapes of a model's recurrent mixers.
pub(super) fn recurrent_shapes(config: &ModelConfig) -> Vec<RecurrentShape> {
    config.distinct(|layer| RecurrentShape::of(&layer.mixer))
}

/// Returns the index of a recurrent mixer's buffers.
///
/// # Errors
/// Returns an error if the mixer is not one of the configuration's recurrent ones.
pub(super) fn recurrent_buffers(
    config: &ModelConfig,
    mixer: &TokenMixer,
) -> Result<usize, InternalError> {
    let shape = RecurrentShape::of(mixer).invariant("the mixer is recurrent")?;
    index_of(&recurrent_shapes(config), &shape)
}

/// Returns the index of a layer's kind in the list of buffers or angles.
///
/// # Errors
/// Returns an error if the kind is missing from the list, which comes from the same configuration.
pub(super) fn index_of<T: PartialEq>(kinds: &[T], kind: &T) -> Result<usize, InternalError> {
    kinds.iter().position(|found| found == kind).invariant("every layer's kind has its buffers")
}
