//! Asynchronous copies to and from slots, on a separate stream. Steps do not wait for them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::driver::{Address, Driver, Event, PinnedMemory, Stream};
use crate::error::CudaError;
use crate::host_planes::{HostBlock, HostPlanes};

/// Size in bytes of a pinned buffer for data outside of pinned memory, such as matrix descriptors and codecs.
const BUFFER_BYTES: usize = 64 << 10;

/// A queue of transfers, which run in order.
pub(crate) struct CopyQueue {
    driver: Arc<Driver>,
    stream: Stream,
    /// Transfer that copies are added to.
    open: Option<Transfer>,
    /// Pending transfers in order, with their numbers.
    under_way: VecDeque<(u64, Event, Transfer)>,
    /// Number of completed transfers.
    ended: u64,
    spare: Vec<PinnedMemory>,
}

/// Memory that the copies of one transfer read or write.
#[derive(Default)]
struct Transfer {
    blocks: Vec<Arc<HostBlock>>,
    buffers: Vec<PinnedMemory>,
    /// Used bytes of the last buffer.
    filled: usize,
}

impl CopyQueue {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// Returns an error if the driver refuses a call.
    pub fn new(driver: &Arc<Driver>) -> Result<Self, CudaError> {
        Ok(Self {
            stream: driver.late_stream()?,
            open: None,
            under_way: VecDeque::new(),
            ended: 0,
            spare: Vec::new(),
            driver: Arc::clone(driver),
        })
    }

    /// Returns whether a transfer is open for more copies.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Starts a transfer after the given events of other streams.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub fn begin(&mut self, others: [&Event; 2]) -> Result<(), CudaError> {
        others.into_iter().try_for_each(|event| self.stream.wait_for(event))?;
        self.open.get_or_insert_default();
        Ok(())
    }

    /// Adds a copy of `bytes`. If they are stored in `block`, they are copied without a buffer.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub fn upload(
        &mut self,
        bytes: &[u8],
        block: Option<Arc<HostBlock>>,
        to: Address,
    ) -> Result<(), CudaError> {
        let transfer = self.open.get_or_insert_default();
        if let Some(block) = block {
            block.follow(&self.stream)?;
            if let Some((memory, start)) = block.find(bytes) {
                self.stream.copy_in(memory, start, bytes.len(), to)?;
            }
            transfer.blocks.push(block);
            return Ok(());
        }
        let room = transfer
            .buffers
            .last()
            .map_or(0, |buffer| buffer.len().saturating_sub(transfer.filled));
        if room < bytes.len() {
            let spare = self.spare.pop().filter(|spare| spare.len() >= bytes.len());
            let size = BUFFER_BYTES.max(bytes.len());
            let allocate = || self.driver.allocate_pinned("transfers", size);
            transfer.buffers.push(spare.map_or_else(allocate, Ok)?);
            transfer.filled = 0;
        }
        let Some(buffer) = transfer.buffers.last_mut() else { return Ok(()) };
        let start = transfer.filled;
        buffer.write(start, bytes);
        transfer.filled = (start + bytes.len()).next_multiple_of(64);
        self.stream.copy_in(buffer, start, bytes.len(), to)
    }

    /// Adds copies from the device to memory of `host`. Returns `None` if it has no space.
    ///
    /// # Errors
    /// Fails like [`HostPlanes::fetch`].
    pub fn fetch(
        &mut self,
        host: &HostPlanes,
        parts: &[(Address, Range<usize>)],
        bytes: usize,
    ) -> Result<Option<Arc<HostBlock>>, CudaError> {
        let block = host.fetch(&self.stream, parts, bytes)?;
        self.open.get_or_insert_default().blocks.extend(block.clone());
        Ok(block)
    }

    /// Closes the transfer and returns its number.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub fn end(&mut self) -> Result<u64, CudaError> {
        let last = self.under_way.back().map_or(self.ended, |(number, ..)| *number);
        let Some(transfer) = self.open.take() else { return Ok(last) };
        let done = self.driver.event()?;
        self.stream.record(&done)?;
        self.under_way.push_back((last + 1, done, transfer));
        Ok(last + 1)
    }

    /// Returns the number of the last completed transfer. All earlier transfers are complete too.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub fn ended(&mut self) -> Result<u64, CudaError> {
        while let Some((number, done, _)) = self.under_way.front() {
            if !done.is_done()? {
                break;
            }
            self.ended = *number;
            let transfer = self.under_way.pop_front().map(|(.., transfer)| transfer.buffers);
            self.spare.extend(transfer.into_iter().flatten());
        }
        Ok(self.ended)
    }

    /// Returns the last pending transfer up to `number`, with its completion event. Returns `None` if all are
    /// complete.
    pub fn mark(&self, number: u64) -> Option<(u64, &Event)> {
        let upto = self.under_way.iter().take_while(|(other, ..)| *other <= number).last();
        upto.map(|(number, done, _)| (*number, done))
    }

    /// Waits for all transfers.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub fn finish(&mut self) -> Result<(), CudaError> {
        self.stream.synchronize()?;
        self.ended().map(drop)
    }
}

impl Drop for CopyQueue {
    fn drop(&mut self) {
        // The error can be ignored: a lost device performs no copies.
        let _ = self.stream.synchronize();
    }
}
