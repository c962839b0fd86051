//! Remote checkpoints opened by their configuration and file headers, with a few range requests.
//!
//! Headers are cached by commit and opened as a checkpoint without weights. Models that a conversion would
//! refuse are therefore refused before they are downloaded.

use crate::client::RequestError;
use crate::digest::Digest;
use crate::download::Hub;
use crate::error::{HubError, Result};
use crate::gguf::GgufFiles;
use crate::listing::{Listing, RemoteFile};
use crate::observer::{Observer, Task};
use crate::options::HubOptions;
use crate::ranges::Ranges;
use crate::refusals::cannot_run;
use crate::turn::Turn;
use nestling_import::gguf::GgufHeader;
use nestling_import::safetensors::{PREFIX_BYTES, header_length};
use nestling_import::{Checkpoint, ImportError, ModelConfig, write_header};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Size in bytes of the first read of a file, before the length of its header is known.
const FIRST_BYTES: u64 = 16 << 10;

/// Maximum size in bytes of all headers of a model: five times those of the largest published one. The limit
/// is needed because headers are stored before the free disk space is checked.
const HEADERS_BYTES_MAX: u64 = 256 << 20;

/// Number of files whose headers are read concurrently.
const AT_ONCE: usize = 8;

/// The headers of a repository's files.
pub struct Headers<'a> {
    hub: &'a Hub<'a>,
    listing: &'a Listing,
    ranges: Ranges,
    /// Folder of the cached headers.
    folder: PathBuf,
    observer: &'a dyn Observer,
    /// Number of bytes of headers stored so far.
    kept_bytes: AtomicU64,
}

impl<'a> Headers<'a> {
    pub fn new(
        hub: &'a Hub<'a>,
        listing: &'a Listing,
        options: &HubOptions,
        observer: &'a dyn Observer,
    ) -> Self {
        let folder = options.headers.join(hub.repository.folder()).join(&listing.commit);
        let ranges = hub.ranges(&listing.commit);
        Self { hub, listing, ranges, folder, observer, kept_bytes: AtomicU64::new(0) }
    }

    /// Returns the checkpoint in the transformers layout, and the files that contain its weights.
    pub fn checkpoint(&self) -> Result<(Checkpoint, Vec<RemoteFile>)> {
        let _turn = self.turn()?;
        let small = self.listing.description()?;
        for file in small.iter().filter(|file| !file.is_vocabulary()) {
            self.small(file)?;
        }
        // An unsupported model is refused before its headers are downloaded.
        let path = self.folder.join("config.json");
        let config = std::fs::read(&path).map_err(|e| HubError::file("read", &path, e))?;
        ModelConfig::from_json("config.json", &config).map_err(|e| cannot_run(&e))?;
        let weights = self.listing.weights(&self.folder)?;
        self.all(&weights, &|file| self.safetensors(file))?;
        Ok((self.open(&self.folder)?, weights))
    }

    /// Returns the checkpoint of a model in GGUF files.
    pub fn gguf(&self, files: &GgufFiles) -> Result<Checkpoint> {
        let _turn = self.turn()?;
        self.all(&files.parts, &|file| self.gguf_part(file))?;
        self.open(&self.folder.join(files.parts.first().map_or("", |part| &part.name)))
    }

    /// Acquires the lock of the folder, so that no process reads partially written headers.
    fn turn(&self) -> Result<Turn> {
        let mut bar = None;
        Turn::take(&self.folder.with_extension("lock"), &mut || {
            bar.get_or_insert_with(|| self.observer.begin(Task::WaitForHeaders, 0, 0));
        })
    }

    fn open(&self, path: &Path) -> Result<Checkpoint> {
        Checkpoint::open(path).map_err(|error| {
            // Error messages use the names in the repository instead of the paths in the cache.
            let here = format!("{}/", self.folder.display());
            let said = error.to_string().replace(&here, "");
            let folder = self.folder.display().to_string();
            let said = said.replace(&folder, &self.hub.repository.id);
            // The files may have been damaged in transit, so they are downloaded again next time.
            let _ = std::fs::remove_dir_all(&self.folder);
            match error {
                ImportError::Malformed { .. } | ImportError::Json { .. } => {
                    HubError::new(said).advise("run the command again; the files may be damaged")
                }
                _ => cannot_run(&said),
            }
        })
    }

    /// Downloads a whole small file unless it is cached.
    fn small(&self, file: &RemoteFile) -> Result<()> {
        let path = self.path(file)?;
        if std::fs::metadata(&path).is_ok_and(|data| data.len() == file.size) {
            return Ok(());
        }
        let bytes = self.ranges.read(file, 0..file.size).map_err(|e| self.hub.explain(e))?;
        let mut digest = Digest::of(file);
        digest.update(&bytes);
        let name = digest.name();
        if !digest.matches(file) {
            let what = "its content does not have the announced";
            return Err(HubError::new(format!("{} arrived damaged: {what} {name}", file.name))
                .advise("run the command again"));
        }
        std::fs::write(&path, bytes).map_err(|error| HubError::file("write", &path, error))
    }

    fn path(&self, file: &RemoteFile) -> Result<PathBuf> {
        let path = self.folder.join(&file.name);
        let folder = path.parent().unwrap_or(&self.folder);
        std::fs::create_dir_all(folder).map_err(|error| HubError::file("make", folder, error))?;
        Ok(path)
    }

