//! Biases of a layer's experts.

use super::source::ExpertSource;
use nestling_core::backend::ExpertBiases;
use nestling_core::error::EngineError;

/// Reads the biases of a layer's experts, or returns `None` if it has none.
///
/// # Errors
/// Returns an error if the biases cannot be read or do not have the configured size.
pub fn expert_biases(
    source: &dyn ExpertSource,
    layer: u32,
) -> Result<Option<ExpertBiases>, EngineError> {
    ExpertBiases::of_layer(source.config(), layer, || source.floats(Some(layer)))
}
