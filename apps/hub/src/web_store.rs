//! A store on a web server or on the Hub, whose extents are fetched as they are read.
//!
//! Extents are checked against the store's checksums and kept in a local copy ([`crate::copy_files`]), so that
//! nothing is fetched twice. A file that changes on the server is an error.

use crate::copy_files::CopyFiles;
use crate::error::{HubError, Result};
use crate::fetch_state::{RUN_BYTES_MAX, Urgency};
use crate::fetcher::Fetcher;
use crate::observer::{Notice, Observer, Task};
use crate::options::{HubOptions, WebAccess};
use crate::sections::sections_of;
use crate::store_address::StoreAddress;
use crate::web_copy;
use nestling_formats::Level;
use nestling_formats::store::{Storage, Store};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A store on a web server or on the Hub, with its local copy.
pub struct WebStore {
    fetcher: Arc<Fetcher>,
    is_writer: bool,
}

impl WebStore {
    /// Prepares the local copy of a store, and returns its path: that of the complete store, or of a copy for
    /// [`Self::open`].
    ///
    /// A complete copy is used without a request. Without a connection, an existing copy is used. Of a store in
    /// shards, the address names the first.
    ///
    /// # Errors
    /// Returns an error if the server does not give parts of the file, if the file is not a store that can
    /// run here, if a shard is missing or belongs to another store, or if the copy cannot be written.
    pub fn prepare(
        address: &StoreAddress,
        options: &HubOptions,
        observer: &dyn Observer,
    ) -> Result<PathBuf> {
        web_copy::of_address(address, options, observer)
    }

    /// Returns true for the path of a copy that is not complete.
    pub fn is_copy(path: &Path) -> bool {
        path.as_os_str().to_string_lossy().ends_with(crate::sparse_file::ENDING)
    }

    /// Opens a copy. The server is asked for extents that have not arrived, unless the network is off.
    ///
    /// Only one open copy of a store writes to its files; others keep nothing of what they fetch.
    ///
    /// # Errors
    /// Returns an error if the copy is missing or damaged.
    pub fn open(path: &Path, access: &WebAccess) -> Result<Arc<Self>> {
        let files = CopyFiles::open(path, access)?
            .ok_or_else(|| HubError::file("read", path, io::ErrorKind::NotFound.into()))?;
        let (ranges, is_writer) = (files.ranges(access), files.is_writer());
        let files = Arc::new(files);
        let checked = Store::from_storage(files.clone(), false)?;
        let fetcher = Arc::new(Fetcher::new(files, checked, ranges)?);
        Ok(Arc::new(Self { fetcher, is_writer }))
    }

    /// Returns the path of the copy; of its first file for a store in shards.
    pub fn path(&self) -> &Path {
        self.fetcher.files.path()
    }

    /// Makes what has arrived durable.
    ///
    /// # Errors
    /// Returns errors of the file.
    pub fn keep(&self) -> Result<()> {
        self.fetcher.save().map_err(|error| self.fetcher.not_written(error))
    }

    /// Returns the number of sections that a level needs, or all sections without a level.
    ///
    /// # Errors
    /// Returns an error if the store has no such level.
    pub fn sections_for(&self, level: Option<Level>) -> Result<usize> {
        sections_of(&self.fetcher.checked, level)
    }

    /// Returns the store's sections in order, each with the highest level that is complete after it.
    pub fn section_levels(&self) -> Vec<Option<Level>> {
        let index = self.fetcher.checked.index();
        (1..=index.sections().len()).map(|count| index.complete_level(count)).collect()
    }

    /// Returns the number of complete sections, counted from the first.
    pub fn sections_present(&self) -> usize {
        let count = self.fetcher.checked.index().sections().len();
        // Default: all sections are complete.
        (1..=count)
            .find(|count| self.missing_bytes(*count) > 0)
            .map_or(count, |missing| missing - 1)
    }

