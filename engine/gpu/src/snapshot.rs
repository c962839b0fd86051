//! Copying, reading and writing of KV pages and recurrent states, as used by snapshots.

use nestling_core::EngineError;
use nestling_core::kv_cache::PageId;
use nestling_core::recurrent::StateId;

use crate::command_recorder::CommandRecorder;
use crate::device::Device;
use crate::expect;
use crate::pages::GpuPages;
use crate::states::GpuStates;

/// Records a write after all recorded commands and submits them.
fn restore<D: Device>(device: &mut D, bytes: &[u8], to: &D::Binding) -> Result<(), EngineError> {
    let recorder = device.recorder();
    recorder.write(bytes, to, 0)?;
    Ok(recorder.submit()?)
}

impl<D: Device> GpuPages<D> {
    /// Copies a page.
    ///
    /// # Errors
    /// Returns an error if the source was not written, the destination is out of range, or the device is lost
    /// or out of memory.
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

    /// Appends the contents of a page to `out`.
    ///
    /// # Errors
    /// Returns an error if the page was not written or the device is lost.
    pub fn read(&self, device: &mut D, page: PageId, out: &mut Vec<u8>) -> Result<(), EngineError> {
        let part = (self.get(page)?, self.shape.page_bytes() as u64);
        Ok(device.recorder().read(&[part], |bytes| out.extend_from_slice(bytes))?)
    }

    /// Writes the contents of a page.
    ///
    /// # Errors
    /// Returns an error if the page is out of range, the length is wrong, or the device is lost or out of
    /// memory.
    pub fn write(&mut self, device: &mut D, page: PageId, bytes: &[u8]) -> Result<(), EngineError> {
        expect("bytes of a page", self.shape.page_bytes(), bytes.len())?;
        let page = self.prepare(device, page)?;
        restore(device, bytes, &page)
    }
}

impl<D: Device> GpuStates<D> {
    /// Appends the contents of a state to `out`.
    ///
    /// # Errors
    /// Returns an error if the state was not written or the device is lost.
    pub fn read(
        &self,
        device: &mut D,
        state: StateId,
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        let part = (self.get(state)?, self.shape.state_bytes() as u64);
        Ok(device.recorder().read(&[part], |bytes| out.extend_from_slice(bytes))?)
    }

    /// Writes the contents of a state.
    ///
    /// # Errors
    /// Returns an error if the state is out of range, the length is wrong, or the device is lost or out of
    /// memory.
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
