#![expect(unsafe_code, reason = "buffers share one mapping, so that they share its huge pages")]
//! Buffers of one size, adjacent in huge pages.
//!
//! A disk receives a buffer as runs of contiguous memory. In small pages a plane of 1.3 MB is 310 runs, more
//! than many disks accept in one request; in huge pages it is two.
//!
//! The first buffer that touches a huge page allocates all of it. Unused neighbours in the page then take
//! memory as well: *warm* bytes. They are counted, reused before others, and released when memory is short.

use std::io;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use nestling_core::sync::{Mutex, MutexGuard, whole};

use memmap2::{Advice, MmapMut, MmapRaw, UncheckedAdvice};

/// Size of a huge page in bytes.
const HUGE_BYTES: usize = 2 << 20;

/// Approximate bytes of buffers allocated together.
const SLAB_BYTES: usize = 16 << 20;

pub(super) struct Slab {
    map: MmapRaw,
    /// Offset of the first buffer in the mapping, at a huge page.
    start: usize,
    /// Size of each buffer in bytes.
    size: usize,
    pages: Mutex<Pages>,
}

/// Memory use of a slab.
struct Pages {
    /// True for buffers in use.
    solid: Vec<bool>, // [buffers]
    /// True for huge pages allocated as a whole: their bytes outside buffers in use are warm.
    whole: Vec<bool>, // [huge pages]
}

pub(super) struct SlabBuffer {
    slab: Arc<Slab>,
    index: usize,
}

/// Allocates buffers of `size` bytes each, in descending order. They take no memory before they are used.
pub(super) fn pieces(size: usize) -> io::Result<Vec<SlabBuffer>> {
    let count = (SLAB_BYTES / size.max(1)).max(1);
    let bytes =
        size.checked_mul(count).and_then(|bytes| bytes.checked_next_multiple_of(HUGE_BYTES));
    let bytes = bytes.and_then(|bytes| bytes.checked_add(HUGE_BYTES));
    let map = MmapMut::map_anon(bytes.ok_or(io::ErrorKind::OutOfMemory)?)?;
    // Huge pages are optional.
    let _ = map.advise(Advice::HugePage);
    let start = map.as_ptr().align_offset(HUGE_BYTES).min(HUGE_BYTES);
    let huge_pages = (size * count).div_ceil(HUGE_BYTES);
    let pages = Pages { solid: vec![false; count], whole: vec![false; huge_pages] };
    let slab = Arc::new(Slab { map: MmapRaw::from(map), start, size, pages: Mutex::new(pages) });
    Ok((0..count).rev().map(|index| SlabBuffer { slab: Arc::clone(&slab), index }).collect())
}

impl Slab {
    fn lock(&self) -> MutexGuard<'_, Pages> {
        whole(self.pages.lock())
    }

    /// Returns the byte range of a buffer, relative to the first buffer.
    fn range(&self, index: usize) -> Range<usize> {
        index * self.size..(index + 1) * self.size
    }

    /// Returns the huge pages that a buffer overlaps.
    fn pages_of(&self, index: usize) -> RangeInclusive<usize> {
        let range = self.range(index);
        range.start / HUGE_BYTES..=(range.end - 1) / HUGE_BYTES
    }

    /// Returns the parts of buffers in a huge page, and whether each buffer is in use.
    fn parts<'a>(
        &'a self,
        pages: &'a Pages,
        page: usize,
    ) -> impl Iterator<Item = (Range<usize>, bool)> + 'a {
        let whole = page * HUGE_BYTES..(page + 1) * HUGE_BYTES;
        let (first, last) = (whole.start / self.size, (whole.end - 1) / self.size);
        let buffers = first..=last.min(pages.solid.len() - 1);
        buffers.map(move |index| {
            let range = self.range(index);
            (range.start.max(whole.start)..range.end.min(whole.end), pages.solid[index])
        })
    }

    /// Returns the warm bytes of a huge page.
    fn warm(&self, pages: &Pages, page: usize) -> usize {
        if !pages.whole[page] {
            return 0;
        }
        let solid = self.parts(pages, page).filter(|(_, solid)| *solid);
        HUGE_BYTES - solid.map(|(range, _)| range.len()).sum::<usize>()
    }

    /// Releases the warm bytes of a huge page and returns their number.
    fn cool_page(&self, pages: &mut Pages, page: usize) -> usize {
        let warm = self.warm(pages, page);
        if warm > 0 {
            for (range, _) in self.parts(pages, page).filter(|(_, solid)| !solid) {
                self.give_back(range);
            }
            let end = pages.solid.len() * self.size;
            self.give_back(end.max(page * HUGE_BYTES)..end.max((page + 1) * HUGE_BYTES));
            pages.whole[page] = false;
        }
        warm
    }

    /// Releases all warm bytes to the system and returns their number.
    pub fn cool(&self) -> usize {
        let mut pages = self.lock();
        (0..pages.whole.len()).map(|page| self.cool_page(&mut pages, page)).sum()
    }

    /// Releases unused bytes to the system.
    fn give_back(&self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        // SAFETY: these bytes belong to no buffer, or to one that is not in use, which the lock of `pages`
        // guarantees. Zeros are valid bytes.
        let _ = unsafe {
            let offset = self.start + range.start;
            self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, range.len())
        };
    }
}

