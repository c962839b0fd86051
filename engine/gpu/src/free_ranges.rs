//! Allocator of byte ranges.

use std::ops::Range;

/// Free bytes as ascending, non-adjacent ranges.
#[derive(Debug)]
pub struct FreeRanges(Vec<Range<u64>>);

impl FreeRanges {
    /// Creates an allocator with one free range.
    pub fn new(range: Range<u64>) -> Self {
        Self(vec![range])
    }

    /// Allocates bytes from the first free range that is large enough, and returns their offset.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let range = self.0.iter_mut().find(|range| range.end - range.start >= bytes)?;
        let offset = range.start;
        range.start += bytes;
        self.0.retain(|range| range.start < range.end);
        Some(offset)
    }

    /// Frees a range, merging it with adjacent free ranges.
    pub fn give(&mut self, range: Range<u64>) {
        let at = self.0.partition_point(|other| other.start < range.start);
        self.0.insert(at, range);
        self.0.retain(|range| range.start < range.end);
        self.0.dedup_by(|next, range| {
            let touches = next.start == range.end;
            if touches {
                range.end = next.end;
            }
            touches
        });
    }
}

#[cfg(test)]
mod tests {
    use super::FreeRanges;

    #[test]
    fn ranges_are_taken_in_order_and_join_again() {
        let mut free = FreeRanges::new(0..1024);
        assert_eq!([256, 512].map(|bytes| free.take(bytes)), [Some(0), Some(256)]);
        assert_eq!(free.take(512), None);
        free.give(0..256);
        assert_eq!(free.0, [0..256, 768..1024]);
        assert_eq!(free.take(256), Some(0));
        free.give(0..256);
        free.give(256..768);
        assert_eq!(free.0, std::slice::from_ref(&(0..1024)));
        assert_eq!(free.take(1024), Some(0));
        assert!(free.0.is_empty());
    }
}
