#![expect(unsafe_code, reason = "buffers share one mapping, so that they share its huge pages")]
//! Buffers of one size side by side in huge pages.
//!
//! A disk is handed a buffer as runs of contiguous memory: of one in small pages, a plane of 1.3 MB
//! is 310 runs, more than many disks take in one request, of one in huge pages two.

use std::io;
use std::sync::Arc;

use memmap2::{Advice, MmapMut, MmapRaw, UncheckedAdvice};

/// Bytes of a huge page.
const HUGE_BYTES: usize = 2 << 20;

/// About how many bytes buffers are made for at once.
const SLAB_BYTES: usize = 16 << 20;

/// Memory of several buffers.
struct Slab {
    map: MmapRaw,
    /// Where the first buffer begins: at a huge page.
    start: usize,
    /// Bytes of each.
    size: usize,
}

/// Memory of one buffer, which nobody else has.
pub(super) struct Piece {
    slab: Arc<Slab>,
    index: usize,
}

/// Buffers of `size` bytes each, the first one last. They take no memory before they are touched.
pub(super) fn pieces(size: usize) -> io::Result<Vec<Piece>> {
    let count = (SLAB_BYTES / size.max(1)).max(1);
    let bytes = size.checked_mul(count).and_then(|bytes| bytes.checked_add(HUGE_BYTES));
    let map = MmapMut::map_anon(bytes.ok_or(io::ErrorKind::OutOfMemory)?)?;
    // Without huge pages all works as well.
    let _ = map.advise(Advice::HugePage);
    let start = map.as_ptr().align_offset(HUGE_BYTES).min(HUGE_BYTES);
    let slab = Arc::new(Slab { map: MmapRaw::from(map), start, size });
    Ok((0..count).rev().map(|index| Piece { slab: Arc::clone(&slab), index }).collect())
}

impl Piece {
    /// Where it begins in the mapping.
    fn offset(&self) -> usize {
        self.slab.start + self.index * self.slab.size
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `pieces` made the mapping, which is never written to but through pieces, long
        // enough for `start` and all of them, and each index once; so nobody else has these bytes.
        unsafe {
            std::slice::from_raw_parts(self.slab.map.as_ptr().add(self.offset()), self.slab.size)
        }
    }

    /// Its bytes, to fill.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; this piece is borrowed for as long as the slice lives.
        unsafe {
            let first = self.slab.map.as_mut_ptr().add(self.offset());
            std::slice::from_raw_parts_mut(first, self.slab.size)
        }
    }

    /// Gives its memory back to the system; it holds zeros from now on.
    pub fn hollow(&mut self) {
        let (offset, size) = (self.offset(), self.slab.size);
        // SAFETY: these bytes are this piece's alone, which is borrowed, and zeros are bytes too.
        let _ = unsafe {
            self.slab.map.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, size)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::{HUGE_BYTES, pieces};

    #[test]
    fn pieces_lie_side_by_side_and_never_on_each_other() {
        for size in [128 << 10, 589_824, 1_269_760, 20 << 20] {
            let mut all = pieces(size).unwrap();
            all.reverse();
            assert!(all[0].bytes().as_ptr().addr().is_multiple_of(HUGE_BYTES));
            for (number, piece) in (1u8..).zip(&mut all) {
                assert_eq!(piece.bytes().len(), size);
                piece.bytes_mut().fill(number);
            }
            all[0].hollow();
            assert!(all[0].bytes().iter().all(|byte| *byte == 0));
            for (number, piece) in (1u8..).zip(&all).skip(1) {
                assert!(piece.bytes().iter().all(|byte| *byte == number));
            }
        }
    }
}
