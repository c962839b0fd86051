//! Staging of weights: copies to the device through pinned memory, on a separate stream.

use std::ops::Range;
use std::sync::Arc;

use crate::copy_queue::CopyQueue;
use crate::driver::{Address, Driver, Event, PinnedMemory, Stream};
use crate::error::CudaError;
use crate::host_planes::{HostBlock, HostPlanes};

/// Bytes of a staging buffer, and maximum number of buffers.
const BUFFER_BYTES: usize = 4 << 20;
const BUFFERS: usize = 4;

/// Pinned staging buffers, used in rotation.
pub(crate) struct Staging {
    driver: Arc<Driver>,
    stream: Stream,
    buffers: Vec<StagingBuffer>,
    next: usize,
    /// Used bytes of the current buffer.
    filled: usize,
    /// Event after the last copy.
    arrived: Event,
    /// True if copies were started after the last [`Staging::settle`].
    is_ahead: bool,
    host: HostPlanes,
    /// Blocks read by copies since the last [`Staging::settle`], and blocks read by earlier copies.
    ahead: Vec<Arc<HostBlock>>,
    awaited: Vec<Arc<HostBlock>>,
    queue: CopyQueue,
}

struct StagingBuffer {
    memory: PinnedMemory,
    /// Event after the last copy from the buffer.
    done: Event,
    is_busy: bool,
}

impl Staging {
    /// Creates staging without buffers.
    ///
    /// # Errors
    /// Returns an error if the driver refuses a call.
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

    /// Starts copying all bytes to the device.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
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

    /// Returns the offset of free space in the current buffer.
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

    /// Copies device memory to pinned memory after all started copies. Returns `None` if there is no space.
    ///
    /// # Errors
    /// Fails like [`HostPlanes::fetch`].
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

    /// Returns whether copies to and from slots are asynchronous.
    pub fn is_queueing(&self) -> bool {
        self.queue.is_open()
    }

    /// Starts an asynchronous transfer after all copies started here and after the event `reader`.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub fn begin_async_copies(&mut self, reader: &Event) -> Result<(), CudaError> {
        let started = self.driver.event()?;
        self.stream.record(&started)?;
        self.queue.begin([&started, reader])
    }

    /// Adds a copy of all bytes to the asynchronous transfer.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub fn queue_upload(&mut self, bytes: &[u8], to: Address) -> Result<(), CudaError> {
        let block = self.host.block_of(bytes);
        self.queue.upload(bytes, block, to)
    }

    /// Ends the asynchronous transfer and returns its number.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub fn end_async_copies(&mut self) -> Result<u64, CudaError> {
        self.queue.end()
    }

    /// Returns the number of the last asynchronous transfer visible to later operations of `reader` and of
    /// staging. Both streams wait for transfers up to `awaited`.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub fn completed_copies(&mut self, awaited: u64, reader: &Stream) -> Result<u64, CudaError> {
        let ended = self.queue.ended()?;
        let Some((number, mark)) = self.queue.mark(awaited) else { return Ok(ended) };
        self.stream.wait_for(mark)?;
        reader.wait_for(mark)?;
        Ok(number)
    }

    /// Waits for all copies, including asynchronous ones.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub fn finish_all(&mut self) -> Result<(), CudaError> {
        self.stream.synchronize()?;
        self.queue.finish()
    }

    /// Releases the blocks of copies that were waited for.
    pub fn finished(&mut self) {
        self.awaited.clear();
    }

    /// Makes later copies wait for an event of another stream.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub fn wait_for(&mut self, event: &Event) -> Result<(), CudaError> {
        self.stream.wait_for(event)
    }

    /// Makes later operations of another stream wait for all started copies.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
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
        // Pending copies read the buffers. The error can be ignored: a lost device performs no copies.
        let _ = self.stream.synchronize();
    }
}

#[cfg(test)]
mod tests;
