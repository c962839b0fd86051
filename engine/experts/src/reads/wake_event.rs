//! Wake-up of the thread that waits for its ring.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd that wakes the thread waiting for its ring.
pub(super) struct WakeEvent(OwnedFd);

impl WakeEvent {
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub fn ring(&self) {
        // The value is the same in either byte order. The write fails only if the counter is about to
        // overflow, and then the thread wakes up anyway.
        let _ = rustix::io::write(self.0.as_fd(), &[1; 8]);
    }

    pub fn silence(&self) {
        let _ = rustix::io::read(self.0.as_fd(), &mut [0u8; 8]);
    }

    /// Returns the descriptor, which becomes readable after [`WakeEvent::ring`].
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
