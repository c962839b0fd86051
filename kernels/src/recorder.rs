//! Records what a step does and gives it to the device.
//!
//! What the host gives along, tables of rows, lies in one arena at offsets that are the same in every
//! step of the same form: so are the commands then, and such a step is one graph.

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

/// The largest table in the arena takes one of so many parts of it.
const TABLE_PARTS: usize = 8;

/// So many of the largest tables have room in the arena when an operation begins; those that find none get
/// ranges of their own.
const TABLES_OF_OPERATION: usize = 2;

/// Places in the arena are multiples of so many bytes.
const ALIGN: usize = 256;

/// Commands of a step of many rows that are recorded before the device is given them.
const COMMANDS_MAX: usize = 32;

/// Most rows of a step that is kept until its end, to be started as one.
const GRAPH_ROWS_MAX: usize = 16;

/// When recorded work is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// At the end of the step, as a graph if it came before.
    Together,
    /// As it comes.
    Early,
}

/// Commands that were not yet given to the device, and what they read.
pub struct Recorder {
    pub(crate) driver: Arc<Driver>,
    stream: Stream,
    staging: Staging,
    commands: Commands,
    pace: Pace,
    graphs: Graphs,
    arena: DeviceMemory,
    tables: PinnedMemory,
    /// Bytes of the arena in use, and of those the ones that the device was given.
    used: usize,
    given: usize,
    read_back: Option<PinnedMemory>,
    /// Memory and tables that commands of this step may still read.
    retired: Vec<DeviceMemory>,
    own_tables: Vec<SlabRange>,
    /// The miss flag: where kernels leave that planes are missing; not 0: what comes after does nothing.
    miss_flag: DeviceMemory,
    /// Whether what is recorded may find it set.
    may_miss: bool,
    /// How often it was set: what the host knew of memory was made by commands that may not have
    /// taken place.
    epoch: u64,
    /// How far the stream was when a range was taken over.
    passed: Event,
    is_waiting: bool,
    /// Whether what is recorded is kept, to be started by another.
    is_held: bool,
    /// What was recorded, and how long it is estimated to take.
    pub(crate) meter: WorkMeter,
    slabs: Slabs,
}

/// How steps are recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recording {
    /// Bytes for tables of rows and pages: [`ARENA_BYTES`] but for tests.
    pub arena_bytes: usize,
    /// How fast the device is taken to be.
    pub rates: WorkRates,
}

impl Recorder {
    /// # Errors
    /// A device whose memory is full.
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

    /// Counts what nobody knows whether it took place: what was known of memory before is not true now.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What is recorded from now on in this step takes place unless planes are missing.
    pub(crate) fn may_miss(&mut self) {
        self.may_miss = true;
    }

    /// Bytes of the largest table in the arena; others get a range of their own.
    fn table_bytes_max(&self) -> usize {
        self.tables.len() / TABLE_PARTS
    }

    /// Records a kernel.
    ///
    /// # Errors
    /// As [`CommandRecorder::submit`].
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

    /// Records a kernel that computes so much. What was recorded before is started first if both together
    /// may keep the device busy for too long.
    ///
    /// # Errors
    /// As [`CommandRecorder::submit`].
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

    /// As [`CommandRecorder::submit`]; the driver does not wait for more.
    fn submit_now(&mut self) -> Result<(), CudaError> {
        if self.commands.is_empty() {
            return Ok(());
        }
        self.submit()?;
        self.stream.record(&self.passed)?;
        // Windows' driver gathers commands until somebody asks what became of them.
        self.passed.is_done()?;
        Ok(())
    }

    fn recorded(&mut self) -> Result<(), CudaError> {
        match self.pace {
            Pace::Early if self.commands.len() >= COMMANDS_MAX && !self.is_held => self.submit(),
            _ => Ok(()),
        }
    }

    /// A range with these bytes, for whatever is recorded from now on.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full.
    pub(crate) fn upload(&mut self, bytes: &[u8]) -> Result<SlabRange, CudaError> {
        let range = self.range(bytes.len())?;
        self.fill(&range, 0, bytes)?;
        Ok(range)
    }

    /// A range with unspecified contents, to be filled.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full.
    pub(crate) fn range(&mut self, bytes: usize) -> Result<SlabRange, CudaError> {
        let (range, readers) = slabs::range(&self.slabs, &self.driver, bytes as u64)?;
        if readers == Readers::Earlier {
            self.submit()?;
            self.stream.record(&self.passed)?;
            self.staging.wait_for(&self.passed)?;
        }
        Ok(range)
    }

