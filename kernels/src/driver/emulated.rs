//! An emulated device in host memory, whose kernels are host functions. Streams are queues. Their operations
//! run when the host waits, or earlier, in any order that CUDA allows. Two unordered operations on the same
//! memory are an error.

#![expect(unsafe_code, reason = "kernels find memory by its address, as on a device")]

mod history;
mod memory;
mod queue;
mod reach;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use nestling_core::sync::whole;

use self::history::{Access, History, full_name};
use self::memory::{AllocationRange, Memory};
use self::queue::{Operation, Queues, Ticket};
use super::commands::{Command, Commands};
use super::cuda::PinnedBytes;
use super::{Address, HostLaunch, MemoryNote};
use crate::error::CudaError;
use crate::params::Launch;

/// Frequency and maximum number of early operations. On average, one submitted operation in `EARLY_ONE_IN`
/// lets fewer than `EARLY_MOST` operations run early.
const EARLY_ONE_IN: u64 = 4;
const EARLY_MOST: usize = 6;

/// An emulated device.
pub(crate) struct EmulatedDevice {
    launch: HostLaunch,
    state: Mutex<DeviceState>,
    /// Number of kernels that run before the device is lost.
    left: AtomicU64,
}

struct DeviceState {
    memory: Memory,
    queues: Queues,
    history: History,
    /// Number of queries before an asynchronous stream is reported as complete, and the number left.
    questions: u64,
    left: u64,
    /// Error that stopped the device.
    failed: Option<String>,
}

enum QueuedWork {
    Copy { name: &'static str, from: Address, to: Address, bytes: u64 },
    Command(Arc<Commands>, usize),
    Record(usize),
    Wait(Ticket),
}

fn lost(reason: String) -> CudaError {
    CudaError::Lost { reason }
}

impl EmulatedDevice {
    pub fn new(launch: HostLaunch) -> Self {
        let state = DeviceState {
            memory: Memory::default(),
            queues: Queues::new(0),
            history: History::default(),
            questions: 0,
            left: 0,
            failed: None,
        };
        Self { launch, state: Mutex::new(state), left: AtomicU64::new(u64::MAX) }
    }

    fn state(&self) -> MutexGuard<'_, DeviceState> {
        whole(self.state.lock())
    }

    /// Reseeds the random order of operations.
    pub fn reorder(&self, seed: u64) {
        self.state().queues.reseed(seed);
    }

    /// Sets the number of queries before an asynchronous stream is reported as complete without a wait.
    pub fn delay_copies(&self, questions: u64) {
        self.state().questions = questions;
    }

    /// Makes the device fail as lost after `kernels` more kernels.
    pub fn lose_after(&self, kernels: u64) {
        self.left.store(kernels, Ordering::Relaxed);
    }

    pub fn stream(&self, is_late: bool) -> usize {
        self.state().queues.stream(is_late)
    }

    /// Completes a stream's operations and removes it.
    ///
    /// # Errors
    /// Fails like [`EmulatedDevice::synchronize`].
    pub fn destroy_stream(&self, stream: usize) -> Result<(), CudaError> {
        let mut state = self.state();
        let done = self.run_stream(&mut state, stream).map(drop);
        state.queues.end_stream(stream);
        done
    }

    pub fn event(&self) -> usize {
        self.state().queues.event()
    }

    pub fn destroy_event(&self, event: usize) {
        self.state().queues.end_event(event);
    }

    pub fn record(&self, event: usize, stream: usize) {
        self.state().queues.record(event, stream);
    }

    pub fn wait_for(&self, stream: usize, event: usize) {
        self.state().queues.wait_for(stream, event);
    }

    /// Waits for a stream.
    ///
    /// # Errors
    /// Returns any error of the device.
    pub fn synchronize(&self, stream: usize) -> Result<(), CudaError> {
        let mut state = self.state();
        if let Some(end) = self.run_stream(&mut state, stream)? {
            state.note_wait(end, None);
        }
        Ok(())
    }

    fn run_stream(
        &self,
        state: &mut DeviceState,
        stream: usize,
    ) -> Result<Option<Ticket>, CudaError> {
        let end = state.queues.end_of(stream);
        end.map_or(Ok(()), |end| self.run_to(state, end))?;
        Ok(end)
    }

    /// Waits for an event.
    ///
    /// # Errors
    /// Returns any error of the device.
    pub fn synchronize_event(&self, event: usize) -> Result<(), CudaError> {
        let mut state = self.state();
        let Some((ticket, _)) = state.queues.recorded(event) else { return Ok(()) };
        self.run_to(&mut state, ticket)?;
        state.note_wait(ticket, Some(event));
        Ok(())
    }

