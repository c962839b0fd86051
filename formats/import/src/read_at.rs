//! Positional reads of files that several threads share and that must not change while open.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use nestling_formats::open_regular;

#[cfg(target_os = "linux")]
use crate::past_cache::DirectFile;

/// Placeholder on systems without direct reads.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
enum DirectFile {}

/// Fingerprint of a file's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    length: u64,
    modified: Option<SystemTime>,
    /// Device and inode, if the system has them.
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

/// Magic bytes of a header file. They are followed by the length of the whole weight file as `u64`.
const HEADER_MAGIC: [u8; 8] = *b"NESTFRNT";

/// Size in bytes of the prefix of a header file.
const HEADER_PREFIX_BYTES: u64 = 16;

/// Returns the path of a header file: the path of the weight file with `.front` appended.
fn header_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".front");
    name.into()
}

/// Writes the first bytes of a weight file of `whole_bytes` bytes to a header file next to it. A checkpoint
/// opens with header files, so that it can be checked and planned for before it is downloaded. Its weights
/// cannot be read.
///
/// # Errors
/// Returns an error if writing fails.
pub fn write_header(path: &Path, whole_bytes: u64, header: &[u8]) -> io::Result<()> {
    let mut bytes = HEADER_MAGIC.to_vec();
    bytes.extend(whole_bytes.to_le_bytes());
    bytes.extend(header);
    std::fs::write(header_path(path), bytes)
}

/// Sizes of a header file and its weight file.
#[derive(Clone, Copy, Debug)]
struct HeaderFile {
    /// Bytes available in the header file.
    bytes: u64,
    /// Size in bytes of the weight file.
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

/// Block size in bytes of a buffer for direct reads. Disks require at most this alignment.
pub(crate) const RUN_BLOCK: usize = 4096;

/// Maximum number of buffer bytes that [`SourceFile::read_run`] uses in addition to the requested ones.
pub(crate) const RUN_ROOM: usize = 4 * RUN_BLOCK;

/// Bytes of a file that is not on the disk, or not as a file of its own. Reads may run on several threads at once.
pub trait ByteSource: Send + Sync {
    /// Returns the name for error messages.
    fn name(&self) -> String;

    /// Returns the number of bytes.
    fn length(&self) -> u64;

    /// Fills `out` with the bytes at `offset`.
    ///
    /// # Errors
    /// Errors of the source; of kind [`io::ErrorKind::UnexpectedEof`] if the range exceeds it.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
}

/// A weight file of known length.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// Path, or the name of a source.
    path: PathBuf,
    bytes: SourceBytes,
}

/// Bytes of a weight file.
enum SourceBytes {
    /// An open file, or the header file of a weight file that is not available.
    File(OpenFile),
    /// A source, which reports changes by itself.
    Source(Arc<dyn ByteSource>),
}

impl std::fmt::Debug for SourceBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(file) => file.fmt(f),
            Self::Source(source) => write!(f, "ByteSource({})", source.name()),
        }
    }
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    stamp: Stamp,
    header: Option<HeaderFile>,
    /// File handle for direct reads, opened when they are first enabled.
    direct: OnceLock<Option<DirectFile>>,
    /// True if direct reads are enabled.
    passes: AtomicBool,
}

