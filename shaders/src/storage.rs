//! Memory of the device for what both GPU backends share.

use std::sync::Arc;

use nestling_core::EngineError;
use nestling_core::kv_cache::KvShape;
use nestling_gpu::{GpuFloats, GpuPages, Storage};

use crate::backend::WgpuBackend;
use crate::device::{Gpu, Memory, size_of};
use crate::error::WgpuError;
use crate::expert_table::WgpuEntries;
use crate::recorder::Binding;
use crate::slabs::{Place, Slabs};

/// Shared by everything that an open device serves.
pub(crate) type SharedGpu = Arc<Gpu>;

/// Chunks that the pages of one layer lie in: what a shader sees at once.
pub(crate) const CHUNKS: usize = 4;

impl Storage for WgpuBackend {
    type Binding = Binding;
    type Memory = Memory;
    type Place = Place;
    type TableEntries = WgpuEntries;

    const KEEPS_INT8: bool = false;

    fn allocation_bytes_max(&self) -> u64 {
        self.gpu.binding_bytes_max()
    }

    fn roomy_bytes(&self, bytes: u64) -> u64 {
        // Under a budget nothing is taken that was not reserved.
        match self.gpu.budget.total_bytes() {
            Some(_) => bytes,
            None => bytes.next_power_of_two().min(self.gpu.binding_bytes_max()).max(bytes),
        }
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
        // A budget has no room for both, the old and the new.
        *memory = self.gpu.buffer(what, 0)?;
        *memory = self.gpu.buffer(what, bytes)?;
        Ok(())
    }

    fn upload(&mut self, what: &'static str, bytes: &[u8]) -> Result<Memory, EngineError> {
        Ok(self.gpu.upload(what, bytes)?)
    }

    fn bytes(memory: &Memory) -> u64 {
        memory.raw.size()
    }

    fn binding(memory: &Memory) -> Binding {
        Binding::from(memory)
    }

    fn range(memory: &Memory, offset: u64, bytes: u64) -> Binding {
        Binding { buffer: memory.raw.clone(), offset, size: Some(bytes) }
    }

    fn weights(place: &Place, bytes: u64) -> Binding {
        Binding { buffer: place.buffer.clone(), offset: place.offset, size: Some(bytes) }
    }

    fn epoch(&self) -> u64 {
        0
    }
}

/// Uploads a vector, before whatever is submitted next.
///
/// # Errors
/// A device whose memory is full.
pub(crate) fn floats(
    gpu: &Gpu,
    slabs: &Slabs,
    values: &[f32],
) -> Result<GpuFloats<WgpuBackend>, EngineError> {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    let place = slabs.place(gpu, bytes.len() as u64)?;
    gpu.write(&place.buffer, place.offset, bytes);
    Ok(GpuFloats { place, count: values.len() })
}

/// The pages of one layer, in at most [`CHUNKS`] chunks.
///
/// # Errors
/// A shape that shaders do not read; a chunk that is larger than a binding.
pub(crate) fn pages(gpu: &Gpu, shape: KvShape) -> Result<GpuPages<WgpuBackend>, EngineError> {
    let pages = GpuPages::new(shape, chunk_pages(&shape))?;
    let (found, limit) = (pages.chunk_pages * shape.page_bytes(), gpu.binding_bytes_max());
    if found as u64 > limit {
        let what = "bytes of a quarter of a layer's keys and values";
        return Err(WgpuError::Limit { what, limit, found: found as u64 }.into());
    }
    Ok(pages)
}

fn chunk_pages(shape: &KvShape) -> usize {
    shape.pages.div_ceil(CHUNKS).max(1)
}

/// Bytes of all pages, in whole chunks.
pub(crate) fn pool_bytes(shape: &KvShape) -> u64 {
    let chunk_pages = chunk_pages(shape);
    let chunk = size_of((chunk_pages * shape.page_bytes()) as u64);
    shape.pages.div_ceil(chunk_pages) as u64 * chunk + size_of(0)
}
