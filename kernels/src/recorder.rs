//! Records the commands of a step and submits them to the device.
//!
//! Row tables from the host are stored in one arena, at offsets that are the same in all steps of the same
//! form. The commands of such steps are then identical and can run as a graph.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use nestling_gpu::{CommandRecorder, SUBMISSION_NANOSECONDS, WorkKind, WorkMeter, WorkRates};

use crate::devices::CudaDeviceError;
use crate::driver::commands::Commands;
use crate::driver::{Address, DeviceMemory, Driver, Event, PinnedMemory, Stream};
use crate::error::CudaError;
use crate::graphs::Graphs;
use crate::host_planes::HostBlock;
use crate::params::Launch;
use crate::slabs::{self, Readers, SlabRange, Slabs};
use crate::staging::Staging;

/// Bytes of the arena of tables.
pub(crate) const ARENA_BYTES: usize = 4 << 20;

/// Fraction of the arena that a table may occupy: one in `TABLE_PARTS`.
const TABLE_PARTS: usize = 8;

/// Number of maximum-size tables that fit in the arena when an operation starts. Further tables get separate
/// ranges.
const TABLES_OF_OPERATION: usize = 2;

/// Alignment of tables in the arena, in bytes.
const ALIGN: usize = 256;

/// Number of recorded commands after which a step of many rows is submitted.
const COMMANDS_MAX: usize = 32;

/// Maximum number of rows of a step that is submitted as a whole.
const GRAPH_ROWS_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// At the end of the step, as a graph if it repeats.
    Together,
    /// Continuously, while commands are recorded.
    Early,
}

/// Recorder of commands that are not yet submitted, and of the data that they read.
pub struct Recorder {
    pub(crate) driver: Arc<Driver>,
    stream: Stream,
    staging: Staging,
    commands: Commands,
    pace: Pace,
    graphs: Graphs,
    arena: DeviceMemory,
    tables: PinnedMemory,
    /// Used bytes of the arena, and the part already copied to the device.
    used: usize,
    given: usize,
    read_back: Option<PinnedMemory>,
    /// Memory and tables that commands of this step may still read.
    retired: Vec<DeviceMemory>,
    own_tables: Vec<SlabRange>,
    /// The miss flag. A kernel sets it if planes are missing; later kernels then skip their work.
    miss_flag: DeviceMemory,
    /// True if recorded commands may find the flag set.
    may_miss: bool,
    /// Number of times that recorded commands may not have run. The host's knowledge of device memory is
    /// then invalid.
    epoch: u64,
    /// Position of the stream when a range was last reused.
    passed: Event,
    is_waiting: bool,
    /// True while recorded commands are held for a timer instead of being submitted.
    is_held: bool,
    /// Meter of recorded work and its estimated duration.
    pub(crate) meter: WorkMeter,
    slabs: Slabs,
}

/// Options of a recorder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recording {
    /// Bytes of the arena for row and page tables. Equals [`ARENA_BYTES`] except in tests.
    pub arena_bytes: usize,
    /// Assumed speed of the device.
    pub rates: WorkRates,
}

impl Recorder {
    /// Creates a recorder without commands.
    ///
    /// # Errors
    /// Returns an error if the device is out of memory.
    pub(crate) fn new(
        driver: &Arc<Driver>,
        host_bytes: u64,
        recording: Recording,
    ) -> Result<Self, CudaError> {
        let Recording { arena_bytes, rates } = recording;
        let mut staging = Staging::new(driver, host_bytes)?;
        let miss_flag = driver.allocate("miss flag", 4)?;
        staging.upload(&[0; 4], miss_flag.address())?;
        Ok(Self {
            stream: driver.stream()?,
            staging,
            commands: Commands::default(),
            pace: Pace::Together,
            graphs: Graphs::default(),
            arena: driver.allocate("tables", arena_bytes as u64)?,
            tables: driver.allocate_pinned("tables", arena_bytes)?,
            used: 0,
            given: 0,
            read_back: None,
            retired: Vec::new(),
            own_tables: Vec::new(),
            miss_flag,
            may_miss: false,
            epoch: 0,
            passed: driver.event()?,
            is_waiting: false,
            is_held: false,
            meter: WorkMeter::new(rates),
            slabs: Slabs::default(),
            driver: Arc::clone(driver),
        })
    }

