//! Interface of an emulated device to its host kernels.

use std::sync::Arc;

use super::Address;
use crate::error::CudaError;
use crate::params::Launch;

/// Runner of kernels on the host.
pub trait HostKernels: Send + Sync {
    /// Runs a kernel with the given grid. Parameters are aligned to 16 bytes. Addresses among them, and
    /// `miss_flag` (0 for none), refer to host memory.
    ///
    /// # Errors
    /// Returns an error if the kernel does not exist or performs an invalid operation.
    fn run(&self, launch: &Launch, params: &[u8], miss_flag: u64) -> Result<(), CudaError>;

    /// Receives a note about memory.
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

/// Shared kernels of an emulated device.
pub type HostLaunch = Arc<dyn HostKernels>;

/// A change of device memory outside of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryNote {
    /// Memory was allocated, with unspecified contents.
    Allocated {
        /// First byte.
        address: Address,
        /// Number of bytes.
        bytes: u64,
    },
    /// Memory was freed.
    Freed {
        /// First byte.
        address: Address,
    },
    /// Bytes were written.
    Written {
        /// First byte.
        address: Address,
        /// Number of bytes.
        bytes: u64,
    },
    /// Bytes were copied within the device.
    Copied {
        /// First byte of the source.
        from: Address,
        /// First byte of the destination.
        to: Address,
        /// Number of bytes.
        bytes: u64,
    },
}
