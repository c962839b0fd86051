//! Recurrent states of one layer.

use nestling_core::EngineError;
use nestling_core::recurrent::{StateId, StateShape};

use crate::allocation::Allocation;
use crate::storage::Storage;

/// Recurrent states of one layer. Memory of a state is allocated when the state is first written.
pub struct GpuStates<S: Storage> {
    /// Number and size of the states.
    pub shape: StateShape,
    states: Vec<Option<S::Memory>>, // [states], each [floats]
}

impl<S: Storage> GpuStates<S> {
    /// Creates a pool without allocating memory.
    pub fn new(shape: StateShape) -> Self {
        Self { shape, states: (0..shape.states).map(|_| None).collect() }
    }

    fn missing(&self, state: StateId) -> EngineError {
        let expected = format!("a written state of {}", self.shape.states);
        EngineError::mismatch("recurrent state", expected, state.0)
    }

    /// Returns a state that was written.
    ///
    /// # Errors
    /// Returns an error if the state was not written.
    pub fn get(&self, state: StateId) -> Result<S::Binding, EngineError> {
        let found = self.states.get(state.0 as usize).and_then(Option::as_ref);
        found.map(Allocation::binding).ok_or_else(|| self.missing(state))
    }

    /// Checks that a state is in range.
    ///
    /// # Errors
    /// Returns an error if the pool does not have the state.
    pub fn check_room(&self, state: StateId) -> Result<(), EngineError> {
        if (state.0 as usize) < self.states.len() { Ok(()) } else { Err(self.missing(state)) }
    }

    /// Returns the memory of a state for writing, allocating it if necessary.
    ///
    /// # Errors
    /// Returns an error if the state is out of range or the device is out of memory.
    pub fn prepare(&mut self, storage: &mut S, state: StateId) -> Result<S::Binding, EngineError> {
        self.check_room(state)?;
        let bytes = self.shape.state_bytes() as u64;
        let memory = &mut self.states[state.0 as usize];
        if memory.is_none() {
            *memory = Some(storage.allocate("recurrent state", bytes)?);
        }
        self.get(state)
    }
}
