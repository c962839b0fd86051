//! Creation of local copies of stores on the web and on the Hub.

use crate::choice::StoreFiles;
use crate::client::{Client, RequestError};
use crate::copy_files::{CopyFiles, sibling};
use crate::error::{HubError, Result};
use crate::listing::{FILE_BYTES_MAX, RemoteFile};
use crate::observer::{Notice, Observer};
use crate::options::HubOptions;
use crate::origin::Origin;
use crate::ranges::{FileSource, Ranges, gives_no_parts, version_of};
use crate::refusals::check_config;
use crate::remote_store::{self, RemoteStorage};
use crate::sparse_file::{CopyOrigin, SparseFile, StoreHead};
use crate::store_address::StoreAddress;
use crate::store_place::StorePlace;
use crate::turn::Turn;
use nestling_formats::memory::try_zeroed;
use nestling_formats::store::{Storage, Store};
use std::path::{Path, PathBuf};

/// Number of requests for the shards of a store at once.
const REQUESTS_MAX: usize = 8;

/// Length of the header of a shard in bytes. The rest of its head is zero.
const SHARD_HEAD_BYTES: u64 = 128;

/// Version and length of a remote file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Probe {
    version: Option<String>,
    length: u64,
}

/// A store whose copy is to be created.
struct NewCopy<'a> {
    place: &'a StorePlace,
    client: Client,
    /// Files of the store in order.
    found: Vec<Probe>,
}

/// Prepares the local copy of a store at an address, and returns its path: that of the complete store, or of a copy.
pub fn of_address(
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
    let access = options.access();
    let held = CopyFiles::open(&path, &access)?;
    if options.offline {
        return held.map(|_| path).ok_or_else(|| {
            HubError::new(format!("{address} is not on this machine, and the network is off"))
                .advise("leave out --offline (and HF_HUB_OFFLINE)")
        });
    }
    let place = StorePlace::Address(address.clone());
    let client = place.client(&access);
    let first = match (probe(&client, &place), &held) {
        (Err(RequestError::Unreachable(reason)), Some(_)) => {
            observer.notice(&Notice::CachedStore(&reason));
            return Ok(path);
        }
        (first, _) => first.map_err(|trouble| place.explain(trouble))?,
    };
    let others = at_once(place.shards() as usize - 1, &|number| {
        let shard = place.shard(number as u32 + 2);
        probe(&client, &shard).map_err(|trouble| shard.explain(trouble))
    })?;
    let found: Vec<Probe> = [first].into_iter().chain(others).collect();
    match held {
        Some(held) if is_same(&held, &found) => return Ok(path),
        Some(held) if !held.is_writer() => {
            return Err(HubError::new(format!(
                "{address} has changed, and another program uses the former file"
            ))
            .advise("end it, and start again"));
        }
        _ => {}
    }
    create(&path, NewCopy { place: &place, client, found })?;
    Ok(path)
}

/// Prepares the local copy of a store on the Hub, whose complete form is at `store`. Returns the path of the copy.
pub fn of_repository(
    origin: Origin,
    files: &StoreFiles,
    store: &Path,
    options: &HubOptions,
) -> Result<PathBuf> {
    files.check_complete()?;
    let access = options.access();
    let path = SparseFile::path_of(store);
    let _turn = Turn::take(&options.stores.lock(store), &mut || {})?;
    if CopyFiles::open(&path, &access)?.is_some() {
        return Ok(path);
    }
    let place = StorePlace::of_repository(origin, &access.endpoint)
        .ok_or_else(|| HubError::usage("the name of the store is not safe in an address"))?;
    let client = place.client(&access);
    // The files of a commit do not change, and their extents have checksums.
    let probe = |file: &RemoteFile| Probe { version: None, length: file.size };
    let found = files.shards.iter().map(probe).collect();
    create(&path, NewCopy { place: &place, client, found })?;
    Ok(path)
}

/// Returns true if a copy is of the files that the server has. Files without a version are compared by length.
fn is_same(held: &CopyFiles, found: &[Probe]) -> bool {
    let files = held.files.iter().map(|file| Probe {
        version: file.sparse.origin.version.clone(),
        length: file.sparse.length,
    });
    files.eq(found.iter().cloned())
}

/// Asks for the first byte of a file, to learn its length and version.
fn probe(client: &Client, place: &StorePlace) -> std::result::Result<Probe, RequestError> {
    let response = client.get(&place.address(), Some("bytes=0-0"), None)?;
    let content = response.headers().get("content-range").and_then(|value| value.to_str().ok());
    let length = content.and_then(|text| text.strip_prefix("bytes 0-0/")?.parse().ok());
    let length = length.filter(|length| *length <= FILE_BYTES_MAX);
    match length {
        Some(length) => Ok(Probe { version: version_of(response.headers()), length }),
        None => Err(RequestError::Failed(gives_no_parts(place.file_name()))),
    }
}

