//! Plain files of a store, read past the page cache where the file system allows it.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use nestling_formats::store::{Extent, FilePart, Store};
use rustix::fs::OFlags;

use super::buffers::{Buffer, BufferPool};
use super::options::RETRIES_MAX;
use nestling_core::error::EngineError;
use std::sync::Arc;

/// Alignment of a plane in memory, in bytes.
const PLANE_ALIGNMENT: u64 = 64;

/// Block sizes to try for direct reads, ascending.
const BLOCKS: [usize; 2] = [512, 4096];

pub(super) struct PlainFiles {
    parts: Vec<PlainPart>,
}

/// A range of the store's bytes in one file.
struct PlainPart {
    /// Byte range in the store.
    range: Range<u64>,
    /// Byte offset in the file.
    offset: u64,
    cached: File,
    direct: Option<DirectFile>,
}

/// A file opened for direct reads in whole blocks.
struct DirectFile {
    file: File,
    block: usize,
}

/// Location of an extent in a file.
pub(super) struct FileRange<'a> {
    pub file: &'a File,
    /// Index in [`PlainFiles::descriptors`].
    pub number: u32,
    /// Byte offset of the read in the file, a multiple of `block`.
    pub offset: u64,
    /// Bytes to read, in whole blocks.
    pub length: usize,
    /// Range of the extent in the bytes read.
    pub plane: Range<usize>,
    pub block: usize,
}

/// Access path into a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessPath {
    /// Direct if possible, otherwise cached.
    Best,
    /// Direct only.
    Direct,
    /// Through the page cache.
    Cached,
}

impl PlainFiles {
    /// Opens the store's files. Returns `None` if the store is not in plain files.
    pub fn open(store: &Store, direct: bool) -> Option<Self> {
        Self::open_in_blocks(store, if direct { &BLOCKS } else { &[] })
    }

    /// Opens the files for direct reads with the first block size that the disk accepts.
    fn open_in_blocks(store: &Store, blocks: &[usize]) -> Option<Self> {
        let mut parts: Vec<PlainPart> = Vec::new();
        for part in store.storage().files() {
            let start = parts.last().map_or(0, |last| last.range.end);
            let range = start..start.checked_add(part.length)?;
            let cached = part.file.try_clone().ok()?;
            let direct = DirectFile::open(&part, blocks);
            parts.push(PlainPart { range, offset: part.offset, cached, direct });
        }
        let end = parts.last().map_or(0, |last| last.range.end);
        (end > 0 && end == store.storage().len()).then_some(Self { parts })
    }

    pub fn is_direct(&self) -> bool {
        self.parts.iter().all(|part| part.direct.is_some())
    }

    pub fn descriptors(&self) -> Vec<RawFd> {
        let of_part = |part: &PlainPart| {
            let cached = part.cached.as_raw_fd();
            [cached, part.direct.as_ref().map_or(cached, |direct| direct.file.as_raw_fd())]
        };
        self.parts.iter().flat_map(of_part).collect()
    }

    /// Returns the location of an extent, or `None` if it cannot be read this way.
    pub fn place(&self, extent: &Extent, way: AccessPath) -> Option<FileRange<'_>> {
        let end = extent.offset.checked_add(extent.length)?;
        let holds = |part: &&PlainPart| part.range.start <= extent.offset && end <= part.range.end;
        let (number, part) = (0..).step_by(2).zip(&self.parts).find(|(_, part)| holds(part))?;
        let offset = part.offset.checked_add(extent.offset - part.range.start)?;
        let length = usize::try_from(extent.length).ok()?;
        let direct = part.direct.as_ref().filter(|_| way != AccessPath::Cached);
        if let Some(place) = direct.and_then(|direct| direct.place(offset, length)) {
            return Some(FileRange { number: number + 1, ..place });
        }
        let plane = 0..length;
        let cached = FileRange { file: &part.cached, number, offset, length, plane, block: 1 };
        (way != AccessPath::Direct).then_some(cached)
    }
}

impl DirectFile {
    /// Opens a file for direct reads. Returns `None` if the file system refuses to open or read it.
    fn open(part: &FilePart<'_>, blocks: &[usize]) -> Option<Self> {
        // Reopens the open file itself, even if its name refers to another file meanwhile.
        let path = format!("/proc/self/fd/{}", part.file.as_raw_fd());
        let flags = OFlags::DIRECT.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
        let pool = Arc::new(BufferPool::new(0));
        let mut buffer = pool.take(*blocks.last()?).ok()?;
        let reads =
            |block: &usize| file.read_at(&mut buffer.bytes_mut()[..*block], *block as u64).is_ok();
        let block = blocks.iter().copied().find(reads)?;
        Some(Self { file, block })
    }

    fn place(&self, offset: u64, length: usize) -> Option<FileRange<'_>> {
        let block = self.block as u64;
        let start = offset - offset % block;
        let head = usize::try_from(offset - start).ok()?;
        let aligned = (offset - start).is_multiple_of(PLANE_ALIGNMENT);
        let end = head.checked_add(length)?;
        let whole = end.checked_next_multiple_of(self.block)?;
        let place = FileRange {
            file: &self.file,
            number: 0,
            offset: start,
            length: whole,
            plane: head..end,
            block: self.block,
        };
        aligned.then_some(place)
    }
}

impl FileRange<'_> {
    pub fn buffer(&self, pool: &Arc<BufferPool>) -> Result<Buffer, EngineError> {
        pool.take(self.length)
    }
}

/// State of a read that may take several system calls.
#[derive(Clone, Debug)]
pub(super) struct Transfer {
    /// Byte offset of the read in the file.
    offset: u64,
    length: usize,
    /// Range of the plane in the bytes read.
    plane: Range<usize>,
    block: usize,
    /// Bytes read, in whole blocks.
    done: usize,
    retries: usize,
}

