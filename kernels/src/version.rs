//! Versions of CUDA and of devices.

use std::fmt;

/// A major and a minor number: of a compute capability, or of CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// What changes rarely.
    pub major: u32,
    /// What is added within.
    pub minor: u32,
}

impl Version {
    /// A version by its numbers.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
