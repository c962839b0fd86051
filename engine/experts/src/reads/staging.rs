#![expect(unsafe_code, reason = "the kernel is told of memory")]
//! Areas that reads land in before their bytes are copied to where they stay.
//!
//! They are few, so that they are still in the processor's cache when they are checked, and so that the
//! system lets them be pinned and registered with a ring: it then finds their pages once and not with
//! every read.

use io_uring::IoUring;

use super::buffers::PAGE_BYTES;
use super::slab::{self, Piece};

/// Most bytes of all areas: what systems let everybody pin.
const STAGING_BYTES: usize = 8 << 20;

/// Fewer areas than this are of no use: one is read while another is copied.
const AREAS_MIN: usize = 2;

/// Areas that nobody uses.
pub(super) struct Staging {
    /// The one that was used last is last.
    free: Vec<Area>,
    area_bytes: usize,
}

/// Memory that the ring knows.
pub(super) struct Area {
    /// Its number there.
    pub index: u16,
    pub piece: Piece,
}

impl Staging {
    /// At most so many areas for reads of so many bytes; none where the system refuses.
    pub fn register(ring: &IoUring, area_bytes: usize, areas: usize) -> Option<Self> {
        let area_bytes = area_bytes.checked_next_multiple_of(PAGE_BYTES)?.max(PAGE_BYTES);
        let mut pieces = slab::pieces(area_bytes).ok()?;
        pieces.reverse();
        pieces.truncate(areas.min(STAGING_BYTES / area_bytes));
        while pieces.len() >= AREAS_MIN {
            let vectors: Vec<_> =
                pieces.iter_mut().map(|piece| vector(piece.bytes_mut())).collect();
            // SAFETY: the kernel keeps these pages until the ring is gone, and writes to them only for
            // reads that name an area, which whoever starts them keeps.
            if unsafe { ring.submitter().register_buffers(&vectors) }.is_ok() {
                let areas = (0..).zip(pieces).map(|(index, piece)| Area { index, piece });
                return Some(Self { free: areas.collect(), area_bytes });
            }
            // The limit of what may be pinned is lower.
            pieces.pop();
        }
        None
    }

    /// Bytes of all areas.
    pub fn bytes(&self) -> u64 {
        (self.free.len() * self.area_bytes) as u64
    }

    /// An area for a read, if it is long enough and one is free.
    pub fn take(&mut self, length: usize) -> Option<Area> {
        if length <= self.area_bytes { self.free.pop() } else { None }
    }

    /// Nothing is read into this area any more.
    pub fn give(&mut self, area: Area) {
        self.free.push(area);
    }
}

fn vector(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

#[cfg(test)]
mod tests {
    use io_uring::IoUring;

    use super::{AREAS_MIN, PAGE_BYTES, STAGING_BYTES, Staging};

    #[test]
    fn areas_are_lent_once_and_only_for_reads_that_they_hold() {
        let Ok(ring) = IoUring::new(8) else {
            // This system gives no rings.
            return;
        };
        let Some(mut staging) = Staging::register(&ring, 3 * PAGE_BYTES - 9, 4) else {
            // It does not let this user pin 48 KiB.
            return;
        };
        assert!(staging.take(3 * PAGE_BYTES + 1).is_none());
        let mut lent: Vec<_> = std::iter::from_fn(|| staging.take(3 * PAGE_BYTES)).collect();
        assert!((AREAS_MIN..=4).contains(&lent.len()));
        let first: Vec<_> = lent.iter().map(|area| area.piece.bytes().as_ptr()).collect();
        assert!((1..first.len()).all(|at| !first[..at].contains(&first[at])));
        let area = lent.remove(0);
        let index = area.index;
        staging.give(area);
        assert_eq!(staging.take(1).map(|area| area.index), Some(index));
    }

    #[test]
    fn what_is_too_long_for_two_areas_has_none() {
        if let Ok(ring) = IoUring::new(8) {
            assert!(Staging::register(&ring, STAGING_BYTES / 2 + 1, 4).is_none());
            assert!(Staging::register(&ring, PAGE_BYTES, 1).is_none());
        }
    }
}
