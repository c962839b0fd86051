//! The small set of things that the backend asks of a driver, in two forms: a device through CUDA's
//! driver, and host memory with functions in place of kernels, on which everything else is tested
//! where there is no device.

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
use self::emulated::Emulated;
use crate::compile::KernelImages;
use crate::devices::CudaDeviceChoice;
use crate::error::CudaError;
use crate::kernel::Kernel;

/// An address of memory that kernels see.
pub(crate) type Address = u64;

/// An open device. Whoever holds memory of it holds it too.
pub(crate) struct Driver {
    api: DriverApi,
    name: String,
    lost: Mutex<Option<String>>,
    allocated: AtomicU64,
    /// Bytes that may be.
    budget: u64,
    /// Of them, for what steps and sessions work with; and what that may come to.
    work: AtomicU64,
    reserved: AtomicU64,
    pinned: AtomicU64,
    captured: AtomicU64,
    replayed: AtomicU64,
    /// A bit for each kernel that was recorded, by its index.
    recorded: AtomicU64,
}

// One bit for each kernel.
const _: () = assert!(Kernel::ALL.len() <= u64::BITS as usize);

/// Graphs of a device, by all backends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphCounts {
    /// Steps that a graph was made of.
    pub captured: u64,
    /// Steps that were started as a graph.
    pub started: u64,
}

enum DriverApi {
    Cuda(Cuda),
    Emulated(Emulated),
}

/// A queue of work: what is given to it is done in order.
pub(crate) struct Stream {
    driver: Arc<Driver>,
    raw: cuda::Handle,
}

/// A place in a stream, for others to wait for.
pub(crate) struct Event {
    driver: Arc<Driver>,
    raw: cuda::Handle,
}

/// Commands that are started as one.
pub(crate) struct Graph {
    driver: Arc<Driver>,
    raw: RawGraph,
}

enum RawGraph {
    Cuda(cuda::Handle),
    Emulated(Arc<Commands>),
}

/// How much memory a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryInfo {
    pub free: u64,
    pub total: u64,
}

impl Driver {
    /// Opens a device and loads every kernel. As much of its memory may be allocated as is free, or less.
    ///
    /// # Errors
    /// [`CudaDeviceError`] where it is not there; what the driver refuses.
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

    /// A device of host memory, whose kernels `launch` runs.
    pub fn emulated(launch: HostLaunch, budget: Option<u64>) -> Arc<Self> {
        Self::of(DriverApi::Emulated(Emulated::new(launch)), "emulated CUDA device".into(), budget)
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

    /// Graphs so far.
    pub fn graph_counts(&self) -> GraphCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GraphCounts { captured: count(&self.captured), started: count(&self.replayed) }
    }

    /// Notes that a kernel is recorded.
    pub fn record(&self, kernel: Kernel) {
        self.recorded.fetch_or(1 << kernel.index(), Ordering::Relaxed);
    }

    /// Kernels that were recorded so far.
    pub fn recorded(&self) -> impl Iterator<Item = Kernel> + use<> {
        let recorded = self.recorded.load(Ordering::Relaxed);
        Kernel::ALL.iter().copied().filter(move |kernel| recorded >> kernel.index() & 1 == 1)
    }

