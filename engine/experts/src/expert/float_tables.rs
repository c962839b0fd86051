//! A source whose embedding and head come from another source than the other weights.

use std::sync::Arc;

use nestling_formats::store::GroupId;
use nestling_formats::{FloatKind, Level};
use nestling_import::ModelConfig;

use super::source::ExpertSource;
use super::store::{Matrices, StoreSource};
use crate::residency::Placement;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::group::RankShare;
use nestling_levels::dual::ExpertSensitivities;

/// Attention, feed-forward and floats of `weights`, with embedding and head of `tables`. Serves to evaluate
/// the quantization of layer weights alone ("weights only").
pub struct FloatTables {
    weights: Arc<dyn ExpertSource>,
    tables: Arc<dyn ExpertSource>,
}

impl FloatTables {
    /// Combines two sources.
    ///
    /// # Errors
    /// [`EngineError::Mismatch`] if their configurations differ.
    pub fn new(
        weights: Arc<dyn ExpertSource>,
        tables: Arc<dyn ExpertSource>,
    ) -> Result<Self, EngineError> {
        if weights.config() != tables.config() {
            let shape = |config: &ModelConfig| {
                let (layers, hidden) = (config.num_hidden_layers, config.hidden_size);
                format!("{layers} layers, hidden {hidden}, vocabulary {}", config.vocab_size)
            };
            let (expected, found) = (shape(weights.config()), shape(tables.config()));
            return Err(EngineError::mismatch("configuration of the reference", expected, found));
        }
        Ok(Self { weights, tables })
    }
}

impl ExpertSource for FloatTables {
    fn config(&self) -> &ModelConfig {
        self.weights.config()
    }

    fn level_max(&self) -> Option<Level> {
        self.weights.level_max()
    }

    fn is_tied(&self) -> bool {
        self.tables.is_tied()
    }

    fn matrices(&self, group: &GroupId) -> Result<Matrices, EngineError> {
        match group {
            GroupId::Embedding | GroupId::Head => self.tables.matrices(group),
            _ => self.weights.matrices(group),
        }
    }

    fn experts(
        &self,
        layer: u32,
        experts: &[u32],
        threads: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<Matrices>, EngineError> {
        self.weights.experts(layer, experts, threads, cancel)
    }

    fn placement(&self, share: RankShare) -> Placement {
        self.weights.placement(share)
    }

    fn sensitivities(&self) -> ExpertSensitivities {
        self.weights.sensitivities()
    }

    fn store_source(self: Arc<Self>) -> Option<Arc<StoreSource>> {
        None
    }

    fn floats(&self, layer: Option<u32>) -> Result<Vec<(FloatKind, Vec<f32>)>, EngineError> {
        self.weights.floats(layer)
    }
}
