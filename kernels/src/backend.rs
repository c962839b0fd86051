//! The CUDA backend.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nestling_core::EngineError;
use nestling_gpu::{EncoderState, WorkRates, measure_rates};

use crate::compile::KernelImages;
use crate::devices::CudaDeviceChoice;
use crate::driver::{Driver, GraphCounts, HostLaunch};
use crate::error::CudaError;
use crate::kernel::Kernel;
use crate::recorder::{ARENA_BYTES, Recorder, Recording};

/// Options for opening a device.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Device to use.
    pub device: CudaDeviceChoice,
    /// Device memory budget in bytes, for all allocations. `None` means all free memory.
    pub device_budget: Option<u64>,
    /// Bytes of pinned host memory for expert planes that do not fit on the device. Evicted planes are copied
    /// there and reloaded from there instead of from disk.
    pub host_bytes: u64,
    /// Folder of the on-disk cache of compiled kernels.
    pub kernel_cache: Option<PathBuf>,
}

/// A backend on a device. Several backends can share a device through [`CudaBackend::again`]; each records
/// its own steps.
pub struct CudaBackend {
    pub(crate) driver: Arc<Driver>,
    pub(crate) recorder: Recorder,
    pub(crate) state: EncoderState<Self>,
    memory_bytes: Option<u64>,
    host_bytes: AtomicU64,
}

impl CudaBackend {
    /// Opens a device and loads all kernels, compiling those without an embedded image. Also measures the
    /// device's speed to bound the duration of launches.
    ///
    /// # Errors
    /// Fails with [`CudaDeviceError`](crate::CudaDeviceError), or if the driver refuses a call.
    pub fn open(options: &CudaOptions) -> Result<Self, CudaError> {
        let images = KernelImages::new(options.kernel_cache.clone());
        let driver = Driver::open(&options.device, images, options.device_budget)?;
        let memory_bytes = Some(driver.budget());
        let recording = Recording { arena_bytes: ARENA_BYTES, rates: WorkRates::UNWATCHED };
        let mut opened = Self::on(driver, memory_bytes, options.host_bytes, recording)?;
        opened.recorder.meter.rates = opened.measured_work_rates().unwrap_or(WorkRates::UNKNOWN);
        Ok(opened)
    }

    /// Creates an emulated device in host memory, whose kernels `launch` runs. Used by tests on machines
    /// without a device. Operations run when the host waits, or earlier, in a random order
    /// ([`CudaBackend::reorder`]). Unordered accesses to the same memory make the device fail as lost.
    ///
    /// # Errors
    /// Fails with [`CudaError::OutOfMemory`].
    pub fn on_host(launch: HostLaunch, device_budget: Option<u64>) -> Result<Self, CudaError> {
        let driver = Driver::emulated(launch, device_budget);
        let recording = Recording { arena_bytes: ARENA_BYTES, rates: WorkRates::UNWATCHED };
        Self::on(driver, device_budget, 0, recording)
    }

    fn on(
        driver: Arc<Driver>,
        memory_bytes: Option<u64>,
        host_bytes: u64,
        recording: Recording,
    ) -> Result<Self, CudaError> {
        let recorder = Recorder::new(&driver, host_bytes, recording)?;
        let (state, host_bytes) = (EncoderState::default(), AtomicU64::new(host_bytes));
        Ok(Self { driver, recorder, state, memory_bytes, host_bytes })
    }

