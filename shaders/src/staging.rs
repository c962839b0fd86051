//! Staging chunks: memory that the host writes and the device copies from. A chunk is reused once the device
//! has copied it.

use std::sync::mpsc::{Receiver, Sender, channel};

use crate::device::{Gpu, write_mapped};
use crate::error::WgpuError;

/// Bytes of a chunk. Larger writes get a separate chunk.
const CHUNK_BYTES: u64 = 4 << 20;

/// Maximum bytes of pending chunks before the host waits for the device.
const OUT_BYTES_MAX: u64 = 64 << 20;

/// Alignment of copies in bytes.
const ALIGN: u64 = 16;

/// A staging chunk, mapped while the host writes.
struct Chunk {
    buffer: wgpu::Buffer,
    used: u64,
}

/// All staging chunks.
pub(crate) struct Staging {
    /// Chunks read by copies of the next submission.
    open: Vec<Chunk>,
    free: Vec<Chunk>,
    /// Bytes of submitted chunks that have not returned.
    out_bytes: u64,
    send: Sender<Result<Chunk, u64>>,
    returned: Receiver<Result<Chunk, u64>>,
}

impl Default for Staging {
    fn default() -> Self {
        let (send, returned) = channel();
        Self { open: Vec::new(), free: Vec::new(), out_bytes: 0, send, returned }
    }
}

impl Staging {
    /// Writes bytes, zero-padded to a multiple of 4, and returns the buffer and offset to copy from.
    ///
    /// # Errors
    /// Returns an error if the host is out of memory or the device is lost.
    pub fn put(&mut self, gpu: &Gpu, bytes: &[u8]) -> Result<(wgpu::Buffer, u64), WgpuError> {
        let length = (bytes.len() as u64).next_multiple_of(4).max(4);
        let fits = |chunk: &Chunk| chunk.buffer.size() - chunk.used >= length;
        let at = match self.open.iter().rposition(fits) {
            Some(at) => at,
            None => {
                let chunk = self.take(gpu, length)?;
                self.open.push(chunk);
                self.open.len() - 1
            }
        };
        let chunk = &mut self.open[at];
        write_mapped(&chunk.buffer, chunk.used, bytes)?;
        let from = (chunk.buffer.clone(), chunk.used);
        chunk.used = (chunk.used + length).next_multiple_of(ALIGN).min(chunk.buffer.size());
        Ok(from)
    }

    /// Returns a mapped chunk with at least `bytes` bytes.
    fn take(&mut self, gpu: &Gpu, bytes: u64) -> Result<Chunk, WgpuError> {
        self.collect();
        if self.out_bytes > OUT_BYTES_MAX {
            gpu.wait()?;
            self.collect();
        }
        if let Some(at) = self.free.iter().position(|chunk| chunk.buffer.size() >= bytes) {
            return Ok(self.free.swap_remove(at));
        }
        let buffer = gpu.staging(bytes.max(CHUNK_BYTES))?;
        Ok(Chunk { buffer, used: 0 })
    }

    /// Unmaps written chunks, so that the next submission can copy from them.
    pub fn close(&mut self) {
        self.open.iter().for_each(|chunk| chunk.buffer.unmap());
    }

    /// Requests that chunks return when the last submission is complete.
    pub fn recall(&mut self) {
        for mut chunk in self.open.drain(..) {
            let (send, bytes) = (self.send.clone(), chunk.buffer.size());
            self.out_bytes += bytes;
            chunk.used = 0;
            let buffer = chunk.buffer.clone();
            buffer.slice(..).map_async(wgpu::MapMode::Write, move |mapped| {
                // The receiver is gone after the device is dropped.
                let _ = send.send(mapped.map(|()| chunk).map_err(|_| bytes));
            });
        }
    }

    fn collect(&mut self) {
        for returned in self.returned.try_iter() {
            let bytes = returned.as_ref().map_or_else(|bytes| *bytes, |chunk| chunk.buffer.size());
            self.out_bytes -= bytes;
            self.free.extend(returned);
        }
    }
}
