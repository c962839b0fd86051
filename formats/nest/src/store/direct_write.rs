//! Writes that bypass the page cache. The source of a store is larger than memory, and the written data is
//! not read again soon.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Mutex;

use rustix::fs::OFlags;

/// Alignment of direct writes in memory and in the file; no disk requires more.
const BLOCK: usize = 4096;

/// Maximum bytes per write.
const CHUNK_BYTES: usize = 1 << 20;

/// Minimum bytes of a direct write; shorter writes go through the page cache.
const LEAST_BYTES: usize = 64 << 10;

/// A second handle of a file, opened for direct writes.
#[derive(Debug)]
pub(super) struct DirectWrites {
    file: File,
    free: Mutex<Vec<Vec<u8>>>,
}

impl DirectWrites {
    /// Opens the file again for direct writes, or returns `None` if the file system does not support them.
    pub fn open(file: &File) -> Option<Self> {
        // Opened through the file descriptor, since another file may have taken the name.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::DIRECT.bits().cast_signed();
        let file = OpenOptions::new().write(true).custom_flags(flags).open(path).ok()?;
        Some(Self { file, free: Mutex::default() })
    }

    /// Writes as many whole blocks as possible from the start of `bytes` and returns their size in bytes. The
    /// caller must write the rest through the page cache.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() < LEAST_BYTES || !offset.is_multiple_of(BLOCK as u64) {
            return Ok(0);
        }
        let Some(mut buffer) = self.buffer() else { return Ok(0) };
        let start = buffer.as_ptr().align_offset(BLOCK);
        let Some(aligned) = buffer.get_mut(start..start + CHUNK_BYTES) else { return Ok(0) };
        let whole = bytes.len() - bytes.len() % BLOCK;
        let mut done = 0;
        while done < whole {
            let count = CHUNK_BYTES.min(whole - done);
            aligned[..count].copy_from_slice(&bytes[done..done + count]);
            let written = self.write_blocks(offset + done as u64, &aligned[..count])?;
            done += written;
            if written < count {
                break;
            }
        }
        if let Ok(mut free) = self.free.lock() {
            free.push(buffer);
        }
        Ok(done)
    }

    /// Returns a buffer with space for an aligned chunk, or `None` if memory runs out.
    fn buffer(&self) -> Option<Vec<u8>> {
        if let Some(buffer) = self.free.lock().ok().and_then(|mut free| free.pop()) {
            return Some(buffer);
        }
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(CHUNK_BYTES + BLOCK).ok()?;
        buffer.resize(CHUNK_BYTES + BLOCK, 0);
        Some(buffer)
    }

    /// Writes blocks and returns the bytes written; fewer if the system rejects direct writes.
    fn write_blocks(&self, offset: u64, blocks: &[u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < blocks.len() {
            match self.file.write_at(&blocks[done..], offset + done as u64) {
                // A partially written block is written again.
                Ok(count) if count < BLOCK => break,
                Ok(count) => done += count - count % BLOCK,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::disk::{Disk, OsDisk};

    #[test]
    fn bytes_are_the_same_whichever_way_they_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = OsDisk.open(&path).unwrap();
        let length = 3 * CHUNK_BYTES;
        file.set_len(length as u64).unwrap();
        let mut expected = vec![0; length];
        for (turn, (at, count)) in [
            (0, CHUNK_BYTES + 5000),
            (2 * CHUNK_BYTES, LEAST_BYTES),
            (2 * CHUNK_BYTES + LEAST_BYTES, LEAST_BYTES - 1),
            // Overlaps cached pages and is not aligned to a block.
            (CHUNK_BYTES + BLOCK, LEAST_BYTES + 1),
            (100, LEAST_BYTES + 2),
            (BLOCK, 2 * CHUNK_BYTES),
        ]
        .into_iter()
        .enumerate()
        {
            let bytes: Vec<u8> = (0..count).map(|i| (i * 31 + i / 253 + turn) as u8).collect();
            file.write_at(at as u64, &bytes).unwrap();
            expected[at..at + count].copy_from_slice(&bytes);
            let mut found = vec![1; length];
            file.read_at(0, &mut found).unwrap();
            assert!(found == expected, "write {turn}");
        }
        drop(file);
        assert!(std::fs::read(&path).unwrap() == expected);
    }

    #[test]
    fn long_writes_at_blocks_are_direct_where_there_are_such() {
        let file = tempfile::tempfile().unwrap();
        let Some(direct) = DirectWrites::open(&file) else {
            eprintln!("SKIPPED: this file system has no direct writes");
            return;
        };
        let bytes = vec![7; CHUNK_BYTES + BLOCK + 9];
        assert_eq!(direct.write(0, &bytes).unwrap(), CHUNK_BYTES + BLOCK);
        assert_eq!(direct.write(1, &bytes).unwrap(), 0);
        assert_eq!(direct.write(0, &bytes[..LEAST_BYTES - 1]).unwrap(), 0);
    }
}
