//! Prefetch control for the experts of later layers.
//!
//! The next layer's router, applied to this layer's hidden state, predicts most of the experts that the next
//! layer will use. They are read only while the disk is idle, and only while a sufficient share of them is
//! used.

use serde::{Deserialize, Serialize};

use crate::reads::IdleDepth;
use nestling_core::stream_stats::StreamStats;

/// Minimum share of prefetched bytes that must be used for prefetching to continue.
const USED_SHARE_MIN: f64 = 0.5;

/// Share of used bytes from which prefetches may use the full read depth and reach one layer further.
const USED_SHARE_SURE: f64 = 0.9;

/// Decay of earlier byte counts per layer: a memory of several hundred layers.
const KEEP: f64 = 0.995;

/// Number of layers without prefetches after they did not pay off.
const PAUSE_LAYERS: u32 = 2000;

/// Prefetch mode for experts. Never changes a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prefetch {
    /// Prefetching is enabled while it pays off.
    #[default]
    Auto,
    /// Prefetching is disabled.
    Off,
    /// Prefetching is always enabled.
    Always,
    /// All experts are read from the start if the budget holds all of them; otherwise as `Auto`.
    All,
}

/// Statistics that decide whether prefetching pays off.
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

    /// Returns whether to predict the next layer's experts.
    pub fn is_wanted(&self) -> bool {
        match self.mode {
            Prefetch::Off => false,
            Prefetch::Always => true,
            Prefetch::Auto | Prefetch::All => self.pause == 0,
        }
    }

    /// Returns the share of the read depth available to prefetches.
    pub fn depth(&self) -> IdleDepth {
        if self.is_sure() { IdleDepth::Full } else { IdleDepth::Half }
    }

    /// Returns whether to predict the layer after the next one too, from a state that is further from that
    /// layer's input.
    pub fn is_wanted_further(&self) -> bool {
        self.is_wanted() && (self.is_sure() || self.mode == Prefetch::Always)
    }

    fn is_sure(&self) -> bool {
        self.read > 0.0 && self.used >= self.read * USED_SHARE_SURE
    }

    /// Evaluates a layer's predictions: `used_bytes` of the `read_bytes` read ahead were used.
    pub fn judge(&mut self, read_bytes: u64, used_bytes: u64, stats: &mut StreamStats) {
        stats.prefetched_bytes += read_bytes;
        stats.prefetch_used_bytes += used_bytes;
        self.pause = self.pause.saturating_sub(1);
        self.read = self.read * KEEP + read_bytes as f64;
        self.used = self.used * KEEP + used_bytes as f64;
        if self.read > 0.0 && self.used < self.read * USED_SHARE_MIN && self.is_wanted() {
            // The statistics restart after the pause, because old counts are not representative.
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
