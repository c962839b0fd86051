//! Buffers of one step.

use nestling_formats::{InternalError, Invariant};
use nestling_import::{DeltaNetConfig, ModelConfig, TokenMixer};

use super::mixer::attention::{self, AttentionBuffers, AttentionShape};
use super::mixer::delta_net::DeltaNetBuffers;
use super::mixer::latent::{self, LatentBuffers, LatentShape};
use super::rope::rope_kinds;
use nestling_core::backend::{Backend, Encoder};
use nestling_core::error::EngineError;

/// What a step computes in. T = rows of the step.
pub struct Activations<B: Backend> {
    /// Residual stream.
    pub x: B::Buffer, // [T, hidden_size]
    /// The rows of `x` that want logits.
    pub tail: B::Buffer, // [rows with logits, hidden_size]
    /// A normed `x`.
    pub normed: B::Buffer, // [T, hidden_size]
    /// Buffers of attention, for every shape of heads.
    pub attention: Vec<AttentionBuffers<B>>,
    /// Buffers of attention to latents, for every shape of it.
    pub latent: Vec<LatentBuffers<B>>,
    /// Buffers of gated DeltaNet, for every shape of it.
    pub delta_nets: Vec<DeltaNetBuffers<B>>,
    /// Cosines and sines of the positions, for every kind of angles.
    pub ropes: Vec<B::Buffer>, // [T, dims]
    /// Those of the rows that want logits.
    pub ropes_tail: Vec<B::Buffer>, // [rows with logits, dims]
    /// What shared experts' outputs are multiplied by.
    pub gate: B::Buffer, // [T, 1]
    /// Outputs of shared experts, before that; of any part, before its norm.
    pub shared: B::Buffer, // [T, hidden_size]
    /// What a layer's part gives in all, where that has a norm.
    pub branch: B::Buffer, // [T, hidden_size]
    /// The experts of every row.
    pub routing: B::Routing, // [T, K]
    /// What a router with a norm of its own sees; then what the next layer's router would see if
    /// this layer had no experts.
    pub ahead: B::Buffer, // [T, hidden_size]
    /// The experts that it would choose.
    pub predicted: B::Routing, // [T, K]
    /// Outputs of the experts, before they are weighted and summed.
    pub expert_rows: B::Buffer, // [T * K, hidden_size]
    /// Logits of the rows that want them.
    pub logits: B::Buffer, // [rows with logits, vocab_size]
}

impl<B: Backend> Activations<B> {
    /// Buffers for steps of up to `rows_max` rows.
    pub fn new(
        backend: &mut B,
        config: &ModelConfig,
        rows_max: usize,
    ) -> Result<Self, EngineError> {
        let experts_per_token = config.experts_per_token_max();
        let mut attention = Vec::new();
        for shape in attention_shapes(config) {
            attention.push(AttentionBuffers::new(backend, shape, rows_max)?);
        }
        let mut latent = Vec::new();
        for shape in latent_shapes(config) {
            latent.push(LatentBuffers::new(backend, shape, rows_max)?);
        }
        let mut delta_nets = Vec::new();
        for shape in &delta_net_shapes(config) {
            delta_nets.push(DeltaNetBuffers::new(backend, shape, rows_max)?);
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
            delta_nets,
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
    /// Keeps the rows that want logits of what the rest of the last layer reads.
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

/// The shapes of heads that the layers of a model have.
pub(super) fn attention_shapes(config: &ModelConfig) -> Vec<AttentionShape> {
    config.distinct(|layer| match &layer.mixer {
        TokenMixer::Attention(heads) => Some(attention::shape(heads)),
        _ => None,
    })
}

/// The shapes of attention to latents that the layers of a model have.
pub(super) fn latent_shapes(config: &ModelConfig) -> Vec<LatentShape> {
    config.distinct(|layer| match &layer.mixer {
        TokenMixer::Latent(latent) => Some(latent::shape(latent)),
        _ => None,
    })
}

/// The shapes of gated DeltaNet that the layers of a model have.
pub(super) fn delta_net_shapes(config: &ModelConfig) -> Vec<DeltaNetConfig> {
    config.distinct(|layer| match layer.mixer {
        TokenMixer::DeltaNet(shape) => Some(shape),
        _ => None,
    })
}

/// Where a layer's kind is in the list that buffers and angles are made by.
///
/// # Errors
/// A kind that is not in the list, which is made from the same configuration.
pub(super) fn index_of<T: PartialEq>(kinds: &[T], kind: &T) -> Result<usize, InternalError> {
    kinds.iter().position(|found| found == kind).invariant("every layer's kind has its buffers")
}
