//! File descriptors across the border.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Takes over descriptors that Python has received; they are closed when the results are dropped.
///
/// Numbers that are negative cannot be descriptors and are left out; that makes one too few, which the caller notices.
pub(super) fn adopt(fds: Vec<RawFd>) -> Vec<OwnedFd> {
    let adopt_one = |fd: RawFd| {
        // SAFETY: not -1. The caller of the Python method gives its descriptors away by contract: it has just received
        // them, nothing else refers to them, and it does not use them again.
        unsafe { OwnedFd::from_raw_fd(fd) }
    };
    fds.into_iter()
        .filter(|fd| *fd >= 0)
        .map(adopt_one)
        .collect()
}

/// The numbers of descriptors that stay ours.
pub(super) fn numbers(fds: &[BorrowedFd<'_>]) -> Vec<RawFd> {
    fds.iter().map(|fd| fd.as_raw_fd()).collect()
}
