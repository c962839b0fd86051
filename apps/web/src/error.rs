//! Errors of a model in a tab.

use std::error::Error;

use nestling::engine::group::RankError;
use nestling::formats::store::StoreError;
use nestling::{EngineError, ErrorClass};

use crate::ranges::RangeError;

/// An error of a model in a tab.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TabError {
    /// A range of the store cannot be fetched.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The store is damaged or not supported.
    #[error(transparent)]
    Store(StoreError),
    /// The engine failed.
    #[error(transparent)]
    Engine(EngineError),
    /// The options or the message are invalid.
    #[error("invalid {what}: {reason}")]
    Invalid {
        /// Name of the invalid part.
        what: &'static str,
        /// Reason from the parser.
        reason: String,
    },
    /// The requested device is unavailable.
    #[error("the GPU is unavailable: {reason}")]
    Device {
        /// Reason from the device.
        reason: String,
    },
    /// An answer is already being generated.
    #[error("an answer is being generated; cancel it or wait for its end")]
    Busy,
    /// The first level of the model has not arrived.
    #[error("the model's first section has not arrived")]
    NotReady,
}

impl From<StoreError> for TabError {
    fn from(error: StoreError) -> Self {
        match range_error(&error) {
            Some(range) => Self::Range(range),
            None => Self::Store(error),
        }
    }
}

impl From<EngineError> for TabError {
    fn from(error: EngineError) -> Self {
        match range_error(&error) {
            Some(range) => Self::Range(range),
            None => Self::Engine(error),
        }
    }
}

impl TabError {
    /// Returns the kind for JavaScript: "network", "server", "changed", "storage", "damaged", "memory", "device",
    /// "cancelled", "busy", "invalid", "lost" (a further worker) or "internal".
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Range(error) => error.kind(),
            Self::Store(_) => "damaged",
            Self::Invalid { .. } => "invalid",
            Self::Device { .. } => "device",
            Self::Busy | Self::NotReady => "busy",
            Self::Engine(EngineError::Rank(RankError::Lost { .. })) => "lost",
            Self::Engine(error) => match error.class() {
                ErrorClass::Caller => "invalid",
                ErrorClass::Busy => "busy",
                ErrorClass::NoRoom => "memory",
                ErrorClass::Stopped => "cancelled",
                ErrorClass::Source => "damaged",
                _ => "internal",
            },
        }
    }

    /// Returns whether the same call may succeed a little later.
    pub fn may_retry(&self) -> bool {
        matches!(self, Self::Range(error) if error.may_retry())
    }
}

/// Returns the failed request that caused an error, if one did.
fn range_error(error: &(dyn Error + 'static)) -> Option<RangeError> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(range) = error.downcast_ref::<RangeError>() {
            return Some(range.clone());
        }
        // The source of an `io::Error` is that of its payload, which would skip the payload itself.
        let payload = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if let Some(range) = payload.and_then(|payload| payload.downcast_ref::<RangeError>()) {
            return Some(range.clone());
        }
        cause = error.source();
    }
    None
}