    /// Returns whether the work before an event is complete.
    ///
    /// # Errors
    /// Returns any error of the device.
    pub fn is_event_done(&self, event: usize) -> Result<bool, CudaError> {
        let mut state = self.state();
        let Some((ticket, is_late)) = state.queues.recorded(event) else { return Ok(true) };
        if is_late && !state.queues.is_seen(ticket) && state.left > 0 {
            state.left -= 1;
            return Ok(false);
        }
        self.run_to(&mut state, ticket)?;
        state.note_wait(ticket, Some(event));
        Ok(true)
    }

    /// Returns the time between two events, if both were reached.
    pub fn elapsed(&self, start: usize, end: usize) -> Option<Duration> {
        let state = self.state();
        Some(state.queues.reached(end)? - state.queues.reached(start)?)
    }

    /// Copies host memory to the device.
    ///
    /// # Errors
    /// Returns any error of the device.
    pub fn copy_in(&self, stream: usize, source: &[u8], to: Address) -> Result<(), CudaError> {
        let from = source.as_ptr().expose_provenance() as Address;
        let bytes = source.len() as u64;
        self.give(stream, [QueuedWork::Copy { name: "a copy to the device", from, to, bytes }])
    }

    /// Copies device memory to the host.
    ///
    /// # Errors
    /// Returns any error of the device.
    pub fn copy_out(&self, stream: usize, from: Address, to: &mut [u8]) -> Result<(), CudaError> {
        let bytes = to.len() as u64;
        let to = to.as_mut_ptr().expose_provenance() as Address;
        self.give(stream, [QueuedWork::Copy { name: "a copy from the device", from, to, bytes }])
    }

    /// Submits commands.
    ///
    /// # Errors
    /// Returns any error of the device.
    pub fn run(&self, stream: usize, commands: &Arc<Commands>) -> Result<(), CudaError> {
        let all = 0..commands.len();
        self.give(stream, all.map(|index| QueuedWork::Command(Arc::clone(commands), index)))
    }

    fn give(
        &self,
        stream: usize,
        all: impl IntoIterator<Item = QueuedWork>,
    ) -> Result<(), CudaError> {
        let mut state = self.state();
        if state.queues.is_late(stream) {
            state.left = state.questions;
        }
        for work in all {
            state.queues.give(stream, work);
            if state.queues.is_drawn(EARLY_ONE_IN) {
                let count = state.queues.draw(EARLY_MOST);
                for _ in 0..count {
                    let Some(operation) = state.queues.next(None) else { break };
                    self.perform(&mut state, &operation)?;
                }
            }
        }
        Ok(())
    }

    /// Runs all operations that a ticket depends on, and often more.
    fn run_to(&self, state: &mut DeviceState, ticket: Ticket) -> Result<(), CudaError> {
        let needed = state.queues.is_drawn(2).then(|| state.queues.needed(ticket));
        while !state.queues.is_done(ticket) {
            let Some(operation) = state.queues.next(needed.as_ref()) else {
                return Err(lost("operations wait for each other".into()));
            };
            self.perform(state, &operation)?;
        }
        Ok(())
    }

    fn perform(&self, state: &mut DeviceState, operation: &Operation) -> Result<(), CudaError> {
        if let Some(reason) = &state.failed {
            return Err(lost(reason.clone()));
        }
        let done = match &operation.work {
            QueuedWork::Wait(_) => Ok(()),
            QueuedWork::Record(event) => {
                state.queues.reach(*event);
                Ok(())
            }
            QueuedWork::Copy { name, from, to, bytes } => {
                self.launch.note(MemoryNote::Written { address: *to, bytes: *bytes });
                state.copy(operation, name, *from, *to, *bytes)
            }
            QueuedWork::Command(commands, index) => match commands.list().get(*index) {
                Some(Command::Copy { from, to, bytes }) => {
                    let (from, to, bytes) = (*from, *to, *bytes);
                    self.launch.note(MemoryNote::Copied { from, to, bytes });
                    state.copy(operation, "a copy on the device", from, to, bytes)
                }
                Some(Command::Launch(launch, params, miss_flag)) => {
                    self.run_kernel(state, operation, launch, commands.params(*params), *miss_flag)
                }
                None => Ok(()),
            },
        };
        done.map_err(|reason| {
            state.failed = Some(reason.clone());
            lost(reason)
        })
    }

    fn run_kernel(
        &self,
        state: &mut DeviceState,
        operation: &Operation,
        launch: &Launch,
        params: &[u8],
        miss_flag: Address,
    ) -> Result<(), String> {
        let one_less = |left: u64| left.checked_sub(1);
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        left.map_err(|_| "as it was told to be")?;
        let name = format!("kernel {}", launch.kernel.name());
        let named = |reason| format!("{}: {reason}", full_name(&name, operation.ticket));
        let accesses = reach::of_kernel(&state.memory, launch, params, miss_flag).map_err(named)?;
        state.history.add(operation, name.clone(), accesses)?;
        self.launch.run(launch, params, miss_flag).map_err(|error| named(error.to_string()))
    }

