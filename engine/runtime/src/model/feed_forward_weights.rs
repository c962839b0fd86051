//! Weights of feed-forward parts: dense ones and experts.

use nestling_formats::MatrixKind;
use nestling_import::{FeedForward as FeedForwardConfig, ModelConfig};

use super::weights::Loader;
use nestling_core::backend::{Backend, FeedForward, Linear};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::weights::MatrixWeights;
use nestling_experts::expert::{Matrices, expert_biases};
use nestling_experts::residency::Placement;

/// Uploads a matrix, or this rank's rows of it, with its bias.
type Upload<'a, L, B> = &'a mut dyn FnMut(
    &mut L,
    MatrixKind,
    &MatrixWeights,
    Option<&[f32]>,
) -> Result<Linear<B>, EngineError>;

impl<B: Backend> Loader<'_, B> {
    /// Loads this rank's rows of a dense feed-forward part, of a shared expert or of a sliced one. `biases` belong to
    /// gate, up and down.
    pub(super) fn rank_feed_forward(
        &mut self,
        group: Matrices,
        hidden: usize,
        intermediate: usize,
        biases: Option<[&[f32]; 3]>,
    ) -> Result<FeedForward<B>, EngineError> {
        self.part(group, hidden, intermediate, biases, &mut Self::linear)
    }

    pub(super) fn experts(
        &mut self,
        config: &ModelConfig,
        layer: u32,
        feed_forward: FeedForwardConfig,
        placement: &Placement,
        cancel: &CancelToken,
    ) -> Result<Vec<Option<FeedForward<B>>>, EngineError> {
        let FeedForwardConfig::Moe { num_experts, moe_intermediate_size, .. } = feed_forward else {
            return Ok(Vec::new());
        };
        let count = u32::try_from(num_experts).unwrap_or(u32::MAX);
        let held: Vec<u32> = (0..count).filter(|expert| placement.holds(layer, *expert)).collect();
        let (hidden, intermediate) = (config.hidden_size, moe_intermediate_size);
        let biases = expert_biases(self.source, layer)?;
        let mut experts: Vec<_> = (0..count).map(|_| None).collect();
        let is_sliced = placement.is_sliced(layer);
        // Experts of which a slice is kept are in memory for a moment, so only a few at a time.
        let at_once = if is_sliced { self.threads.max(1) } else { held.len().max(1) };
        for held in held.chunks(at_once) {
            let groups = self.source.experts(layer, held, self.threads, cancel)?;
            for (expert, group) in held.iter().copied().zip(groups) {
                let biases = biases.as_ref().map(|biases| biases.of(expert));
                let loaded = match is_sliced {
                    true => self.rank_feed_forward(group, hidden, intermediate, biases)?,
                    false => self.feed_forward(group, hidden, intermediate, biases)?,
                };
                experts[expert as usize] = Some(loaded);
            }
        }
        Ok(experts)
    }

    /// Loads an expert from its group. `biases` belong to gate, up and down.
    ///
    /// # Errors
    /// Fails as [`Loader::load`] does.
    pub fn feed_forward(
        &mut self,
        group: Matrices,
        hidden: usize,
        intermediate: usize,
        biases: Option<[&[f32]; 3]>,
    ) -> Result<FeedForward<B>, EngineError> {
        self.part(group, hidden, intermediate, biases, &mut |loader, _, weights, bias| {
            let matrix = loader.backend.upload_matrix(weights, loader.activations)?;
            let bias = bias.map(|bias| loader.backend.upload_floats(bias)).transpose()?;
            Ok(Linear::new(matrix, bias))
        })
    }

    fn part(
        &mut self,
        mut group: Matrices,
        hidden: usize,
        intermediate: usize,
        biases: Option<[&[f32]; 3]>,
        upload: Upload<'_, Self, B>,
    ) -> Result<FeedForward<B>, EngineError> {
        let (inner, activation) = (intermediate, self.source.config().activation);
        let has_gate = activation.has_gate();
        let [gate, up, down] = biases.map_or([None; 3], |biases| biases.map(Some));
        let mut linear =
            |kind, bias: Option<&[f32]>, rows, cols| -> Result<Linear<B>, EngineError> {
                upload(self, kind, &group.take(kind, rows, cols)?, bias)
            };
        Ok(FeedForward {
            activation,
            gate: has_gate.then(|| linear(MatrixKind::Gate, gate, inner, hidden)).transpose()?,
            up: linear(MatrixKind::Up, up, inner, hidden)?,
            down: linear(MatrixKind::Down, down, hidden, inner)?,
        })
    }
}
