#![expect(unsafe_code, reason = "the kernel is told of memory, and stores pass the CPU's caches")]
//! Staging areas: memory that reads fill before their bytes are copied to the final buffer.
//!
//! The areas are few, so that they are still in the CPU's cache when they are verified. They can also be
//! pinned and registered with a ring, so that the kernel looks up their pages only once.

use io_uring::IoUring;

use super::buffers::PAGE_BYTES;
use super::slab::{self, SlabBuffer};

/// Maximum bytes of all areas: the amount that systems let unprivileged users pin.
pub(super) const STAGING_BYTES: usize = 8 << 20;

/// Minimum number of useful areas: one is read while another is copied.
const AREAS_MIN: usize = 2;

pub(super) struct Staging {
    /// Free areas, the last used one last.
    free: Vec<StagingBuffer>,
    area_bytes: usize,
}

/// Memory registered with the ring.
pub(super) struct StagingBuffer {
    pub index: u16,
    pub piece: SlabBuffer,
}

impl Staging {
    /// Registers up to `areas` areas of `area_bytes` bytes. Returns `None` if the system refuses.
    pub fn register(ring: &IoUring, area_bytes: usize, areas: usize) -> Option<Self> {
        let area_bytes = area_bytes.checked_next_multiple_of(PAGE_BYTES)?.max(PAGE_BYTES);
        let mut pieces = slab::pieces(area_bytes).ok()?;
        pieces.reverse();
        pieces.truncate(areas.min(STAGING_BYTES / area_bytes));
        while pieces.len() >= AREAS_MIN {
            let vectors: Vec<_> =
                pieces.iter_mut().map(|piece| vector(piece.bytes_mut())).collect();
            // SAFETY: the kernel keeps these pages until the ring is gone, and only writes to them for reads
            // that name an area. The reader that starts such a read keeps the area.
            if unsafe { ring.submitter().register_buffers(&vectors) }.is_ok() {
                let areas = (0..).zip(pieces).map(|(index, piece)| StagingBuffer { index, piece });
                return Some(Self { free: areas.collect(), area_bytes });
            }
            // The limit of pinned memory is lower.
            pieces.pop();
        }
        None
    }

    pub fn bytes(&self) -> u64 {
        (self.free.len() * self.area_bytes) as u64
    }

    /// Takes a free area for a read, if it is long enough.
    pub fn take(&mut self, length: usize) -> Option<StagingBuffer> {
        if length <= self.area_bytes { self.free.pop() } else { None }
    }

    /// Returns an area after use.
    pub fn give(&mut self, area: StagingBuffer) {
        self.free.push(area);
    }
}

fn vector(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

/// Copies bytes with non-temporal stores where available. The destination is not loaded into the cache, and
/// cached data is not evicted. `to` must be as long as `from`.
#[cfg(target_arch = "x86_64")]
pub(super) fn copy_past_cache(from: &[u8], to: &mut [u8]) {
    use std::arch::x86_64::*;

    const LINE: usize = 64;
    let length = from.len().min(to.len());
    let (from, to) = (&from[..length], &mut to[..length]);
    let head = to.as_ptr().align_offset(LINE).min(length);
    to[..head].copy_from_slice(&from[..head]);
    let (lines, rest) = from[head..].as_chunks::<LINE>();
    let (to_lines, to_rest) = to[head..].as_chunks_mut::<LINE>();
    for (line, to) in lines.iter().zip(to_lines) {
        // SAFETY: both have 64 bytes, and `to` is aligned to 64. All x86-64 CPUs have these instructions.
        unsafe {
            let (from, to) = (line.as_ptr().cast::<__m128i>(), to.as_mut_ptr().cast::<__m128i>());
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(AHEAD).cast());
            for at in 0..4 {
                _mm_stream_si128(to.add(at), _mm_loadu_si128(from.add(at)));
            }
        }
    }
    // SAFETY: all x86-64 CPUs have this instruction. It orders the non-temporal stores before later ones.
    unsafe { _mm_sfence() };
    to_rest.copy_from_slice(rest);
}

/// Prefetch distance in bytes.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 1024;

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn copy_past_cache(from: &[u8], to: &mut [u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

#[cfg(test)]
mod tests {
    use io_uring::IoUring;

    use super::{AREAS_MIN, PAGE_BYTES, STAGING_BYTES, Staging};

    #[test]
    fn areas_are_lent_once_and_only_for_reads_that_they_hold() {
        let Ok(ring) = IoUring::new(8) else {
            // This system does not support io_uring.
            return;
        };
        let Some(mut staging) = Staging::register(&ring, 3 * PAGE_BYTES - 9, 4) else {
            // This user may not pin 48 KiB.
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

#[cfg(test)]
mod copy_tests {
    use super::copy_past_cache;

    #[test]
    fn every_byte_arrives_wherever_it_lies() {
        let from: Vec<u8> = (0..1000u32).map(|i| (i * 7 % 251) as u8).collect();
        for (start, length) in (0..70).flat_map(|start| [0, 1, 63, 64, 65, 700].map(|l| (start, l)))
        {
            for to_start in [0, 1, 17, 64] {
                let mut to = vec![255; 1000];
                copy_past_cache(&from[start..start + length], &mut to[to_start..to_start + length]);
                assert_eq!(to[to_start..to_start + length], from[start..start + length]);
                assert!(to[..to_start].iter().chain(&to[to_start + length..]).all(|b| *b == 255));
            }
        }
    }
}
