//! File descriptors across the border.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Takes over a descriptor that Python gives away; it is closed when the result is dropped.
///
/// # Errors
/// EBADF for a negative number.
pub(super) fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: not -1. The caller of the Python method gives its descriptor away by contract (`socket.detach`): nothing else
    // refers to it, and it is not used again.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Calls `f` with a descriptor that Python keeps open.
///
/// # Errors
/// EBADF for a negative number; those of `f`.
pub(super) fn with<R>(fd: RawFd, f: impl FnOnce(BorrowedFd<'_>) -> io::Result<R>) -> io::Result<R> {
    if fd < 0 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: not -1. The caller of the Python method has the socket open during the call, and until `unwatch` where it is
    // watched (`LoopEngine.ready` and the transports close nothing before); the borrow ends with this call.
    f(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Whether one of the descriptors, which Python keeps open, has something to read, or has room, now.
///
/// # Errors
/// EBADF for a negative number; ENOMEM.
pub(super) fn is_ready(readable: &[RawFd], writable: &[RawFd]) -> io::Result<bool> {
    let ready = |fd: &RawFd, what| {
        with(*fd, |fd| {
            let now = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            match poll(&mut [PollFd::from_borrowed_fd(fd, what)], Some(&now)) {
                // A signal came first; who asks will ask again.
                Err(Errno::INTR) => Ok(false),
                other => Ok(other? > 0),
            }
        })
    };
    for fd in readable {
        if ready(fd, PollFlags::IN)? {
            return Ok(true);
        }
    }
    for fd in writable {
        if ready(fd, PollFlags::OUT)? {
            return Ok(true);
        }
    }
    Ok(false)
}
