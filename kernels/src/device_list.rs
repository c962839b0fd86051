//! Lists the CUDA devices that the driver reports.

use crate::devices::{CudaDeviceChoice, CudaDeviceDescription, CudaDeviceError};
use crate::driver::cuda;

/// Returns all CUDA devices of the machine.
///
/// # Errors
/// Fails with [`CudaDeviceError::NoDriver`] if there is no driver. Also fails if the driver is too old or
/// does not start.
pub fn devices() -> Result<Vec<CudaDeviceDescription>, CudaDeviceError> {
    cuda::list()
}

/// Returns the description of the selected device without opening it.
///
/// # Errors
/// Fails with [`CudaDeviceError`] if there is no such device.
pub fn device(choice: &CudaDeviceChoice) -> Result<CudaDeviceDescription, CudaDeviceError> {
    choice.among(devices()?)
}