    /// Returns the memory budget in bytes: the smaller of the given budget and the memory that was free when
    /// the device was opened. Returns `None` for an emulated device without a budget.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.memory_bytes
    }

    /// Returns the bytes of device memory allocated by all backends on this device.
    pub fn allocated_bytes(&self) -> u64 {
        self.driver.allocated_bytes()
    }

    /// Returns the numbers of captured graphs and graph launches, of all backends on this device.
    pub fn graph_counts(&self) -> GraphCounts {
        self.driver.graph_counts()
    }

    /// Iterates over the kernels that any backend on this device has recorded.
    pub fn recorded_kernels(&self) -> impl Iterator<Item = Kernel> + use<> {
        self.driver.recorded()
    }

    /// Marks the device as lost. Later operations fail with [`EngineError::DeviceLost`].
    pub fn destroy(&self) {
        self.driver.lose("it was given up");
    }

    /// Makes an emulated device ([`CudaBackend::on_host`]) fail as lost after `kernels` more kernels. Used by
    /// tests.
    pub fn lose_after(&self, kernels: u64) {
        self.driver.lose_after(kernels);
    }

    /// Reseeds the random order of operations of an emulated device ([`CudaBackend::on_host`]). Used by
    /// tests.
    pub fn reorder(&self, seed: u64) {
        self.driver.reorder(seed);
    }

    /// Delays asynchronous copies of an emulated device ([`CudaBackend::on_host`]). They are reported as
    /// complete only after a wait, or after `questions` queries. Used by tests.
    pub fn delay_copies(&self, questions: u64) {
        self.driver.delay_copies(questions);
    }

    /// Creates a backend on the same device with an arena of `arena_bytes` bytes, at least 4 KiB. The arena
    /// stores row and page tables. Used to test steps whose tables do not fit.
    ///
    /// # Errors
    /// Returns an error if the device is out of memory.
    pub fn with_arena_bytes(&self, arena_bytes: usize) -> Result<Self, CudaError> {
        let host_bytes = self.host_bytes.load(Ordering::Relaxed);
        let arena_bytes = arena_bytes.max(4096);
        let recording = Recording { arena_bytes, rates: self.recorder.meter.rates };
        Self::on(Arc::clone(&self.driver), self.memory_bytes, host_bytes, recording)
    }

    /// Creates a backend on the same device that assumes `per_second` multiplications per second. Used to
    /// test work that is split into many launches.
    ///
    /// # Errors
    /// Returns an error if the device is out of memory.
    pub fn with_work_rate(&self, per_second: u64) -> Result<Self, CudaError> {
        let mut other = self.again()?;
        other.recorder.meter.rates = WorkRates::uniform(per_second);
        Ok(other)
    }

    /// Measures and returns the current speed of the device.
    ///
    /// # Errors
    /// Returns an error if the device is lost or out of memory.
    pub fn measured_work_rates(&self) -> Result<WorkRates, EngineError> {
        let mut other = self.with_host_bytes(0)?;
        other.recorder.meter.rates = WorkRates::UNWATCHED;
        measure_rates(&mut other)
    }

    /// Creates another backend on the same device.
    ///
    /// # Errors
    /// Returns an error if the device is out of memory.
    pub fn again(&self) -> Result<Self, CudaError> {
        self.with_host_bytes(self.host_bytes.load(Ordering::Relaxed))
    }

    /// Creates another backend on the same device with different [`CudaOptions::host_bytes`].
    ///
    /// # Errors
    /// Returns an error if the device is out of memory.
    pub fn with_host_bytes(&self, host_bytes: u64) -> Result<Self, CudaError> {
        let recording = Recording { arena_bytes: ARENA_BYTES, rates: self.recorder.meter.rates };
        Self::on(Arc::clone(&self.driver), self.memory_bytes, host_bytes, recording)
    }

    /// Sets [`CudaOptions::host_bytes`] of backends that [`CudaBackend::again`] creates later.
    pub fn set_host_bytes(&self, host_bytes: u64) {
        self.host_bytes.store(host_bytes, Ordering::Relaxed);
    }

    /// Returns the current [`CudaOptions::host_bytes`].
    pub(crate) fn host_bytes(&self) -> u64 {
        self.host_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes of host memory pinned for planes and transfers by all backends on this device.
    pub fn pinned_bytes(&self) -> u64 {
        self.driver.pinned_bytes()
    }
}
