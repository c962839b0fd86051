//! The threshold of elastic mode: as low as the disk lets it be.

use super::Threshold;

/// Share of its time that a step may wait for planes before the threshold rises.
const STALL_SHARE: f32 = 0.05;

/// How far the threshold moves for a step that did nothing but wait, in shares of the whole range.
const RISE: f32 = 0.25;

/// How far it comes back for a step that did not wait: slowly, or it swings.
const FALL: f32 = 0.02;

/// What a step took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Nanoseconds in which nothing could be computed because planes were missing.
    pub stall_ns: u64,
    /// Nanoseconds of everything else.
    pub compute_ns: u64,
    /// Bytes of planes that were read.
    pub read_bytes: u64,
}

/// Moves a threshold so that reads fit into the time that computing takes. Its answers are a
/// function of what it was told; it knows no clock.
#[derive(Clone, Debug, PartialEq)]
pub struct ElasticController {
    /// From what was asked for to what is conceded at most, ascending.
    steps: Vec<Threshold>,
    /// Where between them; 0 is what was asked for.
    place: f32, // [0, 1]
}

impl ElasticController {
    /// Moves between these thresholds, the first being what was asked for. Equal distances should
    /// mean equal changes of the mean level.
    pub fn new(mut steps: Vec<Threshold>) -> Self {
        steps.sort_unstable();
        Self { steps, place: 0.0 }
    }

    /// The threshold of the next step.
    pub fn threshold(&self) -> Threshold {
        let last = self.steps.len().saturating_sub(1);
        // Rounds down, so that nothing is conceded before it has to be.
        let step = (self.place * last as f32) as usize;
        // Default: without steps nothing is conceded.
        self.steps.get(step.min(last)).copied().unwrap_or_default()
    }

    /// Learns from a step what the next one may ask for.
    pub fn observe(&mut self, step: StepTimes) -> Threshold {
        let total = step.stall_ns as f32 + step.compute_ns as f32;
        if total > 0.0 {
            let stalled = step.stall_ns as f32 / total;
            let change = match stalled > STALL_SHARE && step.read_bytes > 0 {
                true => RISE * (stalled - STALL_SHARE),
                false => -FALL,
            };
            self.place = (self.place + change).clamp(0.0, 1.0);
        }
        self.threshold()
    }
}
