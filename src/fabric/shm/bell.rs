//! Doorbells: timer descriptors that are rung by setting their ticks.
//!
//! No timer ever runs. Setting the ticks wakes whoever polls the descriptor; with an edge-triggered epoll
//! ([`super::Waker`]) each such wake-up is reported, and nobody ever needs to read the ticks. Both processes share one
//! file, and a hostile peer may change its flags and its state at any moment: what rings must not be able to block even so.
//! A write to an eventfd can: its counter is filled to the last by an asynchronous read that ends in it, and then even a
//! write of 0 waits, unless a flag forbids it that the peer can clear (docs/decisions/0013).

use std::fs::read_link;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::mem::ticks;

/// The first moment of the clock, which is past.
const PAST: Itimerspec = Itimerspec {
    it_interval: Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    },
    it_value: Timespec {
        tv_sec: 0,
        tv_nsec: 1,
    },
};

/// The other end of a doorbell: rings the process that waits at it.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A new doorbell for this process to wait at; a duplicate of the fd goes to the peer, who makes a [`Bell`] of it.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn create() -> io::Result<OwnedFd> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(timerfd_create(TimerfdClockId::Monotonic, flags)?)
    }

    /// Takes a received fd after checking that it is a timer: an ioctl on anything else could do harm.
    ///
    /// # Errors
    /// Not a timer (`InvalidInput`), or /proc does not tell.
    pub fn check(fd: OwnedFd) -> io::Result<Self> {
        let target = read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if target.as_os_str() != "anon_inode:[timerfd]" {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "doorbell: kind: not a timer",
            ));
        }
        Ok(Self(fd))
    }

    /// Wakes the peer if it sleeps. Never blocks.
    #[inline]
    pub fn ring(&self) {
        ring(&self.0);
    }
}

/// Wakes whoever sleeps at a doorbell: another process at its end, or other threads of this one at the own.
#[inline]
pub fn ring(bell: impl AsFd) {
    if ticks::set(&bell, 1).is_err() {
        ring_slowly(bell);
    }
}

/// Sets the timer to a moment that is past: on kernels that cannot set ticks, and tens of times slower.
#[cold]
fn ring_slowly(bell: impl AsFd) {
    // What fails even so is a bell that its owner has made useless (without access, or cancelled): it harms itself.
    let _ = timerfd_settime(bell, TimerfdTimerFlags::ABSTIME, &PAST);
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{Mode, OFlags, fcntl_setfl, open};
    use rustix::pipe::pipe;

    fn readable(fd: &OwnedFd) -> bool {
        let mut ticks = [0; 8];
        rustix::io::read(fd, &mut ticks) == Ok(8)
    }

    #[test]
    fn other_kinds_of_fds_are_refused() {
        let (read, write) = pipe().expect("pipe");
        for fd in [
            read,
            write,
            OwnedFd::from(std::fs::File::open("/dev/null").expect("/dev/null")),
            eventfd(1, EventfdFlags::NONBLOCK).expect("eventfd"),
        ] {
            let error = Bell::check(fd).expect_err("not a timer");
            assert_eq!(error.to_string(), "doorbell: kind: not a timer");
        }
    }

    #[test]
    fn both_ways_to_ring_are_heard() {
        let fd = Bell::create().expect("a bell");
        let bell = Bell::check(fd.try_clone().expect("dup")).expect("a timer");
        assert!(!readable(&fd), "it has not been rung");
        bell.ring();
        assert!(readable(&fd));
        ring_slowly(&bell);
        assert!(readable(&fd));
    }

    /// Whatever a hostile owner makes of it: blocking, full, running, cancelled when the clock is set, without access.
    #[test]
    fn ringing_never_blocks() {
        let full = Bell::create().expect("a bell");
        let _ = ticks::set(&full, u64::MAX);
        let running =
            timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::CLOEXEC).expect("timer");
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        let often = Itimerspec {
            it_interval: PAST.it_value,
            ..PAST
        };
        timerfd_settime(&running, flags, &often).expect("set");
        let no_access = open(
            format!("/proc/self/fd/{}", full.as_raw_fd()),
            OFlags::PATH,
            Mode::empty(),
        )
        .expect("O_PATH");
        for fd in [full, running, no_access] {
            let _ = fcntl_setfl(&fd, OFlags::empty());
            let bell = Bell::check(fd).expect("a timer");
            for _ in 0..3 {
                bell.ring();
                ring_slowly(&bell);
            }
        }
    }
}