impl SourceFile {
    /// Opens a file, or its header file if the file itself is missing.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let bytes = SourceBytes::File(OpenFile::open(path)?);
        Ok(Self { path: path.into(), bytes })
    }

    /// Creates a weight file from a source.
    pub(crate) fn of_source(source: Arc<dyn ByteSource>) -> Self {
        Self { path: source.name().into(), bytes: SourceBytes::Source(source) }
    }

    fn file(&self) -> Option<&OpenFile> {
        match &self.bytes {
            SourceBytes::File(file) => Some(file),
            SourceBytes::Source(_) => None,
        }
    }

    /// Returns true if the whole file is available, not only its header.
    pub(crate) fn is_whole(&self) -> bool {
        self.file().is_none_or(|file| file.header.is_none())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn length(&self) -> u64 {
        match &self.bytes {
            SourceBytes::File(file) => file.length(),
            SourceBytes::Source(source) => source.length(),
        }
    }

    pub(crate) fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match &self.bytes {
            SourceBytes::File(file) => file.read_exact_at(offset, out),
            SourceBytes::Source(source) => source.read_at(offset, out),
        }
    }

    /// Enables or disables direct reads in [`Self::read_run`], if the system supports them.
    pub(crate) fn pass_page_cache(&self, passes: bool) {
        if let Some(file) = self.file() {
            file.pass_page_cache(passes);
        }
    }

    /// Returns true if [`Self::read_run`] may use direct reads. Few long reads are then faster than many
    /// short ones.
    pub(crate) fn passes_page_cache(&self) -> bool {
        self.file().and_then(OpenFile::direct_file).is_some()
    }

    /// Reads into a growable buffer and returns the range that holds the bytes.
    pub(crate) fn read_run(
        &self,
        offset: u64,
        length: usize,
        buffer: &mut Vec<u8>,
    ) -> io::Result<Range<usize>> {
        #[cfg(target_os = "linux")]
        if let Some(direct) = self.file().and_then(OpenFile::direct_file)
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

    /// Reads `length` bytes at `offset` of the file into whole blocks. They start in `out` at the remainder of
    /// `offset` divided by [`RUN_BLOCK`].
    pub(crate) fn read_blocks(&self, offset: u64, length: usize, out: &mut [u8]) -> io::Result<()> {
        let head = (offset % RUN_BLOCK as u64) as usize;
        #[cfg(target_os = "linux")]
        if let Some(direct) = self.file().and_then(OpenFile::direct_file)
            && direct.read_into(offset - head as u64, head + length, out)?
        {
            return Ok(());
        }
        let out = out.get_mut(head..).and_then(|out| out.get_mut(..length));
        self.read_exact_at(offset, out.ok_or(io::ErrorKind::InvalidInput)?)
    }

    /// Returns true if the path and the open file have the same state as at opening.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.file().is_none_or(|file| file.is_unchanged(&self.path))
    }
}

impl OpenFile {
    fn open(path: &Path) -> io::Result<Self> {
        let (file, is_header) = match open_regular(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                (open_regular(&header_path(path)).map_err(|_| error)?, true)
            }
            other => (other?, false),
        };
        let stamp = Stamp::new(&file.metadata()?);
        let header = if is_header { Some(HeaderFile::read(&file, stamp.length)?) } else { None };
        let (direct, passes) = (OnceLock::new(), AtomicBool::new(false));
        Ok(Self { file, stamp, header, direct, passes })
    }

    fn length(&self) -> u64 {
        self.header.map_or(self.stamp.length, |header| header.whole_bytes)
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let Some(header) = self.header else { return read_exact_at(&self.file, offset, out) };
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > header.bytes) {
            return Err(io::Error::other("only the beginning of the file is here"));
        }
        read_exact_at(&self.file, HEADER_PREFIX_BYTES + offset, out)
    }

    fn pass_page_cache(&self, passes: bool) {
        #[cfg(target_os = "linux")]
        if passes && self.header.is_none() {
            self.direct.get_or_init(|| DirectFile::open(&self.file));
        }
        self.passes.store(passes, Ordering::Relaxed);
    }

    fn direct_file(&self) -> Option<&DirectFile> {
        self.direct.get()?.as_ref().filter(|_| self.passes.load(Ordering::Relaxed))
    }

    fn is_unchanged(&self, path: &Path) -> bool {
        let same = |metadata: io::Result<Metadata>| {
            metadata.is_ok_and(|metadata| Stamp::new(&metadata) == self.stamp)
        };
        let path = if self.header.is_none() { path.to_owned() } else { header_path(path) };
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
    // These targets have no threads, so the file position is not shared.
    use io::{Read, Seek};
    file.seek(io::SeekFrom::Start(offset))?;
    file.read_exact(out)
}
