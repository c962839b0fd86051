//! What can go wrong with a device.

use nestling_engine::EngineError;

/// An error of the portable GPU backend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WgpuError {
    /// The adapter that was asked for is not there.
    #[error(transparent)]
    Adapter(#[from] crate::adapters::AdapterError),
    /// The driver gives no device.
    #[error("{adapter} gives no device: {reason}")]
    NoDevice {
        /// Name of the adapter.
        adapter: String,
        /// The driver's answer.
        reason: String,
    },
    /// The device is gone: reset, removed or destroyed. Nothing that it held is left.
    #[error("the GPU was lost: {reason}")]
    Lost {
        /// The driver's answer.
        reason: String,
    },
    /// The device's memory is full.
    #[error("the GPU has no room for {bytes} bytes of {what}")]
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// Something is larger than the device allows.
    #[error("{what}: {found} is over the device's limit of {limit}")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// The most that is possible.
        limit: u64,
        /// What was asked for.
        found: u64,
    },
    /// The device refused a command.
    #[error("the GPU refused a command: {reason}")]
    Refused {
        /// The driver's answer.
        reason: String,
    },
}

impl From<WgpuError> for EngineError {
    fn from(error: WgpuError) -> Self {
        match error {
            WgpuError::Limit { what, limit, found } => Self::Limit { what, limit, found },
            WgpuError::Lost { .. } => Self::DeviceLost(Box::new(error)),
            _ => Self::Device(Box::new(error)),
        }
    }
}
