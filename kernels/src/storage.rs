//! Memory of the device for what both GPU backends share.

use nestling_core::EngineError;
use nestling_gpu::{GpuFloats, Storage};

use crate::backend::CudaBackend;
use crate::driver::{Address, DeviceMemory};
use crate::expert_table::CudaEntries;
use crate::recorder::Recorder;
use crate::slabs::Place;

/// KV pages that are allocated at once.
pub(crate) const CHUNK_PAGES: usize = 64;

impl Storage for CudaBackend {
    type Binding = Address;
    type Memory = DeviceMemory;
    type Place = Place;
    type TableEntries = CudaEntries;

    const KEEPS_INT8: bool = true;

    fn allocation_bytes_max(&self) -> u64 {
        u64::MAX
    }

    fn roomy_bytes(&self, bytes: u64) -> u64 {
        bytes.next_power_of_two()
    }

    fn allocate(&mut self, what: &'static str, bytes: u64) -> Result<DeviceMemory, EngineError> {
        Ok(self.driver.allocate(what, bytes)?)
    }

    fn reallocate(
        &mut self,
        memory: &mut DeviceMemory,
        what: &'static str,
        bytes: u64,
    ) -> Result<(), EngineError> {
        let larger = self.driver.allocate(what, bytes)?;
        self.recorder.retire(Some(std::mem::replace(memory, larger)));
        Ok(())
    }

    fn upload(&mut self, what: &'static str, bytes: &[u8]) -> Result<DeviceMemory, EngineError> {
        let memory = self.driver.allocate(what, bytes.len() as u64)?;
        self.recorder.overwrite(bytes, memory.address())?;
        Ok(memory)
    }

    fn bytes(memory: &DeviceMemory) -> u64 {
        memory.bytes()
    }

    fn binding(memory: &DeviceMemory) -> Address {
        memory.address()
    }

    fn range(memory: &DeviceMemory, offset: u64, _bytes: u64) -> Address {
        memory.address() + offset
    }

    fn weights(place: &Place, _bytes: u64) -> Address {
        place.address()
    }

    fn epoch(&self) -> u64 {
        self.recorder.epoch()
    }
}

/// Uploads a vector, for whatever is recorded from now on.
///
/// # Errors
/// A device that is lost or whose memory is full.
pub(crate) fn floats(
    recorder: &mut Recorder,
    values: &[f32],
) -> Result<GpuFloats<CudaBackend>, EngineError> {
    let place = recorder.upload(bytemuck::cast_slice(values))?;
    Ok(GpuFloats { place, count: values.len() })
}
