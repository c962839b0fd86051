//! Map of an emulated device's memory and its written bytes.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use nestling_core::sync::whole;

/// An allocation.
#[derive(Clone)]
pub(super) struct Region {
    pub start: u64,
    pub bytes: u64,
    /// Bit set of written bytes, or `None` if all are written.
    pub written: Option<Arc<[AtomicU8]>>,
}

impl Region {
    fn end(&self) -> u64 {
        self.start + self.bytes
    }

    fn is_written(&self, address: u64) -> bool {
        let at = (address - self.start) as usize;
        let has =
            |bits: &Arc<[AtomicU8]>| bits[at / 8].load(Ordering::Relaxed) >> (at % 8) & 1 == 1;
        self.written.as_ref().is_none_or(has)
    }

    fn write(&self, first: u64, end: u64) {
        // Default: a region without bits counts as written.
        let Some(bits) = &self.written else { return };
        let (mut at, end) = ((first - self.start) as usize, (end - self.start) as usize);
        while at < end {
            let whole = at.is_multiple_of(8) && end - at >= 8;
            if whole {
                bits[at / 8].store(0xff, Ordering::Relaxed);
            } else {
                bits[at / 8].fetch_or(1 << (at % 8), Ordering::Relaxed);
            }
            at += if whole { 8 } else { 1 };
        }
    }
}

/// Memory map of an emulated device, used to check the accesses of kernels.
#[derive(Default)]
pub struct MemoryMap {
    regions: Mutex<Vec<Region>>,
}

impl MemoryMap {
    fn regions(&self) -> MutexGuard<'_, Vec<Region>> {
        whole(self.regions.lock())
    }

    /// Returns all regions in ascending order.
    pub(super) fn list(&self) -> Vec<Region> {
        self.regions().clone()
    }

    /// Adds unwritten memory, replacing overlapping regions.
    pub fn allocated(&self, start: u64, bytes: u64) {
        let bits = (0..bytes.div_ceil(8)).map(|_| AtomicU8::new(0)).collect();
        self.insert(Region { start, bytes, written: Some(bits) });
    }

    /// Adds memory that counts as written.
    pub fn filled(&self, start: u64, bytes: u64) {
        self.insert(Region { start, bytes, written: None });
    }

    fn insert(&self, region: Region) {
        if region.bytes == 0 {
            return;
        }
        let mut regions = self.regions();
        regions.retain(|other| other.end() <= region.start || region.end() <= other.start);
        let at = regions.partition_point(|other| other.start < region.start);
        regions.insert(at, region);
    }

    /// Removes a region.
    pub fn freed(&self, start: u64) {
        self.regions().retain(|region| region.start != start);
    }

    /// Marks bytes as written by the host or a copy.
    pub fn written(&self, start: u64, bytes: u64) {
        let regions = self.regions();
        let end = start.saturating_add(bytes);
        for region in regions.iter().filter(|region| region.start < end && start < region.end()) {
            region.write(start.max(region.start), end.min(region.end()));
        }
    }

    /// Copies the written state of bytes along with a copy within the device.
    pub fn copied(&self, from: u64, to: u64, bytes: u64) {
        let source = self.region_at(from);
        let mut run = None;
        for at in 0..bytes {
            let is_written = source
                .as_ref()
                .is_some_and(|source| from + at < source.end() && source.is_written(from + at));
            match (is_written, run) {
                (true, None) => run = Some(at),
                (false, Some(first)) => {
                    self.written(to + first, at - first);
                    run = None;
                }
                _ => {}
            }
        }
        if let Some(first) = run {
            self.written(to + first, bytes - first);
        }
    }

    fn region_at(&self, address: u64) -> Option<Region> {
        let regions = self.regions();
        let found = regions.iter().find(|r| r.start <= address && address < r.end());
        found.cloned()
    }
}