/// Calls `request` for the numbers from 0 on several threads. Returns the results in order, or the first error.
fn at_once<T: Send>(count: usize, request: &(dyn Fn(usize) -> Result<T> + Sync)) -> Result<Vec<T>> {
    let mut all = Vec::new();
    for start in (0..count).step_by(REQUESTS_MAX) {
        let numbers = start..count.min(start + REQUESTS_MAX);
        let results: Vec<Result<T>> = std::thread::scope(|scope| {
            let spawn = |number| {
                let thread = std::thread::Builder::new().name("probe".into());
                thread.spawn_scoped(scope, move || request(number)).map_err(|_| number)
            };
            let threads: Vec<_> = numbers.map(spawn).collect();
            let join =
                |thread: std::result::Result<std::thread::ScopedJoinHandle<'_, _>, usize>| {
                    match thread {
                        Ok(thread) => {
                            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                        }
                        // The system has no thread to spare.
                        Err(number) => request(number),
                    }
                };
            threads.into_iter().map(join).collect()
        });
        for result in results {
            all.push(result?);
        }
    }
    Ok(all)
}

/// Creates the copy of a store with its header, index and small assets.
fn create(path: &Path, new: NewCopy<'_>) -> Result<()> {
    let NewCopy { place, client, found } = new;
    let shard = |number: usize| place.shard(number as u32 + 1);
    let sources = found.iter().enumerate().map(|(number, probe)| {
        let (place, version) = (shard(number), probe.version.clone());
        (place.file_name().to_owned(), FileSource { address: place.address(), version })
    });
    let ranges = Ranges::of_files(client, sources.collect());
    let shards: Vec<RemoteFile> = found
        .iter()
        .enumerate()
        .map(|(number, probe)| RemoteFile {
            name: shard(number).file_name().to_owned(),
            size: probe.length,
            blob: String::new(),
        })
        .collect();
    let explain = |trouble| place.explain(trouble);
    let files = StoreFiles { shards };
    let (storage, store) = remote_store::open_with(place.address(), ranges, files, &explain)?;
    check_lengths(place, &store, &found)?;
    check_config(&store)?;
    let starts: Vec<u64> = found
        .iter()
        .scan(0, |end, probe| Some(std::mem::replace(end, *end + probe.length)))
        .collect();
    let read = |number: usize| {
        let head = head(
            &shard(number),
            &storage,
            &store,
            starts[number]..starts[number] + found[number].length,
        )?;
        if number > 0 {
            let name = shard(number).address();
            store.index().check_shard(number as u32, &head.bytes, &name)?;
        }
        Ok(head)
    };
    let heads = at_once(found.len(), &read)?;
    // A copy whose first file exists is complete, so the first is written last.
    for (number, (head, probe)) in heads.iter().zip(&found).enumerate().rev() {
        let place = shard(number);
        let origin = CopyOrigin {
            address: place.address(),
            version: probe.version.clone(),
            head_bytes: head.length,
            shards: found.len() as u32,
            repository: place.origin().cloned(),
        };
        let first = path.to_owned();
        let path = if number == 0 { Some(first) } else { sibling(path, number as u32 + 1) };
        let path = path.ok_or_else(|| place.not_shard("its name has no number"))?;
        let (bytes, length, extents) = (head.bytes.as_slice(), probe.length, head.extents);
        SparseFile::create(&path, &origin, StoreHead { bytes, length, extents })?;
    }
    Ok(())
}

/// Compares the lengths of the files with the index.
fn check_lengths(place: &StorePlace, store: &Store, found: &[Probe]) -> Result<()> {
    let (address, expected) = (place.address(), store.index().shards());
    if expected.len() != found.len() {
        return Err(HubError::new(format!(
            "{address} is one of {} files of a store, and its name does not say so",
            expected.len()
        ))
        .advise("the first of several files is named *-00001-of-N.nest, with five digits each"));
    }
    let mut pairs = (1..).zip(expected.iter().zip(found));
    let Some((number, (length, probe))) =
        pairs.find(|(_, (length, probe))| **length != probe.length)
    else {
        return Ok(());
    };
    let found = probe.length;
    Err(match expected.len() {
        1 => HubError::new(format!("{address} has {found} bytes of a store of {length} bytes")),
        _ => place.shard(number).not_shard(&format!("it has {found} bytes instead of {length}")),
    })
}

/// Start of a remote file.
struct Head {
    /// Bytes of the header; with index for the first file.
    bytes: Vec<u8>,
    /// Number of bytes before the first extent.
    length: u64,
    /// Number of extents in the file.
    extents: usize,
}

/// Reads the start of the file with the bytes `range` of the store.
fn head(
    place: &StorePlace,
    storage: &RemoteStorage,
    store: &Store,
    range: std::ops::Range<u64>,
) -> Result<Head> {
    let first_from =
        |offset: u64| store.index().extents().partition_point(|extent| extent.offset < offset);
    let extents = first_from(range.start)..first_from(range.end);
    let first = store.index().extents()[extents.clone()].first();
    // Default: a file without extents consists of its head.
    let length = first.map_or(range.end, |first| first.offset) - range.start;
    let wanted = if range.start == 0 { length } else { length.min(SHARD_HEAD_BYTES) };
    let unread = |error: &dyn std::fmt::Display| {
        HubError::new(format!("the head of {} was not read: {error}", place.address()))
    };
    let wanted = usize::try_from(wanted).map_err(|error| unread(&error))?;
    let mut bytes = try_zeroed("the head of a store", wanted).map_err(|error| unread(&error))?;
    storage.read_at(range.start, &mut bytes).map_err(|error| match storage.take_trouble() {
        Some(trouble) => place.explain(trouble),
        None => unread(&error),
    })?;
    Ok(Head { bytes, length, extents: extents.len() })
}
