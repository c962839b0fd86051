//! Memory of one reader thread: a staging area, which every direct read of the thread fills before its bytes are
//! copied to the final buffer, and a buffer for sources of derived extents. A virtual disk fills memory in the CPU's
//! cache faster than memory where planes stay.

use std::sync::Arc;

use super::buffers::{Buffer, BufferPool};
#[cfg(target_os = "linux")]
use super::slab::{self, SlabBuffer};
#[cfg(target_os = "linux")]
use super::staging::STAGING_BYTES;
use nestling_core::error::EngineError;

/// Memory of a reader thread, empty by default.
#[derive(Default)]
pub(super) struct ThreadStaging {
    #[cfg(target_os = "linux")]
    area: Option<SlabBuffer>,
    source: Option<Buffer>,
}

impl ThreadStaging {
    /// Returns `count` areas of `length` bytes, or empty ones if all of them would take too much memory or the
    /// system refuses it.
    #[cfg(target_os = "linux")]
    pub fn areas(length: usize, count: usize) -> Vec<Self> {
        let fits = length > 0 && length.saturating_mul(count) <= STAGING_BYTES;
        // Default: without memory for areas, reads land where they stay.
        let pieces = if fits { slab::pieces(length).unwrap_or_default() } else { Vec::new() };
        // The last buffers are the first ones in memory.
        let pieces = pieces.into_iter().rev().take(count);
        let mut areas: Vec<_> =
            pieces.map(|area| Self { area: Some(area), source: None }).collect();
        areas.resize_with(count, Self::default);
        areas
    }

    #[cfg(not(any(target_os = "linux", target_family = "wasm")))]
    pub fn areas(_: usize, count: usize) -> Vec<Self> {
        std::iter::repeat_with(Self::default).take(count).collect()
    }

    /// Returns `length` bytes with unspecified contents, of a buffer that stays with the thread. A buffer that
    /// returns to the pool may lose its memory, and then gets small pages, of which a disk fills fewer at a time
    /// (docs/perf/071).
    ///
    /// # Errors
    /// The errors of [`BufferPool::take`].
    pub fn source(
        &mut self,
        pool: &Arc<BufferPool>,
        length: usize,
    ) -> Result<&mut [u8], EngineError> {
        let source = match self.source.take().filter(|source| source.bytes().len() >= length) {
            Some(source) => source,
            None => pool.take(length)?,
        };
        Ok(&mut self.source.insert(source).bytes_mut()[..length])
    }

    /// Returns the buffer for sources to its pool.
    pub fn release_source(&mut self) {
        self.source = None;
    }

    /// Returns the memory of the area, which is empty without one.
    #[cfg(target_os = "linux")]
    pub fn bytes(&self) -> &[u8] {
        self.area.as_ref().map_or(&[], SlabBuffer::bytes)
    }

    #[cfg(target_os = "linux")]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.area.as_mut().map_or(&mut [], SlabBuffer::bytes_mut)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::Arc;

    use super::{BufferPool, STAGING_BYTES, ThreadStaging};

    #[test]
    fn a_thread_keeps_its_source_buffer_unless_it_is_too_short() {
        let (pool, mut staging) = (Arc::new(BufferPool::new(0)), ThreadStaging::default());
        let long = staging.source(&pool, 3 << 20).unwrap().as_ptr();
        assert_eq!(staging.source(&pool, 1 << 20).unwrap().as_ptr(), long);
        assert_eq!(pool.bytes(), (3 << 20, 0));
        assert_eq!(staging.source(&pool, 4 << 20).unwrap().len(), 4 << 20);
        assert_eq!(pool.bytes(), (4 << 20, 0));
        staging.release_source();
        assert_eq!(pool.bytes(), (0, 0));
    }

    #[test]
    fn every_thread_has_an_area_of_its_own_or_none_has() {
        let mut areas = ThreadStaging::areas(STAGING_BYTES / 3, 3);
        let starts: Vec<_> = areas.iter_mut().map(|area| area.bytes_mut().as_ptr()).collect();
        assert!((1..3).all(|at| !starts[..at].contains(&starts[at])));
        assert!(areas.iter().all(|area| area.bytes().len() >= STAGING_BYTES / 3));
        for (length, count) in [(STAGING_BYTES / 3, 4), (0, 2)] {
            let areas = ThreadStaging::areas(length, count);
            assert!(areas.len() == count && areas.iter().all(|area| area.bytes().is_empty()));
        }
    }
}
