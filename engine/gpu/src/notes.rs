//! The experts that kernels found in a step, in memory of the device.

use nestling_core::EngineError;

use crate::allocation::Allocation;
use crate::noted_uses::{NOTED_USES_MAX, NotedUses};
use crate::storage::Storage;

/// Bytes of the uses that one step may note.
pub const NOTES_BYTES: u64 = 4 * NOTED_USES_MAX as u64;

/// The experts that kernels found in a step.
pub struct Notes<S: Storage> {
    memory: Option<S::Memory>,
    /// What the host knows of them.
    pub uses: NotedUses,
}

impl<S: Storage> Default for Notes<S> {
    fn default() -> Self {
        Self { memory: None, uses: NotedUses::default() }
    }
}

impl<S: Storage> Notes<S> {
    /// Room for so many uses more: where all are, and the number of the first.
    ///
    /// # Errors
    /// More uses than a step may note; as [`Storage::allocate`].
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

    /// What is to be read back of them, and its bytes.
    pub fn part(&self) -> Option<(S::Binding, u64)> {
        let memory = self.memory.as_ref().filter(|_| self.uses.count() > 0)?;
        Some((memory.binding(), 4 * self.uses.count() as u64))
    }
}
