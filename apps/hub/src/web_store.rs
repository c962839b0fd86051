//! A store on a web server, whose extents are fetched as they are read.
//!
//! Extents are checked against the store's checksums and kept in a local copy ([`crate::sparse_file`]), so that
//! nothing is fetched twice. A file that changes on the server is an error.

use crate::choice::StoreFiles;
use crate::client::{Client, Limits, RequestError};
use crate::error::{HubError, Result};
use crate::listing::{FILE_BYTES_MAX, RemoteFile};
use crate::observer::{Notice, Observer, Task};
use crate::options::HubOptions;
use crate::ranges::{Ranges, gives_no_parts, version_of};
use crate::refusals::check_config;
use crate::remote_store;
use crate::sections::sections_of;
use crate::sparse_file::{ArrivedExtents, CopyOrigin, SparseFile, StoreHead};
use crate::store_address::StoreAddress;
use crate::turn::Turn;
use nestling_formats::Level;
use nestling_formats::memory::try_zeroed;
use nestling_formats::store::{Extent, Storage, StorageChanged, Store};
use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Maximum size in bytes of a request for several extents.
const RUN_BYTES_MAX: u64 = 4 << 20;

/// Number of fetched bytes after which they are made durable. A crash loses at most this much.
const UNSAVED_BYTES_MAX: u64 = 64 << 20;

/// Number of attempts for an extent that arrives damaged.
const ATTEMPTS_MAX: usize = 2;

/// A store on a web server with its local copy.
pub struct WebStore {
    address: StoreAddress,
    ranges: Ranges,
    remote: RemoteFile,
    file: Arc<SparseFile>,
    /// The store over the copy, for its index and its checksums.
    checked: Store,
    state: Mutex<FetchState>,
    changed: Condvar,
}

struct FetchState {
    arrived: ArrivedExtents,
    /// Extents that some thread fetches.
    in_flight: HashSet<usize>,
    /// Number of reads that wait for extents.
    urgent: usize,
    unsaved_bytes: u64,
}

impl WebStore {
    /// Prepares the local copy of a store, and returns its path: that of the complete store, or of a copy for
    /// [`Self::open`].
    ///
    /// A complete copy is used without a request. Without a connection, an existing copy is used.
    ///
    /// # Errors
    /// Returns an error if the server does not give parts of the file, if the file is not a store that can
    /// run here, or if the copy cannot be written.
    pub fn prepare(
        address: &StoreAddress,
        options: &HubOptions,
        observer: &dyn Observer,
    ) -> Result<PathBuf> {
        let store = address.copy_in(&options.stores.folder);
        if store.is_file() {
            return Ok(store);
        }
        let path = SparseFile::path_of(&store);
        // Two processes that begin the same copy would replace each other's file.
        let _turn = Turn::take(&options.stores.lock(&store), &mut || {})?;
        let held = SparseFile::open(&path)?;
        if options.offline {
            return held.map(|_| path).ok_or_else(|| {
                HubError::new(format!("{address} is not on this machine, and the network is off"))
                    .advise("leave out --offline (and HF_HUB_OFFLINE)")
            });
        }
        let client = Client::new(None, options.limits);
        match (probe(&client, address), held) {
            (Ok(found), Some(held)) if found.version == held.origin.version => {}
            (Ok(_), Some(held)) if !held.is_writer => {
                return Err(HubError::new(format!(
                    "{address} has changed, and another program uses the former file"
                ))
                .advise("end it, and start again"));
            }
            (Ok(found), _) => create(&path, client, address, found)?,
            (Err(RequestError::Unreachable(reason)), Some(_)) => {
                observer.notice(&Notice::CachedStore(&reason));
            }
            (Err(trouble), _) => return Err(explain(address, trouble)),
        }
        Ok(path)
    }

    /// Returns true for the path of a copy that is not complete.
    pub fn is_copy(path: &Path) -> bool {
        path.as_os_str().to_string_lossy().ends_with(crate::sparse_file::ENDING)
    }

    /// Opens a copy. The server is asked for extents that have not arrived.
    ///
    /// Only one open copy of a store writes to its file; others keep nothing of what they fetch.
    ///
    /// # Errors
    /// Returns an error if the copy is missing or damaged.
    pub fn open(path: &Path, limits: Limits) -> Result<Arc<Self>> {
        let file = SparseFile::open(path)?
            .ok_or_else(|| HubError::file("read", path, io::ErrorKind::NotFound.into()))?;
        let address = StoreAddress::parse(&file.origin.address)?;
        let (client, version) = (Client::new(None, limits), file.origin.version.clone());
        let ranges = Ranges::of_file(client, address.to_string(), version);
        let remote = remote_file(&address, file.length);
        let file = Arc::new(file);
        let checked = Store::from_storage(file.clone(), false)?;
        let arrived = file.arrived(checked.index().extents().len())?;
        let state = FetchState { arrived, in_flight: HashSet::new(), urgent: 0, unsaved_bytes: 0 };
        let (state, changed) = (state.into(), Condvar::new());
        Ok(Arc::new(Self { address, ranges, remote, file, checked, state, changed }))
    }