    /// Allocates device memory.
    ///
    /// # Errors
    /// Fails with [`CudaError::OutOfMemory`].
    pub fn allocate(&self, what: &'static str, bytes: u64) -> Result<Address, CudaError> {
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        let found = self.state().memory.allocate(what, size);
        let address = found.ok_or(CudaError::OutOfMemory { what, bytes })?;
        self.launch.note(MemoryNote::Allocated { address, bytes });
        Ok(address)
    }

    /// Frees memory.
    ///
    /// # Errors
    /// Returns an error if an operation that the host did not wait for uses the memory, or if bytes beside it
    /// were overwritten.
    pub fn free(&self, address: Address) -> Result<(), CudaError> {
        let mut state = self.state();
        let found = state.memory.find(address);
        let used = found.map_or(Ok(()), |found| {
            let AllocationRange { what, start, bytes } = found;
            state.by_host(&format!("the release of {what}"), Access { start, bytes, writes: true })
        });
        self.launch.note(MemoryNote::Freed { address });
        used.and(state.memory.release(address)).map_err(lost)
    }

    /// Allocates pinned memory.
    ///
    /// # Errors
    /// Fails with [`CudaError::OutOfMemory`].
    pub fn allocate_pinned(
        &self,
        what: &'static str,
        bytes: usize,
    ) -> Result<PinnedBytes, CudaError> {
        let address = self.allocate(what, bytes as u64)?;
        // Host writes are not reported, so the memory counts as written.
        self.launch.note(MemoryNote::Written { address, bytes: bytes as u64 });
        Ok(PinnedBytes::new(address as usize, bytes))
    }

    /// Frees pinned memory.
    ///
    /// # Errors
    /// Fails like [`EmulatedDevice::free`].
    pub fn free_pinned(&self, bytes: &mut PinnedBytes) -> Result<(), CudaError> {
        self.free(bytes.take() as Address)
    }

    /// Checks an access of the host to pinned memory.
    ///
    /// # Errors
    /// Returns an error if an operation that the host did not wait for conflicts with the access.
    pub fn touch(&self, bytes: &[u8], writes: bool) -> Result<(), CudaError> {
        let start = bytes.as_ptr().expose_provenance() as Address;
        let access = Access { start, bytes: bytes.len() as u64, writes };
        let name = if writes { "a write by the host" } else { "a read by the host" };
        self.state().by_host(name, access).map_err(lost)
    }

    /// Invalidates the contents of unused memory.
    ///
    /// # Errors
    /// Returns an error if an operation that the host did not wait for uses the memory.
    pub fn forget(&self, start: Address, bytes: u64) -> Result<(), CudaError> {
        let state = self.state();
        let forgotten = state.by_host("giving memory away", Access { start, bytes, writes: true });
        forgotten.and_then(|()| state.memory.forget(start, bytes)).map_err(lost)
    }
}

impl DeviceState {
    /// Notes that the host waited for a ticket.
    fn note_wait(&mut self, ticket: Ticket, event: Option<usize>) {
        self.queues.note_wait(ticket, event);
        self.history.settle(&self.queues);
    }

    fn copy(
        &mut self,
        operation: &Operation,
        name: &str,
        from: Address,
        to: Address,
        bytes: u64,
    ) -> Result<(), String> {
        let accesses = reach::of_copy(from, to, bytes).to_vec();
        self.history.add(operation, name.into(), accesses)?;
        let copied = self.memory.copy(from, to, bytes);
        copied.map_err(|reason| format!("{}: {reason}", full_name(name, operation.ticket)))
    }

    /// Checks an immediate access of the host.
    fn by_host(&self, name: &str, access: Access) -> Result<(), String> {
        if self.failed.is_some() {
            return Ok(());
        }
        let waiting = || {
            self.queues.waiting().find_map(|operation| match operation.work {
                QueuedWork::Copy { name, from, to, bytes } => {
                    let mut uses = reach::of_copy(from, to, bytes).into_iter();
                    let conflicts = uses.any(|one| one.conflict(&access).is_some());
                    conflicts.then(|| full_name(name, operation.ticket))
                }
                _ => None,
            })
        };
        match self.history.unseen(&self.queues, access).or_else(waiting) {
            None => Ok(()),
            Some(other) => Err(format!(
                "{name} and {other} use the same bytes at {:#x} without synchronization",
                access.start
            )),
        }
    }
}
