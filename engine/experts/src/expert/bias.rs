//! Biases of a layer's experts, read from where the experts come from.

use super::source::ExpertSource;
use nestling_core::backend::ExpertBiases;
use nestling_core::error::EngineError;

/// Biases of the experts of a layer; none if they have none.
///
/// # Errors
/// Biases that cannot be read, or do not have the size that the configuration says.
pub fn expert_biases(
    source: &dyn ExpertSource,
    layer: u32,
) -> Result<Option<ExpertBiases>, EngineError> {
    ExpertBiases::of_layer(source.config(), layer, || source.floats(Some(layer)))
}
