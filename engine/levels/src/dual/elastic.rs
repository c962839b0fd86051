//! Threshold control of elastic mode: the lowest threshold that the disk can sustain.

use super::Threshold;

/// Share of a step's time spent waiting for planes above which the threshold rises.
const STALL_SHARE: f32 = 0.05;

/// Threshold increase for a step that only waited, as a share of the range.
const RISE: f32 = 0.25;

/// Threshold decrease for a step that did not wait, as a share of the range. Small, to avoid oscillation.
const FALL: f32 = 0.02;

/// Time and reads of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Nanoseconds without anything to compute because planes were missing.
    pub stall_ns: u64,
    /// Remaining nanoseconds of the step.
    pub compute_ns: u64,
    /// Bytes of planes that were read.
    pub read_bytes: u64,
}

/// Controller that adjusts a threshold so that reads take no longer than computation. Its output depends only
/// on the observed steps; it reads no clock.
///
/// ```
/// use nestling_levels::dual::{ElasticController, StepTimes, Threshold};
///
/// let thresholds = vec![Threshold::ZERO, Threshold::new(0.5), Threshold::new(1.0)];
/// let mut controller = ElasticController::new(thresholds);
/// assert_eq!(controller.threshold(), Threshold::ZERO);
///
/// // Steps that only wait for the disk raise the threshold.
/// let step = StepTimes { stall_ns: 1_000_000, compute_ns: 0, read_bytes: 1 << 20 };
/// for _ in 0..3 {
///     controller.observe(step);
/// }
/// assert_eq!(controller.threshold(), Threshold::new(0.5));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ElasticController {
    /// Allowed thresholds, ascending, starting with the requested one.
    steps: Vec<Threshold>,
    /// Relative position in `steps`; 0 is the requested threshold.
    place: f32, // [0, 1]
}

impl ElasticController {
    /// Creates a controller over these thresholds, the lowest being the requested one. Adjacent thresholds
    /// should differ by equal changes of the mean level.
    pub fn new(mut steps: Vec<Threshold>) -> Self {
        steps.sort_unstable();
        Self { steps, place: 0.0 }
    }

    /// Returns the threshold of the next step.
    pub fn threshold(&self) -> Threshold {
        let last = self.steps.len().saturating_sub(1);
        // Rounds down, so that the threshold rises only when it must.
        let step = (self.place * last as f32) as usize;
        // Default: without steps the threshold is the lowest.
        self.steps.get(step.min(last)).copied().unwrap_or_default()
    }

    /// Updates the controller with a finished step and returns the next threshold.
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
