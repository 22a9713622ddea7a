//! What one thread of this process wakes another by: an eventfd that nobody else has.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};

/// Readable from the first [`Self::give`] on, until [`Self::take`].
#[derive(Debug)]
pub struct Nudge(OwnedFd);

impl Nudge {
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    /// Wakes who waits.
    pub fn give(&self) {
        // It counts to 2^64 before it would say no.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// What is given behind this wakes again.
    pub fn take(&self) {
        // What fails is that there was none.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Nudge {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Nudge {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
