//! What wakes the thread that waits for its ring.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};

/// Wakes the thread that waits for its ring.
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub fn ring(&self) {
        // The same number in any order of bytes. It fails only when it has been rung very often and is heard anyway.
        let _ = rustix::io::write(self.0.as_fd(), &[1; 8]);
    }

    pub fn silence(&self) {
        let _ = rustix::io::read(self.0.as_fd(), &mut [0u8; 8]);
    }

    /// The descriptor that becomes readable when it is rung.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
