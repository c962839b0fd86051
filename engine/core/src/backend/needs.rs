//! What a model is going to take of a device, before its weights are loaded.

use nestling_import::ModelConfig;

use super::ExpertShape;

/// What a model is going to take of a device, beside the buffers and pools that were asked for before.
#[derive(Debug)]
pub struct ModelNeeds<'a> {
    /// The model.
    pub config: &'a ModelConfig,
    /// Most rows of a step.
    pub rows_max: usize,
    /// Bytes of the weights that are uploaded before the first step, as a store has them, and their
    /// codecs; 0 where that is not known.
    pub weight_bytes: u64,
    /// Matrices and vectors among them.
    pub weights: usize,
    /// What slots must have room for, where experts are streamed.
    pub experts: Vec<Option<ExpertShape>>, // [layers]
}
