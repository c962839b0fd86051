//! Models that are refused before anything large is fetched.

use crate::error::{HubError, Result};
use nestling_formats::store::Store;
use nestling_import::ModelConfig;

/// What cannot run is refused before it is downloaded.
pub fn check_config(source: &Store) -> Result<()> {
    let json = source.config_json()?;
    ModelConfig::from_json("config.json", &json).map(drop).map_err(|error| cannot_run(&error))
}

pub fn cannot_run(error: &dyn std::fmt::Display) -> HubError {
    HubError::new(format!("this model cannot run here: {error}"))
        .advise("nothing large was downloaded; look for a newer release that knows it")
}
