//! The one fd that an event loop polls for everything of an engine: doorbells and witnesses of peers' deaths.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll;

/// Wake-ups taken by one call; more are taken by the next.
const BATCH: usize = 64;

/// What woke the engine, with the number under which it was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// A doorbell was rung.
    Bell(u32),
    /// A process has ended.
    Death(u32),
}

/// An epoll set. Its own fd is readable while something is to be taken.
#[derive(Debug)]
pub struct Waker(OwnedFd);

const DEATH: u64 = 1 << 32;

impl Waker {
    /// An empty set.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Adds a doorbell that this process waits at. Removed when its last fd anywhere is closed, or by [`Self::remove`].
    ///
    /// # Errors
    /// ENOSPC (the user's limit of watches), ENOMEM.
    pub fn add_bell(&self, fd: impl AsFd, number: u32) -> io::Result<()> {
        // Edge-triggered, see `bell`. A new bell's counter is 1, so the first wake-up is spurious and harmless.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(
            &self.0,
            fd,
            epoll::EventData::new_u64(number.into()),
            flags,
        )?)
    }

    /// Adds a pidfd; it wakes when the process has ended.
    ///
    /// # Errors
    /// ENOSPC, ENOMEM, EPERM for an fd that cannot be polled.
    pub fn add_death(&self, fd: impl AsFd, number: u32) -> io::Result<()> {
        // One report is enough, and a dead process stays dead.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        Ok(epoll::add(
            &self.0,
            fd,
            epoll::EventData::new_u64(DEATH | u64::from(number)),
            flags,
        )?)
    }

    /// Takes an fd out of the set.
    pub fn remove(&self, fd: impl AsFd) {
        // ENOENT is the only error left: then it is out already.
        let _ = epoll::delete(&self.0, fd);
    }

    /// Takes the wake-ups that are there, without waiting.
    ///
    /// # Errors
    /// None but those of a broken set (EBADF, EINVAL).
    pub fn take(&self) -> io::Result<Vec<Wake>> {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); BATCH];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let (taken, _) = match epoll::wait(&self.0, &mut events, Some(&now)) {
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            other => other?,
        };
        Ok(taken.iter().map(|event| wake(event.data.u64())).collect())
    }
}

fn wake(data: u64) -> Wake {
    let number = data as u32;
    if data & DEATH == 0 {
        Wake::Bell(number)
    } else {
        Wake::Death(number)
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Bell;
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn readable(waker: &Waker) -> bool {
        let mut fds = [PollFd::new(waker, PollFlags::IN)];
        poll(
            &mut fds,
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            }),
        )
        .expect("poll")
            == 1
    }

    #[test]
    fn each_ring_is_reported_once_and_needs_no_read() {
        let waker = Waker::new().expect("epoll");
        let mine = Bell::create().expect("eventfd");
        let theirs = Bell::check(mine.try_clone().expect("dup")).expect("an eventfd");
        waker.add_bell(&mine, 7).expect("add");
        assert_eq!(waker.take().expect("the first, spurious"), [Wake::Bell(7)]);
        assert!(!readable(&waker));
        for _ in 0..3 {
            theirs.ring();
            assert!(
                readable(&waker),
                "the set itself can be polled level-triggered"
            );
            assert_eq!(waker.take().expect("take"), [Wake::Bell(7)]);
            assert!(!readable(&waker));
            assert_eq!(waker.take().expect("take"), []);
        }
    }

    #[test]
    fn rings_before_a_take_are_one_wake_up() {
        let waker = Waker::new().expect("epoll");
        let mine = Bell::create().expect("eventfd");
        let theirs = Bell::check(mine.try_clone().expect("dup")).expect("an eventfd");
        waker.add_bell(&mine, 1).expect("add");
        theirs.ring();
        theirs.ring();
        assert_eq!(waker.take().expect("take"), [Wake::Bell(1)]);
        waker.remove(&mine);
        theirs.ring();
        assert_eq!(waker.take().expect("take"), []);
    }

    #[test]
    fn the_death_of_a_process_is_reported() {
        let waker = Waker::new().expect("epoll");
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cat");
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd =
            rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).expect("pidfd");
        waker.add_death(&pidfd, 3).expect("add");
        assert_eq!(waker.take().expect("alive"), []);
        child.kill().expect("kill");
        let mut fds = [PollFd::new(&waker, PollFlags::IN)];
        assert_eq!(
            poll(
                &mut fds,
                Some(&Timespec {
                    tv_sec: 10,
                    tv_nsec: 0
                })
            )
            .expect("poll"),
            1
        );
        assert_eq!(waker.take().expect("take"), [Wake::Death(3)]);
        assert_eq!(waker.take().expect("take"), [], "reported once");
        child.wait().expect("wait");
    }
}
