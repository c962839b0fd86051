//! Files that are read at offsets, by several threads at once, and must not change meanwhile.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use nestling_formats::open_regular;

#[cfg(target_os = "linux")]
use crate::past_cache::DirectFile;

/// Where there are no such reads.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
enum DirectFile {}

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    length: u64,
    modified: Option<SystemTime>,
    /// Device and inode where the system has them.
    identity: (u64, u64),
}

impl Stamp {
    fn new(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let identity = {
            use std::os::unix::fs::MetadataExt;
            (metadata.dev(), metadata.ino())
        };
        #[cfg(not(unix))]
        let identity = (0, 0);
        Self { length: metadata.len(), modified: metadata.modified().ok(), identity }
    }
}

/// How the header of a file begins: this, and the length of the whole file as `u64`.
const HEADER_MAGIC: [u8; 8] = *b"NESTFRNT";

/// Bytes before those of the file itself.
const HEADER_PREFIX_BYTES: u64 = 16;

/// Where the header of a file lies: beside it, under its name and `.front`.
fn header_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".front");
    name.into()
}

/// Writes the first bytes of a weight file of `whole_bytes` bytes in place of the file. A checkpoint
/// opens with them, so that it can be checked and planned for before it is downloaded; its weights
/// cannot be read.
///
/// # Errors
/// Of the system.
pub fn write_header(path: &Path, whole_bytes: u64, header: &[u8]) -> io::Result<()> {
    let mut bytes = HEADER_MAGIC.to_vec();
    bytes.extend(whole_bytes.to_le_bytes());
    bytes.extend(header);
    std::fs::write(header_path(path), bytes)
}

/// The header of a file.
#[derive(Clone, Copy, Debug)]
struct HeaderFile {
    /// Bytes that are here.
    bytes: u64,
    /// Bytes of the whole file.
    whole_bytes: u64,
}

impl HeaderFile {
    fn read(file: &File, length: u64) -> io::Result<Self> {
        let mut head = [0; HEADER_PREFIX_BYTES as usize];
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "it is not the header of a file");
        let bytes = length.checked_sub(HEADER_PREFIX_BYTES).ok_or_else(wrong)?;
        read_exact_at(file, 0, &mut head)?;
        let (magic, whole) = head.split_at(HEADER_MAGIC.len());
        let whole_bytes = whole.try_into().map(u64::from_le_bytes).map_err(|_| wrong())?;
        if magic != HEADER_MAGIC || bytes > whole_bytes {
            return Err(wrong());
        }
        Ok(Self { bytes, whole_bytes })
    }
}

/// What [`SourceFile::read_run`] takes of a buffer at the most, besides the bytes of the run.
pub(crate) const RUN_ROOM: usize = 4 * 4096;

/// An opened file of known length, or the header of one whose rest is elsewhere.
#[derive(Debug)]
pub(crate) struct SourceFile {
    path: PathBuf,
    file: File,
    stamp: Stamp,
    header: Option<HeaderFile>,
    /// For reads past the page cache, once they were asked for.
    direct: OnceLock<Option<DirectFile>>,
    /// Whether they are asked for.
    passes: AtomicBool,
}

impl SourceFile {
    /// Opens a file, or the header of it where only that is there.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let (file, is_header) = match open_regular(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                (open_regular(&header_path(path)).map_err(|_| error)?, true)
            }
            other => (other?, false),
        };
        let stamp = Stamp::new(&file.metadata()?);
        let header = if is_header { Some(HeaderFile::read(&file, stamp.length)?) } else { None };
        let (direct, passes) = (OnceLock::new(), AtomicBool::new(false));
        Ok(Self { path: path.into(), stamp, file, header, direct, passes })
    }

    /// Whether all bytes are here, and not the header alone.
    pub(crate) fn is_whole(&self) -> bool {
        self.header.is_none()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn length(&self) -> u64 {
        self.header.map_or(self.stamp.length, |header| header.whole_bytes)
    }

    pub(crate) fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let Some(header) = self.header else { return read_exact_at(&self.file, offset, out) };
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > header.bytes) {
            return Err(io::Error::other("only the beginning of the file is here"));
        }
        read_exact_at(&self.file, HEADER_PREFIX_BYTES + offset, out)
    }

    /// Says whether [`Self::read_run`] leaves the page cache as it is from now on, where the system can.
    pub(crate) fn pass_page_cache(&self, passes: bool) {
        #[cfg(target_os = "linux")]
        if passes && self.is_whole() {
            self.direct.get_or_init(|| DirectFile::open(&self.file));
        }
        self.passes.store(passes, Ordering::Relaxed);
    }

    /// Whether [`Self::read_run`] may go past the page cache: then few long reads are better than many.
    pub(crate) fn passes_page_cache(&self) -> bool {
        self.direct_file().is_some()
    }

    fn direct_file(&self) -> Option<&DirectFile> {
        self.direct.get()?.as_ref().filter(|_| self.passes.load(Ordering::Relaxed))
    }

    /// Reads into `buffer`, which grows; the bytes are in the returned range of it.
    pub(crate) fn read_run(
        &self,
        offset: u64,
        length: usize,
        buffer: &mut Vec<u8>,
    ) -> io::Result<Range<usize>> {
        #[cfg(target_os = "linux")]
        if let Some(direct) = self.direct_file()
            && let Some(range) = direct.read(offset, length, buffer)?
        {
            return Ok(range);
        }
        let more = length.saturating_sub(buffer.len());
        buffer.try_reserve(more).map_err(|_| io::ErrorKind::OutOfMemory)?;
        buffer.resize(length.max(buffer.len()), 0);
        self.read_exact_at(offset, &mut buffer[..length])?;
        Ok(0..length)
    }

    /// Whether path and open file are still what was opened.
    pub(crate) fn is_unchanged(&self) -> bool {
        let same = |metadata: io::Result<Metadata>| {
            metadata.is_ok_and(|metadata| Stamp::new(&metadata) == self.stamp)
        };
        let path = if self.is_whole() { self.path.clone() } else { header_path(&self.path) };
        same(self.file.metadata()) && same(std::fs::metadata(path))
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                offset += count as u64;
                out = &mut out[count..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(not(any(unix, windows)))]
fn read_exact_at(mut file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    // No threads on such targets, so nobody else moves the position.
    use io::{Read, Seek};
    file.seek(io::SeekFrom::Start(offset))?;
    file.read_exact(out)
}
