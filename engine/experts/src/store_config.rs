//! The configuration that a store carries.

use nestling_core::error::EngineError;
use nestling_formats::store::Store;
use nestling_import::ModelConfig;

/// The configuration of a store's model.
///
/// # Errors
/// A configuration that is missing, damaged or not supported.
pub fn config_of(store: &Store) -> Result<ModelConfig, EngineError> {
    let file = format!("{}: config.json", store.name());
    Ok(ModelConfig::from_json(&file, &store.config_json()?)?)
}
