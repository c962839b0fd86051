//! How far a conversion is.

use std::time::Duration;

use nestling_core::clock::Moment;

/// What a conversion does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConvertPhase {
    /// Reading the checkpoint once for its hash, a part of the store's id.
    Hashing,
    /// Running the unquantized model over the calibration text, layer by layer.
    Calibrating,
    /// Fitting codecs, coding and writing. Takes turns with [`Self::Calibrating`]; both count in
    /// the same bytes.
    Quantizing,
    /// Copying what a budget has room for.
    Cutting,
    /// Comparing stores of the same checkpoint; what is counted are runs over a sequence, not bytes.
    Judging,
    /// Making the store durable and giving it its name.
    Finishing,
}

/// How far a conversion is; bytes are those of the checkpoint's matrices. With calibration, half of
/// a layer's count when all tokens have passed it, the other half when it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConvertProgress {
    /// What is being done.
    pub phase: ConvertPhase,
    /// The layer that is being converted, if it is one.
    pub layer: Option<u32>,
    /// Bytes of the phase that are done, those of an earlier attempt included.
    pub done_bytes: u64,
    /// Bytes of the phase in all.
    pub total_bytes: u64,
    /// Since the phase began.
    pub elapsed: Duration,
    /// Until the phase ends, at the speed so far; none before there is one.
    pub remaining: Option<Duration>,
}

/// Counts, and tells the caller.
pub(super) struct Meter<'a> {
    callback: &'a mut dyn FnMut(ConvertProgress),
    phase: ConvertPhase,
    begun: Moment,
    total_bytes: u64,
    /// Twice the bytes that are done, and of those what was when the phase began.
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

    /// Begins a phase.
    pub fn begin(&mut self, phase: ConvertPhase, total_bytes: u64) {
        self.go_on(phase, total_bytes, 0);
    }

    /// Begins a phase of which an earlier attempt has done something: twice the bytes.
    pub fn go_on(&mut self, phase: ConvertPhase, total_bytes: u64, done_halves: u64) {
        self.phase = phase;
        self.begun = Moment::now();
        (self.total_bytes, self.done_halves, self.resumed_halves) =
            (total_bytes, done_halves, done_halves);
        self.advance(0, None);
    }

    /// Goes on in another phase that shares the count.
    pub fn enter(&mut self, phase: ConvertPhase, layer: Option<u32>) {
        self.phase = phase;
        self.advance(0, layer);
    }

    pub fn advance(&mut self, bytes: u64, layer: Option<u32>) {
        self.advance_half(2 * bytes, layer);
    }

    /// Counts half of the bytes.
    pub fn advance_half(&mut self, bytes: u64, layer: Option<u32>) {
        self.done_halves += bytes;
        let done_bytes = self.done_halves / 2;
        let seconds = Moment::now().seconds_since(self.begun);
        // Default: a clock that went back has not moved.
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
