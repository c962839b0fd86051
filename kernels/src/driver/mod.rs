//! Driver interface of the backend, with two implementations: a device accessed through the CUDA driver, and
//! an emulated device in host memory for tests on machines without one.

pub(crate) mod commands;
pub(crate) mod cuda;
pub(crate) mod emulated;
mod host;
mod memory;

pub use self::host::{HostKernels, HostLaunch, MemoryNote};
pub(crate) use self::memory::{DeviceMemory, PinnedMemory};

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nestling_core::sync::whole;

use self::commands::Commands;
use self::cuda::Cuda;
use self::emulated::EmulatedDevice;
use crate::compile::KernelImages;
use crate::devices::CudaDeviceChoice;
use crate::error::CudaError;
use crate::kernel::Kernel;

/// A device address.
pub(crate) type Address = u64;

/// An open device. Its memory, streams and events keep it alive.
pub(crate) struct Driver {
    api: DriverApi,
    name: String,
    lost: Mutex<Option<String>>,
    allocated: AtomicU64,
    /// Maximum number of allocated bytes.
    budget: u64,
    /// Bytes allocated for steps and sessions, and their expected maximum.
    work: AtomicU64,
    reserved: AtomicU64,
    pinned: AtomicU64,
    captured: AtomicU64,
    replayed: AtomicU64,
    /// Bit set of the recorded kernels, by index.
    recorded: AtomicU64,
}

// `recorded` has one bit for each kernel.
const _: () = assert!(Kernel::ALL.len() <= u64::BITS as usize);

/// Graph counters of a device, over all its backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphCounts {
    /// Number of captured graphs.
    pub captured: u64,
    /// Number of graph launches.
    pub started: u64,
}

/// The implementation of a driver.
pub(crate) enum DriverApi {
    Cuda(Cuda),
    Emulated(EmulatedDevice),
}

/// A stream: its operations run in order.
pub(crate) struct Stream {
    driver: Arc<Driver>,
    pub(crate) raw: cuda::Handle,
}

/// A position in a stream that other streams can wait for.
pub(crate) struct Event {
    driver: Arc<Driver>,
    raw: cuda::Handle,
}

/// A captured sequence of commands.
pub(crate) struct Graph {
    driver: Arc<Driver>,
    raw: RawGraph,
}

enum RawGraph {
    Cuda(cuda::Handle),
    Emulated(Arc<Commands>),
}

/// Free and total memory of a device in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryInfo {
    pub free: u64,
    pub total: u64,
}

impl Driver {
    /// Opens a device and loads all kernels. The memory budget is at most the free memory.
    ///
    /// # Errors
    /// Fails with [`CudaDeviceError`] if there is no such device. Also fails if the driver refuses a call.
    pub fn open(
        choice: &CudaDeviceChoice,
        images: KernelImages,
        device_budget: Option<u64>,
    ) -> Result<Arc<Self>, CudaError> {
        let description = crate::device_list::device(choice)?;
        let name = format!(
            "{}, CUDA, compute capability {}",
            description.name, description.compute_capability
        );
        let cuda = Cuda::open(&description, images)?;
        cuda.load_all()?;
        let free = cuda.memory()?.free;
        Ok(Self::of(DriverApi::Cuda(cuda), name, Some(device_budget.unwrap_or(free).min(free))))
    }

    /// Creates an emulated device, whose kernels `launch` runs.
    pub fn emulated(launch: HostLaunch, budget: Option<u64>) -> Arc<Self> {
        Self::of(
            DriverApi::Emulated(EmulatedDevice::new(launch)),
            "emulated CUDA device".into(),
            budget,
        )
    }

