//! The plain files of a store, past the page cache where the file system lets us.

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

/// Bytes that every plane must begin at a multiple of, in memory.
const PLANE_ALIGNMENT: u64 = 64;

/// Blocks that disks ask direct reads to begin and end at, as they are tried; ascending.
const BLOCKS: [usize; 2] = [512, 4096];

/// A store's files.
pub(super) struct PlainFiles {
    parts: Vec<PlainPart>,
}

/// A run of the store's bytes in one file.
struct PlainPart {
    /// Where the run lies in the store.
    range: Range<u64>,
    /// Where it begins in the file.
    offset: u64,
    cached: File,
    direct: Option<DirectFile>,
}

/// A file that is read past the page cache, in whole blocks.
struct DirectFile {
    file: File,
    block: usize,
}

/// Where an extent lies.
pub(super) struct FileRange<'a> {
    pub file: &'a File,
    /// Its number among [`PlainFiles::descriptors`].
    pub number: u32,
    /// Where the read begins in the file, at a multiple of `block`.
    pub offset: u64,
    /// Bytes to read, in whole blocks.
    pub length: usize,
    /// Which of those are the extent's.
    pub plane: Range<usize>,
    pub block: usize,
}

/// Which of the system's ways into a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Past the page cache where that is possible, else through it.
    Best,
    /// Past the page cache or not at all.
    Direct,
    /// Through the page cache.
    Cached,
}

impl PlainFiles {
    /// None if the store does not lie in plain files.
    pub fn open(store: &Store, direct: bool) -> Option<Self> {
        Self::open_in_blocks(store, if direct { &BLOCKS } else { &[] })
    }

    /// Past the page cache in blocks of the first of these sizes that the disk takes.
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

    /// Whether all of it is read past the page cache.
    pub fn is_direct(&self) -> bool {
        self.parts.iter().all(|part| part.direct.is_some())
    }

    /// All files.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let of_part = |part: &PlainPart| {
            let cached = part.cached.as_raw_fd();
            [cached, part.direct.as_ref().map_or(cached, |direct| direct.file.as_raw_fd())]
        };
        self.parts.iter().flat_map(of_part).collect()
    }

    /// Where an extent lies; none if it cannot be read this way.
    pub fn place(&self, extent: &Extent, way: Way) -> Option<FileRange<'_>> {
        let end = extent.offset.checked_add(extent.length)?;
        let holds = |part: &&PlainPart| part.range.start <= extent.offset && end <= part.range.end;
        let (number, part) = (0..).step_by(2).zip(&self.parts).find(|(_, part)| holds(part))?;
        let offset = part.offset.checked_add(extent.offset - part.range.start)?;
        let length = usize::try_from(extent.length).ok()?;
        let direct = part.direct.as_ref().filter(|_| way != Way::Cached);
        if let Some(place) = direct.and_then(|direct| direct.place(offset, length)) {
            return Some(FileRange { number: number + 1, ..place });
        }
        let plane = 0..length;
        let cached = FileRange { file: &part.cached, number, offset, length, plane, block: 1 };
        (way != Way::Direct).then_some(cached)
    }
}

impl DirectFile {
    /// None where the file system refuses, when opening or when reading.
    fn open(part: &FilePart<'_>, blocks: &[usize]) -> Option<Self> {
        // The file that is open, whatever has its name by now.
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
    /// A buffer for the whole read.
    pub fn buffer(&self, pool: &Arc<BufferPool>) -> Result<Buffer, EngineError> {
        pool.take(self.length)
    }
}

/// A read that may take several calls of the system.
#[derive(Clone, Debug)]
pub(super) struct Transfer {
    /// Where it begins in the file.
    offset: u64,
    length: usize,
    /// The bytes that matter.
    plane: Range<usize>,
    block: usize,
    /// Bytes that are there, in whole blocks.
    done: usize,
    retries: usize,
}

/// What follows from one call of the system.
#[derive(Debug)]
pub(super) enum TransferState {
    /// All that matters is there.
    Complete,
    /// Another call is needed.
    Again,
    /// The system does not read this file in this way.
    Refused,
    /// It cannot be read.
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

    /// Where the next call begins in the file, and what it fills of the buffer.
    pub fn next(&self) -> (u64, Range<usize>) {
        (self.offset + self.done as u64, self.done..self.length)
    }

    /// The bytes that matter.
    pub fn plane(&self) -> Range<usize> {
        self.plane.clone()
    }

    /// Takes what one call answered: how many bytes it read.
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
            // Not a block more: the file has ended.
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

    use super::{BufferPool, PlainFiles, Way};
    use super::{Transfer, TransferState};
    use crate::reads::options::ReadOptions;
    use crate::reads::tests::shared;

    /// The extents of the bundled store begin at multiples of 512.
    #[test]
    fn disks_of_large_blocks_give_the_same_bytes() {
        let shared = shared(&ReadOptions::default());
        let store = shared.store();
        let Some(files) = PlainFiles::open_in_blocks(store, &[4096]).filter(PlainFiles::is_direct)
        else {
            // A file system without direct reads.
            return;
        };
        let pool = Arc::new(BufferPool::new(0));
        let mut shifted = 0;
        for extent in store.index().extents() {
            let place = files.place(extent, Way::Direct).unwrap();
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