    /// Returns the number of times that recorded commands may not have run. Information about device memory
    /// from an earlier epoch is invalid.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Makes later commands of this step conditional on the miss flag.
    pub(crate) fn may_miss(&mut self) {
        self.may_miss = true;
    }

    /// Returns the maximum size of a table in the arena, in bytes. Larger tables get separate ranges.
    fn table_bytes_max(&self) -> usize {
        self.tables.len() / TABLE_PARTS
    }

    /// Records a kernel.
    ///
    /// # Errors
    /// Fails like [`CommandRecorder::submit`].
    pub(crate) fn launch(&mut self, launch: Launch, params: &impl Pod) -> Result<(), CudaError> {
        if launch.is_empty() {
            return Ok(());
        }
        launch.check()?;
        let miss_flag = if self.may_miss { self.miss_flag.address() } else { 0 };
        self.driver.record(launch.kernel);
        self.commands.launch(launch, params, miss_flag);
        self.meter.counts.dispatches += 1;
        self.recorded()
    }

    /// Records a kernel with `work` work. Earlier commands are submitted first if the total would keep the
    /// device busy for too long.
    ///
    /// # Errors
    /// Fails like [`CommandRecorder::submit`].
    pub(crate) fn launch_of(
        &mut self,
        kind: WorkKind,
        work: u64,
        launch: Launch,
        params: &impl Pod,
    ) -> Result<(), CudaError> {
        if self.meter.nanoseconds_with(kind, work) > SUBMISSION_NANOSECONDS {
            self.submit_now()?;
        }
        self.meter.add(kind, work);
        self.launch(launch, params)
    }

    /// Submits all commands, and ensures that the driver starts them immediately.
    fn submit_now(&mut self) -> Result<(), CudaError> {
        if self.commands.is_empty() {
            return Ok(());
        }
        self.submit()?;
        self.stream.record(&self.passed)?;
        // The Windows driver batches commands until their status is queried.
        self.passed.is_done()?;
        Ok(())
    }

    fn recorded(&mut self) -> Result<(), CudaError> {
        match self.pace {
            Pace::Early if self.commands.len() >= COMMANDS_MAX && !self.is_held => self.submit(),
            _ => Ok(()),
        }
    }

    /// Uploads bytes to a new range for use by commands recorded later.
    ///
    /// # Errors
    /// Returns an error if the device is lost or out of memory.
    pub(crate) fn upload(&mut self, bytes: &[u8]) -> Result<SlabRange, CudaError> {
        let range = self.range(bytes.len())?;
        self.fill(&range, 0, bytes)?;
        Ok(range)
    }

    /// Allocates a range with unspecified contents.
    ///
    /// # Errors
    /// Returns an error if the device is lost or out of memory.
    pub(crate) fn range(&mut self, bytes: usize) -> Result<SlabRange, CudaError> {
        let (range, readers) = slabs::range(&self.slabs, &self.driver, bytes as u64)?;
        if readers == Readers::Earlier {
            self.submit()?;
            self.stream.record(&self.passed)?;
            self.staging.wait_for(&self.passed)?;
        }
        Ok(range)
    }

