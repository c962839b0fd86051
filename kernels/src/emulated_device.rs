//! A device of host memory whose kernels the host compiler built: for tests where there is no device.

#![expect(unsafe_code, reason = "kernels are C++, and find memory by its address")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::CudaBackend;
use crate::devices::CudaDeviceError;
use crate::driver::{HostKernels, MemoryNote};
use crate::emulation::{Line, MemoryMap, Run, Schedule, launch};
use crate::error::CudaError;
use crate::params::Launch;

/// How an emulated device runs kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmulationOptions {
    /// In which order threads and blocks run. Of one seed each kernel gets an order of its own.
    pub schedule: Schedule,
    /// Whether every access of a kernel is looked at, which takes three to four times as long.
    pub is_checked: bool,
    /// Bytes of memory that may be used; all that there are by default.
    pub device_budget: Option<u64>,
    /// A barrier that nobody waits at, by its line.
    pub ignored: Option<Line>,
}

impl CudaBackend {
    /// Opens an emulated device: it checks what kernels are given and what they compute, not speed.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn emulated() -> Result<Self, CudaError> {
        Self::emulated_as(EmulationOptions::default())
    }

    /// [`CudaBackend::emulated`] with so many bytes of memory.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::OverBudget`].
    pub fn emulated_within(bytes: u64) -> Result<Self, CudaError> {
        Self::emulated_as(EmulationOptions { device_budget: Some(bytes), ..Default::default() })
    }

    /// [`CudaBackend::emulated`] with kernels run in some way.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::OverBudget`].
    pub fn emulated_as(options: EmulationOptions) -> Result<Self, CudaError> {
        let memory = options.is_checked.then(MemoryMap::default);
        let (budget, launches) = (options.device_budget, AtomicU64::new(0));
        Self::on_host(Arc::new(EmulatedKernels { options, memory, launches }), budget)
    }
}

struct EmulatedKernels {
    options: EmulationOptions,
    /// What is known of it, where accesses are looked at.
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
        // SAFETY: addresses come from memory that this crate's recorder keeps until commands are done, with
        // sizes that its encoder checked.
        let done = unsafe { launch(shape, params, miss_flag, run) };
        done.map_err(|error| {
            let reason = format!("{error} (schedule: {:?})", self.options.schedule);
            CudaDeviceError::kernel(shape.kernel.name(), reason).into()
        })
    }

    fn note(&self, note: MemoryNote) {
        // Default: without checks nobody asks what memory holds.
        let Some(memory) = &self.memory else { return };
        match note {
            MemoryNote::Allocated { address, bytes } => memory.allocated(address, bytes),
            MemoryNote::Freed { address } => memory.freed(address),
            MemoryNote::Written { address, bytes } => memory.written(address, bytes),
            MemoryNote::Copied { from, to, bytes } => memory.copied(from, to, bytes),
        }
    }
}