    /// Returns the number of bytes of the first `sections` sections that have not arrived.
    pub fn missing_bytes(&self, sections: usize) -> u64 {
        let (state, end) = (self.fetcher.lock(), self.extents_end(sections));
        let extents = self.fetcher.extents().iter().take(end).enumerate();
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
        let index = self.fetcher.checked.index();
        let (missing, total) = (self.missing_bytes(sections), index.length());
        if missing == 0 {
            return Ok(());
        }
        if !self.is_writer {
            return Err(HubError::new("another program is downloading the same store")
                .advise("wait until it is finished"));
        }
        let end = self.extents_end(sections);
        let level = index.complete_level(sections);
        // Default: a copy is always in a folder.
        let folder = self.path().parent().unwrap_or(Path::new("."));
        let (missing_bytes, store_bytes) = (missing, total);
        observer.notice(&Notice::Sections { missing_bytes, store_bytes, level, folder });
        let (mut progress, mut done) = (observer.begin(Task::Download, missing, 0), 0);
        while let Some(bytes) = self.fetcher.fetch_next(0..end, RUN_BYTES_MAX)? {
            done += bytes;
            progress.set(done);
            if is_stopped() {
                break;
            }
        }
        self.keep()
    }

    /// Turns a copy with all extents into a plain store and returns its path. Returns `None` if extents are
    /// missing or another open copy writes to the file.
    ///
    /// # Errors
    /// Returns errors of the file.
    pub fn finish(&self) -> Result<Option<PathBuf>> {
        let sections = self.fetcher.checked.index().sections().len();
        if !self.is_writer || self.missing_bytes(sections) > 0 {
            return Ok(None);
        }
        self.keep()?;
        self.fetcher.files.finish().map(Some)
    }

    /// Returns the number of extents in the first `sections` sections.
    fn extents_end(&self, sections: usize) -> usize {
        let all = self.fetcher.checked.index().sections();
        let last = sections.checked_sub(1).and_then(|last| all.get(last));
        // Default: no section has no extents.
        last.map_or(0, |section| section.extents_end as usize)
    }

    /// Returns the numbers of the extents that a range of bytes touches.
    fn touched(&self, offset: u64, length: u64) -> Range<usize> {
        let extents = self.fetcher.extents();
        let end = offset.saturating_add(length);
        let start = extents.partition_point(|extent| extent.offset + extent.length <= offset);
        let end = extents.partition_point(|extent| extent.offset < end);
        start..end.max(start)
    }

    fn has_all(&self, mut extents: Range<usize>) -> bool {
        let state = self.fetcher.lock();
        extents.all(|number| state.arrived.contains(number))
    }

    /// Fetches the missing ones of some extents into the bytes read at `offset`, without keeping them.
    fn overlay(&self, extents: Range<usize>, offset: u64, out: &mut [u8]) -> io::Result<()> {
        for number in extents {
            if self.fetcher.lock().arrived.contains(number) {
                continue;
            }
            let bytes = self.fetcher.fetch_alone(number)?;
            let start = self.fetcher.extents()[number].offset;
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

impl Storage for WebStore {
    fn name(&self) -> String {
        self.fetcher.files.name()
    }

    fn len(&self) -> u64 {
        self.fetcher.files.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let touched = self.touched(offset, out.len() as u64);
        if self.is_writer && !self.has_all(touched.clone()) {
            self.fetcher.wait_for(touched.clone())?;
        }
        self.fetcher.files.read_at(offset, out)?;
        if self.is_writer || self.has_all(touched.clone()) {
            return Ok(());
        }
        self.overlay(touched, offset, out)
    }

    fn announce(&self, offset: u64, length: u64, is_urgent: bool) {
        if self.is_writer {
            let urgency = if is_urgent { Urgency::Urgent } else { Urgency::Later };
            self.fetcher.announce(self.touched(offset, length), urgency);
        }
    }
}

impl Drop for WebStore {
    fn drop(&mut self) {
        self.fetcher.close();
        // What was not saved is fetched again.
        drop(self.fetcher.save());
    }
}
