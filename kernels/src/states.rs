//! Recurrent states of one layer: so many vectors of floats.

use std::sync::Arc;

use nestling_core::EngineError;
use nestling_core::recurrent::{StateId, StateShape};

use crate::driver::{Address, DeviceMemory, Driver};
use crate::recorder::Recorder;

/// The states of one layer, allocated when first written.
pub struct CudaStates {
    driver: Arc<Driver>,
    pub(crate) shape: StateShape,
    states: Vec<Option<DeviceMemory>>, // [states], each [floats]
}

impl CudaStates {
    pub(crate) fn new(driver: &Arc<Driver>, shape: StateShape) -> Self {
        let states = (0..shape.states).map(|_| None).collect();
        Self { driver: Arc::clone(driver), shape, states }
    }

    fn missing(&self, state: StateId) -> EngineError {
        let expected = format!("a written state of {}", self.shape.states);
        EngineError::mismatch("recurrent state", expected, state.0)
    }

    /// A state that was written.
    ///
    /// # Errors
    /// A state that was not.
    pub(crate) fn get(&self, state: StateId) -> Result<Address, EngineError> {
        let found = self.states.get(state.0 as usize).and_then(Option::as_ref);
        Ok(found.ok_or_else(|| self.missing(state))?.address())
    }

    /// The memory of a state that is to be written.
    ///
    /// # Errors
    /// A state that the pool does not have; a device whose memory is full.
    pub(crate) fn place(&mut self, state: StateId) -> Result<Address, EngineError> {
        let missing = self.missing(state);
        let bytes = self.shape.state_bytes() as u64;
        let place = self.states.get_mut(state.0 as usize).ok_or(missing)?;
        if place.is_none() {
            *place = Some(self.driver.allocate("recurrent state", bytes)?);
        }
        self.get(state)
    }

    pub(crate) fn read(
        &self,
        recorder: &mut Recorder,
        state: StateId,
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        let part = (self.get(state)?, self.shape.state_bytes());
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
        let address = self.place(state)?;
        Ok(recorder.write(bytes, address)?)
    }
}
