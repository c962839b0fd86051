//! Memory of a device, and memory of the host that a device reads and writes by itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nestling_gpu::Allocation;

use super::{Address, Driver, DriverApi, cuda};
use crate::error::CudaError;

/// Memory of the device, given back when dropped.
pub struct DeviceMemory {
    driver: Arc<Driver>,
    address: Address,
    bytes: u64,
    is_work: bool,
}

/// Memory of the host that the device reads and writes by itself; the host reads it as fast as any
/// other.
pub(crate) struct PinnedMemory {
    driver: Arc<Driver>,
    raw: cuda::PinnedBytes,
}

impl DeviceMemory {
    /// What was just allocated.
    pub(super) fn new(driver: &Arc<Driver>, address: Address, bytes: u64, is_work: bool) -> Self {
        Self { driver: Arc::clone(driver), address, bytes, is_work }
    }

    pub fn address(&self) -> Address {
        self.address
    }

    /// Some of it is given away anew, and nothing uses it: an emulated device does not keep what lies there.
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
    /// What was just allocated.
    pub(super) fn new(driver: &Arc<Driver>, raw: cuda::PinnedBytes) -> Self {
        Self { driver: Arc::clone(driver), raw }
    }

    pub fn len(&self) -> usize {
        self.raw.bytes().len()
    }

    /// Where it is in the host's memory.
    pub fn start(&self) -> usize {
        self.raw.bytes().as_ptr().addr()
    }

    /// The first bytes, at most so many: nothing may be under way to them.
    pub fn bytes(&self, count: usize) -> &[u8] {
        let all = self.raw.bytes();
        let bytes = all.get(..count).unwrap_or(all);
        self.touch(bytes, false);
        bytes
    }

    /// Writes bytes, for which there is room: nothing may be under way from or to them.
    pub fn write(&mut self, start: usize, bytes: &[u8]) {
        let range = self.raw.part(start, bytes.len());
        if range.len() == bytes.len() {
            range.copy_from_slice(bytes);
        }
        if let Ok(range) = self.range(start, bytes.len()) {
            self.touch(range, true);
        }
    }

    /// An emulated device checks that it does not use these bytes at once.
    fn touch(&self, bytes: &[u8], writes: bool) {
        if let DriverApi::Emulated(emulated) = &self.driver.api
            && self.driver.check().is_ok()
        {
            self.driver.lose_by(emulated.touch(bytes, writes));
        }
    }

    /// # Errors
    /// A range that it does not have.
    pub(super) fn range(&self, start: usize, bytes: usize) -> Result<&[u8], CudaError> {
        let all = self.raw.bytes();
        let found = start.checked_add(bytes).and_then(|end| all.get(start..end));
        found.ok_or(CudaError::Limit {
            what: "bytes of pinned memory",
            limit: all.len() as u64,
            found: start as u64 + bytes as u64,
        })
    }

    /// As [`PinnedMemory::range`], to be written by the device.
    ///
    /// # Errors
    /// As [`PinnedMemory::range`].
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
