//! Direct reads, which bypass the page cache. They are meant for callers that keep the data in their own
//! memory while memory is short.
#![expect(unsafe_code, reason = "a call of the system that libraries do not have")]

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::OFlags;

/// Alignment in bytes of direct reads, in memory and in the file. Disks require at most this.
const BLOCK: usize = 4096;

/// Maximum number of retries of a read after interruptions or short reads.
const RETRIES_MAX: usize = 64;

/// A file reopened for direct reads.
#[derive(Debug)]
pub(crate) struct DirectFile(File);

impl DirectFile {
    /// Reopens a file. Returns `None` if the file system does not support direct reads.
    pub(crate) fn open(file: &File) -> Option<Self> {
        // This path refers to the open file, even if another file has its name.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::DIRECT.bits().cast_signed();
        OpenOptions::new().read(true).custom_flags(flags).open(&path).ok().map(Self)
    }

    /// Reads into a growable buffer and returns the range that holds the bytes. Returns `None` if the bytes
    /// are in the page cache or the system rejects direct reads; the caller then reads through the cache.
    pub(crate) fn read(
        &self,
        offset: u64,
        length: usize,
        buffer: &mut Vec<u8>,
    ) -> io::Result<Option<Range<usize>>> {
        if is_cached(&self.0, offset, length) {
            return Ok(None);
        }
        let head = (offset % BLOCK as u64) as usize;
        let Some(whole) =
            head.checked_add(length).and_then(|end| end.checked_next_multiple_of(BLOCK))
        else {
            return Ok(None);
        };
        let room = whole.checked_add(BLOCK).ok_or(io::ErrorKind::OutOfMemory)?;
        let more = room.saturating_sub(buffer.len());
        buffer.try_reserve(more).map_err(|_| io::ErrorKind::OutOfMemory)?;
        buffer.resize(room.max(buffer.len()), 0);
        let start = buffer.as_ptr().align_offset(BLOCK);
        let Some(out) = buffer.get_mut(start..start + whole) else { return Ok(None) };
        let there = read_blocks(&self.0, offset - head as u64, out, head + length)?;
        Ok(there.then_some(start + head..start + head + length))
    }

    /// Fills whole blocks up to byte `needed` of `out`, starting at `offset` of the file, a multiple of a block.
    /// Returns false like [`Self::read`] returns `None`.
    pub(crate) fn read_into(&self, offset: u64, needed: usize, out: &mut [u8]) -> io::Result<bool> {
        if out.len() < needed || is_cached(&self.0, offset, needed) {
            return Ok(false);
        }
        read_blocks(&self.0, offset, out, needed)
    }
}

/// Fills whole blocks up to byte `needed` of `out`, starting at `offset` of the file. Returns false if the
/// system rejects the read.
fn read_blocks(file: &File, offset: u64, out: &mut [u8], needed: usize) -> io::Result<bool> {
    let (mut done, mut retries) = (0, 0);
    while done < needed {
        match file.read_at(&mut out[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            // The last block of a file is incomplete, and all needed bytes are read.
            Ok(count) if done + count >= needed => return Ok(true),
            Ok(count) => done += count - count % BLOCK,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(false),
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            Err(_) => {}
        }
        retries += 1;
        if retries > RETRIES_MAX {
            return Ok(false);
        }
    }
    Ok(true)
}

/// System call number of `cachestat`, identical on all Linux architectures that Rust supports.
const CACHESTAT: libc::c_long = 451;

#[repr(C)]
struct CacheRange {
    offset: u64,
    length: u64,
}

/// Output of `cachestat`, in pages.
#[repr(C)]
#[derive(Default)]
struct CacheCounts {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Returns true if the page cache holds the whole range. Unlike a non-blocking read, `cachestat` does not
/// load pages into the cache. Returns false on systems before Linux 6.5 and for files of other users.
fn is_cached(file: &File, offset: u64, length: usize) -> bool {
    let page = rustix::param::page_size() as u64;
    let length = length as u64;
    let pages = (offset % page + length).div_ceil(page);
    let (range, mut counts) = (CacheRange { offset, length }, CacheCounts::default());
    // SAFETY: the file is open, and both structs have the layout of the system call.
    let status =
        unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut counts, 0) };
    status == 0 && counts.cached >= pages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_of(length: usize) -> (tempfile::NamedTempFile, Vec<u8>) {
        let bytes: Vec<u8> = (0..length).map(|i| (i * 7 + i / 251) as u8).collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        (file, bytes)
    }

    fn forget(file: &File) {
        file.sync_all().unwrap();
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }

    #[test]
    fn blocks_are_read_to_the_last_byte_wherever_a_read_begins() {
        let (path, bytes) = file_of(3 * BLOCK + 100);
        let file = path.reopen().unwrap();
        let Some(direct) = DirectFile::open(&file) else {
            eprintln!("SKIPPED: this file system has no direct reads");
            return;
        };
        let mut buffer = vec![9; 3];
        for (offset, length) in
            [(0, 1), (0, 3 * BLOCK + 100), (4095, 2), (BLOCK, BLOCK), (5000, 7388)]
        {
            let start = offset - offset % BLOCK;
            let head = offset - start;
            buffer.resize(head + length + 2 * BLOCK, 0);
            let aligned = buffer.as_ptr().align_offset(BLOCK);
            let whole = (head + length).next_multiple_of(BLOCK);
            let out = &mut buffer[aligned..aligned + whole];
            if !read_blocks(&direct.0, start as u64, out, head + length).unwrap() {
                continue;
            }
            assert_eq!(out[head..head + length], bytes[offset..offset + length]);
            forget(&file);
            // `None` if another process keeps the page in the cache.
            if let Some(range) = direct.read(offset as u64, length, &mut buffer).unwrap() {
                assert_eq!(buffer[range], bytes[offset..offset + length]);
            }
        }
        let mut out = vec![0; 2 * BLOCK];
        let aligned = out.as_ptr().align_offset(BLOCK);
        let behind = read_blocks(&direct.0, 4 * BLOCK as u64, &mut out[aligned..][..BLOCK], 1);
        assert_eq!(behind.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_lies_in_the_page_cache_is_left_to_it() {
        let (path, _) = file_of(BLOCK);
        let file = path.reopen().unwrap();
        let Some(direct) = DirectFile::open(&file) else {
            eprintln!("SKIPPED: this file system has no direct reads");
            return;
        };
        let mut page = [0; BLOCK];
        file.read_exact_at(&mut page, 0).unwrap();
        assert_eq!(direct.read(0, 10, &mut Vec::new()).unwrap().is_none(), is_cached(&file, 0, 10));
        forget(&file);
        if is_cached(&file, 0, BLOCK) {
            eprintln!("SKIPPED: this file system keeps files in memory");
            return;
        }
        assert!(direct.read(0, 10, &mut Vec::new()).unwrap().is_some());
    }
}
