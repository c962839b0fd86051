//! The order of each expert's hidden neurons, found once per expert.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use nestling_core::sync::whole;

use nestling_formats::nested::NeuronOrder;
use nestling_formats::{ExpertId, MatrixId, MatrixKind};
use nestling_import::gguf::BlockType;
use nestling_import::{Checkpoint, ElementType};

use super::{ConvertError, ConvertOptions};

const MXFP4: ElementType = ElementType::Block(BlockType::Mxfp4);

/// The orders of one layer's experts.
pub(super) struct Orders<'a> {
    checkpoint: &'a Checkpoint,
    options: &'a ConvertOptions,
    found: Mutex<HashMap<ExpertId, Arc<[u32]>>>,
}

impl<'a> Orders<'a> {
    pub fn new(checkpoint: &'a Checkpoint, options: &'a ConvertOptions) -> Self {
        Self { checkpoint, options, found: Mutex::default() }
    }

    /// The neuron at each place of a matrix's expert, `[hidden]`; none where neurons stay in place.
    ///
    /// They are rows of gate and up, columns of down, and what down's second moments are of.
    pub fn of(&self, id: MatrixId) -> Result<Option<Arc<[u32]>>, ConvertError> {
        // Default: only hidden neurons of experts are ordered.
        let (Some(layer), Some(expert)) = (id.layer, id.expert) else { return Ok(None) };
        // Columns of a block of MXFP4 belong together.
        let is_block = self.checkpoint.matrix(id)?.element() == MXFP4;
        if self.options.order == NeuronOrder::Source || is_block || self.is_exact(id)? {
            return Ok(None);
        }
        let expert = ExpertId { layer, expert };
        let found = || whole(self.found.lock());
        if let Some(order) = found().get(&expert) {
            return Ok(Some(Arc::clone(order)));
        }
        // Two threads may find the same order; the lock is not held meanwhile.
        let read = |kind| self.checkpoint.read_matrix(MatrixId { kind, ..id });
        let [gate, up] = [read(MatrixKind::Gate)?, read(MatrixKind::Up)?];
        let down = read(MatrixKind::Down)?;
        let dim = self.checkpoint.config().hidden_size;
        let order = self.options.order.order(&gate, &up, &down, gate.len() / dim.max(1));
        let order = order.map_err(|source| ConvertError::Quantize { matrix: id, source })?;
        Ok(Some(Arc::clone(found().entry(expert).or_insert_with(|| order.into()))))
    }

    /// Whether blocks of any matrix of an expert are stored as they are.
    fn is_exact(&self, id: MatrixId) -> Result<bool, ConvertError> {
        for kind in [MatrixKind::Gate, MatrixKind::Up, MatrixKind::Down] {
            let blocks = self.checkpoint.matrix(MatrixId { kind, ..id })?.blocks();
            if self.options.exact(blocks).is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Drops all that was found: the next layer's experts are others.
    pub fn forget(&self) {
        whole(self.found.lock()).clear();
    }
}
