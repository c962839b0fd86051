//! Biases of a layer's experts.

use nestling_formats::FloatKind;
use nestling_import::{ExpertBias, FeedForward, ModelConfig};

use crate::error::EngineError;

/// Biases of the experts of one layer.
#[derive(Clone, Debug)]
pub struct ExpertBiases {
    gate: Vec<f32>, // [E, I]
    up: Vec<f32>,   // [E, I]
    down: Vec<f32>, // [E, D]
    intermediate: usize,
    hidden: usize,
}

impl ExpertBiases {
    /// Extracts the expert biases from the floats of a layer. Returns `None` without calling `floats` if the
    /// layer's experts have no biases.
    ///
    /// # Errors
    /// The errors of `floats`; an error if the sizes do not match the configuration.
    pub fn of_layer(
        config: &ModelConfig,
        layer: u32,
        floats: impl FnOnce() -> Result<Vec<(FloatKind, Vec<f32>)>, EngineError>,
    ) -> Result<Option<Self>, EngineError> {
        let of_layer = config.layers.get(layer as usize).map(|layer| layer.feed_forward);
        let Some(FeedForward::Moe { num_experts, moe_intermediate_size, .. }) =
            of_layer.filter(|_| config.expert_bias == ExpertBias::Present)
        else {
            return Ok(None);
        };
        let (intermediate, hidden) = (moe_intermediate_size, config.hidden_size);
        let mut floats = floats()?;
        let mut take = |kind, width: usize| {
            let found = floats.iter_mut().find(|(found, _)| *found == kind);
            // Default: missing biases have no values and are rejected below.
            let values = found.map(|(_, values)| std::mem::take(values)).unwrap_or_default();
            if values.len() == num_experts * width {
                return Ok(values);
            }
            let expected = format!("{} values", num_experts * width);
            Err(EngineError::mismatch(format!("{kind:?} of layer {layer}"), expected, values.len()))
        };
        Ok(Some(Self {
            gate: take(FloatKind::ExpertGateBias, intermediate)?,
            up: take(FloatKind::ExpertUpBias, intermediate)?,
            down: take(FloatKind::ExpertDownBias, hidden)?,
            intermediate,
            hidden,
        }))
    }

    /// Returns the biases of all gates, then of all ups, then of all downs.
    pub fn joined(&self) -> Vec<f32> {
        [self.gate.as_slice(), &self.up, &self.down].concat()
    }

    /// Returns the biases of gate, up and down of one expert; empty if there is no such expert.
    pub fn of(&self, expert: u32) -> [&[f32]; 3] {
        let row = |values: &'_ [f32], width: usize| -> std::ops::Range<usize> {
            let start = (expert as usize).saturating_mul(width).min(values.len());
            start..start.saturating_add(width).min(values.len())
        };
        [
            &self.gate[row(&self.gate, self.intermediate)],
            &self.up[row(&self.up, self.intermediate)],
            &self.down[row(&self.down, self.hidden)],
        ]
    }
}
