//! Arrival of a GGUF file: its header first, then the rest in order.

use std::io;
use std::sync::Arc;

use nestling::formats::store::Storage;
use nestling::{ModelSource, OpenDevice, gguf_in_place};

use crate::error::TabError;
use crate::storage::{REQUEST_BYTES, RangeStorage};

/// First bytes of a GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// A GGUF file that arrives in small steps. It has no levels and no checksums.
#[derive(Debug)]
pub struct GgufArrival {
    storage: Arc<RangeStorage>,
    /// Number of bytes that are here, from the first one on.
    done: u64,
}

impl GgufArrival {
    /// Fetches the header, and checks that its model can run.
    ///
    /// # Errors
    /// Fails if the header cannot be fetched, is malformed, or describes a model that cannot run.
    pub fn open(storage: Arc<RangeStorage>) -> Result<Self, TabError> {
        let arrival = Self { storage, done: 0 };
        arrival.source(&OpenDevice::Cpu { reason: None })?;
        Ok(arrival)
    }

    /// Fetches the next part with at most one request. Returns true once the whole file is here.
    ///
    /// # Errors
    /// Fails if the request fails. A later call continues.
    pub fn step(&mut self) -> Result<bool, TabError> {
        let end = self.done.saturating_add(REQUEST_BYTES).min(self.storage.len());
        if self.storage.bring(&(self.done..end))? {
            self.done = end;
        }
        Ok(self.is_complete())
    }

    /// Returns whether the whole file is here.
    pub fn is_complete(&self) -> bool {
        self.done == self.storage.len()
    }

    /// Opens the file in place, for a device.
    ///
    /// # Errors
    /// Fails if the model cannot run in place.
    pub fn source(&self, device: &OpenDevice) -> Result<ModelSource, TabError> {
        let file = FileVersion::new(Arc::clone(&self.storage));
        Ok(gguf_in_place(vec![Arc::new(file)], device)?)
    }

    /// Returns the storage.
    pub fn storage(&self) -> &RangeStorage {
        &self.storage
    }
}

/// A file whose name contains its entity tag, since the name of a GGUF file is part of the model's identity: snapshots of
/// another version are refused.
struct FileVersion {
    storage: Arc<RangeStorage>,
    name: String,
}

impl FileVersion {
    fn new(storage: Arc<RangeStorage>) -> Self {
        let name = format!("{} {}", storage.name(), storage.etag()).trim_end().to_owned();
        Self { storage, name }
    }
}

impl Storage for FileVersion {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn len(&self) -> u64 {
        self.storage.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.storage.read_at(offset, out)
    }
}
