#![expect(unsafe_code, reason = "buffers share one mapping, so that they share its huge pages")]
//! Buffers of one size side by side in huge pages.
//!
//! A disk is handed a buffer as runs of contiguous memory: of one in small pages, a plane of 1.3 MB
//! is 310 runs, more than many disks take in one request, of one in huge pages two.
//!
//! A huge page comes whole with the first buffer that touches it, so that buffers beside it, which
//! nobody uses, take memory as well: *warm* bytes. They are counted, used before others, and given
//! back where memory is short.

use std::io;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use nestling_core::sync::{Mutex, MutexGuard, whole};

use memmap2::{Advice, MmapMut, MmapRaw, UncheckedAdvice};

/// Bytes of a huge page.
const HUGE_BYTES: usize = 2 << 20;

/// About how many bytes buffers are made for at once.
const SLAB_BYTES: usize = 16 << 20;

/// Memory of several buffers.
pub(super) struct Slab {
    map: MmapRaw,
    /// Where the first buffer begins: at a huge page.
    start: usize,
    /// Bytes of each.
    size: usize,
    pages: Mutex<Pages>,
}

/// What of a slab takes memory.
struct Pages {
    /// Buffers in use.
    solid: Vec<bool>, // [buffers]
    /// Huge pages that came whole: what no buffer in use has of them is warm.
    whole: Vec<bool>, // [huge pages]
}

/// Memory of one buffer, which nobody else has.
pub(super) struct SlabBuffer {
    slab: Arc<Slab>,
    index: usize,
}

/// Buffers of `size` bytes each, the first one last. They take no memory before they are used.
pub(super) fn pieces(size: usize) -> io::Result<Vec<SlabBuffer>> {
    let count = (SLAB_BYTES / size.max(1)).max(1);
    let bytes =
        size.checked_mul(count).and_then(|bytes| bytes.checked_next_multiple_of(HUGE_BYTES));
    let bytes = bytes.and_then(|bytes| bytes.checked_add(HUGE_BYTES));
    let map = MmapMut::map_anon(bytes.ok_or(io::ErrorKind::OutOfMemory)?)?;
    // Without huge pages all works as well.
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

    /// Bytes of a buffer, counted from the first.
    fn range(&self, index: usize) -> Range<usize> {
        index * self.size..(index + 1) * self.size
    }

    /// The huge pages that a buffer lies in.
    fn pages_of(&self, index: usize) -> RangeInclusive<usize> {
        let range = self.range(index);
        range.start / HUGE_BYTES..=(range.end - 1) / HUGE_BYTES
    }

    /// What the buffers have of a huge page, and whether they are in use.
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

    /// Warm bytes of a huge page.
    fn warm(&self, pages: &Pages, page: usize) -> usize {
        if !pages.whole[page] {
            return 0;
        }
        let solid = self.parts(pages, page).filter(|(_, solid)| *solid);
        HUGE_BYTES - solid.map(|(range, _)| range.len()).sum::<usize>()
    }

    /// Gives the warm bytes of a huge page back, and says how many.
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

    /// Gives all warm bytes back to the system, and says how many.
    pub fn cool(&self) -> usize {
        let mut pages = self.lock();
        (0..pages.whole.len()).map(|page| self.cool_page(&mut pages, page)).sum()
    }

    /// Gives bytes of buffers that nobody uses back to the system.
    fn give_back(&self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        // SAFETY: these bytes belong to no buffer, or to one that is not in use, which the lock of
        // `pages` keeps so; zeros are bytes too.
        let _ = unsafe {
            let offset = self.start + range.start;
            self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, range.len())
        };
    }
}

impl SlabBuffer {
    /// Where it lies.
    pub fn slab(&self) -> &Arc<Slab> {
        &self.slab
    }

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

    /// Warm bytes of the huge pages that it lies in.
    pub fn warm(&self) -> usize {
        let pages = self.slab.lock();
        self.slab.pages_of(self.index).map(|page| self.slab.warm(&pages, page)).sum()
    }

    /// It is used from now on. Says how many warm bytes there are more, or fewer.
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
            // Under the lock, so that the page comes before its other bytes are given back.
            if let Some(byte) = self.bytes_mut().get_mut((page * HUGE_BYTES).saturating_sub(first))
            {
                *byte = 0;
            }
        }
        more
    }

    /// Gives its memory back to the system, with the warm bytes beside it; it holds zeros from now
    /// on. Says how many warm bytes there are fewer.
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
            // What is left of it is in huge pages that the hollow one does not lie in.
            assert_eq!(slab.cool() as isize, warm - cooled);
            assert_eq!(slab.cool(), 0);
            // Its huge pages have other buffers, or came anew.
            let again = all[1].fill();
            assert!(again >= 0);
            all.iter_mut().take(3).for_each(|piece| piece.bytes_mut().fill(7));
            assert_eq!(slab.cool() as isize, again);
            assert!(all.iter().take(3).all(|piece| piece.bytes().iter().all(|byte| *byte == 7)));
        }
    }
}
