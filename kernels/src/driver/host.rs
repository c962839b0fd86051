//! What runs kernels of a device of host memory, and is told what becomes of its memory.

use std::sync::Arc;

use super::Address;
use crate::error::CudaError;
use crate::params::Launch;

/// What runs kernels on the host.
pub trait HostKernels: Send + Sync {
    /// Runs a kernel: blocks and threads as given, parameters at a multiple of 16. Addresses among them are
    /// those of host memory, and so is that of the miss flag, 0 for none.
    ///
    /// # Errors
    /// A kernel that is not there, or does what it must not.
    fn run(&self, launch: &Launch, params: &[u8], miss_flag: u64) -> Result<(), CudaError>;

    /// Is told of memory.
    fn note(&self, _note: MemoryNote) {}
}

impl<F> HostKernels for F
where
    F: Fn(&Launch, &[u8], u64) -> Result<(), CudaError> + Send + Sync,
{
    fn run(&self, launch: &Launch, params: &[u8], miss_flag: u64) -> Result<(), CudaError> {
        self(launch, params, miss_flag)
    }
}

/// The kernels of a device of host memory.
pub type HostLaunch = Arc<dyn HostKernels>;

/// What becomes of memory of a device, beside what kernels do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryNote {
    /// So many bytes are there, with unspecified contents.
    Allocated {
        /// The first one.
        address: Address,
        /// How many.
        bytes: u64,
    },
    /// What was allocated is gone.
    Freed {
        /// The first byte.
        address: Address,
    },
    /// Bytes were written.
    Written {
        /// The first one.
        address: Address,
        /// How many.
        bytes: u64,
    },
    /// Bytes were copied within the device.
    Copied {
        /// The first one.
        from: Address,
        /// Where it went.
        to: Address,
        /// How many.
        bytes: u64,
    },
}
