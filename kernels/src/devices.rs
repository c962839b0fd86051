//! Which CUDA devices a machine has, and the choice of one.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use crate::version::Version;

/// Oldest driver that is used, as it numbers itself: all that is called exists from 12.0 on.
pub(crate) const DRIVER_VERSION_MIN: i32 = 12_000;

/// Oldest compute capability that kernels are written for: int8 tensor cores.
pub(crate) const CAPABILITY_MIN: Version = Version::new(7, 5);

/// A device as the driver shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaDeviceDescription {
    /// Its index in the list of [`devices`](fn@crate::devices): what [`CudaDeviceChoice::Index`] takes.
    pub index: usize,
    /// The name that the driver gives it.
    pub name: String,
    /// Its compute capability.
    pub compute_capability: Version,
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Bytes of its second-level cache.
    pub l2_bytes: u64,
    /// Bytes per second that clock and width of its memory allow; 0 where the driver does not tell.
    pub memory_bandwidth: u64,
    /// Newest version of CUDA that the driver knows, major and minor.
    pub driver: Version,
}

/// Which device is to be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CudaDeviceChoice {
    /// The first that kernels run on; the driver lists the fastest first.
    #[default]
    Auto,
    /// The one with this index in the list of [`devices`](fn@crate::devices).
    Index(usize),
    /// The first one whose name has this in it, in small or capital letters.
    Name(String),
}

/// A device that is not there. `found` lists what is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaDeviceError {
    /// The system has no driver.
    #[error("no CUDA device was found: the system has no NVIDIA driver (libcuda)")]
    NoDriver,
    /// The driver is too old.
    #[error("the NVIDIA driver is for CUDA {found}, and 12.0 is the oldest that works")]
    OldDriver {
        /// Newest version of CUDA that it knows, major and minor.
        found: Version,
    },
    /// The driver does not start.
    #[error("the NVIDIA driver does not start: {reason}")]
    Driver {
        /// Its answer.
        reason: String,
    },
    /// There is a driver, and no device.
    #[error("no CUDA device was found: the NVIDIA driver shows none")]
    NoneFound,
    /// The device is older than what kernels are written for.
    #[error("{name} has compute capability {capability}, and 7.5 is the least that works")]
    OldDevice {
        /// Which.
        name: String,
        /// What it has.
        capability: Version,
    },
    /// The list of devices is shorter.
    #[error("there is no CUDA device {index}, only {found}")]
    NoSuchIndex {
        /// What was asked for.
        index: usize,
        /// The devices.
        found: String,
    },
    /// A kernel that cannot be had for the device, or that failed on an emulated one.
    #[error("kernel {kernel}: {reason}")]
    Kernel {
        /// Which.
        kernel: String,
        /// The compiler's or the driver's answer.
        reason: String,
    },
    /// No device has such a name.
    #[error("there is no CUDA device named `{name}`, only {found}")]
    NoSuchName {
        /// What was asked for.
        name: String,
        /// The devices.
        found: String,
    },
}

impl CudaDeviceError {
    /// A kernel that cannot be had.
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
    /// The device that is meant.
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

/// `auto`, a number, or a part of a name.
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
