//! State of the shared encoder between steps.

use std::sync::Arc;

use nestling_core::backend::RankLink;

use crate::notes::SelectionNotes;
use crate::peers::PeerLink;
use crate::requested_memory::RequestedMemory;
use crate::scratch::Scratch;
use crate::storage::Storage;

/// State that the shared encoder stores with a device between steps.
pub struct EncoderState<S: Storage> {
    /// Scratch memory of operations.
    pub scratch: Scratch<S>,
    /// Experts that kernels selected in the current step.
    pub notes: SelectionNotes<S>,
    /// Memory requested since the last model was prepared.
    pub requested: RequestedMemory,
    /// Connection to the other ranks of the model, if there are any.
    pub ranks: Option<Arc<RankLink>>,
    /// Connection to the devices of the other ranks, if there may be one.
    pub peers: Option<Box<dyn PeerLink<S::Binding>>>,
}

impl<S: Storage> Default for EncoderState<S> {
    fn default() -> Self {
        Self {
            scratch: Scratch::default(),
            notes: SelectionNotes::default(),
            requested: RequestedMemory::default(),
            ranks: None,
            peers: None,
        }
    }
}