    /// Calls `fetch` for all files whose headers are not cached, several at a time.
    fn all(
        &self,
        files: &[RemoteFile],
        fetch: &(dyn Fn(&RemoteFile) -> Result<()> + Sync),
    ) -> Result<()> {
        let held = |file: &RemoteFile| {
            let front = std::fs::metadata(self.folder.join(format!("{}.front", file.name)));
            front.ok().filter(std::fs::Metadata::is_file).map(|front| front.len())
        };
        self.kept_bytes.store(files.iter().filter_map(held).sum(), Ordering::Relaxed);
        let missing: Vec<&RemoteFile> = files.iter().filter(|file| held(file).is_none()).collect();
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
        let progress = Mutex::new(self.observer.begin(Task::Headers, missing.len() as u64, 0));
        let lock = || failed.lock().unwrap_or_else(PoisonError::into_inner);
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE.min(missing.len()) {
                scope.spawn(|| {
                    while lock().is_none() {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        // Default: the thread ends when no file is left.
                        let Some(file) = missing.get(number) else { return };
                        if let Err(failure) = fetch(file) {
                            *lock() = Some(failure);
                        }
                        let mut bar = progress.lock().unwrap_or_else(PoisonError::into_inner);
                        bar.set(number as u64 + 1);
                    }
                });
            }
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    fn safetensors(&self, file: &RemoteFile) -> Result<()> {
        let read = |range| self.ranges.read(file, range).map_err(|e| self.hub.explain(e));
        let mut header = read(0..FIRST_BYTES.min(file.size))?;
        // Default: the missing header of a too short file is refused when the file is opened.
        let prefix = header.first_chunk().copied().unwrap_or_default();
        // Default: an invalid length is reported when the file is opened as a checkpoint.
        let length = header_length(&file.name, prefix, file.size).unwrap_or(0);
        let end = PREFIX_BYTES + length;
        if header.len() as u64 <= end {
            header.extend(read(header.len() as u64..end.max(header.len() as u64))?);
        }
        header.truncate(usize::try_from(end).unwrap_or(usize::MAX));
        self.keep(file, &header)
    }

    fn gguf_part(&self, file: &RemoteFile) -> Result<()> {
        let (mut bytes_read, mut trouble) = (Vec::new(), None);
        let mut read = |offset: u64, out: &mut [u8]| {
            let range = offset..offset + out.len() as u64;
            let bytes =
                self.ranges.read(file, range).map_err(|why| unread(file, why, &mut trouble))?;
            out.copy_from_slice(&bytes);
            bytes_read.extend(bytes);
            Ok(())
        };
        let header = GgufHeader::read(&file.name, file.size, &mut read);
        if let Some(trouble) = trouble {
            return Err(self.hub.explain(trouble));
        }
        header.map_err(|error| cannot_run(&error))?;
        self.keep(file, &bytes_read)
    }

    fn keep(&self, file: &RemoteFile, header: &[u8]) -> Result<()> {
        let bytes = header.len() as u64;
        if self.kept_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > HEADERS_BYTES_MAX {
            let most = HEADERS_BYTES_MAX >> 20;
            let message = format!("the headers of its files have more than {most} MiB");
            return Err(cannot_run(&message));
        }
        let path = self.path(file)?;
        write_header(&path, file.size, header)
            .map_err(|error| HubError::file("write", &path, error))
    }
}

/// Saves the network error, which the import library cannot represent, and returns an I/O error in its place.
fn unread(file: &RemoteFile, why: RequestError, trouble: &mut Option<RequestError>) -> ImportError {
    *trouble = Some(why);
    ImportError::Io {
        file: file.name.clone(),
        action: "read",
        source: io::Error::other("the network failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HubOptions, Limits, NoObserver, Repository, StoreCache};

    /// The limit protects the disk before its free space is checked; it holds to the byte.
    #[test]
    fn headers_are_bounded_together() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let options = HubOptions {
            endpoint: "http://127.0.0.1:9".into(),
            downloads: at("hub"),
            stores: StoreCache {
                folder: at("stores"),
                locks: at("locks"),
                calibration: "none".into(),
                gguf_calibration: "none".into(),
            },
            headers: at("headers"),
            token: None,
            limits: Limits::default(),
            offline: false,
            in_place: false,
            by_ranges: false,
            room: u64::MAX,
        };
        let repository = Repository::new("a/b", "main").unwrap();
        let cache = repository.cache(options.downloads.clone());
        let hub = Hub::new(&repository, &cache, &options);
        let listing = format!("{{\"sha\": \"{}\", \"siblings\": []}}", "0".repeat(40));
        let listing = Listing::read(listing.as_bytes()).unwrap();
        let headers = Headers::new(&hub, &listing, &options, &NoObserver);
        let file = |name: &str| RemoteFile { name: name.into(), size: 99, blob: "0".repeat(64) };
        headers.keep(&file("a"), &[7; 10]).unwrap();
        headers.kept_bytes.store(HEADERS_BYTES_MAX - 10, Ordering::Relaxed);
        headers.keep(&file("b"), &[7; 10]).unwrap();
        let refused = headers.keep(&file("c"), &[7; 1]).unwrap_err();
        assert!(refused.to_string().contains("more than 256 MiB"), "{refused}");
        assert!(!headers.folder.join("c.front").exists());
    }
}
