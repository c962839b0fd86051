//! Checks that refuse unsupported models before a large download.

use crate::error::{HubError, Result};
use nestling_formats::store::Store;
use nestling_import::ModelConfig;

/// Returns an error if the configuration of a store is not supported.
pub fn check_config(source: &Store) -> Result<()> {
    let json = source.config_json()?;
    ModelConfig::from_json("config.json", &json).map(drop).map_err(|error| cannot_run(&error))
}

pub fn cannot_run(error: &dyn std::fmt::Display) -> HubError {
    HubError::new(format!("this model cannot run here: {error}"))
        .advise("nothing large was downloaded; look for a newer release that knows it")
}
