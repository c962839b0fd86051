//! A device of host memory whose kernels the host compiler built: for tests where there is no device.

#![expect(unsafe_code, reason = "kernels are C++, and find memory by its address")]

use crate::backend::CudaBackend;
use crate::emulation::{ThreadOrder, launch};
use crate::error::CudaError;
use crate::params::Launch;

impl CudaBackend {
    /// Opens an emulated device: it checks what kernels are given and what they compute, neither races
    /// that only hardware shows nor speed.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn emulated() -> Result<Self, CudaError> {
        Self::on_host(run, None)
    }

    /// [`CudaBackend::emulated`] with so many bytes of memory.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::OverBudget`].
    pub fn emulated_within(bytes: u64) -> Result<Self, CudaError> {
        Self::on_host(run, Some(bytes))
    }
}

fn run(shape: &Launch, params: &[u8], halt: u64) -> Result<(), CudaError> {
    // SAFETY: addresses come from memory that this crate's recorder keeps until commands are done, with
    // sizes that its encoder checked.
    let done = unsafe { launch(shape, (params, halt), ThreadOrder::Ascending) };
    done.map_err(|error| CudaError::Kernel {
        kernel: shape.kernel.name().into(),
        reason: error.to_string(),
    })
}