/// Outcome of one system call.
#[derive(Debug)]
pub(super) enum TransferState {
    /// All bytes of the plane were read.
    Complete,
    Again,
    /// The system does not support this access path for the file.
    Refused,
    Failed(io::Error),
}

impl Transfer {
    pub fn new(place: &FileRange<'_>) -> Self {
        Self {
            offset: place.offset,
            length: place.length,
            plane: place.plane.clone(),
            block: place.block,
            done: 0,
            retries: 0,
        }
    }

    /// Returns the file offset of the next call, and the range of the buffer that it fills.
    pub fn next(&self) -> (u64, Range<usize>) {
        (self.offset + self.done as u64, self.done..self.length)
    }

    pub fn plane(&self) -> Range<usize> {
        self.plane.clone()
    }

    /// Processes the result of one call: the number of bytes read.
    pub fn advance(&mut self, answer: io::Result<usize>) -> TransferState {
        let count = match answer {
            Ok(count) => count,
            Err(error) => return self.after_error(error),
        };
        let reached = self.done + count;
        if reached >= self.plane.end {
            return TransferState::Complete;
        }
        let done = reached - reached % self.block;
        if done == self.done {
            // Less than one block was read: the file has ended.
            return TransferState::Failed(io::ErrorKind::UnexpectedEof.into());
        }
        self.done = done;
        TransferState::Again
    }

    fn after_error(&mut self, error: io::Error) -> TransferState {
        use io::ErrorKind::{Interrupted, InvalidInput, Unsupported, WouldBlock};
        match error.kind() {
            Interrupted | WouldBlock if self.retries < RETRIES_MAX => {
                self.retries += 1;
                TransferState::Again
            }
            InvalidInput | Unsupported if self.block > 1 => TransferState::Refused,
            _ => TransferState::Failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use super::{AccessPath, BufferPool, PlainFiles};
    use super::{Transfer, TransferState};
    use crate::reads::options::ReadOptions;
    use crate::reads::tests::shared;

    /// The extents of the bundled store are aligned to 512 bytes.
    #[test]
    fn disks_of_large_blocks_give_the_same_bytes() {
        let shared = shared(&ReadOptions::default());
        let store = shared.store();
        let Some(files) = PlainFiles::open_in_blocks(store, &[4096]).filter(PlainFiles::is_direct)
        else {
            // The file system does not support direct reads.
            return;
        };
        let pool = Arc::new(BufferPool::new(0));
        let mut shifted = 0;
        for extent in store.index().extents() {
            let place = files.place(extent, AccessPath::Direct).unwrap();
            assert!(place.offset.is_multiple_of(4096) && place.length.is_multiple_of(4096));
            shifted += usize::from(place.plane.start > 0);
            let mut buffer = place.buffer(&pool).unwrap();
            let mut transfer = Transfer::new(&place);
            loop {
                let (offset, range) = transfer.next();
                let answer = place.file.read_at(&mut buffer.bytes_mut()[range], offset);
                match transfer.advance(answer) {
                    TransferState::Complete => break,
                    TransferState::Again => {}
                    other => panic!("{other:?}"),
                }
            }
            let expected = store.read_extent_vec(extent).unwrap();
            assert_eq!(buffer.arrived(transfer.plane()).as_ref(), expected);
        }
        assert!(shifted > 100, "{shifted} extents begin within a block");
    }
}

#[cfg(test)]
mod transfer_tests {
    use super::{RETRIES_MAX, Transfer, TransferState};
    use std::io;

    fn transfer() -> Transfer {
        let (offset, length, plane, block) = (1024, 4096, 64..3000, 512);
        Transfer { offset, length, plane, block, done: 0, retries: 0 }
    }

    fn error(kind: io::ErrorKind) -> io::Result<usize> {
        Err(kind.into())
    }

    #[test]
    fn short_reads_go_on_at_whole_blocks() {
        let mut transfer = transfer();
        assert_eq!(transfer.next(), (1024, 0..4096));
        assert!(matches!(transfer.advance(Ok(1300)), TransferState::Again));
        assert_eq!(transfer.next(), (2048, 1024..4096));
        assert!(matches!(transfer.advance(Ok(512)), TransferState::Again));
        // The file may end after the plane, within the last block.
        assert!(matches!(transfer.advance(Ok(3000 - 1536)), TransferState::Complete));
    }

    #[test]
    fn the_end_of_the_file_is_an_error_and_no_loop() {
        for count in [0, 511] {
            let end = transfer().advance(Ok(count));
            assert!(matches!(end, TransferState::Failed(error)
                if error.kind() == io::ErrorKind::UnexpectedEof));
        }
    }

    #[test]
    fn interruptions_go_on_and_not_for_ever() {
        let mut transfer = transfer();
        for _ in 0..RETRIES_MAX {
            let again = transfer.advance(error(io::ErrorKind::Interrupted));
            assert!(matches!(again, TransferState::Again));
        }
        let end = transfer.advance(error(io::ErrorKind::Interrupted));
        assert!(matches!(end, TransferState::Failed(_)));
    }

    #[test]
    fn refusals_of_direct_reads_are_no_errors() {
        let refused = transfer().advance(error(io::ErrorKind::InvalidInput));
        assert!(matches!(refused, TransferState::Refused));
        let mut cached = Transfer { block: 1, ..transfer() };
        assert!(matches!(
            cached.advance(error(io::ErrorKind::InvalidInput)),
            TransferState::Failed(_)
        ));
        let failed = transfer().advance(Err(io::Error::from_raw_os_error(5)));
        assert!(matches!(failed, TransferState::Failed(error) if error.raw_os_error() == Some(5)));
    }
}