    fn of(api: DriverApi, name: String, budget: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            api,
            name,
            lost: Mutex::default(),
            allocated: AtomicU64::new(0),
            budget: budget.unwrap_or(u64::MAX),
            work: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            pinned: AtomicU64::new(0),
            captured: AtomicU64::new(0),
            replayed: AtomicU64::new(0),
            recorded: AtomicU64::new(0),
        })
    }

    pub fn graph_counts(&self) -> GraphCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GraphCounts { captured: count(&self.captured), started: count(&self.replayed) }
    }

    /// Notes that a kernel was recorded.
    pub fn record(&self, kernel: Kernel) {
        self.recorded.fetch_or(1 << kernel.index(), Ordering::Relaxed);
    }

    /// Iterates over the recorded kernels.
    pub fn recorded(&self) -> impl Iterator<Item = Kernel> + use<> {
        let recorded = self.recorded.load(Ordering::Relaxed);
        Kernel::ALL.iter().copied().filter(move |kernel| recorded >> kernel.index() & 1 == 1)
    }

    /// Returns the memory budget in bytes.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Returns the unallocated part of the budget in bytes.
    pub fn budget_left(&self) -> u64 {
        self.budget.saturating_sub(self.allocated_bytes())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of allocated bytes.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Sets aside `bytes` bytes for steps and sessions, in addition to those already allocated.
    pub fn reserve_work(&self, bytes: u64) {
        self.reserved.store(self.work.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// Returns the bytes set aside that are not allocated yet.
    pub fn work_kept(&self) -> u64 {
        let work = self.work.load(Ordering::Relaxed);
        self.reserved.load(Ordering::Relaxed).saturating_sub(work)
    }

    /// Returns the number of pinned bytes.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned.load(Ordering::Relaxed)
    }

    /// Marks the device as lost. Later operations fail with [`CudaError::Lost`].
    pub fn lose(&self, reason: impl Into<String>) {
        let mut lost = whole(self.lost.lock());
        lost.get_or_insert(reason.into());
    }

    /// Makes an emulated device fail as lost after `kernels` more kernels. Has no effect on other devices.
    pub fn lose_after(&self, kernels: u64) {
        if let DriverApi::Emulated(emulated) = &self.api {
            emulated.lose_after(kernels);
        }
    }

    /// Reseeds the random order of an emulated device's operations. Has no effect on other devices.
    pub fn reorder(&self, seed: u64) {
        if let DriverApi::Emulated(emulated) = &self.api {
            emulated.reorder(seed);
        }
    }

    /// Delays the reported completion of an emulated device's [`Driver::late_stream`] until a wait, or until
    /// `questions` queries. Has no effect on other devices.
    pub fn delay_copies(&self, questions: u64) {
        if let DriverApi::Emulated(emulated) = &self.api {
            emulated.delay_copies(questions);
        }
    }

    /// Checks that the device is not lost.
    ///
    /// # Errors
    /// Fails with [`CudaError::Lost`] on every call after the device is lost.
    pub fn check(&self) -> Result<(), CudaError> {
        let lost = whole(self.lost.lock());
        match &*lost {
            Some(reason) => Err(CudaError::Lost { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Runs an action, and marks the device as lost if the action fails with [`CudaError::Lost`].
    ///
    /// # Errors
    /// Fails with the error of `act`, or if the device was lost before.
    pub fn with<T>(
        &self,
        act: impl FnOnce(&DriverApi) -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        self.check()?;
        let done = act(&self.api);
        if let Err(CudaError::Lost { reason }) = &done {
            self.lose(reason.clone());
        }
        done
    }

    /// Marks the device as lost if an operation failed whose caller cannot handle errors.
    fn lose_by(&self, done: Result<(), CudaError>) {
        if let Err(error) = done {
            self.lose(error.to_string());
        }
    }

    /// Allocates memory with unspecified contents, aligned to 256 bytes.
    ///
    /// # Errors
    /// Fails with [`CudaError::OutOfMemory`] or [`CudaError::OverBudget`].
    pub fn allocate(
        self: &Arc<Self>,
        what: &'static str,
        bytes: u64,
    ) -> Result<DeviceMemory, CudaError> {
        let bytes = bytes.max(256).checked_next_multiple_of(256).unwrap_or(u64::MAX);
        let budget = self.budget;
        let with = |allocated: u64| allocated.checked_add(bytes).filter(|all| *all <= budget);
        let taken = self.allocated.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
        taken.map_err(|allocated| {
            let least = allocated.saturating_add(bytes);
            CudaError::OverBudget { what, bytes, budget, least }
        })?;
        let address = self.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.allocate(what, bytes),
            DriverApi::Emulated(emulated) => emulated.allocate(what, bytes),
        });
        match address {
            Ok(address) => {
                let is_work = !matches!(what, "weights" | "experts");
                let work = if is_work { bytes } else { 0 };
                self.work.fetch_add(work, Ordering::Relaxed);
                Ok(DeviceMemory::new(self, address, bytes, is_work))
            }
            Err(error) => {
                self.allocated.fetch_sub(bytes, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Allocates pinned memory.
    ///
    /// # Errors
    /// Fails with [`CudaError::OutOfMemory`].
    pub fn allocate_pinned(
        self: &Arc<Self>,
        what: &'static str,
        bytes: usize,
    ) -> Result<PinnedMemory, CudaError> {
        let bytes = bytes.max(256);
        let raw = self.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.allocate_pinned(what, bytes),
            DriverApi::Emulated(emulated) => emulated.allocate_pinned(what, bytes),
        })?;
        self.pinned.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(PinnedMemory::new(self, raw))
    }

    /// Creates a stream.
    ///
    /// # Errors
    /// Returns an error if the driver refuses a call.
    pub fn stream(self: &Arc<Self>) -> Result<Stream, CudaError> {
        self.new_stream(false)
    }

    fn new_stream(self: &Arc<Self>, is_late: bool) -> Result<Stream, CudaError> {
        let raw = self.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.stream(),
            DriverApi::Emulated(emulated) => Ok(cuda::Handle::numbered(emulated.stream(is_late))),
        })?;
        Ok(Stream { driver: Arc::clone(self), raw })
    }

    /// Creates a stream for asynchronous copies.
    ///
    /// # Errors
    /// Returns an error if the driver refuses a call.
    pub fn late_stream(self: &Arc<Self>) -> Result<Stream, CudaError> {
        self.new_stream(true)
    }

    /// Creates an event.
    ///
    /// # Errors
    /// Returns an error if the driver refuses a call.
    pub fn event(self: &Arc<Self>) -> Result<Event, CudaError> {
        self.new_event(false)
    }

    /// Creates an event with a timestamp.
    ///
    /// # Errors
    /// Returns an error if the driver refuses a call.
    pub fn timed_event(self: &Arc<Self>) -> Result<Event, CudaError> {
        self.new_event(true)
    }

    fn new_event(self: &Arc<Self>, is_timed: bool) -> Result<Event, CudaError> {
        let raw = self.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.event(is_timed),
            DriverApi::Emulated(emulated) => Ok(cuda::Handle::numbered(emulated.event())),
        })?;
        Ok(Event { driver: Arc::clone(self), raw })
    }
}

impl Stream {
    /// Copies pinned memory to the device. The source must not change until the copy completes.
    ///
    /// # Errors
    /// Returns an error if the device is lost or the range is out of bounds.
    pub fn copy_in(
        &self,
        source: &PinnedMemory,
        start: usize,
        bytes: usize,
        to: Address,
    ) -> Result<(), CudaError> {
        let source = source.range(start, bytes)?;
        self.driver.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.copy_in(&self.raw, source, to),
            DriverApi::Emulated(emulated) => emulated.copy_in(self.raw.number(), source, to),
        })
    }

    /// Copies device memory to pinned memory at byte `start`. The bytes are valid after waiting for the
    /// stream.
    ///
    /// # Errors
    /// Returns an error if the device is lost or the range is out of bounds.
    pub fn copy_out(
        &self,
        from: Address,
        bytes: usize,
        to: &mut PinnedMemory,
        start: usize,
    ) -> Result<(), CudaError> {
        let to = to.part(start, bytes)?;
        self.driver.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.copy_out(&self.raw, from, to),
            DriverApi::Emulated(emulated) => emulated.copy_out(self.raw.number(), from, to),
        })
    }

    /// Runs commands in order.
    ///
    /// # Errors
    /// Returns an error if the device is lost or the driver refuses a command.
    pub fn run(&self, commands: &Commands) -> Result<(), CudaError> {
        self.driver.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.run(&self.raw, commands),
            DriverApi::Emulated(emulated) => {
                emulated.run(self.raw.number(), &Arc::new(commands.clone()))
            }
        })
    }

    /// Captures commands as a graph without running them.
    ///
    /// # Errors
    /// Returns an error if the device is lost or the driver refuses a command.
    pub fn capture(&self, commands: &Commands) -> Result<Graph, CudaError> {
        let raw = self.driver.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.capture(&self.raw, commands).map(RawGraph::Cuda),
            DriverApi::Emulated(_) => Ok(RawGraph::Emulated(Arc::new(commands.clone()))),
        })?;
        self.driver.captured.fetch_add(1, Ordering::Relaxed);
        Ok(Graph { driver: Arc::clone(&self.driver), raw })
    }

    /// Launches a graph.
    ///
    /// # Errors
    /// Returns an error if the device is lost or the driver refuses the graph.
    pub fn launch(&self, graph: &Graph) -> Result<(), CudaError> {
        self.driver.with(|api| match (api, &graph.raw) {
            (DriverApi::Cuda(cuda), RawGraph::Cuda(raw)) => cuda.launch_graph(&self.raw, raw),
            (DriverApi::Emulated(emulated), RawGraph::Emulated(commands)) => {
                emulated.run(self.raw.number(), commands)
            }
            _ => Err(CudaError::Refused {
                reason: "a graph: it was captured on another device".into(),
            }),
        })?;
        self.driver.replayed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Records an event at the end of the stream.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub fn record(&self, event: &Event) -> Result<(), CudaError> {
        self.driver.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.record(&event.raw, &self.raw),
            DriverApi::Emulated(emulated) => {
                emulated.record(event.raw.number(), self.raw.number());
                Ok(())
            }
        })
    }

    /// Makes later operations of this stream wait for an event.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        self.driver.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.wait_for(&self.raw, &event.raw),
            DriverApi::Emulated(emulated) => {
                emulated.wait_for(self.raw.number(), event.raw.number());
                Ok(())
            }
        })
    }

    /// Blocks until all operations of the stream are complete.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.driver.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.synchronize(&self.raw),
            DriverApi::Emulated(emulated) => emulated.synchronize(self.raw.number()),
        })
    }
}