    /// Bytes of device memory that may be allocated here.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Those that are not.
    pub fn budget_left(&self) -> u64 {
        self.budget.saturating_sub(self.allocated_bytes())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of device memory that are allocated here.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// What steps and sessions of a model work with may come to so many bytes more.
    pub fn reserve_work(&self, bytes: u64) {
        self.reserved.store(self.work.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// Those that are not allocated yet.
    pub fn work_kept(&self) -> u64 {
        let work = self.work.load(Ordering::Relaxed);
        self.reserved.load(Ordering::Relaxed).saturating_sub(work)
    }

    /// Bytes of pinned memory.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned.load(Ordering::Relaxed)
    }

    /// Gives the device up: whatever still uses it fails with [`CudaError::Lost`].
    pub fn lose(&self, reason: impl Into<String>) {
        let mut lost = whole(self.lost.lock());
        lost.get_or_insert(reason.into());
    }

    /// An emulated device is lost when so many kernels more were run; no other is.
    pub fn lose_after(&self, kernels: u64) {
        if let DriverApi::Emulated(emulated) = &self.api {
            emulated.lose_after(kernels);
        }
    }

    /// An emulated device draws by another lot which of the operations that may run next does so; no other
    /// does.
    pub fn reorder(&self, seed: u64) {
        if let DriverApi::Emulated(emulated) = &self.api {
            emulated.reorder(seed);
        }
    }

    /// What an emulated device does on [`Driver::late_stream`] is not known to be done before somebody waits
    /// for it, or has asked so often; no other does so.
    pub fn delay_copies(&self, questions: u64) {
        if let DriverApi::Emulated(emulated) = &self.api {
            emulated.delay_copies(questions);
        }
    }

    /// Whether all went well so far.
    ///
    /// # Errors
    /// [`CudaError::Lost`], now and ever after.
    pub fn check(&self) -> Result<(), CudaError> {
        let lost = whole(self.lost.lock());
        match &*lost {
            Some(reason) => Err(CudaError::Lost { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Does something, and remembers where the device did not survive it.
    fn with<T>(
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

    /// Remembers that the device did not survive something that nobody can be told of.
    fn lose_by(&self, done: Result<(), CudaError>) {
        if let Err(error) = done {
            self.lose(error.to_string());
        }
    }

    /// Memory with unspecified contents, its first byte at a multiple of 256.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::OverBudget`].
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

    /// # Errors
    /// [`CudaError::OutOfMemory`].
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

    /// # Errors
    /// What the driver refuses.
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

    /// A stream whose copies nobody waits for.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn late_stream(self: &Arc<Self>) -> Result<Stream, CudaError> {
        self.new_stream(true)
    }

    /// # Errors
    /// What the driver refuses.
    pub fn event(self: &Arc<Self>) -> Result<Event, CudaError> {
        self.new_event(false)
    }

    /// An event that takes the time.
    ///
    /// # Errors
    /// What the driver refuses.
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
    /// Copies bytes of pinned memory to the device. They must stay as they are until it is done.
    ///
    /// # Errors
    /// A device that is lost; a range that pinned memory does not have.
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

    /// Copies bytes of the device to the beginning of pinned memory, which holds them once the stream
    /// was waited for.
    ///
    /// # Errors
    /// A device that is lost; more bytes than the pinned memory has.
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

    /// Runs commands one after another.
    ///
    /// # Errors
    /// A device that is lost; what the driver refuses.
    pub fn run(&self, commands: &Commands) -> Result<(), CudaError> {
        self.driver.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.run(&self.raw, commands),
            DriverApi::Emulated(emulated) => {
                emulated.run(self.raw.number(), &Arc::new(commands.clone()))
            }
        })
    }

    /// Makes one of commands, without running them.
    ///
    /// # Errors
    /// A device that is lost; what the driver refuses.
    pub fn capture(&self, commands: &Commands) -> Result<Graph, CudaError> {
        let raw = self.driver.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.capture(&self.raw, commands).map(RawGraph::Cuda),
            DriverApi::Emulated(_) => Ok(RawGraph::Emulated(Arc::new(commands.clone()))),
        })?;
        self.driver.captured.fetch_add(1, Ordering::Relaxed);
        Ok(Graph { driver: Arc::clone(&self.driver), raw })
    }

    /// Runs what was captured.
    ///
    /// # Errors
    /// A device that is lost; what the driver refuses.
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

    /// Notes how far the stream has come.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn record(&self, event: &Event) -> Result<(), CudaError> {
        self.driver.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.record(&event.raw, &self.raw),
            DriverApi::Emulated(emulated) => {
                emulated.record(event.raw.number(), self.raw.number());
                Ok(())
            }
        })
    }

    /// What follows in this stream waits until another has come so far.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        self.driver.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.wait_for(&self.raw, &event.raw),
            DriverApi::Emulated(emulated) => {
                emulated.wait_for(self.raw.number(), event.raw.number());
                Ok(())
            }
        })
    }

    /// The host waits until all is done.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.driver.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.synchronize(&self.raw),
            DriverApi::Emulated(emulated) => emulated.synchronize(self.raw.number()),
        })
    }
}

impl Event {
    /// The host waits until what was noted is done.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.driver.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.synchronize_event(&self.raw),
            DriverApi::Emulated(emulated) => emulated.synchronize_event(self.raw.number()),
        })
    }

    /// Whether what was noted is done.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        self.driver.with(|api| match api {
            DriverApi::Cuda(cuda) => cuda.is_done(&self.raw),
            DriverApi::Emulated(emulated) => emulated.is_event_done(self.raw.number()),
        })
    }

    /// The time that the device took from another event to this one; both take the time, were recorded on
    /// one stream and waited for.
    ///
    /// # Errors
    /// A device that is lost; events of which that is not true.
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
            // What is lost does nothing any more.
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