    /// Puts bytes into a range that nothing reads yet.
    ///
    /// # Errors
    /// A device that is lost.
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

    /// What [`CommandRecorder::overwrite`] and [`Recorder::fetch`] copy from now on comes behind all that was
    /// recorded and started so far, and no step waits for it.
    ///
    /// # Errors
    /// A device that is lost.
    pub(crate) fn begin_async_copies(&mut self) -> Result<(), CudaError> {
        self.submit()?;
        self.stream.record(&self.passed)?;
        self.staging.begin_async_copies(&self.passed)
    }

    /// Copies are waited for again; gives the number of those that are not.
    ///
    /// # Errors
    /// A device that is lost.
    pub(crate) fn end_async_copies(&mut self) -> Result<u64, CudaError> {
        self.driver.check()?;
        self.staging.end_async_copies()
    }

    /// The number up to which such copies are there for what is recorded and started from now on, which
    /// waits for those up to `awaited`.
    ///
    /// # Errors
    /// A device that is lost.
    pub(crate) fn completed_copies(&mut self, awaited: u64) -> Result<u64, CudaError> {
        self.staging.completed_copies(awaited, &self.stream)
    }

    /// As [`CommandRecorder::finish`], and waits for all copies: those that no step waits for, and those out of memory
    /// of the device.
    ///
    /// # Errors
    /// As [`CommandRecorder::finish`].
    pub(crate) fn finish_all(&mut self) -> Result<(), CudaError> {
        self.finish()?;
        self.staging.finish_all()
    }

    /// Copies parts of memory that nothing writes to pinned memory of the host; none where there is no
    /// room for them.
    ///
    /// # Errors
    /// A device that is lost.
    pub(crate) fn fetch(
        &mut self,
        parts: &[(Address, Range<usize>)],
        bytes: usize,
    ) -> Result<Option<Arc<HostBlock>>, CudaError> {
        self.staging.fetch(parts, bytes)
    }

    /// Keeps memory until nothing that was recorded reads it.
    pub(crate) fn retire(&mut self, memory: Option<DeviceMemory>) {
        self.retired.extend(memory);
    }

    /// Gives a whole step to the device.
    fn submit_step(&mut self) -> Result<(), CudaError> {
        // What was started early in parts is no whole.
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

    /// What is held is not started in parts.
    fn check_held(&self) -> Result<(), CudaError> {
        if !self.is_held {
            return Ok(());
        }
        let reason = "work that is recorded to be timed: it waits, or its tables find no room";
        Err(CudaError::Refused { reason: reason.into() })
    }

    /// Waits for all that was recorded; what is recorded from now on is kept and not started.
    ///
    /// # Errors
    /// As [`Recorder::finish_all`].
    pub(crate) fn hold(&mut self) -> Result<(), CudaError> {
        self.finish_all()?;
        self.is_held = true;
        Ok(())
    }

    /// What was recorded since [`Recorder::hold`], for the stream that reads its tables. The memory that it
    /// names stays until [`Recorder::release`].
    ///
    /// # Errors
    /// A device that is lost.
    pub(crate) fn take_held(&mut self) -> Result<(Commands, &Stream), CudaError> {
        self.driver.check()?;
        self.give_tables()?;
        Ok((std::mem::take(&mut self.commands), &self.stream))
    }

    /// The stream of what is recorded.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Nothing is held any more; what was started of it is waited for.
    pub(crate) fn release(&mut self) {
        self.is_held = false;
        self.is_waiting = true;
        self.discard();
    }

    /// Some of what was recorded did not take place.
    fn failed(&mut self, is_so: bool) {
        self.epoch += u64::from(is_so);
    }

    /// What commands that are started now read is there in front of them.
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

    /// Waits until the device has done all that it was given.
    fn wait(&mut self) -> Result<(), CudaError> {
        self.meter.counts.waits += 1;
        self.stream.synchronize()?;
        self.is_waiting = false;
        self.settle();
        Ok(())
    }

    /// Nothing is under way: what it read can go.
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

    /// Where the arena has little room left, what was recorded before is waited for.
    fn begin_operation(&mut self) -> Result<(), CudaError> {
        if self.used + TABLES_OF_OPERATION * self.table_bytes_max() <= self.tables.len() {
            return Ok(());
        }
        self.submit()?;
        self.wait()
    }

    /// A table never waits: the arena would be given away anew with tables in it whose commands are still to
    /// be recorded.
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

    /// What the device was given is waited for.
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
        // What was started may still use what goes with this. A device that is lost does nothing any more.
        let _ = self.stream.synchronize();
    }
}
