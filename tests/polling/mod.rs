//! Waits for descriptors.
#![allow(dead_code, reason = "not every test uses all of it")]
#![allow(unreachable_pub, reason = "a module of several test programs")]

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Waits until one of them has something to read, or for `time`.
pub fn wait(fds: &[BorrowedFd<'_>], time: Duration) {
    wait_for(fds, PollFlags::IN, time);
}

/// Whether it is ready now.
pub fn is_ready(fd: BorrowedFd<'_>, flags: PollFlags) -> bool {
    wait_for(&[fd], flags, Duration::ZERO)
}

fn wait_for(fds: &[BorrowedFd<'_>], flags: PollFlags, time: Duration) -> bool {
    let fds = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, flags));
    let time = Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    };
    poll(&mut fds.collect::<Vec<_>>(), Some(&time)).expect("poll") > 0
}
