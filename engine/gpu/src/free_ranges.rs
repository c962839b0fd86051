//! Bytes of an allocation that nobody uses.

use std::ops::Range;

/// Free bytes: ascending ranges, none of which touches the next.
#[derive(Debug)]
pub struct FreeRanges(Vec<Range<u64>>);

impl FreeRanges {
    /// With these bytes free.
    pub fn new(range: Range<u64>) -> Self {
        Self(vec![range])
    }

    /// Takes so many bytes from the first range that has as many: their offset.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let range = self.0.iter_mut().find(|range| range.end - range.start >= bytes)?;
        let offset = range.start;
        range.start += bytes;
        self.0.retain(|range| range.start < range.end);
        Some(offset)
    }

    /// Gives back bytes that were taken.
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
