//! Bytes on their way to the device: chunks of memory that the host writes and the device copies from,
//! one after another, and that come back when it has.

use std::sync::mpsc::{Receiver, Sender, channel};

use crate::device::{Gpu, write_mapped};
use crate::error::WgpuError;

/// Bytes of a chunk; larger writes have one of their own.
const CHUNK_BYTES: u64 = 4 << 20;

/// Bytes of chunks that the device may still have to copy from before the host waits for it.
const OUT_BYTES_MAX: u64 = 64 << 20;

/// Copies begin at multiples of this.
const ALIGN: u64 = 16;

/// Memory that the host writes, mapped while it does.
struct Chunk {
    buffer: wgpu::Buffer,
    used: u64,
}

/// All chunks.
pub(crate) struct Staging {
    /// Those that copies of the next submission read.
    open: Vec<Chunk>,
    free: Vec<Chunk>,
    /// Bytes of those that were submitted and have not come back.
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
    /// Writes bytes, and zeros up to a multiple of 4, and says where they are to be copied from.
    ///
    /// # Errors
    /// A host without memory for them; a device that is lost.
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

    /// A chunk with room for so many bytes, mapped.
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

    /// What was written can be copied by the commands that are submitted next.
    pub fn close(&mut self) {
        self.open.iter().for_each(|chunk| chunk.buffer.unmap());
    }

    /// Has chunks come back when what was just submitted is done.
    pub fn recall(&mut self) {
        for mut chunk in self.open.drain(..) {
            let (send, bytes) = (self.send.clone(), chunk.buffer.size());
            self.out_bytes += bytes;
            chunk.used = 0;
            let buffer = chunk.buffer.clone();
            buffer.slice(..).map_async(wgpu::MapMode::Write, move |mapped| {
                // Nobody listens once the device is given up.
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
