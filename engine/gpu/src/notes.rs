//! Device memory for the experts that kernels selected in a step.

use nestling_core::EngineError;

use crate::allocation::Allocation;
use crate::noted_uses::{NOTED_USES_MAX, NotedUses};
use crate::storage::Storage;

/// Size of the uses of one step, in bytes.
pub const NOTES_BYTES: u64 = 4 * NOTED_USES_MAX as u64;

/// The experts that kernels selected in a step.
pub struct SelectionNotes<S: Storage> {
    memory: Option<S::Memory>,
    /// Bookkeeping of the uses on the host.
    pub uses: NotedUses,
}

impl<S: Storage> Default for SelectionNotes<S> {
    fn default() -> Self {
        Self { memory: None, uses: NotedUses::default() }
    }
}

impl<S: Storage> SelectionNotes<S> {
    /// Reserves space for a call's uses. Returns the memory of all uses and the index of the call's first.
    ///
    /// # Errors
    /// Returns an error if a step has too many uses. Fails like [`Storage::allocate`].
    pub fn take(
        &mut self,
        storage: &mut S,
        uses: usize,
    ) -> Result<(S::Binding, usize), EngineError> {
        let first = self.uses.call(uses)?;
        let memory = match &self.memory {
            Some(memory) => memory,
            None => self.memory.insert(storage.allocate("uses of experts", NOTES_BYTES)?),
        };
        Ok((memory.binding(), first))
    }

    /// Returns the memory to read back and its size in bytes.
    pub fn part(&self) -> Option<(S::Binding, u64)> {
        let memory = self.memory.as_ref().filter(|_| self.uses.count() > 0)?;
        Some((memory.binding(), 4 * self.uses.count() as u64))
    }
}
