//! Recurrent states of one layer, stored as vectors of floats.

use nestling_core::error::EngineError;
use nestling_core::recurrent::{StateId, StateShape};
use nestling_formats::Invariant;
use nestling_formats::memory::{try_reserve, try_with_capacity, try_zeroed};

/// Recurrent states of one layer, allocated when they are first written.
#[derive(Debug)]
pub struct CpuStates {
    shape: StateShape,
    states: Vec<Option<Vec<f32>>>, // [states], each [floats]
    /// Memory for states that are written for the first time.
    fresh: Vec<Vec<f32>>,
}

impl CpuStates {
    pub(super) fn new(shape: StateShape) -> Self {
        Self { shape, states: (0..shape.states).map(|_| None).collect(), fresh: Vec::new() }
    }

    fn missing(&self, state: StateId) -> EngineError {
        let expected = format!("a written state of {}", self.shape.states);
        EngineError::mismatch("recurrent state", expected, state.0)
    }

    pub(super) fn shape(&self) -> &StateShape {
        &self.shape
    }

    /// Returns a state.
    ///
    /// # Errors
    /// Fails if the state was not written.
    pub(super) fn get(&self, state: StateId) -> Result<&[f32], EngineError> {
        let found = self.states.get(state.0 as usize).and_then(Option::as_deref);
        found.ok_or_else(|| self.missing(state))
    }

    /// # Errors
    /// Fails if the pool does not have the state.
    pub(super) fn check_place(&self, state: StateId) -> Result<(), EngineError> {
        if (state.0 as usize) < self.states.len() { Ok(()) } else { Err(self.missing(state)) }
    }

    /// Allocates memory for the given states that have none.
    ///
    /// # Errors
    /// Fails if memory cannot be allocated.
    pub(super) fn prepare(
        &mut self,
        states: impl Iterator<Item = StateId>,
    ) -> Result<(), EngineError> {
        let is_new = |state: &StateId| matches!(self.states.get(state.0 as usize), Some(None));
        let missing = states.filter(is_new).count().saturating_sub(self.fresh.len());
        for _ in 0..missing {
            self.fresh.push(try_zeroed("a recurrent state", self.shape.floats)?);
        }
        Ok(())
    }

    /// Takes a prepared state out for writing; see [`Self::put`]. It holds its previous contents, or zeros.
    ///
    /// # Errors
    /// Fails if the state was not prepared.
    pub(super) fn take(&mut self, state: StateId) -> Result<Vec<f32>, EngineError> {
        let found = self.states.get_mut(state.0 as usize).and_then(Option::take);
        let found = found.or_else(|| self.fresh.pop());
        Ok(found.invariant("states are prepared before they are taken")?)
    }

    /// Returns a state to its place.
    pub(super) fn put(&mut self, state: StateId, values: Vec<f32>) {
        if let Some(place) = self.states.get_mut(state.0 as usize) {
            *place = Some(values);
        }
    }

    pub(super) fn read(&self, state: StateId, out: &mut Vec<u8>) -> Result<(), EngineError> {
        try_reserve(out, "a recurrent state", self.shape.state_bytes())?;
        out.extend(self.get(state)?.iter().flat_map(|value| value.to_le_bytes()));
        Ok(())
    }

    pub(super) fn write(&mut self, state: StateId, bytes: &[u8]) -> Result<(), EngineError> {
        self.check_place(state)?;
        let expected = self.shape.state_bytes();
        if bytes.len() != expected {
            return Err(EngineError::mismatch("bytes of a state", expected, bytes.len()));
        }
        let values = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let mut state_values = try_with_capacity("a recurrent state", values.len())?;
        state_values.extend(values);
        self.put(state, state_values);
        Ok(())
    }
}