impl Event {
    /// Blocks until the work before the event is complete.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.driver.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.synchronize_event(&self.raw),
            DriverApi::Emulated(emulated) => emulated.synchronize_event(self.raw.number()),
        })
    }

    /// Returns whether the work before the event is complete.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        self.driver.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.is_done(&self.raw),
            DriverApi::Emulated(emulated) => emulated.is_event_done(self.raw.number()),
        })
    }

    /// Returns the time between two events. Both must be timed, recorded on one stream, and complete.
    ///
    /// # Errors
    /// Returns an error if the device is lost or an event does not meet these conditions.
    pub fn elapsed_since(&self, start: &Self) -> Result<Duration, CudaError> {
        let seconds = self.driver.with(|api| match api {
            DriverApi::Cuda(cuda) => {
                cuda.elapsed_ms(&start.raw, &self.raw).map(|ms| f64::from(ms) / 1e3)
            }
            DriverApi::Emulated(emulated) => {
                let time = emulated.elapsed(start.raw.number(), self.raw.number());
                time.map(|time| time.as_secs_f64()).ok_or_else(|| CudaError::Refused {
                    reason: "time between events: an event was not come to".into(),
                })
            }
        })?;
        Duration::try_from_secs_f64(seconds)
            .map_err(|error| CudaError::Refused { reason: format!("time between events: {error}") })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        match &self.driver.api {
            DriverApi::Cuda(cuda) => cuda.destroy_stream(&self.raw),
            // Streams of a lost device run nothing.
            DriverApi::Emulated(emulated) if self.driver.check().is_ok() => {
                let done = emulated.destroy_stream(self.raw.number());
                self.driver.lose_by(done);
            }
            DriverApi::Emulated(_) => {}
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        match &self.driver.api {
            DriverApi::Cuda(cuda) => cuda.destroy_event(&self.raw),
            DriverApi::Emulated(emulated) => emulated.destroy_event(self.raw.number()),
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let (DriverApi::Cuda(cuda), RawGraph::Cuda(raw)) = (&self.driver.api, &self.raw) {
            cuda.destroy_graph(raw);
        }
    }
}
