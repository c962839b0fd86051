//! Staging area of one reader thread: memory that every direct read of the thread fills before its bytes are
//! copied to the final buffer. A virtual disk fills memory in the CPU's cache faster than memory where planes
//! stay.

#[cfg(target_os = "linux")]
use super::slab::{self, SlabBuffer};
#[cfg(target_os = "linux")]
use super::staging::STAGING_BYTES;

/// Staging area, empty by default.
#[derive(Default)]
pub(super) struct ThreadStaging {
    #[cfg(target_os = "linux")]
    area: Option<SlabBuffer>,
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
        let mut areas: Vec<_> =
            pieces.into_iter().rev().take(count).map(|area| Self { area: Some(area) }).collect();
        areas.resize_with(count, Self::default);
        areas
    }

    #[cfg(not(any(target_os = "linux", target_family = "wasm")))]
    pub fn areas(_: usize, count: usize) -> Vec<Self> {
        std::iter::repeat_with(Self::default).take(count).collect()
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
    use super::{STAGING_BYTES, ThreadStaging};

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
