//! Biases of the attention projections.

use nestling_formats::{FloatKind, MatrixKind};
use nestling_import::{AttentionBias, AttentionConfig, ModelConfig};

use super::floats::Floats;
use nestling_core::error::EngineError;

pub(super) struct AttentionBiases(Vec<(MatrixKind, Vec<f32>)>);

impl AttentionBiases {
    /// Reads the biases of one layer.
    ///
    /// # Errors
    /// Returns an error if a bias has the wrong length.
    pub(super) fn read(
        config: &ModelConfig,
        heads: &AttentionConfig,
        floats: &Floats,
    ) -> Result<Self, EngineError> {
        let queries = heads.num_attention_heads * heads.head_dim;
        let keys = heads.num_key_value_heads * heads.head_dim;
        let mut list = Vec::new();
        if heads.bias == AttentionBias::Absent {
            return Ok(Self(list));
        }
        let gates = heads.output_gate.count(heads.num_attention_heads, heads.head_dim);
        let both = floats.get(FloatKind::QueryBias, queries + gates)?;
        let (query, gate) = both.split_at(queries);
        list.push((MatrixKind::Query, query.to_vec()));
        if gates > 0 {
            list.push((MatrixKind::QueryGate, gate.to_vec()));
        }
        for (kind, bias) in
            [(MatrixKind::Key, FloatKind::KeyBias), (MatrixKind::Value, FloatKind::ValueBias)]
        {
            list.push((kind, floats.get(bias, keys)?.to_vec()));
        }
        if heads.bias == AttentionBias::All {
            // The residual multiplier applies to the whole output: to the bias here, and to the inputs of the
            // product in a step.
            let multiplier = config.multipliers.residual;
            let bias = floats.get(FloatKind::OutputBias, config.hidden_size)?;
            let scaled = bias.iter().map(|bias| multiplier * bias).collect();
            list.push((MatrixKind::Output, scaled));
        }
        Ok(Self(list))
    }

    pub(super) fn of(&self, kind: MatrixKind) -> Option<&[f32]> {
        let found = self.0.iter().find(|(of, _)| *of == kind);
        found.map(|(_, bias)| bias.as_slice())
    }
}
