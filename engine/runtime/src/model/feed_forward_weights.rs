//! Weights of feed-forward parts: dense ones and experts.

use nestling_formats::MatrixKind;
use nestling_import::{FeedForward as FeedForwardConfig, ModelConfig};

use super::weights::Loader;
use nestling_core::backend::{Backend, FeedForward, Linear};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_experts::expert::{Matrices, expert_biases};
use nestling_experts::residency::Placement;

impl<B: Backend> Loader<'_, B> {
    /// Loads a layer's dense feed-forward part or shared expert, which have no biases.
    pub(super) fn dense_feed_forward(
        &mut self,
        mut dense: Matrices,
        hidden: usize,
        intermediate: usize,
    ) -> Result<FeedForward<B>, EngineError> {
        let activation = self.source.config().activation;
        let has_gate = activation.has_gate();
        let mut linear = |kind, rows, cols| -> Result<Linear<B>, EngineError> {
            self.linear(kind, &dense.take(kind, rows, cols)?, None)
        };
        Ok(FeedForward {
            activation,
            gate: has_gate.then(|| linear(MatrixKind::Gate, intermediate, hidden)).transpose()?,
            up: linear(MatrixKind::Up, intermediate, hidden)?,
            down: linear(MatrixKind::Down, hidden, intermediate)?,
        })
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
        let groups = self.source.experts(layer, &held, self.threads, cancel)?;
        let (hidden, intermediate) = (config.hidden_size, moe_intermediate_size);
        let biases = expert_biases(self.source, layer)?;
        let mut experts: Vec<_> = (0..count).map(|_| None).collect();
        for (expert, group) in held.into_iter().zip(groups) {
            let biases = biases.as_ref().map(|biases| biases.of(expert));
            let loaded = self.feed_forward(group, hidden, intermediate, biases)?;
            experts[expert as usize] = Some(loaded);
        }
        Ok(experts)
    }

    /// Loads an expert from its group. `biases` belong to gate, up and down.
    ///
    /// # Errors
    /// Fails as [`Loader::load`] does.
    pub fn feed_forward(
        &mut self,
        mut group: Matrices,
        hidden: usize,
        intermediate: usize,
        biases: Option<[&[f32]; 3]>,
    ) -> Result<FeedForward<B>, EngineError> {
        let [gate, up, down] = biases.map_or([None; 3], |biases| biases.map(Some));
        let mut upload =
            |kind, bias: Option<&[f32]>, rows, cols| -> Result<Linear<B>, EngineError> {
                let weights = group.take(kind, rows, cols)?;
                let matrix = self.backend.upload_matrix(&weights, self.activations)?;
                let bias = bias.map(|bias| self.backend.upload_floats(bias)).transpose()?;
                Ok(Linear::new(matrix, bias))
            };
        let activation = self.source.config().activation;
        let has_gate = activation.has_gate();
        Ok(FeedForward {
            activation,
            gate: has_gate
                .then(|| upload(MatrixKind::Gate, gate, intermediate, hidden))
                .transpose()?,
            up: upload(MatrixKind::Up, up, intermediate, hidden)?,
            down: upload(MatrixKind::Down, down, hidden, intermediate)?,
        })
    }
}
