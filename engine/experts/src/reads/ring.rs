#![expect(unsafe_code, reason = "the kernel writes into buffers while they are under way")]
//! Reader thread with an io_uring, which starts the next read before it verifies the last one.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use nestling_formats::store::Extent;
use rustix::event::PollFlags;

use super::buffers::{ArrivedPlane, Buffer};
use super::fetch::{check_present, fetch};
use super::plain::{AccessPath, PlainFiles, Transfer, TransferState};
use super::reader::read_until_closed;
use super::shared::{QueuedRead, SharedReads, stall};
use super::staging::{Staging, StagingBuffer, copy_past_cache};
use super::thread_staging::ThreadStaging;
use super::threads::Threads;
use super::wake_event::WakeEvent;
use nestling_core::error::EngineError;

/// Reads that the kernel may hold per unit of depth, including abandoned ones.
const HELD_MAX: usize = 4;

const CALL_BYTES_MAX: usize = 1 << 30;

/// User data of entries that are not reads.
const WAKE: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;

/// Starts the thread. Returns false if the store is not in plain files, or the system refuses.
pub(super) fn start(shared: &Arc<SharedReads>, threads: &Threads) -> Result<bool, EngineError> {
    if shared.files.is_none() {
        return Ok(false);
    }
    let (answer, answered) = mpsc::channel();
    let thread_shared = Arc::clone(shared);
    threads.spawn("nestling-ring", move || {
        let ready = WakeEvent::new().and_then(|wake| Ok((wake, new_ring(thread_shared.depth)?)));
        let ready = ready.ok().filter(|(_, ring)| ring.params().is_feature_ext_arg());
        let ready = ready
            .map(|(wake, ring)| (wake, RegisteredResources::register(&thread_shared, &ring), ring));
        // The receiver waits below.
        let _ = answer.send(ready.is_some());
        if let Some((wake, known, ring)) = ready {
            run(&thread_shared, thread_shared.set_wake_event(wake), ring, known);
        }
    })?;
    Ok(answered.recv().unwrap_or(false))
}

fn new_ring(depth: usize) -> io::Result<IoUring> {
    let entries = u32::try_from(2 * HELD_MAX * depth + 2).unwrap_or(u32::MAX);
    let mut modern = IoUring::builder();
    modern.setup_single_issuer().setup_coop_taskrun().setup_defer_taskrun();
    modern.build(entries).or_else(|_| IoUring::new(entries))
}

/// Resources registered with a ring, which save the kernel a lookup for each read.
struct RegisteredResources {
    staging: Option<Staging>,
    files: bool,
}

impl RegisteredResources {
    /// Registers as much as the system allows.
    fn register(shared: &SharedReads, ring: &IoUring) -> Self {
        let staging = Staging::register(ring, shared.longest_read(), 2 * shared.depth);
        shared.set_staging_bytes(staging.as_ref().map_or(0, Staging::bytes));
        // Default: storage without files has no descriptors.
        let files = shared.files.as_ref().map(PlainFiles::descriptors).unwrap_or_default();
        Self { staging, files: ring.submitter().register_files(&files).is_ok() }
    }
}

fn run(shared: &Arc<SharedReads>, wake: &WakeEvent, ring: IoUring, known: RegisteredResources) {
    let flights = (0..HELD_MAX * shared.depth).map(|_| None).collect();
    let mut ring =
        Ring { ring, shared, wake, flights, known, events: Vec::new(), arrived: Vec::new() };
    let ended = catch_unwind(AssertUnwindSafe(|| ring.run()));
    if matches!(ended, Ok(Ok(()))) {
        return;
    }
    // The ring failed, but the files are still readable.
    ring.abandon();
    drop(ring);
    for job in &shared.unfinished() {
        shared.finish(job, fetch(shared, job));
    }
    read_until_closed(shared, ThreadStaging::default());
}

/// A read held by the kernel.
struct Flight {
    job: QueuedRead,
    transfer: Transfer,
    landing: Landing,
    file: FileName,
}

/// Destination of a read's bytes.
enum Landing {
    /// Staging memory, copied afterwards.
    Staged(StagingBuffer),
    Final(Buffer),
}

impl Landing {
    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Staged(area) => area.piece.bytes_mut(),
            Self::Final(buffer) => buffer.bytes_mut(),
        }
    }
}

/// File reference as passed to the kernel.
#[derive(Clone, Copy)]
enum FileName {
    Descriptor(RawFd),
    Registered(u32),
}

