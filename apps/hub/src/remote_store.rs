//! A store on the Hub, read by range requests.

use crate::choice::StoreFiles;
use crate::client::RequestError;
use crate::download::Hub;
use crate::error::{HubError, Result};
use crate::ranges::Ranges;
use nestling_formats::store::{Storage, Store};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Size in bytes of the first read, which covers header and index of most stores.
const HEADER_BYTES: u64 = 1 << 16;

/// Concatenation of a store's files as one range of bytes.
#[derive(Debug)]
pub struct RemoteStorage {
    name: String,
    files: StoreFiles,
    ranges: Ranges,
    header: Vec<u8>,
    trouble: Mutex<Option<RequestError>>,
}

impl RemoteStorage {
    pub fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    pub fn files(&self) -> &StoreFiles {
        &self.files
    }

    /// Takes the last error of the network.
    pub fn take_trouble(&self) -> Option<RequestError> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Reads a range that may span several files.
    fn read(&self, range: Range<u64>) -> std::result::Result<Vec<u8>, RequestError> {
        let (mut start, mut bytes) = (0, Vec::new());
        for file in &self.files.shards {
            let end = start + file.size;
            let part = range.start.max(start)..range.end.min(end);
            if part.start < part.end {
                bytes.extend(self.ranges.read(file, part.start - start..part.end - start)?);
            }
            start = end;
        }
        Ok(bytes)
    }
}

impl Storage for RemoteStorage {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn len(&self) -> u64 {
        self.files.shards.iter().map(|file| file.size).sum()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= self.len());
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let held = usize::try_from(offset).ok().and_then(|at| self.header.get(at..));
        if let Some(bytes) = held.and_then(|held| held.get(..out.len())) {
            out.copy_from_slice(bytes);
            return Ok(());
        }
        let bytes = self.read(offset..end).map_err(|trouble| {
            *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(trouble);
            io::Error::other("the network failed")
        })?;
        if bytes.len() != out.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out.copy_from_slice(&bytes);
        Ok(())
    }
}

/// Opens a store of the repository by downloading and checking its header and index.
pub fn open(
    hub: &Hub<'_>,
    commit: &str,
    files: StoreFiles,
) -> Result<(Arc<RemoteStorage>, Arc<Store>)> {
    let name = format!("{}/{}", hub.repository.id, files.first());
    open_with(name, hub.ranges(commit), files, &|trouble| hub.explain(trouble))
}

/// Opens a store by downloading and checking its header and index. `explain` describes errors of the network.
pub fn open_with(
    name: String,
    ranges: Ranges,
    files: StoreFiles,
    explain: &dyn Fn(RequestError) -> HubError,
) -> Result<(Arc<RemoteStorage>, Arc<Store>)> {
    let trouble = Mutex::new(None);
    let mut storage = RemoteStorage { name, files, ranges, header: Vec::new(), trouble };
    let header = storage.read(0..HEADER_BYTES.min(storage.len()));
    storage.header = header.map_err(explain)?;
    let storage = Arc::new(storage);
    let held: Arc<dyn Storage> = storage.clone();
    let store = Store::from_storage(held, true)
        .map_err(|error| storage.take_trouble().map_or_else(|| error.into(), explain))?;
    Ok((storage, Arc::new(store)))
}
