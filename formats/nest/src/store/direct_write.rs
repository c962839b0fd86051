//! Writes past the page cache: what a store is written from is larger than memory, and nobody reads it
//! again soon.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Mutex;

use rustix::fs::OFlags;

/// What direct writes begin and end at, in memory and in the file: no disk asks for more.
const BLOCK: usize = 4096;

/// Bytes of one write.
const CHUNK_BYTES: usize = 1 << 20;

/// Shorter ones go through the page cache.
const LEAST_BYTES: usize = 64 << 10;

/// A file that is opened once more, for direct writes.
#[derive(Debug)]
pub(super) struct DirectWrites {
    file: File,
    /// Buffers that no write uses.
    free: Mutex<Vec<Vec<u8>>>,
}

impl DirectWrites {
    /// None where the file system has no direct writes.
    pub fn open(file: &File) -> Option<Self> {
        // The file that is open, whatever has its name by now.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::DIRECT.bits().cast_signed();
        let file = OpenOptions::new().write(true).custom_flags(flags).open(path).ok()?;
        Some(Self { file, free: Mutex::default() })
    }

    /// Writes whole blocks from the first byte on, and returns how many bytes they were: the others, and
    /// what the system refuses to write so, are to be written through the page cache.
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

    /// Room for a chunk, wherever its first block begins; none where there is no memory.
    fn buffer(&self) -> Option<Vec<u8>> {
        if let Some(buffer) = self.free.lock().ok().and_then(|mut free| free.pop()) {
            return Some(buffer);
        }
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(CHUNK_BYTES + BLOCK).ok()?;
        buffer.resize(CHUNK_BYTES + BLOCK, 0);
        Some(buffer)
    }

    /// Writes blocks; fewer where the system refuses.
    fn write_blocks(&self, offset: u64, blocks: &[u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < blocks.len() {
            match self.file.write_at(&blocks[done..], offset + done as u64) {
                // Less than a block of them is written again.
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
            // Over what lies in the page cache, and not at a block.
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
