//! Description and selection of CUDA devices.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use crate::version::Version;

/// Minimum driver version, in the driver's numbering. All functions used here exist since 12.0.
pub(crate) const DRIVER_VERSION_MIN: i32 = 12_000;

/// Minimum compute capability, the first with int8 tensor cores.
pub(crate) const CAPABILITY_MIN: Version = Version::new(7, 5);

/// A CUDA device as reported by the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaDeviceDescription {
    /// Index in the list of [`devices`](fn@crate::devices), as used by [`CudaDeviceChoice::Index`].
    pub index: usize,
    /// Name reported by the driver.
    pub name: String,
    /// Compute capability.
    pub compute_capability: Version,
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// L2 cache in bytes.
    pub l2_bytes: u64,
    /// Theoretical memory bandwidth in bytes per second, or 0 if the driver does not report clock and width.
    pub memory_bandwidth: u64,
    /// Latest CUDA version that the driver supports.
    pub driver: Version,
}

/// Selection of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CudaDeviceChoice {
    /// The first supported device. The driver lists the fastest device first.
    #[default]
    Auto,
    /// The device with this index in the list of [`devices`](fn@crate::devices).
    Index(usize),
    /// The first device whose name contains this text. Case is ignored.
    Name(String),
}

/// Failure to select or open a device. `found` lists the available ones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaDeviceError {
    /// The system has no driver.
    #[error("no CUDA device was found: the system has no NVIDIA driver (libcuda)")]
    NoDriver,
    /// The driver is too old.
    #[error("the NVIDIA driver is for CUDA {found}, and 12.0 is the oldest that works")]
    OldDriver {
        /// Latest CUDA version that the driver supports.
        found: Version,
    },
    /// The driver does not start.
    #[error("the NVIDIA driver does not start: {reason}")]
    Driver {
        /// Message of the driver.
        reason: String,
    },
    /// The driver reports no device.
    #[error("no CUDA device was found: the NVIDIA driver shows none")]
    NoneFound,
    /// The device is too old for the kernels.
    #[error("{name} has compute capability {capability}, but 7.5 is the minimum")]
    OldDevice {
        /// Name of the device.
        name: String,
        /// Compute capability of the device.
        capability: Version,
    },
    /// The index exceeds the list of devices.
    #[error("there is no CUDA device {index}, only {found}")]
    NoSuchIndex {
        /// Requested index.
        index: usize,
        /// Available devices.
        found: String,
    },
    /// A kernel is unavailable for the device, or failed on an emulated device.
    #[error("kernel {kernel}: {reason}")]
    Kernel {
        /// Name of the kernel.
        kernel: String,
        /// Message of the compiler or driver.
        reason: String,
    },
    /// The name matches no device.
    #[error("there is no CUDA device named `{name}`, only {found}")]
    NoSuchName {
        /// Requested name.
        name: String,
        /// Available devices.
        found: String,
    },
}

impl CudaDeviceError {
    /// Returns the error of an unavailable kernel.
    pub(crate) fn kernel(name: &str, reason: String) -> Self {
        Self::Kernel { kernel: name.into(), reason }
    }
}

impl CudaDeviceDescription {
    fn is_new_enough(&self) -> bool {
        self.compute_capability >= CAPABILITY_MIN
    }
}

impl CudaDeviceChoice {
    /// Returns the selected device.
    pub(crate) fn among(
        &self,
        mut devices: Vec<CudaDeviceDescription>,
    ) -> Result<CudaDeviceDescription, CudaDeviceError> {
        let Some(first) = devices.first() else { return Err(CudaDeviceError::NoneFound) };
        let index = match self {
            Self::Auto => {
                let first = CudaDeviceError::OldDevice {
                    name: first.name.clone(),
                    capability: first.compute_capability,
                };
                devices.iter().position(CudaDeviceDescription::is_new_enough).ok_or(first)?
            }
            Self::Index(index) if *index < devices.len() => *index,
            Self::Index(index) => {
                let found = listed(&devices);
                return Err(CudaDeviceError::NoSuchIndex { index: *index, found });
            }
            Self::Name(name) => {
                let wanted = name.to_lowercase();
                let is_meant =
                    |device: &CudaDeviceDescription| device.name.to_lowercase().contains(&wanted);
                let missing = || {
                    let found = listed(&devices);
                    CudaDeviceError::NoSuchName { name: name.clone(), found }
                };
                devices.iter().position(is_meant).ok_or_else(missing)?
            }
        };
        let device = devices.swap_remove(index);
        if device.is_new_enough() {
            return Ok(device);
        }
        let capability = device.compute_capability;
        Err(CudaDeviceError::OldDevice { name: device.name, capability })
    }
}

fn listed(devices: &[CudaDeviceDescription]) -> String {
    let names: Vec<_> =
        devices.iter().map(|device| format!("{} ({})", device.index, device.name)).collect();
    names.join(", ")
}

impl fmt::Display for CudaDeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Index(index) => index.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Parses `auto`, an index, or a part of a name.
impl FromStr for CudaDeviceChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match (text, text.parse()) {
            ("auto", _) => Self::Auto,
            (_, Ok(index)) => Self::Index(index),
            (name, Err(_)) => Self::Name(name.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests;