    /// Returns the path of the copy.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Makes what has arrived durable.
    ///
    /// # Errors
    /// Returns errors of the file.
    pub fn keep(&self) -> Result<()> {
        self.save().map_err(|error| self.not_written(error))
    }

    /// Returns the number of sections that a level needs, or all sections without a level.
    ///
    /// # Errors
    /// Returns an error if the store has no such level.
    pub fn sections_for(&self, level: Option<Level>) -> Result<usize> {
        sections_of(&self.checked, level)
    }

    /// Returns the store's sections in order, each with the highest level that is complete after it.
    pub fn section_levels(&self) -> Vec<Option<Level>> {
        let index = self.checked.index();
        (1..=index.sections().len()).map(|count| index.complete_level(count)).collect()
    }

    /// Returns the number of bytes of the first `sections` sections that have not arrived.
    pub fn missing_bytes(&self, sections: usize) -> u64 {
        let (state, end) = (self.lock(), self.extents_end(sections));
        let extents = self.extents().iter().take(end).enumerate();
        let missing = extents.filter(|(number, _)| !state.arrived.contains(*number));
        missing.map(|(_, extent)| extent.length).sum()
    }

    /// Fetches what is missing of the first `sections` sections, unless reads wait for other extents. Stops
    /// early if `is_stopped` returns true.
    ///
    /// # Errors
    /// Returns an error of the network, of the copy's file, or for bytes that arrive damaged.
    pub fn bring(
        &self,
        sections: usize,
        observer: &dyn Observer,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<()> {
        let (missing, total) = (self.missing_bytes(sections), self.checked.index().length());
        if missing == 0 {
            return Ok(());
        }
        if !self.file.is_writer {
            return Err(HubError::new("another program is downloading the same store")
                .advise("wait until it is finished"));
        }
        let end = self.extents_end(sections);
        let level = self.checked.index().complete_level(sections);
        // Default: a copy is always in a folder.
        let folder = self.file.path.parent().unwrap_or(Path::new("."));
        let (missing_bytes, store_bytes) = (missing, total);
        observer.notice(&Notice::Sections { missing_bytes, store_bytes, level, folder });
        let (mut progress, mut done) = (observer.begin(Task::Download, missing, 0), 0);
        while let Some(run) = self.claim(0..end, RUN_BYTES_MAX, false) {
            done += self.fetch_claimed(run).map_err(|error| explain(&self.address, error))?;
            progress.set(done);
            if is_stopped() {
                break;
            }
        }
        self.save().map_err(|error| self.not_written(error))
    }

    /// Turns a copy with all extents into a plain store and returns its path. Returns `None` if extents are
    /// missing or another open copy writes to the file.
    ///
    /// # Errors
    /// Returns errors of the file.
    pub fn finish(&self) -> Result<Option<PathBuf>> {
        if !self.file.is_writer || self.missing_bytes(self.checked.index().sections().len()) > 0 {
            return Ok(None);
        }
        let store = self.file.path.with_extension("");
        self.save().map_err(|error| self.not_written(error))?;
        self.file.finish(&store)?;
        Ok(Some(store))
    }

    fn not_written(&self, error: io::Error) -> HubError {
        HubError::file("write", &self.file.path, error)
    }

    fn lock(&self) -> MutexGuard<'_, FetchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn extents(&self) -> &[Extent] {
        self.checked.index().extents()
    }

    /// Returns the number of extents in the first `sections` sections.
    fn extents_end(&self, sections: usize) -> usize {
        let last =
            sections.checked_sub(1).and_then(|last| self.checked.index().sections().get(last));
        // Default: no section has no extents.
        last.map_or(0, |section| section.extents_end as usize)
    }

