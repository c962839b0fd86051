//! Records what a step does and gives it to the device.
//!
//! What the host gives along, tables of rows, lies in one arena whose places are the same in every
//! step of the same form: so are the commands then, and such a step is one graph.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use nestling_core::backend::BackendCounters;
use nestling_gpu::{SUBMISSION_NANOSECONDS, WorkKind, WorkRates};

use crate::driver::commands::Commands;
use crate::driver::{Address, DeviceMemory, Driver, Event, PinnedMemory, Stream};
use crate::error::CudaError;
use crate::graphs::Graphs;
use crate::host_planes::HostBlock;
use crate::params::Launch;
use crate::slabs::{Place, Readers, Slabs};
use crate::staging::Staging;

/// Bytes of the arena of tables.
pub(crate) const ARENA_BYTES: usize = 4 << 20;

/// The largest table in the arena takes one of so many parts of it.
const TABLE_PARTS: usize = 8;

/// So many of the largest tables have room in the arena when an operation begins; those that find none get
/// places of their own.
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
pub(crate) struct Recorder {
    pub driver: Arc<Driver>,
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
    own_tables: Vec<Place>,
    /// Where kernels leave that planes are missing; not 0: what comes after does nothing.
    halt: DeviceMemory,
    /// Whether what is recorded may be halted.
    may_halt: bool,
    /// How often steps were halted: what the host knew of memory was made by commands that may not have
    /// taken place.
    epoch: u64,
    /// How far the stream was when a place was taken over.
    passed: Event,
    is_waiting: bool,
    /// Whether what is recorded is kept, to be started by another.
    is_held: bool,
    /// How fast the device is, and how long what was recorded and not started is estimated to take.
    pub rates: WorkRates,
    nanoseconds: u64,
    /// What was recorded since somebody asked.
    pub counts: BackendCounters,
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
    pub fn new(
        driver: &Arc<Driver>,
        host_bytes: u64,
        recording: Recording,
    ) -> Result<Self, CudaError> {
        let Recording { arena_bytes, rates } = recording;
        let mut staging = Staging::new(driver, host_bytes)?;
        let halt = driver.allocate("halt", 4)?;
        staging.upload(&[0; 4], halt.address())?;
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
            halt,
            may_halt: false,
            epoch: 0,
            passed: driver.event()?,
            is_waiting: false,
            is_held: false,
            rates,
            nanoseconds: 0,
            counts: BackendCounters::default(),
            slabs: Slabs::default(),
            driver: Arc::clone(driver),
        })
    }

    /// Where kernels leave that planes are missing.
    pub fn halt(&self) -> Address {
        self.halt.address()
    }

    /// Counts what nobody knows whether it took place: what was known of memory before is not true now.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What is recorded from now on in this step takes place unless planes are missing.
    pub fn may_halt(&mut self) {
        self.may_halt = true;
    }

    /// Nothing is missing any more, behind all that was recorded.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn resume(&mut self) -> Result<(), CudaError> {
        let halt = self.halt.address();
        self.epoch += 1;
        self.put_behind(&[0; 4], halt)
    }

    /// A step of so many rows begins.
    pub fn begin(&mut self, rows: usize) {
        self.pace = if rows <= GRAPH_ROWS_MAX { Pace::Together } else { Pace::Early };
    }

    /// An operation begins: what it records may read all tables that it takes. Where the arena has little
    /// room left, what was recorded before is waited for.
    ///
    /// # Errors
    /// As [`Recorder::submit`].
    pub fn begin_operation(&mut self) -> Result<(), CudaError> {
        if self.used + TABLES_OF_OPERATION * self.table_bytes_max() <= self.tables.len() {
            return Ok(());
        }
        self.submit()?;
        self.wait()
    }

    /// Bytes of the largest table in the arena; others get a place of their own.
    fn table_bytes_max(&self) -> usize {
        self.tables.len() / TABLE_PARTS
    }

    /// A table that commands of this operation read. It never waits: the arena would be given away anew
    /// with tables in it whose commands are still to be recorded.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full.
    pub fn table(&mut self, values: &[impl Pod]) -> Result<Address, CudaError> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let is_full = self.used + bytes.len() > self.tables.len();
        if is_full || bytes.len() > self.table_bytes_max() {
            let place = self.upload(bytes)?;
            let address = place.address();
            self.own_tables.push(place);
            return Ok(address);
        }
        let start = self.used;
        self.tables.write(start, bytes);
        self.used = (start + bytes.len()).next_multiple_of(ALIGN).min(self.tables.len());
        Ok(self.arena.address() + start as u64)
    }

    /// Records a kernel.
    ///
    /// # Errors
    /// As [`Recorder::submit`].
    pub fn launch(&mut self, launch: Launch, params: &impl Pod) -> Result<(), CudaError> {
        if launch.is_empty() {
            return Ok(());
        }
        launch.check()?;
        let halt = if self.may_halt { self.halt.address() } else { 0 };
        self.driver.record(launch.kernel);
        self.commands.launch(launch, params, halt);
        self.counts.dispatches += 1;
        self.recorded()
    }

    /// Records a kernel that computes so much. What was recorded before is started first if both together
    /// may keep the device busy for too long.
    ///
    /// # Errors
    /// As [`Recorder::submit`].
    pub fn launch_of(
        &mut self,
        kind: WorkKind,
        work: u64,
        launch: Launch,
        params: &impl Pod,
    ) -> Result<(), CudaError> {
        let nanoseconds = self.rates.nanoseconds(kind, work);
        if self.nanoseconds.saturating_add(nanoseconds) > SUBMISSION_NANOSECONDS {
            self.submit_now()?;
        }
        self.nanoseconds = self.nanoseconds.saturating_add(nanoseconds);
        self.launch(launch, params)
    }

    /// As [`Recorder::submit`]; the driver does not wait for more.
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

    /// # Errors
    /// As [`Recorder::submit`].
    pub fn copy(&mut self, from: Address, to: Address, bytes: u64) -> Result<(), CudaError> {
        self.commands.copy(from, to, bytes);
        self.recorded()
    }

    fn recorded(&mut self) -> Result<(), CudaError> {
        match self.pace {
            Pace::Early if self.commands.len() >= COMMANDS_MAX && !self.is_held => self.submit(),
            _ => Ok(()),
        }
    }

    /// Records that memory gets these bytes: an operation of its own.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full.
    pub fn write(&mut self, bytes: &[u8], to: Address) -> Result<(), CudaError> {
        self.begin_operation()?;
        let table = self.table(bytes)?;
        self.copy(table, to, bytes.len() as u64)
    }

    /// A place with these bytes, for whatever is recorded from now on.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full.
    pub fn upload(&mut self, bytes: &[u8]) -> Result<Place, CudaError> {
        let place = self.place(bytes.len())?;
        self.fill(&place, 0, bytes)?;
        Ok(place)
    }

    /// A place with unspecified contents, to be filled.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full.
    pub fn place(&mut self, bytes: usize) -> Result<Place, CudaError> {
        let (place, readers) = self.slabs.place(&self.driver, bytes as u64)?;
        if readers == Readers::Earlier {
            self.submit()?;
            self.stream.record(&self.passed)?;
            self.staging.wait_for(&self.passed)?;
        }
        Ok(place)
    }

    /// Puts bytes into a place that nothing reads yet.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn fill(&mut self, place: &Place, offset: u64, bytes: &[u8]) -> Result<(), CudaError> {
        self.counts.upload_bytes += bytes.len() as u64;
        self.counts.staged_bytes += bytes.len() as u64;
        self.staging.upload(bytes, place.address() + offset)
    }

    /// Puts bytes where what was recorded so far may still read, behind all of that.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn overwrite(&mut self, bytes: &[u8], to: Address) -> Result<(), CudaError> {
        self.counts.upload_bytes += bytes.len() as u64;
        self.counts.staged_bytes += bytes.len() as u64;
        if self.staging.is_behind() {
            return self.staging.upload_behind(bytes, to);
        }
        self.put_behind(bytes, to)
    }

    fn put_behind(&mut self, bytes: &[u8], to: Address) -> Result<(), CudaError> {
        self.submit()?;
        if self.is_waiting {
            self.stream.record(&self.passed)?;
            self.staging.wait_for(&self.passed)?;
        }
        self.staging.upload(bytes, to)
    }

    /// What [`Recorder::overwrite`] and [`Recorder::fetch`] copy from now on comes behind all that was
    /// recorded and started so far, and no step waits for it.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn begin_async_copies(&mut self) -> Result<(), CudaError> {
        self.submit()?;
        self.stream.record(&self.passed)?;
        self.staging.begin_async_copies(&self.passed)
    }

    /// Copies are waited for again; gives the number of those that are not.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn end_async_copies(&mut self) -> Result<u64, CudaError> {
        self.driver.check()?;
        self.staging.end_async_copies()
    }

    /// The number up to which such copies are there for what is recorded and started from now on, which
    /// waits for those up to `awaited`.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn completed_copies(&mut self, awaited: u64) -> Result<u64, CudaError> {
        self.staging.completed_copies(awaited, &self.stream)
    }

    /// As [`Recorder::finish`], and waits for all copies: those that no step waits for, and those out of memory
    /// of the device.
    ///
    /// # Errors
    /// As [`Recorder::finish`].
    pub fn finish_all(&mut self) -> Result<(), CudaError> {
        self.finish()?;
        self.staging.finish_all()
    }

    /// Copies parts of memory that nothing writes to pinned memory of the host; none where there is no
    /// room for them.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn fetch(
        &mut self,
        parts: &[(Address, Range<usize>)],
        bytes: usize,
    ) -> Result<Option<Arc<HostBlock>>, CudaError> {
        self.staging.fetch(parts, bytes)
    }

    /// Keeps memory until nothing that was recorded reads it.
    pub fn retire(&mut self, memory: Option<DeviceMemory>) {
        self.retired.extend(memory);
    }

    /// Gives all that was recorded to the device.
    ///
    /// # Errors
    /// A device that is lost; what the driver refuses.
    pub fn submit(&mut self) -> Result<(), CudaError> {
        self.driver.check()?;
        if self.commands.is_empty() {
            return Ok(());
        }
        self.check_held()?;
        self.give_tables()?;
        let done = self.stream.run(&self.commands);
        self.failed(done.is_err());
        self.commands.clear();
        self.counts.submissions += 1;
        self.is_waiting = true;
        done
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
        self.counts.submissions += 1;
        self.is_waiting = true;
        done
    }

    /// What is held is not started in parts.
    fn check_held(&self) -> Result<(), CudaError> {
        if !self.is_held {
            return Ok(());
        }
        let reason = "it waits, or its tables find no room".into();
        Err(CudaError::Refused { what: "work that is recorded to be timed", reason })
    }

    /// Waits for all that was recorded; what is recorded from now on is kept and not started.
    ///
    /// # Errors
    /// As [`Recorder::finish_all`].
    pub fn hold(&mut self) -> Result<(), CudaError> {
        self.finish_all()?;
        self.is_held = true;
        Ok(())
    }

    /// What was recorded since [`Recorder::hold`], for the stream that reads its tables. The memory that it
    /// names stays until [`Recorder::release`].
    ///
    /// # Errors
    /// A device that is lost.
    pub fn take_held(&mut self) -> Result<(Commands, &Stream), CudaError> {
        self.driver.check()?;
        self.give_tables()?;
        Ok((std::mem::take(&mut self.commands), &self.stream))
    }

    /// The stream of what is recorded.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Nothing is held any more; what was started of it is waited for.
    pub fn release(&mut self) {
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
        self.nanoseconds = 0;
        self.staging.settle(&self.stream)?;
        if self.given < self.used {
            let (start, bytes) = (self.given, self.used - self.given);
            let to = self.arena.address() + start as u64;
            self.stream.copy_in(&self.tables, start, bytes, to)?;
            self.given = self.used;
        }
        Ok(())
    }

    /// Gives all to the device and waits for it.
    ///
    /// # Errors
    /// A device that is lost; what the driver refuses.
    pub fn finish(&mut self) -> Result<(), CudaError> {
        self.submit_step()?;
        if self.is_waiting { self.wait() } else { Ok(()) }
    }

    /// Waits until the device has done all that it was given.
    fn wait(&mut self) -> Result<(), CudaError> {
        self.counts.waits += 1;
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
        self.slabs.settle();
    }

    /// Forgets what was recorded and not given to the device; what it was given is waited for.
    pub fn discard(&mut self) {
        if !self.commands.is_empty() {
            self.epoch += 1;
        }
        self.commands.clear();
        self.nanoseconds = 0;
        self.may_halt = false;
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

    /// Gives all to the device, waits, and gives parts of memory, one after another, to `take`: each
    /// a place and its bytes.
    ///
    /// # Errors
    /// A device that is lost; what the driver refuses.
    pub fn read(
        &mut self,
        parts: &[(Address, usize)],
        take: impl FnOnce(&[u8]),
    ) -> Result<(), CudaError> {
        self.submit_step()?;
        let bytes: usize = parts.iter().map(|part| part.1).sum();
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
            self.stream.copy_out(*address, *bytes, &mut read_back, at)?;
            at += bytes;
        }
        self.wait()?;
        take(read_back.bytes(bytes));
        self.read_back = Some(read_back);
        Ok(())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // What was started may still use what goes with this. A device that is lost does nothing any more.
        let _ = self.stream.synchronize();
    }
}
