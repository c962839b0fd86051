//! Recurrent states of one layer: so many vectors of floats.

use nestling_core::EngineError;
use nestling_core::recurrent::{StateId, StateShape};

use crate::device::{Gpu, Memory};
use crate::error::WgpuError;
use crate::memory::SharedGpu;
use crate::recorder::{Binding, Recorder};

/// The states of one layer, allocated when first written.
pub struct WgpuStates {
    gpu: SharedGpu,
    pub(crate) shape: StateShape,
    states: Vec<Option<Memory>>, // [states], each [floats]
}

impl WgpuStates {
    pub(crate) fn new(gpu: &SharedGpu, shape: StateShape) -> Result<Self, WgpuError> {
        let states = (0..shape.states).map(|_| None).collect();
        Ok(Self { gpu: SharedGpu::clone(gpu), shape, states })
    }

    fn missing(&self, state: StateId) -> EngineError {
        let expected = format!("a written state of {}", self.shape.states);
        EngineError::mismatch("recurrent state", expected, state.0)
    }

    /// A state that was written.
    ///
    /// # Errors
    /// A state that was not.
    pub(crate) fn get(&self, state: StateId) -> Result<&Memory, EngineError> {
        let found = self.states.get(state.0 as usize).and_then(Option::as_ref);
        found.ok_or_else(|| self.missing(state))
    }

    /// A state that was written, for shaders; none for none.
    ///
    /// # Errors
    /// As [`WgpuStates::get`].
    pub(crate) fn binding(&self, state: Option<StateId>) -> Result<Option<Binding>, EngineError> {
        state.map(|state| self.get(state).map(Binding::from)).transpose()
    }

    /// # Errors
    /// A state that the pool does not have.
    pub(crate) fn check_place(&self, state: StateId) -> Result<(), EngineError> {
        if (state.0 as usize) < self.states.len() { Ok(()) } else { Err(self.missing(state)) }
    }

    /// The memory of a state that is to be written.
    ///
    /// # Errors
    /// A state that the pool does not have; a device whose memory is full.
    pub(crate) fn place(&mut self, state: StateId) -> Result<&Memory, EngineError> {
        let missing = self.missing(state);
        let bytes = self.shape.state_bytes() as u64;
        let gpu: &Gpu = &self.gpu;
        let place = self.states.get_mut(state.0 as usize).ok_or(missing)?;
        if place.is_none() {
            *place = Some(gpu.buffer("recurrent state", bytes)?);
        }
        self.get(state)
    }

    pub(crate) fn read(
        &self,
        recorder: &mut Recorder,
        state: StateId,
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        let part = (&self.get(state)?.raw, 0, self.shape.state_bytes() as u64);
        Ok(recorder.read(&[part], |bytes| out.extend_from_slice(bytes))?)
    }

    pub(crate) fn write(
        &mut self,
        recorder: &mut Recorder,
        state: StateId,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let expected = self.shape.state_bytes();
        if bytes.len() != expected {
            return Err(EngineError::mismatch("bytes of a state", expected, bytes.len()));
        }
        recorder.submit()?;
        let buffer = self.place(state)?.clone();
        self.gpu.write(&buffer, 0, bytes);
        Ok(recorder.submit()?)
    }
}
