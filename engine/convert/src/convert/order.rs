//! Order of each expert's hidden neurons, computed once per expert.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use nestling_core::sync::whole;

use nestling_formats::nested::NeuronOrder;
use nestling_formats::{ExpertId, MatrixId, MatrixKind};
use nestling_import::gguf::BlockType;
use nestling_import::{Checkpoint, ElementType};

use super::{ConvertError, ConvertOptions};

const MXFP4: ElementType = ElementType::Block(BlockType::Mxfp4);

pub(super) struct Orders<'a> {
    checkpoint: &'a Checkpoint,
    options: &'a ConvertOptions,
    found: Mutex<HashMap<ExpertId, Arc<[u32]>>>,
}

impl<'a> Orders<'a> {
    pub fn new(checkpoint: &'a Checkpoint, options: &'a ConvertOptions) -> Self {
        Self { checkpoint, options, found: Mutex::default() }
    }

    /// Returns the source neuron of each position in a matrix's expert, `[hidden]`. Returns `None` if neurons
    /// are not reordered.
    ///
    /// Neurons are the rows of gate and up and the columns of down, and the dimensions of down's second
    /// moments.
    pub fn of(&self, id: MatrixId) -> Result<Option<Arc<[u32]>>, ConvertError> {
        // Default: only hidden neurons of experts are reordered.
        let (Some(layer), Some(expert)) = (id.layer, id.expert) else { return Ok(None) };
        // The columns of an MXFP4 block must stay together.
        let is_block = self.checkpoint.matrix(id)?.element() == MXFP4;
        if self.options.order == NeuronOrder::Source || is_block || self.is_exact(id)? {
            return Ok(None);
        }
        let expert = ExpertId { layer, expert };
        let found = || whole(self.found.lock());
        if let Some(order) = found().get(&expert) {
            return Ok(Some(Arc::clone(order)));
        }
        // The lock is not held during the search, so that two threads may compute the same order.
        let read = |kind| self.checkpoint.read_matrix(MatrixId { kind, ..id });
        let config = self.checkpoint.config();
        let gate = config.activation.has_gate().then(|| read(MatrixKind::Gate)).transpose()?;
        let (up, down) = (read(MatrixKind::Up)?, read(MatrixKind::Down)?);
        // Default: without a gate, up alone gives the shapes of the neurons.
        let gate = gate.as_deref().unwrap_or(&up);
        let order =
            self.options.order.order(gate, &up, &down, up.len() / config.hidden_size.max(1));
        let order = order.map_err(|source| ConvertError::Quantize { matrix: id, source })?;
        Ok(Some(Arc::clone(found().entry(expert).or_insert_with(|| order.into()))))
    }

    /// Returns whether any matrix of an expert is stored with its blocks unchanged.
    fn is_exact(&self, id: MatrixId) -> Result<bool, ConvertError> {
        for &kind in self.checkpoint.config().activation.matrices() {
            let blocks = self.checkpoint.matrix(MatrixId { kind, ..id })?.blocks();
            if self.options.exact(blocks).is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Clears the cache before the next layer.
    pub fn forget(&self) {
        whole(self.found.lock()).clear();
    }
}