/// A completed read that is not verified yet.
struct CompletedRead {
    job: QueuedRead,
    result: Result<(Landing, Transfer), io::Error>,
}

struct Ring<'a> {
    ring: IoUring,
    shared: &'a SharedReads,
    wake: &'a WakeEvent,
    /// In-flight reads, indexed by io_uring user data.
    flights: Vec<Option<Flight>>,
    known: RegisteredResources,
    /// Completions: user data and result.
    events: Vec<(u64, i32)>,
    arrived: Vec<CompletedRead>,
}

impl Ring<'_> {
    /// Reads until the queue is closed. An error means that the ring failed.
    fn run(&mut self) -> io::Result<()> {
        self.listen()?;
        while self.start_jobs()? {
            self.wait()?;
            self.collect()?;
            // Keeps the disk busy while bytes are verified.
            let open = self.start_jobs()?;
            self.ring.submit().map(|_| ()).or_else(passing)?;
            self.finish_arrived();
            if !open {
                break;
            }
            self.give_up_stalled()?;
        }
        Ok(())
    }

    /// Requests a completion when the event is signalled.
    fn listen(&mut self) -> io::Result<()> {
        let events = u32::from(PollFlags::IN.bits());
        let poll = opcode::PollAdd::new(Fd(self.wake.fd()), events).build();
        // SAFETY: the entry names no memory, and the event outlives the ring, which borrows it.
        unsafe { self.push(&poll.user_data(WAKE)) }
    }

    /// Submits an entry to the kernel. An entry whose submission fails was not submitted.
    ///
    /// # Safety
    /// All memory, registered buffers, files and descriptors named by the entry must stay valid. Nobody else
    /// may use them until the kernel has completed the entry or the ring is gone.
    unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the caller upholds the requirements of the submission queue.
        let pushed = unsafe { self.ring.submission().push(entry) };
        if pushed.is_ok() {
            return Ok(());
        }
        self.ring.submit()?;
        // SAFETY: as above.
        unsafe { self.ring.submission().push(entry) }.map_err(io::Error::other)
    }

    /// Submits the next call of a read.
    fn push_flight(&mut self, slot: usize) -> io::Result<()> {
        let Some(flight) = self.flights.get_mut(slot).and_then(Option::as_mut) else {
            return Ok(());
        };
        let (offset, range) = flight.transfer.next();
        let bytes = &mut flight.landing.bytes_mut()[range];
        let length = bytes.len().min(CALL_BYTES_MAX) as u32;
        let to = bytes.as_mut_ptr();
        let area = match &flight.landing {
            Landing::Staged(area) => Some(area.index),
            Landing::Final(_) => None,
        };
        use opcode::{Read, ReadFixed};
        let read = match (flight.file, area) {
            (FileName::Registered(file), Some(area)) => {
                ReadFixed::new(Fixed(file), to, length, area).offset(offset).build()
            }
            (FileName::Registered(file), None) => {
                Read::new(Fixed(file), to, length).offset(offset).build()
            }
            (FileName::Descriptor(file), Some(area)) => {
                ReadFixed::new(Fd(file), to, length, area).offset(offset).build()
            }
            (FileName::Descriptor(file), None) => {
                Read::new(Fd(file), to, length).offset(offset).build()
            }
        };
        // SAFETY: the memory stays valid in its slot until the kernel has completed the call: only `answer`
        // removes flights, `abandon` leaks them, and `drop` waits for them. The files belong to the store,
        // which `shared` keeps open for longer than the ring lives.
        unsafe { self.push(&read.user_data(slot as u64)) }
    }

    /// Starts reads while possible. Returns false if the queue is closed.
    fn start_jobs(&mut self) -> io::Result<bool> {
        while let Some(slot) = self.flights.iter().position(Option::is_none) {
            let mut state = self.shared.lock();
            if state.closing {
                return Ok(false);
            }
            let Some(job) = self.shared.start(&mut state) else {
                state.wants_wake = true;
                break;
            };
            drop(state);
            match self.prepare(&job, AccessPath::Best) {
                Ok(Some(flight)) => {
                    self.flights[slot] = Some(flight);
                    self.push_flight(slot)?;
                }
                Ok(None) => self.shared.finish(&job, fetch(self.shared, &job)),
                Err(error) => self.shared.finish(&job, Err(error)),
            }
        }
        Ok(true)
    }

    /// Prepares a read. Returns `None` if the extent is not in one file.
    fn prepare(
        &mut self,
        job: &QueuedRead,
        way: AccessPath,
    ) -> Result<Option<Flight>, EngineError> {
        check_present(self.shared, &job.extent)?;
        let files = self.shared.files.as_ref();
        let Some(place) = files.and_then(|files| files.place(&job.extent, way)) else {
            return Ok(None);
        };
        let area = self.known.staging.as_mut().and_then(|staging| staging.take(place.length));
        let landing = match area {
            Some(area) => Landing::Staged(area),
            None => Landing::Final(place.buffer(&self.shared.pool)?),
        };
        let file = match self.known.files {
            true => FileName::Registered(place.number),
            false => FileName::Descriptor(place.file.as_raw_fd()),
        };
        Ok(Some(Flight { job: job.clone(), transfer: Transfer::new(&place), landing, file }))
    }

    /// Waits for a completion, or until the next check for stalls.
    fn wait(&mut self) -> io::Result<()> {
        let busy = self.flights.iter().any(Option::is_some);
        let period = self.shared.timeout.filter(|_| busy).map(|timeout| timeout / 4);
        let period = period.map(|period| Timespec::from(period.max(Duration::from_millis(1))));
        let args = SubmitArgs::new();
        let waited = match &period {
            Some(period) => self.ring.submitter().submit_with_args(1, &args.timespec(period)),
            None => self.ring.submitter().submit_with_args(1, &args),
        };
        waited.map(|_| ()).or_else(passing)
    }

    /// Processes completions. Reads that are not complete continue.
    fn collect(&mut self) -> io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        events.extend(self.ring.completion().map(|event| (event.user_data(), event.result())));
        for (number, result) in events.drain(..) {
            if number == WAKE {
                self.wake.silence();
                self.listen()?;
            } else if number != CANCEL {
                self.answer(number, result)?;
            }
        }
        self.events = events;
        Ok(())
    }

    fn answer(&mut self, number: u64, result: i32) -> io::Result<()> {
        let Ok(slot) = usize::try_from(number) else { return Ok(()) };
        let Some(mut flight) = self.flights.get_mut(slot).and_then(Option::take) else {
            return Ok(());
        };
        let count = usize::try_from(result);
        let answer = count.map_err(|_| io::Error::from_raw_os_error(result.wrapping_neg()));
        let result = match flight.transfer.advance(answer) {
            TransferState::Again => {
                self.shared.count_retry();
                self.flights[slot] = Some(flight);
                return self.push_flight(slot);
            }
            TransferState::Refused => {
                self.shared.count_retry();
                return self.read_cached(slot, flight);
            }
            TransferState::Complete => Ok((flight.landing, flight.transfer)),
            TransferState::Failed(error) => {
                self.release(flight.landing);
                Err(error)
            }
        };
        if self.shared.landed(&flight.job) {
            self.arrived.push(CompletedRead { job: flight.job, result });
        } else if let Ok((landing, _)) = result {
            self.release(landing);
        }
        Ok(())
    }

    /// Frees a destination that is not used by the kernel or a reader.
    fn release(&mut self, landing: Landing) {
        if let (Landing::Staged(area), Some(staging)) = (landing, &mut self.known.staging) {
            staging.give(area);
        }
    }

    /// Retries a read through the page cache after a direct read was refused.
    fn read_cached(&mut self, slot: usize, flight: Flight) -> io::Result<()> {
        let job = flight.job;
        self.release(flight.landing);
        match self.prepare(&job, AccessPath::Cached) {
            Ok(Some(flight)) => {
                self.flights[slot] = Some(flight);
                self.push_flight(slot)
            }
            Ok(None) => {
                self.shared.finish(&job, fetch(self.shared, &job));
                Ok(())
            }
            Err(error) => {
                self.shared.finish(&job, Err(error));
                Ok(())
            }
        }
    }

    /// Verifies completed reads and returns them.
    fn finish_arrived(&mut self) {
        let store = self.shared.store();
        for CompletedRead { job, result } in std::mem::take(&mut self.arrived) {
            let unchanged = store.check_unchanged(&job.extent).map_err(EngineError::from);
            let plane = match result {
                Ok((landing, transfer)) => self.keep(&job.extent, landing, transfer.plane()),
                Err(error) => Err(store.read_error(&job.extent, error).into()),
            };
            self.shared.finish(&job, unchanged.and(plane));
        }
    }

    /// Verifies a plane's bytes and moves them to their final buffer.
    fn keep(
        &mut self,
        extent: &Extent,
        landing: Landing,
        range: Range<usize>,
    ) -> Result<ArrivedPlane, EngineError> {
        match landing {
            Landing::Final(buffer) => {
                let plane = buffer.arrived(range);
                self.shared.check(extent, plane.as_ref())?;
                Ok(plane)
            }
            Landing::Staged(area) => {
                self.shared.count_staged();
                let plane = self.copy(extent, &area.piece.bytes()[range]);
                self.release(Landing::Staged(area));
                plane
            }
        }
    }

    fn copy(&self, extent: &Extent, bytes: &[u8]) -> Result<ArrivedPlane, EngineError> {
        self.shared.check(extent, bytes)?;
        let mut buffer = self.shared.pool.take(bytes.len())?;
        copy_past_cache(bytes, buffer.bytes_mut());
        Ok(buffer.arrived(0..bytes.len()))
    }

    /// Abandons reads that exceed the timeout. The kernel holds their buffers until it completes them.
    fn give_up_stalled(&mut self) -> io::Result<()> {
        let Some(timeout) = self.shared.timeout else { return Ok(()) };
        let limit_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let full = self.flights.iter().all(Option::is_some);
        let stalled = self.shared.lock().take_stalled(self.shared.now_ns(), limit_ns, full);
        if stalled.is_empty() {
            return Ok(());
        }
        self.shared.give_up(&stalled, |job| stall(self.shared, job, timeout));
        let held = |flight: &Flight| stalled.iter().any(|job| job.ticket == flight.job.ticket);
        for slot in 0..self.flights.len() {
            if self.flights[slot].as_ref().is_some_and(held) {
                self.cancel(slot)?;
            }
        }
        Ok(())
    }

    fn cancel(&mut self, slot: usize) -> io::Result<()> {
        let cancel = opcode::AsyncCancel::new(slot as u64).build();
        // SAFETY: the entry names no memory, only the number of a read.
        unsafe { self.push(&cancel.user_data(CANCEL)) }
    }

    /// Leaks all buffers that the kernel may still write to, so that they are never reused.
    fn abandon(&mut self) {
        self.arrived.clear();
        for flight in self.flights.iter_mut().filter_map(Option::take) {
            std::mem::forget(flight.landing);
        }
    }
}

