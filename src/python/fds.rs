//! File descriptors across the border.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

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
    // watched (`LoopEngine.ready` and the transports close nothing before; a blocking socket closes it behind
    // `Channel.close`, and a channel that is closed does not look at it); the borrow ends with this call.
    f(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// How a sleep has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slept {
    /// The descriptor has something to read.
    Woken,
    /// The time is over.
    TimedOut,
    /// A signal came.
    Interrupted,
}

/// Sleeps until `fd` has something to read, `timeout` is over (never for None), or a signal comes.
///
/// # Errors
/// ENOMEM.
pub(super) fn sleep(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<Slept> {
    let timeout = timeout.map(|time| Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    match poll(
        &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
        timeout.as_ref(),
    ) {
        Err(Errno::INTR) => Ok(Slept::Interrupted),
        Ok(0) => Ok(Slept::TimedOut),
        Ok(_) => Ok(Slept::Woken),
        Err(error) => Err(error.into()),
    }
}

/// What a TCP connection that is silent by agreement tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beside {
    Silent,
    Bytes,
    End,
    Reset,
}

/// Looks at the connection `tcp`, which Python keeps open. What is found is taken.
pub(super) fn beside(tcp: RawFd) -> Beside {
    let mut byte = [MaybeUninit::uninit(); 1];
    match with(tcp, |tcp| Ok(recv(tcp, &mut byte, RecvFlags::DONTWAIT)?.1)) {
        Ok(0) => Beside::End,
        Ok(_) => Beside::Bytes,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Beside::Silent,
        Err(_) => Beside::Reset,
    }
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
