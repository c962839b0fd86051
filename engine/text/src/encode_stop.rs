//! When an encoding ends before its time: at a cancel, or when its text has had its time or memory.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::TextError;
use super::limits::{ENCODE_BYTES_MAX, ENCODE_TIME, ENCODE_TIME_PER_MIB, STEPS_BETWEEN_LOOKS};

/// Asked between the steps of an encoding.
pub(super) struct EncodeStop<'a> {
    cancelled: &'a (dyn Fn() -> bool + Sync),
    start: Instant,
    limit: Duration,
    steps: AtomicU32,
    /// Bytes that the text takes, estimated.
    held: AtomicUsize,
    stopped: OnceLock<StopReason>,
}

/// Why an encoding ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum StopReason {
    #[error("cancelled")]
    Cancelled,
    #[error("out of time")]
    OutOfTime,
    #[error("out of memory")]
    OutOfMemory,
}

impl<'a> EncodeStop<'a> {
    /// For a text of so many bytes.
    pub fn new(bytes: usize, cancelled: &'a (dyn Fn() -> bool + Sync)) -> Self {
        let mib = bytes as f64 / f64::from(1 << 20);
        let limit = ENCODE_TIME + ENCODE_TIME_PER_MIB.mul_f64(mib);
        Self::within(limit, cancelled)
    }

    /// With a limit of its own.
    pub fn within(limit: Duration, cancelled: &'a (dyn Fn() -> bool + Sync)) -> Self {
        let (steps, stopped) = (AtomicU32::new(0), OnceLock::new());
        let held = AtomicUsize::new(0);
        Self { cancelled, start: Instant::now(), limit, steps, held, stopped }
    }

    /// Between two words or matches. Looks up only once in a while.
    pub fn step(&self) -> tokenizers::Result<()> {
        // One thread encodes a text; the library only asks that others could.
        let steps = self.steps.load(Ordering::Relaxed).wrapping_add(1);
        self.steps.store(steps, Ordering::Relaxed);
        if steps.is_multiple_of(STEPS_BETWEEN_LOOKS) { self.look() } else { Ok(()) }
    }

    /// Between two passes over the text. Once stopped, it stays so.
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

    /// Before so many bytes are held until the end.
    pub fn hold(&self, bytes: usize) -> tokenizers::Result<()> {
        self.check_bytes(bytes)?;
        // Below the limit before, so that it cannot overflow.
        self.held.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Before so many bytes are held for a while.
    pub fn check_bytes(&self, bytes: usize) -> tokenizers::Result<()> {
        match self.held.load(Ordering::Relaxed).saturating_add(bytes) {
            0..=ENCODE_BYTES_MAX => Ok(()),
            _ => Err((*self.stopped.get_or_init(|| StopReason::OutOfMemory)).into()),
        }
    }

    /// What the tokenizer library or [`Self::look`] said, as an error of ours.
    pub fn error(&self, error: &tokenizers::Error) -> TextError {
        match self.stopped.get() {
            Some(StopReason::Cancelled) => TextError::EncodingCancelled,
            Some(StopReason::OutOfTime) => TextError::EncodingDeadline { limit: self.limit },
            Some(StopReason::OutOfMemory) => TextError::EncodingMemory { limit: ENCODE_BYTES_MAX },
            None => TextError::Tokenize { reason: error.to_string() },
        }
    }
}
