//! What can go wrong with a device.

use nestling_core::EngineError;
use nestling_core::budget::Bytes;

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
    /// A budget of the device's memory has no room for something.
    #[error(
        "a budget of {} of GPU memory has no room for {} of {what}: the least is {} ({least} bytes)",
        Bytes(*.budget), Bytes(*.bytes), Bytes(*.least)
    )]
    OverBudget {
        /// What the memory was for.
        what: &'static str,
        /// Bytes that were asked for.
        bytes: u64,
        /// The budget.
        budget: u64,
        /// What would do for this and all that is there.
        least: u64,
    },
    /// A budget of the device's memory has no room for a model.
    #[error(transparent)]
    BudgetTooSmall(Box<BudgetTooSmall>),
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

/// A budget of a device's memory that a model does not fit in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a budget of {} of GPU memory is too small: the least is {} ({least} bytes), of which weights \
     take {}, one streamed expert {}, keys, values and states {}, and what steps work with {}",
    Bytes(*.given), Bytes(*.least), Bytes(*.weight_bytes), Bytes(*.expert_bytes), Bytes(*.kv_bytes),
    Bytes(*.work_bytes)
)]
#[non_exhaustive]
pub struct BudgetTooSmall {
    /// The budget.
    pub given: u64,
    /// The least that would do, with all that other models of the device take.
    pub least: u64,
    /// Weights that are loaded once.
    pub weight_bytes: u64,
    /// A slot for one expert; 0 where experts are not streamed.
    pub expert_bytes: u64,
    /// Pages of keys and values, and recurrent states.
    pub kv_bytes: u64,
    /// Activations of a step, and what its operations use among themselves.
    pub work_bytes: u64,
}

impl WgpuError {
    /// Whether memory is full, or a budget of it.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::OverBudget { .. })
    }
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
