//! Progress of a conversion.

use std::time::Duration;

use nestling_core::clock::Moment;

/// Current phase of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConvertPhase {
    /// Reading the checkpoint once for its hash, a part of the store's id.
    Hashing,
    /// Running the unquantized model over the calibration text, layer by layer.
    Calibrating,
    /// Fitting codecs, coding and writing. Alternates with [`Self::Calibrating`]; both count the same bytes.
    Quantizing,
    /// Copying the planes that fit in a budget.
    Cutting,
    /// Comparing stores of the same checkpoint. The count is in runs over a sequence, not in bytes.
    Judging,
    /// Syncing the store to disk and renaming it to its final name.
    Finishing,
}

/// Progress of a conversion, in bytes of the checkpoint's matrices. With calibration, half of a layer's bytes
/// count when all tokens have passed it, and the other half when it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConvertProgress {
    /// Current phase.
    pub phase: ConvertPhase,
    /// Layer that is being converted, if any.
    pub layer: Option<u32>,
    /// Completed bytes of the phase, including those of an earlier attempt.
    pub done_bytes: u64,
    /// Total bytes of the phase.
    pub total_bytes: u64,
    /// Time since the start of the phase.
    pub elapsed: Duration,
    /// Estimated time until the end of the phase, at the speed so far. `None` before any progress.
    pub remaining: Option<Duration>,
}

/// Counter that reports to the progress callback.
pub(super) struct Meter<'a> {
    callback: &'a mut dyn FnMut(ConvertProgress),
    phase: ConvertPhase,
    begun: Moment,
    total_bytes: u64,
    /// Twice the completed bytes, and twice those that were complete at the start of the phase.
    done_halves: u64,
    resumed_halves: u64,
}

impl<'a> Meter<'a> {
    pub fn new(callback: &'a mut dyn FnMut(ConvertProgress)) -> Self {
        Self {
            callback,
            phase: ConvertPhase::Hashing,
            begun: Moment::now(),
            total_bytes: 0,
            done_halves: 0,
            resumed_halves: 0,
        }
    }

    pub fn begin(&mut self, phase: ConvertPhase, total_bytes: u64) {
        self.resume(phase, total_bytes, 0);
    }

    /// Starts a phase that an earlier attempt has partly done. `done_halves` is twice the completed bytes.
    pub fn resume(&mut self, phase: ConvertPhase, total_bytes: u64, done_halves: u64) {
        self.phase = phase;
        self.begun = Moment::now();
        (self.total_bytes, self.done_halves, self.resumed_halves) =
            (total_bytes, done_halves, done_halves);
        self.advance(0, None);
    }

    /// Switches to another phase that shares the count.
    pub fn enter(&mut self, phase: ConvertPhase, layer: Option<u32>) {
        self.phase = phase;
        self.advance(0, layer);
    }

    pub fn advance(&mut self, bytes: u64, layer: Option<u32>) {
        self.advance_half(2 * bytes, layer);
    }

    /// Counts `bytes` half bytes as done.
    pub fn advance_half(&mut self, bytes: u64, layer: Option<u32>) {
        self.done_halves += bytes;
        let done_bytes = self.done_halves / 2;
        let seconds = Moment::now().seconds_since(self.begun);
        // Default: a clock that moved backwards counts as unchanged.
        let elapsed = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let done = (self.done_halves - self.resumed_halves) / 2;
        let left = self.total_bytes.saturating_sub(done_bytes);
        let remaining = (done > 0).then(|| elapsed.mul_f64(left as f64 / done as f64));
        (self.callback)(ConvertProgress {
            phase: self.phase,
            layer,
            done_bytes,
            total_bytes: self.total_bytes,
            elapsed,
            remaining,
        });
    }
}
