//! Reading the next layer's experts before it asks for them.
//!
//! The next layer's router on this layer's hidden state names most of the experts that the next
//! layer will want. They are read only while the disk has nothing else to do, and only while
//! enough of what is read so is used.

use serde::{Deserialize, Serialize};

use crate::reads::IdleDepth;
use nestling_core::stream_stats::StreamStats;

/// Share of prefetched bytes that must be used for reading ahead to go on.
const USED_SHARE_MIN: f64 = 0.5;

/// Share from which on reads ahead may take the whole depth of the disk, and be for a layer further.
const USED_SHARE_SURE: f64 = 0.9;

/// Weight of the bytes before, each time that a layer asks: a memory of some hundred layers.
const KEEP: f64 = 0.995;

/// Layers that nothing is read ahead of after it did not pay, before it is tried again.
const PAUSE_LAYERS: u32 = 2000;

/// Whether experts are read before a layer asks for them. Never changes a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prefetch {
    /// While it pays.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Whether or not it pays.
    Always,
    /// All experts, from the start, if there is room for all of them; while it pays otherwise.
    All,
}

/// Whether prefetches pay.
#[derive(Debug)]
pub(super) struct ReadAhead {
    mode: Prefetch,
    read: f64,
    used: f64,
    pause: u32,
}

impl ReadAhead {
    pub fn new(mode: Prefetch) -> Self {
        Self { mode, read: 0.0, used: 0.0, pause: 0 }
    }

    /// Whether the next layer's experts are to be predicted.
    pub fn is_wanted(&self) -> bool {
        match self.mode {
            Prefetch::Off => false,
            Prefetch::Always => true,
            Prefetch::Auto | Prefetch::All => self.pause == 0,
        }
    }

    /// How much of the disk's depth they may take.
    pub fn depth(&self) -> IdleDepth {
        if self.is_sure() { IdleDepth::Full } else { IdleDepth::Half }
    }

    /// Whether experts of the layer after the next one are to be predicted, too, from a state that is
    /// further from what that layer will see.
    pub fn is_wanted_further(&self) -> bool {
        self.is_wanted() && (self.is_sure() || self.mode == Prefetch::Always)
    }

    /// Nearly all that was read ahead was used.
    fn is_sure(&self) -> bool {
        self.read > 0.0 && self.used >= self.read * USED_SHARE_SURE
    }

    /// A layer has asked: of the bytes that were read for it, it uses some.
    pub fn judge(&mut self, read_bytes: u64, used_bytes: u64, stats: &mut StreamStats) {
        stats.prefetched_bytes += read_bytes;
        stats.prefetch_used_bytes += used_bytes;
        self.pause = self.pause.saturating_sub(1);
        self.read = self.read * KEEP + read_bytes as f64;
        self.used = self.used * KEEP + used_bytes as f64;
        if self.read > 0.0 && self.used < self.read * USED_SHARE_MIN && self.is_wanted() {
            // A fresh start after the pause: what was read by then says nothing any more.
            (self.read, self.used, self.pause) = (0.0, 0.0, PAUSE_LAYERS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{IdleDepth, PAUSE_LAYERS, Prefetch, ReadAhead, StreamStats};

    #[test]
    fn one_reads_further_and_deeper_only_as_long_as_nearly_all_is_used() {
        let mut stats = StreamStats::default();
        let mut ahead = ReadAhead::new(Prefetch::Auto);
        assert!(ahead.is_wanted() && !ahead.is_wanted_further());
        ahead.judge(100, 95, &mut stats);
        assert!(ahead.is_wanted_further() && ahead.depth() == IdleDepth::Full);
        ahead.judge(100, 80, &mut stats);
        assert!(ahead.is_wanted() && !ahead.is_wanted_further());
        assert_eq!(ahead.depth(), IdleDepth::Half);
        assert!(ReadAhead::new(Prefetch::Always).is_wanted_further());
        assert!(!ReadAhead::new(Prefetch::Off).is_wanted_further());
    }

    #[test]
    fn what_is_not_used_is_not_read_for_a_while() {
        let mut stats = StreamStats::default();
        let mut ahead = ReadAhead::new(Prefetch::Auto);
        for _ in 0..100 {
            ahead.judge(100, 80, &mut stats);
            assert!(ahead.is_wanted());
        }
        let layers = (1u32..).find(|_| {
            ahead.judge(100, 0, &mut stats);
            !ahead.is_wanted()
        });
        // With q = 0.995^n: 8000 (1 - 0.995^100) q < (10000 (1 - 0.995^100) q + 20000 (1 - q)) / 2.
        assert_eq!(layers, Some(43));
        for _ in 0..PAUSE_LAYERS {
            assert!(!ahead.is_wanted());
            ahead.judge(0, 0, &mut stats);
        }
        assert!(ahead.is_wanted());
        assert!(stats.prefetched_bytes > stats.prefetch_used_bytes);
        let mut always = ReadAhead::new(Prefetch::Always);
        always.judge(100, 0, &mut stats);
        assert!(always.is_wanted() && !ReadAhead::new(Prefetch::Off).is_wanted());
    }
}