impl SlabBuffer {
    pub fn slab(&self) -> &Arc<Slab> {
        &self.slab
    }

    fn offset(&self) -> usize {
        self.slab.start + self.index * self.slab.size
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `pieces` made the mapping long enough for `start` and all buffers, and created each index
        // once. The mapping is only written through its buffers, so nobody else has these bytes.
        unsafe {
            std::slice::from_raw_parts(self.slab.map.as_ptr().add(self.offset()), self.slab.size)
        }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; this buffer is borrowed for as long as the slice lives.
        unsafe {
            let first = self.slab.map.as_mut_ptr().add(self.offset());
            std::slice::from_raw_parts_mut(first, self.slab.size)
        }
    }

    /// Returns the warm bytes of the huge pages that the buffer overlaps.
    pub fn warm(&self) -> usize {
        let pages = self.slab.lock();
        self.slab.pages_of(self.index).map(|page| self.slab.warm(&pages, page)).sum()
    }

    /// Marks the buffer as used. Returns the change in warm bytes.
    pub fn fill(&mut self) -> isize {
        let slab = Arc::clone(&self.slab);
        let mut pages = slab.lock();
        let mut more = 0;
        for page in slab.pages_of(self.index) {
            more -= slab.warm(&pages, page) as isize;
            let mut parts = slab.parts(&pages, page);
            if !pages.whole[page] && parts.all(|(_, solid)| !solid) {
                drop(parts);
                pages.whole[page] = true;
            }
        }
        pages.solid[self.index] = true;
        let first = self.index * slab.size;
        for page in slab.pages_of(self.index) {
            more += slab.warm(&pages, page) as isize;
            // Touched under the lock, so that the page is allocated before its other bytes are released.
            if let Some(byte) = self.bytes_mut().get_mut((page * HUGE_BYTES).saturating_sub(first))
            {
                *byte = 0;
            }
        }
        more
    }

    /// Releases the buffer's memory and adjacent warm bytes to the system, which zeroes it. Returns the
    /// number of warm bytes released.
    pub fn hollow(&mut self) -> usize {
        let mut pages = self.slab.lock();
        let around = self.slab.pages_of(self.index);
        let cooled = around.map(|page| self.slab.cool_page(&mut pages, page)).sum();
        pages.solid[self.index] = false;
        self.slab.give_back(self.slab.range(self.index));
        for page in self.slab.pages_of(self.index) {
            pages.whole[page] = false;
        }
        cooled
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
                piece.fill();
                piece.bytes_mut().fill(number);
            }
            all[0].hollow();
            assert!(all[0].bytes().iter().all(|byte| *byte == 0));
            for (number, piece) in (1u8..).zip(&all).skip(1) {
                assert!(piece.bytes().iter().all(|byte| *byte == number));
            }
        }
    }

    #[test]
    fn what_is_beside_used_buffers_in_their_huge_pages_is_counted_and_given_back() {
        for size in [589_824, 1_269_760, 3 << 20] {
            let mut all = pieces(size).unwrap();
            all.reverse();
            let slab = std::sync::Arc::clone(all[0].slab());
            let covered =
                |count: usize| ((count * size).div_ceil(HUGE_BYTES) * HUGE_BYTES) as isize;
            let mut warm = 0;
            for count in 1..=3 {
                warm += all[count - 1].fill();
                assert_eq!(warm, covered(count) - (count * size) as isize, "{count} of {size}");
            }
            let cooled = all[1].hollow() as isize;
            assert!((0..=warm).contains(&cooled));
            // The remaining warm bytes are in huge pages that the hollow buffer does not overlap.
            assert_eq!(slab.cool() as isize, warm - cooled);
            assert_eq!(slab.cool(), 0);
            // The buffer's huge pages contain other buffers, or are allocated again.
            let again = all[1].fill();
            assert!(again >= 0);
            all.iter_mut().take(3).for_each(|piece| piece.bytes_mut().fill(7));
            assert_eq!(slab.cool() as isize, again);
            assert!(all.iter().take(3).all(|piece| piece.bytes().iter().all(|byte| *byte == 7)));
        }
    }
}
