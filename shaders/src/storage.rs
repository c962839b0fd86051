//! Implements the device memory trait of both GPU backends.

use nestling_core::EngineError;
use nestling_core::kv_cache::KvShape;
use nestling_gpu::{Purpose, Storage, WeightRange};

use crate::backend::WgpuBackend;
use crate::device::{Memory, size_of};
use crate::expert_table::WgpuEntries;
use crate::found_blocks::FoundBlocks;
use crate::recorder::Binding;

/// Number of chunks that contain a layer's pages. A shader binds all of them.
pub(crate) const CHUNKS: usize = 4;

impl Storage for WgpuBackend {
    type Binding = Binding;
    type Memory = Memory;
    type TableEntries = WgpuEntries;
    type FoundBlocks = FoundBlocks;

    const KEEPS_INT8: bool = false;

    fn allocation_bytes_max(&self) -> u64 {
        self.gpu.binding_bytes_max()
    }

    fn roomy_bytes(&self, bytes: u64) -> u64 {
        // Under a budget, allocations must not exceed the reserved size.
        match self.gpu.budget.total_bytes() {
            Some(_) => bytes,
            None => bytes.next_power_of_two().min(self.gpu.binding_bytes_max()).max(bytes),
        }
    }

    fn chunk_pages(shape: &KvShape) -> usize {
        shape.pages.div_ceil(CHUNKS).max(1)
    }

    fn allocate(&mut self, what: &'static str, bytes: u64) -> Result<Memory, EngineError> {
        Ok(self.gpu.buffer(what, bytes)?)
    }

    fn reallocate(
        &mut self,
        memory: &mut Memory,
        what: &'static str,
        bytes: u64,
    ) -> Result<(), EngineError> {
        // The old memory is freed first, since a budget may not fit both.
        *memory = self.gpu.buffer(what, 0)?;
        *memory = self.gpu.buffer(what, bytes)?;
        Ok(())
    }

    fn upload(&mut self, what: &'static str, bytes: &[u8]) -> Result<Memory, EngineError> {
        Ok(self.gpu.upload(what, bytes)?)
    }

    fn upload_weights(
        &mut self,
        purpose: Purpose,
        bytes: &[u8],
    ) -> Result<WeightRange<Memory>, EngineError> {
        let slabs = match purpose {
            Purpose::Weights => &mut self.recorder.slabs,
            Purpose::Work => &mut self.recorder.late_slabs,
        };
        let range = slabs.range(&self.gpu, bytes.len() as u64)?;
        self.gpu.write(range.memory(), range.offset(), bytes);
        Ok(range)
    }

    fn epoch(&self) -> u64 {
        0
    }
}

/// Returns the bytes of all pages, in whole chunks.
pub(crate) fn pool_bytes(shape: &KvShape) -> u64 {
    let chunk_pages = WgpuBackend::chunk_pages(shape);
    let chunk = size_of((chunk_pages * shape.page_bytes()) as u64);
    shape.pages.div_ceil(chunk_pages) as u64 * chunk + size_of(0)
}
