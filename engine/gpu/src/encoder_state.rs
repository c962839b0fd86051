//! What the shared encoder keeps with a device between steps.

use crate::notes::Notes;
use crate::requested_memory::RequestedMemory;
use crate::scratch::Scratch;
use crate::storage::Storage;

/// What the shared encoder keeps with a device between steps.
pub struct EncoderState<S: Storage> {
    /// Memory that operations use among themselves.
    pub scratch: Scratch<S>,
    /// The experts that kernels found in the step under way.
    pub notes: Notes<S>,
    /// What was asked for since a model was prepared for last.
    pub requested: RequestedMemory,
}

impl<S: Storage> Default for EncoderState<S> {
    fn default() -> Self {
        Self {
            scratch: Scratch::default(),
            notes: Notes::default(),
            requested: RequestedMemory::default(),
        }
    }
}
