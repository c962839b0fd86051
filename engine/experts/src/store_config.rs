//! Model configuration stored in a store.

use nestling_core::error::EngineError;
use nestling_formats::store::Store;
use nestling_import::ModelConfig;

/// Reads the model configuration of a store.
///
/// ```
/// use nestling_experts::config_of;
/// use nestling_formats::store::Store;
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
/// let config = config_of(&Store::open(path)?)?;
/// assert_eq!(config.num_hidden_layers, 4);
/// assert_eq!(config.experts_per_token_max(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns an error if the configuration is missing, damaged or not supported.
pub fn config_of(store: &Store) -> Result<ModelConfig, EngineError> {
    let file = format!("{}: config.json", store.name());
    Ok(ModelConfig::from_json(&file, &store.config_json()?)?)
}
