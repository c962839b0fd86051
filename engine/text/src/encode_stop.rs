//! Early termination of an encoding: on cancellation, or when it exceeds its time or memory limit.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use web_time::Instant;

use super::TextError;
use super::limits::{
    ENCODE_BYTES_MAX, ENCODE_TIME, ENCODE_TIME_PER_MIB, PROBE_BYTES_MIN, STEPS_BETWEEN_LOOKS,
};

/// Stop condition that is checked between the steps of an encoding.
pub(super) struct EncodeStop<'a> {
    cancelled: &'a (dyn Fn() -> bool + Sync),
    start: Instant,
    limit: Duration,
    steps: AtomicU32,
    /// Estimated number of bytes held until the end of the encoding.
    held: AtomicUsize,
    /// Number of bytes that were last found to be available.
    available: AtomicUsize,
    stopped: OnceLock<StopReason>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum StopReason {
    #[error("cancelled")]
    Cancelled,
    #[error("out of time")]
    OutOfTime,
    #[error("over the memory limit")]
    OverLimit,
    #[error("out of memory")]
    OutOfMemory { bytes: usize },
}

impl<'a> EncodeStop<'a> {
    /// Creates the stop condition for a text of `bytes` bytes.
    pub fn new(bytes: usize, cancelled: &'a (dyn Fn() -> bool + Sync)) -> Self {
        let mib = bytes as f64 / f64::from(1 << 20);
        let limit = ENCODE_TIME + ENCODE_TIME_PER_MIB.mul_f64(mib);
        Self::within(limit, cancelled)
    }

    pub fn within(limit: Duration, cancelled: &'a (dyn Fn() -> bool + Sync)) -> Self {
        let (steps, stopped) = (AtomicU32::new(0), OnceLock::new());
        let (held, available) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { cancelled, start: Instant::now(), limit, steps, held, available, stopped }
    }

    /// Counts a step, after a word or a match. The limits are checked once in `STEPS_BETWEEN_LOOKS` steps.
    pub fn step(&self) -> tokenizers::Result<()> {
        // A text is encoded by one thread; the library merely requires `Sync`.
        let steps = self.steps.load(Ordering::Relaxed).wrapping_add(1);
        self.steps.store(steps, Ordering::Relaxed);
        if steps.is_multiple_of(STEPS_BETWEEN_LOOKS) { self.look() } else { Ok(()) }
    }

    /// Checks cancellation and the time limit. Once it has failed, it always fails with the same reason.
    pub fn look(&self) -> tokenizers::Result<()> {
        let reason = match self.stopped.get() {
            Some(reason) => *reason,
            None if (self.cancelled)() => *self.stopped.get_or_init(|| StopReason::Cancelled),
            None if self.start.elapsed() > self.limit => {
                *self.stopped.get_or_init(|| StopReason::OutOfTime)
            }
            None => return Ok(()),
        };
        Err(reason.into())
    }

    /// Reserves memory that is held until the end of the encoding.
    pub fn hold(&self, bytes: usize) -> tokenizers::Result<()> {
        self.check_bytes(bytes)?;
        // The sum was just checked against the limit, so that it cannot overflow.
        self.held.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Checks memory that is held only temporarily.
    pub fn check_bytes(&self, bytes: usize) -> tokenizers::Result<()> {
        match self.held.load(Ordering::Relaxed).saturating_add(bytes) {
            bytes @ 0..=ENCODE_BYTES_MAX => self.check_available(bytes),
            _ => Err((*self.stopped.get_or_init(|| StopReason::OverLimit)).into()),
        }
    }

    /// Checks that the process can still allocate this memory, because the library allocates it infallibly. The
    /// memory is requested at once and released, each time that the estimate doubles.
    fn check_available(&self, bytes: usize) -> tokenizers::Result<()> {
        if bytes < PROBE_BYTES_MIN || bytes <= self.available.load(Ordering::Relaxed) {
            return Ok(());
        }
        let probed = bytes.saturating_mul(2).min(ENCODE_BYTES_MAX);
        // What is held is allocated already.
        if can_allocate(probed.saturating_sub(self.held.load(Ordering::Relaxed))) {
            self.available.store(probed, Ordering::Relaxed);
            return Ok(());
        }
        Err((*self.stopped.get_or_init(|| StopReason::OutOfMemory { bytes: probed })).into())
    }

    /// Converts an error of the tokenizer library or of [`Self::look`].
    pub fn error(&self, error: &tokenizers::Error) -> TextError {
        match self.stopped.get() {
            Some(StopReason::Cancelled) => TextError::EncodingCancelled,
            Some(StopReason::OutOfTime) => TextError::EncodingDeadline { limit: self.limit },
            Some(StopReason::OverLimit) => TextError::EncodingMemory { limit: ENCODE_BYTES_MAX },
            Some(StopReason::OutOfMemory { bytes }) => {
                TextError::OutOfMemory { bytes: *bytes as u64 }
            }
            None => TextError::Tokenize { reason: error.to_string() },
        }
    }
}

/// Returns whether an allocation of this size succeeds now.
fn can_allocate(bytes: usize) -> bool {
    let mut probe = Vec::<u8>::new();
    let reserved = probe.try_reserve_exact(bytes);
    // Otherwise the compiler may remove the allocation.
    std::hint::black_box(&mut probe);
    reserved.is_ok()
}
