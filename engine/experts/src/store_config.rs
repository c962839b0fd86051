//! Model configuration stored in a store.

use nestling_core::error::EngineError;
use nestling_formats::store::Store;
use nestling_import::ModelConfig;

/// Reads the model configuration of a store.
///
/// # Errors
/// Returns an error if the configuration is missing, damaged or not supported.
pub fn config_of(store: &Store) -> Result<ModelConfig, EngineError> {
    let file = format!("{}: config.json", store.name());
    Ok(ModelConfig::from_json(&file, &store.config_json()?)?)
}
