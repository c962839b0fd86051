//! An emulated device whose kernels are built by the host compiler. Used by tests on machines without a
//! device.

#![expect(unsafe_code, reason = "kernels are C++, and find memory by its address")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::CudaBackend;
use crate::devices::CudaDeviceError;
use crate::driver::{HostKernels, MemoryNote};
use crate::emulation::{Line, MemoryMap, Run, Schedule, launch};
use crate::error::CudaError;
use crate::params::Launch;

/// Options for running kernels on an emulated device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmulationOptions {
    /// Order of threads and blocks. With a random schedule, each launch gets a different order.
    pub schedule: Schedule,
    /// True if every access of a kernel is checked, which makes kernels three to four times slower.
    pub is_checked: bool,
    /// Memory budget in bytes, unlimited by default.
    pub device_budget: Option<u64>,
    /// Source line of a barrier that is skipped.
    pub ignored: Option<Line>,
}

impl CudaBackend {
    /// Opens an emulated device. It checks kernel arguments and results, not speed.
    ///
    /// # Errors
    /// Fails with [`CudaError::OutOfMemory`].
    pub fn emulated() -> Result<Self, CudaError> {
        Self::emulated_as(EmulationOptions::default())
    }

    /// Opens an emulated device with a memory budget of `bytes` bytes.
    ///
    /// # Errors
    /// Fails with [`CudaError::OutOfMemory`] or [`CudaError::OverBudget`].
    pub fn emulated_within(bytes: u64) -> Result<Self, CudaError> {
        Self::emulated_as(EmulationOptions { device_budget: Some(bytes), ..Default::default() })
    }

    /// Opens an emulated device with the given options.
    ///
    /// # Errors
    /// Fails with [`CudaError::OutOfMemory`] or [`CudaError::OverBudget`].
    pub fn emulated_as(options: EmulationOptions) -> Result<Self, CudaError> {
        let memory = options.is_checked.then(MemoryMap::default);
        let (budget, launches) = (options.device_budget, AtomicU64::new(0));
        Self::on_host(Arc::new(EmulatedKernels { options, memory, launches }), budget)
    }
}

struct EmulatedKernels {
    options: EmulationOptions,
    /// State of device memory, if accesses are checked.
    memory: Option<MemoryMap>,
    launches: AtomicU64,
}

impl HostKernels for EmulatedKernels {
    fn run(&self, shape: &Launch, params: &[u8], miss_flag: u64) -> Result<(), CudaError> {
        let schedule = match self.options.schedule {
            Schedule::Random(seed) => {
                let count = self.launches.fetch_add(1, Ordering::Relaxed);
                Schedule::Random(seed.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
            }
            fixed => fixed,
        };
        let (checks, ignored) = (self.memory.as_ref(), self.options.ignored.as_ref());
        let run = Run { schedule, checks, ignored, lines: None };
        // SAFETY: the addresses refer to memory that this crate's recorder keeps alive until the commands are
        // complete; the encoder checked its sizes.
        let done = unsafe { launch(shape, params, miss_flag, run) };
        done.map_err(|error| {
            let reason = format!("{error} (schedule: {:?})", self.options.schedule);
            CudaDeviceError::kernel(shape.kernel.name(), reason).into()
        })
    }

    fn note(&self, note: MemoryNote) {
        // Default: without checks, the state of memory is not tracked.
        let Some(memory) = &self.memory else { return };
        match note {
            MemoryNote::Allocated { address, bytes } => memory.allocated(address, bytes),
            MemoryNote::Freed { address } => memory.freed(address),
            MemoryNote::Written { address, bytes } => memory.written(address, bytes),
            MemoryNote::Copied { from, to, bytes } => memory.copied(from, to, bytes),
        }
    }
}
