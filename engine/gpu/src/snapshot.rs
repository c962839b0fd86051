//! Pages and states as bytes: copies of them, and what snapshots read and write.

use nestling_core::EngineError;
use nestling_core::kv_cache::PageId;
use nestling_core::recurrent::StateId;

use crate::command_recorder::CommandRecorder;
use crate::device::Device;
use crate::expect;
use crate::pages::GpuPages;
use crate::states::GpuStates;

/// Writes bytes behind all that was recorded, and starts the device on them.
fn restore<D: Device>(device: &mut D, bytes: &[u8], to: &D::Binding) -> Result<(), EngineError> {
    let recorder = device.recorder();
    recorder.write(bytes, to, 0)?;
    Ok(recorder.submit()?)
}

impl<D: Device> GpuPages<D> {
    /// Copies a page.
    ///
    /// # Errors
    /// Pages that the pool does not have; a device that is lost or whose memory is full.
    pub fn copy(
        &mut self,
        device: &mut D,
        source: PageId,
        destination: PageId,
    ) -> Result<(), EngineError> {
        let from = self.get(source)?;
        let to = self.prepare(device, destination)?;
        if source == destination {
            return Ok(());
        }
        device.recorder().copy(&from, &to, self.shape.page_bytes() as u64)?;
        Ok(device.recorder().submit()?)
    }

    /// Appends the bytes of a page.
    ///
    /// # Errors
    /// A page that was not written; a device that is lost.
    pub fn read(&self, device: &mut D, page: PageId, out: &mut Vec<u8>) -> Result<(), EngineError> {
        let part = (self.get(page)?, self.shape.page_bytes() as u64);
        Ok(device.recorder().read(&[part], |bytes| out.extend_from_slice(bytes))?)
    }

    /// Writes the bytes of a page.
    ///
    /// # Errors
    /// A page that the pool does not have; bytes of another length; a device that is lost or whose
    /// memory is full.
    pub fn write(&mut self, device: &mut D, page: PageId, bytes: &[u8]) -> Result<(), EngineError> {
        expect("bytes of a page", self.shape.page_bytes(), bytes.len())?;
        let page = self.prepare(device, page)?;
        restore(device, bytes, &page)
    }
}

impl<D: Device> GpuStates<D> {
    /// Appends the bytes of a state.
    ///
    /// # Errors
    /// A state that was not written; a device that is lost.
    pub fn read(
        &self,
        device: &mut D,
        state: StateId,
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        let part = (self.get(state)?, self.shape.state_bytes() as u64);
        Ok(device.recorder().read(&[part], |bytes| out.extend_from_slice(bytes))?)
    }

    /// Writes the bytes of a state.
    ///
    /// # Errors
    /// A state that the pool does not have; bytes of another length; a device that is lost or whose
    /// memory is full.
    pub fn write(
        &mut self,
        device: &mut D,
        state: StateId,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        expect("bytes of a state", self.shape.state_bytes(), bytes.len())?;
        let state = self.prepare(device, state)?;
        restore(device, bytes, &state)
    }
}
