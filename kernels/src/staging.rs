//! Weights on their way to the device: through pinned memory, on a stream of their own.

use std::ops::Range;
use std::sync::Arc;

use crate::copy_queue::CopyQueue;
use crate::driver::{Address, Driver, Event, PinnedMemory, Stream};
use crate::error::CudaError;
use crate::host_planes::{HostBlock, HostPlanes};

/// Bytes of a buffer, and buffers that are under way at once.
const BUFFER_BYTES: usize = 4 << 20;
const BUFFERS: usize = 4;

/// Buffers of pinned memory that take turns.
pub(crate) struct Staging {
    driver: Arc<Driver>,
    stream: Stream,
    buffers: Vec<StagingBuffer>,
    next: usize,
    /// Bytes of the buffer in use that are on their way or wait for more.
    filled: usize,
    /// Behind the last copy.
    arrived: Event,
    /// Whether copies were started that nobody was told to wait for.
    is_ahead: bool,
    /// Planes that lie in pinned memory already.
    host: HostPlanes,
    /// Those that copies read which nobody was told to wait for, and those that others wait for.
    ahead: Vec<Arc<HostBlock>>,
    awaited: Vec<Arc<HostBlock>>,
    /// Copies that nobody waits for.
    queue: CopyQueue,
}

struct StagingBuffer {
    memory: PinnedMemory,
    /// Behind the last copy out of it.
    done: Event,
    is_busy: bool,
}

impl Staging {
    /// # Errors
    /// What the driver refuses.
    pub fn new(driver: &Arc<Driver>, host_bytes: u64) -> Result<Self, CudaError> {
        Ok(Self {
            stream: driver.stream()?,
            buffers: Vec::new(),
            next: 0,
            filled: 0,
            arrived: driver.event()?,
            is_ahead: false,
            host: HostPlanes::new(driver, host_bytes),
            ahead: Vec::new(),
            awaited: Vec::new(),
            queue: CopyQueue::new(driver)?,
            driver: Arc::clone(driver),
        })
    }

    /// Starts copies of all the bytes.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn upload(&mut self, bytes: &[u8], to: Address) -> Result<(), CudaError> {
        if let Some(block) = self.host.block_of(bytes) {
            block.follow(&self.stream)?;
            if let Some((memory, start)) = block.find(bytes) {
                self.stream.copy_in(memory, start, bytes.len(), to)?;
            }
            self.ahead.push(block);
            self.is_ahead = true;
            return Ok(());
        }
        let (mut rest, mut to) = (bytes, to);
        while !rest.is_empty() {
            let start = self.room()?;
            let size = rest.len().min(BUFFER_BYTES - start);
            let (now, later) = rest.split_at(size);
            let buffer = &mut self.buffers[self.next];
            buffer.memory.write(start, now);
            self.stream.copy_in(&buffer.memory, start, size, to)?;
            self.filled = (start + size).next_multiple_of(64);
            (rest, to) = (later, to + size as u64);
            self.is_ahead = true;
        }
        Ok(())
    }

    /// Where in the buffer in use the next bytes go.
    fn room(&mut self) -> Result<usize, CudaError> {
        if self.filled >= BUFFER_BYTES {
            let buffer = &mut self.buffers[self.next];
            self.stream.record(&buffer.done)?;
            buffer.is_busy = true;
            self.next = (self.next + 1) % BUFFERS;
            self.filled = 0;
        }
        if self.next == self.buffers.len() {
            let memory = self.driver.allocate_pinned("transfers", BUFFER_BYTES)?;
            self.buffers.push(StagingBuffer { memory, done: self.driver.event()?, is_busy: false });
        }
        let buffer = &mut self.buffers[self.next];
        if buffer.is_busy {
            buffer.done.synchronize()?;
            buffer.is_busy = false;
        }
        Ok(self.filled)
    }

    /// Copies parts of the device's memory to pinned memory, behind the copies that were started; none
    /// where there is no room for them.
    ///
    /// # Errors
    /// As [`HostPlanes::fetch`].
    pub fn fetch(
        &mut self,
        parts: &[(Address, Range<usize>)],
        bytes: usize,
    ) -> Result<Option<Arc<HostBlock>>, CudaError> {
        if self.queue.is_open() {
            return self.queue.fetch(&self.host, parts, bytes);
        }
        self.host.fetch(&self.stream, parts, bytes)
    }

    /// Whether what is put into slots and taken out of them is copied behind the steps.
    pub fn is_queueing(&self) -> bool {
        self.queue.is_open()
    }

    /// Copies behind the steps from now on, and behind all that was started here and what `reader` notes.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn begin_async_copies(&mut self, reader: &Event) -> Result<(), CudaError> {
        let started = self.driver.event()?;
        self.stream.record(&started)?;
        self.queue.begin([&started, reader])
    }

    /// Starts a copy of all the bytes behind the steps.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn queue_upload(&mut self, bytes: &[u8], to: Address) -> Result<(), CudaError> {
        let block = self.host.block_of(bytes);
        self.queue.upload(bytes, block, to)
    }

    /// Nothing is copied behind the steps any more; gives the number of what was.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn end_async_copies(&mut self) -> Result<u64, CudaError> {
        self.queue.end()
    }

    /// The number up to which all that was copied behind the steps is there for what `reader` and transfers
    /// do from now on: those that are done, and `awaited`, behind which both wait.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn completed_copies(&mut self, awaited: u64, reader: &Stream) -> Result<u64, CudaError> {
        let ended = self.queue.ended()?;
        let Some((number, mark)) = self.queue.mark(awaited) else { return Ok(ended) };
        self.stream.wait_for(mark)?;
        reader.wait_for(mark)?;
        Ok(number)
    }

    /// Waits for all copies, those behind the steps and those beside them.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn finish_all(&mut self) -> Result<(), CudaError> {
        self.stream.synchronize()?;
        self.queue.finish()
    }

    /// All that others were told to wait for was waited for.
    pub fn finished(&mut self) {
        self.awaited.clear();
    }

    /// What is copied from now on waits until another stream has come so far.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn wait_for(&mut self, event: &Event) -> Result<(), CudaError> {
        self.stream.wait_for(event)
    }

    /// What another stream does from now on sees all that was copied.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn settle(&mut self, reader: &Stream) -> Result<(), CudaError> {
        if self.is_ahead {
            self.stream.record(&self.arrived)?;
            reader.wait_for(&self.arrived)?;
            self.awaited.append(&mut self.ahead);
            self.is_ahead = false;
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // What is copied out of buffers goes with them. A device that is lost copies nothing any more.
        let _ = self.stream.synchronize();
    }
}

#[cfg(test)]
mod tests;
