//! The CUDA devices that the driver shows.

use crate::devices::{CudaDeviceChoice, CudaDeviceDescription, CudaDeviceError};
use crate::driver::cuda;

/// All CUDA devices of the machine.
///
/// # Errors
/// [`CudaDeviceError::NoDriver`] where there is none; a driver that is too old or does not start.
pub fn devices() -> Result<Vec<CudaDeviceDescription>, CudaDeviceError> {
    cuda::list()
}

/// What is known of the device that `choice` means, without opening it.
///
/// # Errors
/// [`CudaDeviceError`] where there is none.
pub fn device(choice: &CudaDeviceChoice) -> Result<CudaDeviceDescription, CudaDeviceError> {
    choice.among(devices()?)
}
