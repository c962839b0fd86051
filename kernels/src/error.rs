//! What can go wrong with a device.

use nestling_core::EngineError;

use crate::devices::CudaDeviceError;

/// An error of the CUDA backend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The device that was asked for is not there.
    #[error(transparent)]
    Device(#[from] CudaDeviceError),
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
        "{what} need {bytes} bytes of the GPU, and the budget of {budget} has {} left: with {} there is \
         room for them",
        budget.saturating_sub(*allocated),
        allocated.saturating_add(*bytes)
    )]
    OverBudget {
        /// What the memory was for.
        what: &'static str,
        /// Bytes that were asked for.
        bytes: u64,
        /// Bytes that are allocated: with as many more as were asked for there would be room.
        allocated: u64,
        /// Bytes that may be.
        budget: u64,
    },
    /// A model that the memory that may be used has no room for.
    #[error(
        "a budget of {given} bytes of the GPU's memory is too small for this model: the least is {least} \
         bytes, {weights} of them for weights, {experts} for an expert and {work} for what steps and \
         sessions work with"
    )]
    BudgetTooSmall {
        /// Bytes that may be used.
        given: u64,
        /// Bytes that would do.
        least: u64,
        /// Of them, for weights.
        weights: u64,
        /// For one streamed expert.
        experts: u64,
        /// For activations, pages and states.
        work: u64,
    },
    /// Something is larger than kernels count.
    #[error("{what}: {found} is over the device's limit of {limit}")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// The most that is possible.
        limit: u64,
        /// What was asked for.
        found: u64,
    },
    /// A kernel that cannot be had for this device.
    #[error("kernel {kernel}: {reason}")]
    Kernel {
        /// Which.
        kernel: String,
        /// The compiler's or the driver's answer.
        reason: String,
    },
    /// The driver refused a command.
    #[error("the GPU refused a command: {what}: {reason}")]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// The driver's answer.
        reason: String,
    },
}

impl CudaError {
    /// Whether there was no room: less may be had.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::OverBudget { .. })
    }
}

impl From<CudaError> for EngineError {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::Limit { what, limit, found } => Self::Limit { what, limit, found },
            CudaError::Lost { .. } => Self::DeviceLost(Box::new(error)),
            _ => Self::Device(Box::new(error)),
        }
    }
}
