//! Errors of GPU backends.

use std::error::Error;

use nestling_core::EngineError;
use nestling_core::budget::Bytes;

/// An error of a GPU backend. `B` is the backend's specific error type.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError<B> {
    /// An error specific to the backend, such as a missing device.
    #[error(transparent)]
    Backend(#[from] B),
    /// The device failed permanently. All its memory contents are lost.
    #[error("the GPU was lost: {reason}")]
    Lost {
        /// Message of the driver.
        reason: String,
    },
    /// The device is out of memory.
    #[error("the GPU has no memory for {bytes} bytes of {what}")]
    OutOfMemory {
        /// Purpose of the memory.
        what: &'static str,
        /// Requested bytes.
        bytes: u64,
    },
    /// The memory budget is exhausted.
    #[error(
        "a budget of {} of GPU memory does not hold {} of {what}: at least {} are needed ({least} bytes)",
        Bytes(*.budget), Bytes(*.bytes), Bytes(*.least)
    )]
    OverBudget {
        /// Purpose of the memory.
        what: &'static str,
        /// Requested bytes.
        bytes: u64,
        /// Budget in bytes.
        budget: u64,
        /// Smallest budget in bytes that fits this request and all existing reservations.
        least: u64,
    },
    /// The memory budget is too small for the model.
    #[error(transparent)]
    BudgetTooSmall(Box<BudgetTooSmall>),
    /// A size exceeds a limit of the device or of its kernels.
    #[error("{what}: {found} exceeds the device's limit of {limit}")]
    Limit {
        /// Name of the limited quantity.
        what: &'static str,
        /// Maximum value.
        limit: u64,
        /// Requested value.
        found: u64,
    },
    /// The driver refused a command.
    #[error("the GPU refused a command: {reason}")]
    Refused {
        /// The refused command, unless the driver names it, and the driver's message.
        reason: String,
    },
}

/// Error of a memory budget that is too small for a model. No part of the model was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a budget of {} of GPU memory is too small: the least is {} ({least} bytes), of which weights \
     take {}, one streamed expert {}, keys, values and states {}, and what steps work with {}",
    Bytes(*.given), Bytes(*.least), Bytes(*.weight_bytes), Bytes(*.expert_bytes), Bytes(*.kv_bytes),
    Bytes(*.work_bytes)
)]
#[non_exhaustive]
pub struct BudgetTooSmall {
    /// Budget in bytes.
    pub given: u64,
    /// Smallest budget in bytes that fits this model and all existing reservations.
    pub least: u64,
    /// Bytes of the weights loaded before experts.
    pub weight_bytes: u64,
    /// Bytes of one expert of a streamed model.
    pub expert_bytes: u64,
    /// Maximum bytes of KV caches and recurrent states.
    pub kv_bytes: u64,
    /// Bytes of activations and scratch memory.
    pub work_bytes: u64,
}

/// Memory requirements of a model in bytes, by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelBytes {
    /// Weights loaded before experts.
    pub weights: u64,
    /// One streamed expert.
    pub expert: u64,
    /// Maximum size of KV caches and recurrent states.
    pub kv: u64,
    /// Activations and scratch memory.
    pub work: u64,
}

impl ModelBytes {
    /// Returns the error of a budget of `given` bytes where `least` bytes are required.
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
    /// Returns whether memory ran out. A smaller request may succeed.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::OverBudget { .. })
    }

    /// Returns the smallest sufficient memory budget, if the error is about a budget.
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
