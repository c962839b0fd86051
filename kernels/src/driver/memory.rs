//! Device memory and pinned host memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nestling_gpu::Allocation;

use super::{Address, Driver, DriverApi, cuda};
use crate::error::CudaError;

/// Device memory, freed on drop.
pub struct DeviceMemory {
    driver: Arc<Driver>,
    address: Address,
    bytes: u64,
    is_work: bool,
}

/// Host memory that the device accesses directly. The host reads it at full speed.
pub(crate) struct PinnedMemory {
    driver: Arc<Driver>,
    raw: cuda::PinnedBytes,
}

impl DeviceMemory {
    /// Wraps allocated memory.
    pub(super) fn new(driver: &Arc<Driver>, address: Address, bytes: u64, is_work: bool) -> Self {
        Self { driver: Arc::clone(driver), address, bytes, is_work }
    }

    pub fn address(&self) -> Address {
        self.address
    }

    /// Invalidates a range on an emulated device, because it is about to be reassigned and must be unused.
    pub fn forget(&self, offset: u64, bytes: u64) {
        if let DriverApi::Emulated(emulated) = &self.driver.api
            && self.driver.check().is_ok()
        {
            self.driver.lose_by(emulated.forget(self.address + offset, bytes));
        }
    }
}

impl Allocation for DeviceMemory {
    type Binding = Address;

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn binding(&self) -> Address {
        self.address
    }

    fn range(&self, offset: u64, _bytes: u64) -> Address {
        self.address + offset
    }
}

impl PinnedMemory {
    /// Wraps allocated memory.
    pub(super) fn new(driver: &Arc<Driver>, raw: cuda::PinnedBytes) -> Self {
        Self { driver: Arc::clone(driver), raw }
    }

    pub fn len(&self) -> usize {
        self.raw.bytes().len()
    }

    /// Returns the host address of the first byte.
    pub fn start(&self) -> usize {
        self.raw.bytes().as_ptr().addr()
    }

    /// Returns up to `count` bytes from the start. No copy to them may be pending.
    pub fn bytes(&self, count: usize) -> &[u8] {
        let all = self.raw.bytes();
        let bytes = all.get(..count).unwrap_or(all);
        self.touch(bytes, false);
        bytes
    }

    /// Writes bytes, which must fit. No copy from or to them may be pending.
    pub fn write(&mut self, start: usize, bytes: &[u8]) {
        let range = self.raw.part(start, bytes.len());
        if range.len() == bytes.len() {
            range.copy_from_slice(bytes);
        }
        if let Ok(range) = self.range(start, bytes.len()) {
            self.touch(range, true);
        }
    }

    /// Checks on an emulated device that no pending operation conflicts with an access of the host.
    fn touch(&self, bytes: &[u8], writes: bool) {
        if let DriverApi::Emulated(emulated) = &self.driver.api
            && self.driver.check().is_ok()
        {
            self.driver.lose_by(emulated.touch(bytes, writes));
        }
    }

    /// Returns a range of the memory.
    ///
    /// # Errors
    /// Returns an error if the range is out of bounds.
    pub(super) fn range(&self, start: usize, bytes: usize) -> Result<&[u8], CudaError> {
        let all = self.raw.bytes();
        let found = start.checked_add(bytes).and_then(|end| all.get(start..end));
        found.ok_or(CudaError::Limit {
            what: "bytes of pinned memory",
            limit: all.len() as u64,
            found: start as u64 + bytes as u64,
        })
    }

    /// Returns a range of the memory that the device is to write.
    ///
    /// # Errors
    /// Fails like [`PinnedMemory::range`].
    pub(super) fn part(&mut self, start: usize, bytes: usize) -> Result<&mut [u8], CudaError> {
        self.range(start, bytes)?;
        Ok(self.raw.part(start, bytes))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.driver.allocated.fetch_sub(self.bytes, Ordering::Relaxed);
        let work = if self.is_work { self.bytes } else { 0 };
        self.driver.work.fetch_sub(work, Ordering::Relaxed);
        match &self.driver.api {
            DriverApi::Cuda(cuda) => cuda.free(self.address),
            DriverApi::Emulated(emulated) => self.driver.lose_by(emulated.free(self.address)),
        }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        self.driver.pinned.fetch_sub(self.len() as u64, Ordering::Relaxed);
        match &self.driver.api {
            DriverApi::Cuda(cuda) => cuda.free_pinned(&mut self.raw),
            DriverApi::Emulated(emulated) => {
                let freed = emulated.free_pinned(&mut self.raw);
                self.driver.lose_by(freed);
            }
        }
    }
}
