//! Doorbells: eventfds that are rung by writing zero.
//!
//! A bell's counter is 1 from the start. A write of 0 leaves it alone and still wakes whoever polls it; with an
//! edge-triggered epoll ([`super::Waker`]) each such wake-up is reported, and nobody ever needs to read the counter.
//! What this gains over adding and reading: a write of 0 cannot block and cannot fail for a full counter, whatever a
//! hostile peer does to the counter or the flags of the file that both processes share.

use std::fs::read_link;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// The other end of a doorbell: rings the process that waits at it.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A new doorbell for this process to wait at; a duplicate of the fd goes to the peer, who makes a [`Bell`] of it.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn create() -> io::Result<OwnedFd> {
        Ok(eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
    }

    /// Takes a received fd after checking that it is an eventfd: writing to anything else could block or do harm.
    ///
    /// # Errors
    /// Not an eventfd (`InvalidInput`), or /proc does not tell.
    pub fn check(fd: OwnedFd) -> io::Result<Self> {
        let target = read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if target.as_os_str() != "anon_inode:[eventfd]" {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "doorbell: kind: not an eventfd",
            ));
        }
        Ok(Self(fd))
    }

    /// Wakes the peer if it sleeps. Never blocks.
    #[inline]
    pub fn ring(&self) {
        // The only errors left are those of an fd that is no eventfd, which `check` excluded.
        let result = rustix::io::write(&self.0, &0u64.to_ne_bytes());
        debug_assert!(result.is_ok(), "ring: {result:?}");
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{OFlags, fcntl_setfl};
    use rustix::pipe::pipe;

    #[test]
    fn other_kinds_of_fds_are_refused() {
        let (read, write) = pipe().expect("pipe");
        for fd in [
            read,
            write,
            OwnedFd::from(std::fs::File::open("/dev/null").expect("/dev/null")),
        ] {
            let error = Bell::check(fd).expect_err("not an eventfd");
            assert_eq!(error.to_string(), "doorbell: kind: not an eventfd");
        }
    }

    /// A full counter and a cleared O_NONBLOCK: an ordinary write of 1 would block here for ever.
    #[test]
    fn ringing_a_full_and_blocking_bell_returns() {
        let fd = eventfd(0, EventfdFlags::CLOEXEC).expect("eventfd");
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes())
            .expect("the counter takes its maximum");
        fcntl_setfl(&fd, OFlags::empty()).expect("blocking");
        let bell = Bell::check(fd).expect("an eventfd");
        bell.ring();
    }
}