    /// Uploads bytes to a range that no command reads yet.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub(crate) fn fill(
        &mut self,
        range: &SlabRange,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), CudaError> {
        self.meter.counts.upload_bytes += bytes.len() as u64;
        self.meter.counts.staged_bytes += bytes.len() as u64;
        self.staging.upload(bytes, slabs::address(range) + offset)
    }

    fn put_behind(&mut self, bytes: &[u8], to: Address) -> Result<(), CudaError> {
        self.submit()?;
        if self.is_waiting {
            self.stream.record(&self.passed)?;
            self.staging.wait_for(&self.passed)?;
        }
        self.staging.upload(bytes, to)
    }

    /// Makes later copies by [`CommandRecorder::overwrite`] and [`Recorder::fetch`] asynchronous. They follow
    /// all recorded commands, and steps do not wait for them.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub(crate) fn begin_async_copies(&mut self) -> Result<(), CudaError> {
        self.submit()?;
        self.stream.record(&self.passed)?;
        self.staging.begin_async_copies(&self.passed)
    }

    /// Makes later copies synchronous again. Returns the number of the asynchronous transfer.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub(crate) fn end_async_copies(&mut self) -> Result<u64, CudaError> {
        self.driver.check()?;
        self.staging.end_async_copies()
    }

    /// Returns the number of the last asynchronous transfer visible to later commands. Commands wait for
    /// transfers up to `awaited`.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub(crate) fn completed_copies(&mut self, awaited: u64) -> Result<u64, CudaError> {
        self.staging.completed_copies(awaited, &self.stream)
    }

    /// Waits like [`CommandRecorder::finish`], and also for all copies: asynchronous ones, and those from
    /// device memory.
    ///
    /// # Errors
    /// Fails like [`CommandRecorder::finish`].
    pub(crate) fn finish_all(&mut self) -> Result<(), CudaError> {
        self.finish()?;
        self.staging.finish_all()
    }

    /// Copies device memory that no command writes to pinned host memory. Returns `None` if there is no
    /// space.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub(crate) fn fetch(
        &mut self,
        parts: &[(Address, Range<usize>)],
        bytes: usize,
    ) -> Result<Option<Arc<HostBlock>>, CudaError> {
        self.staging.fetch(parts, bytes)
    }

    /// Keeps memory alive until all recorded commands are complete.
    pub(crate) fn retire(&mut self, memory: Option<DeviceMemory>) {
        self.retired.extend(memory);
    }

    /// Submits a whole step, as a graph if it repeats.
    fn submit_step(&mut self) -> Result<(), CudaError> {
        // A step that was partly submitted cannot run as one graph.
        let is_whole = self.pace == Pace::Together && !self.is_waiting;
        if !is_whole || self.commands.is_empty() {
            return self.submit();
        }
        self.driver.check()?;
        self.check_held()?;
        self.give_tables()?;
        let done = self.graphs.run(&self.stream, &self.commands);
        self.failed(done.is_err());
        self.commands.clear();
        self.meter.counts.submissions += 1;
        self.is_waiting = true;
        done
    }

    /// Returns an error if commands are held, since they must not be submitted in parts.
    fn check_held(&self) -> Result<(), CudaError> {
        if !self.is_held {
            return Ok(());
        }
        let reason = "work that is recorded to be timed: it waits, or its tables find no room";
        Err(CudaError::Refused { reason: reason.into() })
    }

    /// Waits for all recorded commands, then holds later ones without submitting them.
    ///
    /// # Errors
    /// Fails like [`Recorder::finish_all`].
    pub(crate) fn hold(&mut self) -> Result<(), CudaError> {
        self.finish_all()?;
        self.is_held = true;
        Ok(())
    }

    /// Returns the commands recorded since [`Recorder::hold`], and the stream that reads their tables. The
    /// memory that they use stays alive until [`Recorder::release`].
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub(crate) fn take_held(&mut self) -> Result<(Commands, &Stream), CudaError> {
        self.driver.check()?;
        self.give_tables()?;
        Ok((std::mem::take(&mut self.commands), &self.stream))
    }

    /// Returns the stream of recorded commands.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Ends holding, and waits for held commands that were started.
    pub(crate) fn release(&mut self) {
        self.is_held = false;
        self.is_waiting = true;
        self.discard();
    }

    /// Starts a new epoch if recorded commands did not all run.
    fn failed(&mut self, is_so: bool) {
        self.epoch += u64::from(is_so);
    }

    /// Uploads the tables that the next submission reads.
    fn give_tables(&mut self) -> Result<(), CudaError> {
        self.meter.started();
        self.staging.settle(&self.stream)?;
        if self.given < self.used {
            let (start, bytes) = (self.given, self.used - self.given);
            let to = self.arena.address() + start as u64;
            self.stream.copy_in(&self.tables, start, bytes, to)?;
            self.given = self.used;
        }
        Ok(())
    }

    /// Waits until all submitted commands are complete.
    fn wait(&mut self) -> Result<(), CudaError> {
        self.meter.counts.waits += 1;
        self.stream.synchronize()?;
        self.is_waiting = false;
        self.settle();
        Ok(())
    }

    /// Releases memory that completed commands used.
    fn settle(&mut self) {
        (self.used, self.given) = (0, 0);
        self.own_tables.clear();
        self.staging.finished();
        self.retired.clear();
        self.slabs.settle(|memory, range| memory.forget(range.start, range.end - range.start));
    }
}

impl CommandRecorder for Recorder {
    type Binding = Address;
    type Failure = CudaDeviceError;

