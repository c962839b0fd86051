//! A device as the engine's backend.

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

/// How a device is opened.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Which device.
    pub device: CudaDeviceChoice,
    /// Bytes of device memory that may be allocated, for weights, experts, pages and all else; none for
    /// what is free.
    pub device_budget: Option<u64>,
    /// Bytes of the host's memory, pinned, that planes of experts may lie in for which the device has no
    /// room: what leaves the device goes there, and comes back from there and not from the disk.
    pub host_bytes: u64,
    /// Folder where compiled kernels are kept from one start to the next.
    pub kernel_cache: Option<PathBuf>,
}

/// A device. Several may share one ([`CudaBackend::again`]), each with steps of its own.
pub struct CudaBackend {
    pub(crate) driver: Arc<Driver>,
    pub(crate) recorder: Recorder,
    pub(crate) state: EncoderState<Self>,
    memory_bytes: Option<u64>,
    host_bytes: AtomicU64,
}

impl CudaBackend {
    /// Opens a device, loads every kernel, compiled where the build has none for it, and measures how fast it
    /// computes, so that no launch takes too long.
    ///
    /// # Errors
    /// [`CudaDeviceError`](crate::CudaDeviceError); what the driver refuses.
    pub fn open(options: &CudaOptions) -> Result<Self, CudaError> {
        let images = KernelImages::new(options.kernel_cache.clone());
        let driver = Driver::open(&options.device, images, options.device_budget)?;
        let memory_bytes = Some(driver.budget());
        let recording = Recording { arena_bytes: ARENA_BYTES, rates: WorkRates::UNWATCHED };
        let mut opened = Self::on(driver, memory_bytes, options.host_bytes, recording)?;
        opened.recorder.meter.rates = opened.measured_work_rates().unwrap_or(WorkRates::UNKNOWN);
        Ok(opened)
    }

    /// A device of host memory, whose kernels `launch` runs: for tests where there is no device. What streams
    /// are given runs when somebody waits, or before, in an order that is drawn by lot
    /// ([`CudaBackend::reorder`]); what uses the same memory without an order makes the device lost.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
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

    /// Bytes of device memory that may be used: the budget that was given, or what was free when the
    /// device was opened.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.memory_bytes
    }

    /// Bytes of device memory that are allocated, by all backends on this device.
    pub fn allocated_bytes(&self) -> u64 {
        self.driver.allocated_bytes()
    }

    /// Steps that became graphs and steps that were started as one, of all backends on this device.
    pub fn graph_counts(&self) -> GraphCounts {
        self.driver.graph_counts()
    }

    /// Kernels that all backends on this device recorded so far.
    pub fn recorded_kernels(&self) -> impl Iterator<Item = Kernel> + use<> {
        self.driver.recorded()
    }

    /// Gives the device up, with all that it holds: whatever still uses it fails with
    /// [`EngineError::DeviceLost`].
    pub fn destroy(&self) {
        self.driver.lose("it was given up");
    }

    /// Has a device of host memory ([`CudaBackend::on_host`]) be lost when so many kernels more were run:
    /// for tests.
    pub fn lose_after(&self, kernels: u64) {
        self.driver.lose_after(kernels);
    }

    /// Has a device of host memory ([`CudaBackend::on_host`]) draw by another lot what runs next: for tests.
    pub fn reorder(&self, seed: u64) {
        self.driver.reorder(seed);
    }

    /// Has a device of host memory ([`CudaBackend::on_host`]) say that copies that no step waits for are done
    /// only when somebody waited for them, or has asked so often: for tests.
    pub fn delay_copies(&self, questions: u64) {
        self.driver.delay_copies(questions);
    }

    /// Another backend on the same device, with so many bytes for tables of rows and pages, at least 4 KiB:
    /// for tests of steps whose tables do not fit.
    ///
    /// # Errors
    /// A device whose memory is full.
    pub fn with_arena_bytes(&self, arena_bytes: usize) -> Result<Self, CudaError> {
        let host_bytes = self.host_bytes.load(Ordering::Relaxed);
        let arena_bytes = arena_bytes.max(4096);
        let recording = Recording { arena_bytes, rates: self.recorder.meter.rates };
        Self::on(Arc::clone(&self.driver), self.memory_bytes, host_bytes, recording)
    }

    /// Another backend on the same device, which is taken to do so many multiplications a second: for tests
    /// of work that is cut into many launches.
    ///
    /// # Errors
    /// A device whose memory is full.
    pub fn with_work_rate(&self, per_second: u64) -> Result<Self, CudaError> {
        let mut other = self.again()?;
        other.recorder.meter.rates = WorkRates::uniform(per_second);
        Ok(other)
    }

    /// How fast the device computes now.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full.
    pub fn measured_work_rates(&self) -> Result<WorkRates, EngineError> {
        let mut other = self.with_host_bytes(0)?;
        other.recorder.meter.rates = WorkRates::UNWATCHED;
        measure_rates(&mut other)
    }

    /// Another backend on the same device.
    ///
    /// # Errors
    /// A device whose memory is full.
    pub fn again(&self) -> Result<Self, CudaError> {
        self.with_host_bytes(self.host_bytes.load(Ordering::Relaxed))
    }

    /// Another one, with other [`CudaOptions::host_bytes`].
    ///
    /// # Errors
    /// A device whose memory is full.
    pub fn with_host_bytes(&self, host_bytes: u64) -> Result<Self, CudaError> {
        let recording = Recording { arena_bytes: ARENA_BYTES, rates: self.recorder.meter.rates };
        Self::on(Arc::clone(&self.driver), self.memory_bytes, host_bytes, recording)
    }

    /// Makes [`CudaOptions::host_bytes`] others for those that [`CudaBackend::again`] gives from now on.
    pub fn set_host_bytes(&self, host_bytes: u64) {
        self.host_bytes.store(host_bytes, Ordering::Relaxed);
    }

    /// [`CudaOptions::host_bytes`] as they are now.
    pub(crate) fn host_bytes(&self) -> u64 {
        self.host_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the host's memory that are pinned for planes and transfers, by all backends on this device.
    pub fn pinned_bytes(&self) -> u64 {
        self.driver.pinned_bytes()
    }
}
