//! Counters of a cache since its creation.

use super::{PLANES, PlaneState};

/// Uses and bytes by plane. A use is one expert in one step, for any number of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResidencyCounters {
    /// Uses that found the plane resident.
    pub hits: [u64; PLANES],
    /// First hits of prefetched planes, included in `hits`.
    pub prefetch_hits: [u64; PLANES],
    /// Uses that found the plane still being read.
    pub late: [u64; PLANES],
    /// Uses that found the plane absent.
    pub misses: [u64; PLANES],
    /// Bytes of hits.
    pub hit_bytes: [u64; PLANES],
    /// Bytes of uses that did not find the plane resident.
    pub missed_bytes: [u64; PLANES],
    /// Bytes admitted by predictions.
    pub prefetched_bytes: [u64; PLANES],
    /// Number of evicted planes.
    pub evicted: [u64; PLANES],
    /// Required planes that were refused for lack of space.
    pub refused: u64,
    /// Maximum number of bytes in use.
    pub bytes_peak: u64,
}

impl ResidencyCounters {
    pub(super) fn count_use(
        &mut self,
        plane: usize,
        bytes: u64,
        state: PlaneState,
        prefetched: bool,
    ) {
        match state {
            PlaneState::Resident => {
                self.hits[plane] += 1;
                self.hit_bytes[plane] += bytes;
                self.prefetch_hits[plane] += u64::from(prefetched);
            }
            PlaneState::Reading => {
                self.late[plane] += 1;
                self.missed_bytes[plane] += bytes;
            }
            PlaneState::Absent => {
                self.misses[plane] += 1;
                self.missed_bytes[plane] += bytes;
            }
        }
    }

    /// Returns the difference to `earlier`, an older copy of the same counters. The peak is kept.
    pub fn since(&self, earlier: &Self) -> Self {
        let less = |mut now: [u64; PLANES], before: [u64; PLANES]| {
            now.iter_mut().zip(before).for_each(|(now, before)| *now = now.saturating_sub(before));
            now
        };
        Self {
            hits: less(self.hits, earlier.hits),
            prefetch_hits: less(self.prefetch_hits, earlier.prefetch_hits),
            late: less(self.late, earlier.late),
            misses: less(self.misses, earlier.misses),
            hit_bytes: less(self.hit_bytes, earlier.hit_bytes),
            missed_bytes: less(self.missed_bytes, earlier.missed_bytes),
            prefetched_bytes: less(self.prefetched_bytes, earlier.prefetched_bytes),
            evicted: less(self.evicted, earlier.evicted),
            refused: self.refused.saturating_sub(earlier.refused),
            bytes_peak: self.bytes_peak,
        }
    }

    /// Returns the resident share of the bytes of all uses, 0 to 1; 1 without uses.
    pub fn byte_hit_rate(&self) -> f64 {
        let hit: u64 = self.hit_bytes.iter().sum();
        let missed: u64 = self.missed_bytes.iter().sum();
        if hit + missed == 0 { 1.0 } else { hit as f64 / (hit + missed) as f64 }
    }
}
