//! Recurrent states of one layer: so many vectors of floats.

use nestling_core::EngineError;
use nestling_core::recurrent::{StateId, StateShape};

use crate::allocation::Allocation;
use crate::storage::Storage;

/// The states of one layer, allocated when first written.
pub struct GpuStates<S: Storage> {
    /// How many states there are, and their sizes.
    pub shape: StateShape,
    states: Vec<Option<S::Memory>>, // [states], each [floats]
}

impl<S: Storage> GpuStates<S> {
    /// A pool without any memory yet.
    pub fn new(shape: StateShape) -> Self {
        Self { shape, states: (0..shape.states).map(|_| None).collect() }
    }

    fn missing(&self, state: StateId) -> EngineError {
        let expected = format!("a written state of {}", self.shape.states);
        EngineError::mismatch("recurrent state", expected, state.0)
    }

    /// A state that was written.
    ///
    /// # Errors
    /// A state that was not.
    pub fn get(&self, state: StateId) -> Result<S::Binding, EngineError> {
        let found = self.states.get(state.0 as usize).and_then(Option::as_ref);
        found.map(Allocation::binding).ok_or_else(|| self.missing(state))
    }

    /// # Errors
    /// A state that the pool does not have.
    pub fn check_room(&self, state: StateId) -> Result<(), EngineError> {
        if (state.0 as usize) < self.states.len() { Ok(()) } else { Err(self.missing(state)) }
    }

    /// The memory of a state that is to be written.
    ///
    /// # Errors
    /// A state that the pool does not have; a device whose memory is full.
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
