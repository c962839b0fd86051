//! Device requirements of a model, known before its weights are loaded.

use nestling_import::ModelConfig;

use super::ExpertShape;

/// Device requirements of a model, in addition to buffers and pools already allocated.
#[derive(Debug)]
pub struct ModelNeeds<'a> {
    /// Model configuration.
    pub config: &'a ModelConfig,
    /// Maximum rows per step.
    pub rows_max: usize,
    /// Size in bytes of the weights to upload before the first step, as stored in a store, and their codecs;
    /// 0 if unknown.
    pub weight_bytes: u64,
    /// Number of matrices and vectors among these weights.
    pub weights: usize,
    /// Largest expert per layer that slots must hold, if experts are streamed.
    pub experts: Vec<Option<ExpertShape>>, // [layers]
}