    /// Reserves the next run of missing extents among `extents`, up to `bytes_max` bytes but at least one.
    /// Waits while other threads fetch the rest. Returns `None` if all have arrived.
    fn claim(
        &self,
        extents: Range<usize>,
        bytes_max: u64,
        is_urgent: bool,
    ) -> Option<Range<usize>> {
        let mut state = self.lock();
        loop {
            let waits = !is_urgent && state.urgent > 0;
            let is_missing = |number: &usize| !state.arrived.contains(*number);
            let mut missing = extents.clone().filter(is_missing).peekable();
            missing.peek()?;
            let mut free = missing.filter(|number| !state.in_flight.contains(number));
            if let Some(first) = free.next().filter(|_| !waits) {
                let start = self.extents()[first].offset;
                let fits = |number: &usize| {
                    let extent = &self.extents()[*number];
                    extent.offset + extent.length - start <= bytes_max
                };
                let rest = (first + 1..).zip(free).take_while(|(next, free)| next == free);
                let end = rest.map(|(next, _)| next).take_while(fits).last();
                // Default: the first extent alone.
                let run = first..end.unwrap_or(first) + 1;
                state.in_flight.extend(run.clone());
                return Some(run);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Fetches claimed extents, and keeps them in the copy. Returns their number of bytes.
    fn fetch_claimed(&self, run: Range<usize>) -> std::result::Result<u64, RequestError> {
        let fetched = self.fetch(run.clone()).and_then(|bytes| {
            let offset = self.extents()[run.start].offset;
            let written = self.file.write_at(offset, &bytes);
            written.map_err(|error| RequestError::Failed(self.not_written(error)))
        });
        let mut state = self.lock();
        let mut bytes = 0;
        for number in run {
            state.in_flight.remove(&number);
            if fetched.is_ok() {
                state.arrived.insert(number);
                bytes += self.extents()[number].length;
            }
        }
        state.unsaved_bytes += bytes;
        let is_full = state.unsaved_bytes > UNSAVED_BYTES_MAX;
        drop(state);
        self.changed.notify_all();
        fetched?;
        if is_full {
            self.save().map_err(|error| RequestError::Failed(self.not_written(error)))?;
        }
        Ok(bytes)
    }

    /// Requests consecutive extents and checks each. Padding is zero.
    fn fetch(&self, run: Range<usize>) -> std::result::Result<Vec<u8>, RequestError> {
        let extents = &self.extents()[run];
        let (Some(first), Some(last)) = (extents.first(), extents.last()) else {
            return Ok(Vec::new());
        };
        let range = first.offset..last.offset + last.length;
        let mut attempt = 1;
        loop {
            let mut bytes = self.ranges.read(&self.remote, range.clone())?;
            match self.check(extents, &mut bytes) {
                Ok(()) => return Ok(bytes),
                Err(error) if attempt == ATTEMPTS_MAX => return Err(RequestError::Failed(error)),
                Err(_) => attempt += 1,
            }
        }
    }

    fn check(&self, extents: &[Extent], bytes: &mut [u8]) -> Result<()> {
        // Default: no extents have no bytes.
        let start = extents.first().map_or(0, |first| first.offset);
        let mut end_before = 0;
        for extent in extents {
            let at = (extent.offset - start) as usize;
            let end = at + extent.length as usize;
            bytes[end_before..at].fill(0);
            self.checked.check(extent, &bytes[at..end])?;
            end_before = end;
        }
        Ok(())
    }

    /// Makes arrived extents durable.
    fn save(&self) -> io::Result<()> {
        self.file.save(|| {
            let mut state = self.lock();
            state.unsaved_bytes = 0;
            state.arrived.clone()
        })
    }

    /// Returns the numbers of the extents that a range of bytes touches.
    fn touched(&self, offset: u64, length: usize) -> Range<usize> {
        let end = offset.saturating_add(length as u64);
        let start =
            self.extents().partition_point(|extent| extent.offset + extent.length <= offset);
        let end = self.extents().partition_point(|extent| extent.offset < end);
        start..end.max(start)
    }
}

impl Storage for WebStore {
    fn name(&self) -> String {
        self.address.to_string()
    }

    fn len(&self) -> u64 {
        self.file.length
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let touched = self.touched(offset, out.len());
        if self.has_all(touched.clone()) {
            return self.file.read_at(offset, out);
        }
        if self.file.is_writer {
            self.lock().urgent += 1;
            let brought = self.bring_touched(touched);
            self.lock().urgent -= 1;
            self.changed.notify_all();
            brought?;
            return self.file.read_at(offset, out);
        }
        self.file.read_at(offset, out)?;
        self.overlay(touched, offset, out)
    }
}

impl WebStore {
    fn has_all(&self, mut extents: Range<usize>) -> bool {
        let state = self.lock();
        extents.all(|number| state.arrived.contains(number))
    }

    fn unread(&self, trouble: RequestError) -> io::Error {
        match trouble {
            RequestError::Changed => io::Error::other(StorageChanged),
            trouble => io::Error::other(explain(&self.address, trouble)),
        }
    }

    fn bring_touched(&self, extents: Range<usize>) -> io::Result<()> {
        while let Some(run) = self.claim(extents.clone(), RUN_BYTES_MAX, true) {
            self.fetch_claimed(run).map_err(|error| self.unread(error))?;
        }
        Ok(())
    }

    /// Fetches the missing ones of some extents into the bytes read at `offset`, without keeping them.
    fn overlay(&self, extents: Range<usize>, offset: u64, out: &mut [u8]) -> io::Result<()> {
        for number in extents {
            if self.lock().arrived.contains(number) {
                continue;
            }
            let bytes = self.fetch(number..number + 1).map_err(|error| self.unread(error))?;
            let start = self.extents()[number].offset;
            // One of the two differences is zero: the part begins with the later of both.
            let from = offset.saturating_sub(start) as usize;
            let to = start.saturating_sub(offset) as usize;
            let (Some(bytes), Some(out)) = (bytes.get(from..), out.get_mut(to..)) else { continue };
            let length = bytes.len().min(out.len());
            out[..length].copy_from_slice(&bytes[..length]);
        }
        Ok(())
    }
}

impl Drop for WebStore {
    fn drop(&mut self) {
        // What was not saved is fetched again.
        drop(self.save());
    }
}

/// Version and length of a remote file.
struct Probe {
    version: Option<String>,
    length: u64,
}

/// Asks for the first byte of a file, to learn its length and version.
fn probe(client: &Client, address: &StoreAddress) -> std::result::Result<Probe, RequestError> {
    let response = client.get(&address.to_string(), Some("bytes=0-0"), None)?;
    let content = response.headers().get("content-range").and_then(|value| value.to_str().ok());
    let length = content.and_then(|text| text.strip_prefix("bytes 0-0/")?.parse().ok());
    let length = length.filter(|length| *length <= FILE_BYTES_MAX);
    match length {
        Some(length) => Ok(Probe { version: version_of(response.headers()), length }),
        None => Err(RequestError::Failed(gives_no_parts(address.file_name()))),
    }
}

/// Creates the copy of a store with its header, index and small assets.
fn create(path: &Path, client: Client, address: &StoreAddress, found: Probe) -> Result<()> {
    let Probe { version, length } = found;
    let ranges = Ranges::of_file(client, address.to_string(), version.clone());
    let files = StoreFiles { shards: vec![remote_file(address, length)] };
    let explain = |trouble| explain(address, trouble);
    let (storage, store) = remote_store::open_with(address.to_string(), ranges, files, &explain)?;
    if store.index().shards().len() > 1 {
        return Err(HubError::new(format!("{address} is one of several files of a store"))
            .advise("download all of them into one folder, and name the first one"));
    }
    if store.index().length() != length {
        let whole = store.index().length();
        return Err(HubError::new(format!(
            "{address} has {length} bytes of a store of {whole} bytes"
        )));
    }
    check_config(&store)?;
    // Default: a store without extents consists of its head.
    let head_bytes = store.index().extents().first().map_or(length, |first| first.offset);
    let unread = |error: &dyn std::fmt::Display| {
        HubError::new(format!("the head of {address} was not read: {error}"))
    };
    let head_length = usize::try_from(head_bytes).map_err(|error| unread(&error))?;
    let mut bytes =
        try_zeroed("the head of a store", head_length).map_err(|error| unread(&error))?;
    storage.read_at(0, &mut bytes).map_err(|error| unread(&error))?;
    let origin = CopyOrigin { address: address.to_string(), version, head_bytes };
    let extents = store.index().extents().len();
    SparseFile::create(path, &origin, StoreHead { bytes: &bytes, length, extents })
}

fn remote_file(address: &StoreAddress, size: u64) -> RemoteFile {
    RemoteFile { name: address.file_name().to_owned(), size, blob: String::new() }
}

fn explain(address: &StoreAddress, trouble: RequestError) -> HubError {
    let (host, file) = (address.host(), address.file_name());
    match trouble {
        RequestError::Failed(failure) => failure,
        RequestError::Changed => HubError::new(format!("{address} has changed on the server"))
            .advise("start again, and the new file is fetched"),
        RequestError::Unreachable(reason) => {
            HubError::new(format!("{host} cannot be reached: {reason}"))
                .advise("try again; what has arrived is kept")
        }
        RequestError::Status(401 | 403) => {
            HubError::new(format!("{host} refuses access to {file}"))
                .advise("check the address; credentials cannot be given")
        }
        RequestError::Status(404 | 410) => {
            HubError::new(format!("{host} has no file {file}")).advise("check the address")
        }
        RequestError::Status(status) => {
            HubError::new(format!("{host} answers with status {status}"))
                .advise("try again later; what has arrived is kept")
        }
    }
}
