//! What can go wrong with a device.

use std::error::Error;

use nestling_core::EngineError;
use nestling_core::budget::Bytes;

/// An error of a GPU backend; `B` is what only this backend says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError<B> {
    /// No device, or none that the backend's kernels run on.
    #[error(transparent)]
    Backend(#[from] B),
    /// The device failed in a way that it does not come back from. Nothing that it held is left.
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
    /// The memory that may be used has no room.
    #[error(
        "a budget of {} of GPU memory has no room for {} of {what}: the least is {} ({least} bytes)",
        Bytes(*.budget), Bytes(*.bytes), Bytes(*.least)
    )]
    OverBudget {
        /// What the memory was for.
        what: &'static str,
        /// Bytes that were asked for.
        bytes: u64,
        /// Bytes that may be used.
        budget: u64,
        /// Bytes that would do for this and for what there is.
        least: u64,
    },
    /// The memory that may be used has no room for the model.
    #[error(transparent)]
    BudgetTooSmall(Box<BudgetTooSmall>),
    /// Something is larger than the device takes or kernels count.
    #[error("{what}: {found} is over the device's limit of {limit}")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// The most that is possible.
        limit: u64,
        /// What was asked for.
        found: u64,
    },
    /// The driver refused a command.
    #[error("the GPU refused a command: {reason}")]
    Refused {
        /// What was asked for, where the driver does not say it, and its answer.
        reason: String,
    },
}

/// The memory that may be used has no room for a model: nothing of it was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a budget of {} of GPU memory is too small: the least is {} ({least} bytes), of which weights \
     take {}, one streamed expert {}, keys, values and states {}, and what steps work with {}",
    Bytes(*.given), Bytes(*.least), Bytes(*.weight_bytes), Bytes(*.expert_bytes), Bytes(*.kv_bytes),
    Bytes(*.work_bytes)
)]
#[non_exhaustive]
pub struct BudgetTooSmall {
    /// Bytes that may be used.
    pub given: u64,
    /// Bytes that would do for this model and for what there is.
    pub least: u64,
    /// Bytes of what is loaded before experts.
    pub weight_bytes: u64,
    /// Bytes of one expert of a streamed model.
    pub expert_bytes: u64,
    /// Bytes of all keys, values and recurrent states that sessions may have.
    pub kv_bytes: u64,
    /// Bytes of activations, and of what operations use among themselves.
    pub work_bytes: u64,
}

/// Bytes of a model by what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelBytes {
    /// What is loaded before experts.
    pub weights: u64,
    /// One streamed expert.
    pub expert: u64,
    /// All keys, values and recurrent states that sessions may have.
    pub kv: u64,
    /// Activations, and what operations use among themselves.
    pub work: u64,
}

impl ModelBytes {
    /// The error of a budget that has no room for them.
    pub fn refused<B>(self, given: u64, least: u64) -> GpuError<B> {
        GpuError::BudgetTooSmall(Box::new(BudgetTooSmall {
            given,
            least,
            weight_bytes: self.weights,
            expert_bytes: self.expert,
            kv_bytes: self.kv,
            work_bytes: self.work,
        }))
    }
}

impl<B> GpuError<B> {
    /// Whether there was no room: less may be had.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::OverBudget { .. })
    }

    /// The least budget of the device's memory that would do, where one was too small.
    pub fn least_budget(&self) -> Option<u64> {
        match self {
            Self::BudgetTooSmall(refused) => Some(refused.least),
            Self::OverBudget { least, .. } => Some(*least),
            _ => None,
        }
    }
}

impl<B: Error + Send + Sync + 'static> From<GpuError<B>> for EngineError {
    fn from(error: GpuError<B>) -> Self {
        match error {
            GpuError::Limit { what, limit, found } => Self::Limit { what, limit, found },
            GpuError::Lost { .. } => Self::DeviceLost(Box::new(error)),
            _ => Self::Device(Box::new(error)),
        }
    }
}