impl Drop for Ring<'_> {
    /// Waits until the kernel has released all buffers.
    fn drop(&mut self) {
        for slot in 0..self.flights.len() {
            if self.flights[slot].is_some() && self.cancel(slot).is_err() {
                self.abandon();
            }
        }
        while self.flights.iter().any(Option::is_some) {
            if self.ring.submit_and_wait(1).map(|_| ()).or_else(passing).is_err() {
                self.abandon();
            }
            let ended = self.ring.completion().map(|event| event.user_data());
            for number in ended.collect::<Vec<_>>() {
                if let Some(slot) = usize::try_from(number).ok()
                    && let Some(flight) = self.flights.get_mut(slot)
                {
                    *flight = None;
                }
            }
        }
    }
}

/// Ignores transient errors of waiting.
fn passing(error: io::Error) -> io::Result<()> {
    let timed_out = error.raw_os_error() == Some(rustix::io::Errno::TIME.raw_os_error());
    let passes = matches!(
        error.kind(),
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy
    );
    if timed_out || passes { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::mem::ManuallyDrop;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::sync::Arc;
    use std::thread;

    use super::{RegisteredResources, WakeEvent, new_ring, run};
    use crate::reads::options::ReadOptions;
    use crate::reads::tests::{all_arrive, bundled_extents, shared};

    #[test]
    fn the_thread_of_a_ring_that_breaks_goes_on_without_it() {
        let shared = Arc::new(shared(&ReadOptions::default()));
        let extents = bundled_extents(shared.store(), 12);
        thread::scope(|scope| {
            let (wake, Ok(ring)) = (WakeEvent::new().unwrap(), new_ring(shared.depth)) else {
                // This system does not support io_uring.
                return;
            };
            let known = RegisteredResources::register(&shared, &ring);
            // Replaces the ring's descriptor, so that each of its calls fails.
            // SAFETY: the ring's file stays open, and only the ring closes it.
            let fd = unsafe { OwnedFd::from_raw_fd(ring.as_raw_fd()) };
            let mut fd = ManuallyDrop::new(fd);
            rustix::io::dup2(File::open("/dev/null").unwrap(), &mut fd).unwrap();
            let wake = shared.set_wake_event(wake);
            scope.spawn(|| run(&shared, wake, ring, known));
            all_arrive(&shared, &extents);
            shared.close();
        });
    }
}