    fn meter(&mut self) -> &mut WorkMeter {
        &mut self.meter
    }

    fn begin_step(&mut self, rows: usize) {
        self.pace = if rows <= GRAPH_ROWS_MAX { Pace::Together } else { Pace::Early };
    }

    /// Waits for earlier commands if the arena is nearly full.
    fn begin_operation(&mut self) -> Result<(), CudaError> {
        if self.used + TABLES_OF_OPERATION * self.table_bytes_max() <= self.tables.len() {
            return Ok(());
        }
        self.submit()?;
        self.wait()
    }

    /// Never waits, since that would reset the arena while it contains tables of commands still to be
    /// recorded.
    fn table(&mut self, values: &[impl Pod]) -> Result<Address, CudaError> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let is_full = self.used + bytes.len() > self.tables.len();
        if is_full || bytes.len() > self.table_bytes_max() {
            let range = self.upload(bytes)?;
            let address = slabs::address(&range);
            self.own_tables.push(range);
            return Ok(address);
        }
        let start = self.used;
        self.tables.write(start, bytes);
        self.used = (start + bytes.len()).next_multiple_of(ALIGN).min(self.tables.len());
        Ok(self.arena.address() + start as u64)
    }

    fn write(&mut self, bytes: &[u8], to: &Address, offset: u64) -> Result<(), CudaError> {
        self.begin_operation()?;
        let table = self.table(bytes)?;
        self.copy(&table, &(to + offset), bytes.len() as u64)
    }

    fn overwrite(&mut self, bytes: &[u8], to: &Address, offset: u64) -> Result<(), CudaError> {
        let to = to + offset;
        self.meter.counts.upload_bytes += bytes.len() as u64;
        self.meter.counts.staged_bytes += bytes.len() as u64;
        if self.staging.is_queueing() {
            return self.staging.queue_upload(bytes, to);
        }
        self.put_behind(bytes, to)
    }

    fn copy(&mut self, from: &Address, to: &Address, bytes: u64) -> Result<(), CudaError> {
        self.commands.copy(*from, *to, bytes);
        self.recorded()
    }

    fn submit(&mut self) -> Result<(), CudaError> {
        self.driver.check()?;
        if self.commands.is_empty() {
            return Ok(());
        }
        self.check_held()?;
        self.give_tables()?;
        let done = self.stream.run(&self.commands);
        self.failed(done.is_err());
        self.commands.clear();
        self.meter.counts.submissions += 1;
        self.is_waiting = true;
        done
    }

    fn read(
        &mut self,
        parts: &[(Address, u64)],
        take: impl FnOnce(&[u8]),
    ) -> Result<(), CudaError> {
        self.submit_step()?;
        let bytes = parts.iter().map(|part| part.1 as usize).sum();
        if bytes == 0 {
            take(&[]);
            return Ok(());
        }
        let mut read_back = match self.read_back.take() {
            Some(memory) if memory.len() >= bytes => memory,
            _ => self.driver.allocate_pinned("what is read back", bytes.next_power_of_two())?,
        };
        let mut at = 0;
        for (address, bytes) in parts {
            let bytes = *bytes as usize;
            self.stream.copy_out(*address, bytes, &mut read_back, at)?;
            at += bytes;
        }
        self.wait()?;
        take(read_back.bytes(bytes));
        self.read_back = Some(read_back);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), CudaError> {
        self.submit_step()?;
        if self.is_waiting { self.wait() } else { Ok(()) }
    }

    /// Waits for submitted commands.
    fn discard(&mut self) {
        if !self.commands.is_empty() {
            self.epoch += 1;
        }
        self.commands.clear();
        self.meter.started();
        self.may_miss = false;
        if self.is_held {
            return;
        }
        if self.is_waiting && self.stream.synchronize().is_ok() {
            self.is_waiting = false;
        }
        if !self.is_waiting {
            self.settle();
        }
    }

    fn resume(&mut self) -> Result<(), CudaError> {
        let miss_flag = self.miss_flag.address();
        self.epoch += 1;
        self.put_behind(&[0; 4], miss_flag)
    }

    fn miss_flag(&self) -> Address {
        self.miss_flag.address()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Submitted commands may still use this memory. The error can be ignored: a lost device runs nothing.
        let _ = self.stream.synchronize();
    }
}
