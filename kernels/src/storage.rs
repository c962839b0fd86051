//! Implements the device memory trait of both GPU backends.

use nestling_core::EngineError;
use nestling_core::kv_cache::KvShape;
use nestling_gpu::{CommandRecorder, Purpose, Storage};

use crate::backend::CudaBackend;
use crate::driver::{Address, DeviceMemory};
use crate::expert_table::CudaEntries;
use crate::found_blocks::FoundBlocks;
use crate::slabs::SlabRange;

/// Number of KV pages allocated at once.
const CHUNK_PAGES: usize = 64;

impl Storage for CudaBackend {
    type Binding = Address;
    type Memory = DeviceMemory;
    type TableEntries = CudaEntries;
    type FoundBlocks = FoundBlocks;

    const KEEPS_INT8: bool = true;

    fn allocation_bytes_max(&self) -> u64 {
        u64::MAX
    }

    fn roomy_bytes(&self, bytes: u64) -> u64 {
        bytes.next_power_of_two()
    }

    fn chunk_pages(_shape: &KvShape) -> usize {
        CHUNK_PAGES
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
        self.recorder.overwrite(bytes, &memory.address(), 0)?;
        Ok(memory)
    }

    fn upload_weights(
        &mut self,
        _purpose: Purpose,
        bytes: &[u8],
    ) -> Result<SlabRange, EngineError> {
        Ok(self.recorder.upload(bytes)?)
    }

    fn epoch(&self) -> u64 {
        self.recorder.epoch()
    }
}
