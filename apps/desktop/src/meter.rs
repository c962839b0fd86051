//! Speed, hits and bits over the last second of an answer.

use std::collections::VecDeque;

use nestling::{ExpertTotals, Level};

/// Seconds over which rates are averaged.
const WINDOW: f64 = 1.0;

/// Totals since the model was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Tokens of answers.
    pub tokens: u64,
    /// Bytes of requested planes.
    pub wanted_bytes: u64,
    /// Bytes of requested planes that were not in memory.
    pub missing_bytes: u64,
    /// (Row, expert) pairs by level, in the order of `Level::ALL`.
    pub uses: [u64; 5],
}

impl Totals {
    /// Returns the totals of an engine that generated `tokens` tokens.
    pub fn of(tokens: u64, experts: &ExpertTotals) -> Self {
        let streaming = &experts.streaming;
        Self {
            tokens,
            wanted_bytes: streaming.wanted_bytes,
            missing_bytes: streaming.missing_total() + streaming.ahead_bytes,
            uses: experts.uses,
        }
    }

    fn since(&self, before: &Self) -> Self {
        let mut uses = self.uses;
        uses.iter_mut().zip(before.uses).for_each(|(uses, before)| *uses -= before.min(*uses));
        Self {
            tokens: self.tokens.saturating_sub(before.tokens),
            wanted_bytes: self.wanted_bytes.saturating_sub(before.wanted_bytes),
            missing_bytes: self.missing_bytes.saturating_sub(before.missing_bytes),
            uses,
        }
    }

    fn hit_rate(&self) -> Option<f64> {
        let missing = self.missing_bytes as f64;
        (self.wanted_bytes > 0).then(|| 1.0 - missing / self.wanted_bytes as f64)
    }

    fn bits(&self) -> Option<f64> {
        let uses: u64 = self.uses.iter().sum();
        let bits = Level::ALL.into_iter().zip(self.uses);
        let bits: u64 = bits.map(|(level, uses)| u64::from(level.bits()) * uses).sum();
        (uses > 0).then(|| bits as f64 / uses as f64)
    }
}

/// Rates over the last second, or since the opening if nothing was computed in it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Tokens per second; `None` without an answer in progress.
    pub tokens_per_second: Option<f64>,
    /// Share of requested bytes that were in memory; `None` if experts are not streamed.
    pub hit_rate: Option<f64>,
    /// Mean bits served; `None` before the first use of an expert.
    pub bits: Option<f64>,
}

/// Totals of the last second.
#[derive(Debug, Default)]
pub struct Meter {
    samples: VecDeque<(f64, Totals)>,
}

impl Meter {
    /// Adds totals at a time in seconds, and returns the rates. Times must ascend.
    pub fn add(&mut self, seconds: f64, totals: Totals) -> Rates {
        self.samples.push_back((seconds, totals));
        while self.samples.len() > 2 && self.samples[1].0 <= seconds - WINDOW {
            self.samples.pop_front();
        }
        let (from, before) = self.samples[0];
        let recent = totals.since(&before);
        let span = seconds - from;
        Rates {
            tokens_per_second: (recent.tokens > 0 && span > 0.0)
                .then(|| recent.tokens as f64 / span),
            hit_rate: recent.hit_rate().or_else(|| totals.hit_rate()),
            bits: recent.bits().or_else(|| totals.bits()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_last_second() {
        let mut meter = Meter::default();
        assert_eq!(meter.add(0.0, Totals::default()), Rates::default());
        let mut totals =
            Totals { tokens: 5, wanted_bytes: 100, missing_bytes: 50, uses: [0, 0, 10, 0, 0] };
        let rates = meter.add(0.5, totals);
        assert_eq!(rates.tokens_per_second, Some(10.0));
        assert_eq!((rates.hit_rate, rates.bits), (Some(0.5), Some(4.0)));
        totals.tokens += 20;
        totals.wanted_bytes += 100;
        totals.uses[0] += 30;
        let rates = meter.add(1.5, totals);
        assert_eq!(rates.tokens_per_second, Some(20.0));
        assert_eq!((rates.hit_rate, rates.bits), (Some(1.0), Some(2.0)));
        // Without new work, the totals since the opening remain.
        meter.add(3.0, totals);
        let rates = meter.add(4.5, totals);
        assert_eq!((rates.tokens_per_second, rates.hit_rate), (None, Some(0.75)));
    }
}
