//! How far a conversion is.

use std::time::Duration;

use crate::clock::Moment;

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

/// How far a conversion is; bytes are those of the checkpoint's matrices. With calibration the
/// layers' count twice: when all tokens have passed them, and when they are written.
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
    resumed_bytes: u64,
    done_bytes: u64,
    total_bytes: u64,
}

impl<'a> Meter<'a> {
    pub fn new(callback: &'a mut dyn FnMut(ConvertProgress)) -> Self {
        Self {
            callback,
            phase: ConvertPhase::Hashing,
            begun: Moment::now(),
            resumed_bytes: 0,
            done_bytes: 0,
            total_bytes: 0,
        }
    }

    /// Begins a phase of which `done_bytes` are done.
    pub fn begin(&mut self, phase: ConvertPhase, total_bytes: u64, done_bytes: u64) {
        self.phase = phase;
        self.begun = Moment::now();
        (self.total_bytes, self.done_bytes, self.resumed_bytes) =
            (total_bytes, done_bytes, done_bytes);
        self.advance(0, None);
    }

    /// Goes on in another phase that shares the count.
    pub fn enter(&mut self, phase: ConvertPhase, layer: Option<u32>) {
        self.phase = phase;
        self.advance(0, layer);
    }

    pub fn advance(&mut self, bytes: u64, layer: Option<u32>) {
        self.done_bytes += bytes;
        let seconds = Moment::now().seconds_since(self.begun);
        let elapsed = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let done = self.done_bytes - self.resumed_bytes;
        let left = self.total_bytes.saturating_sub(self.done_bytes);
        let remaining = (done > 0).then(|| elapsed.mul_f64(left as f64 / done as f64));
        (self.callback)(ConvertProgress {
            phase: self.phase,
            layer,
            done_bytes: self.done_bytes,
            total_bytes: self.total_bytes,
            elapsed,
            remaining,
        });
    }
}
