//! The one fd that an event loop polls for everything of an engine: doorbells, witnesses of peers' deaths, and the sockets
//! of connections that are being made.

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
    /// A watched descriptor is ready.
    Ready(u32),
    /// A device has something to tell. The engine serves it and reports bells instead.
    Device(u32),
}

/// What a descriptor is watched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Something to read, or the end.
    Readable,
    /// Room to write, or an error.
    Writable,
}

/// An epoll set. Its own fd is readable while something is to be taken.
#[derive(Debug)]
pub struct Waker(OwnedFd);

const DEATH: u64 = 1 << 32;
const READY: u64 = 1 << 33;
const DEVICE: u64 = 1 << 34;

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
        // Edge-triggered, see `bell`.
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

    /// Has a doorbell of [`Self::add_bell`] tell of a death from here on, once, when it is rung.
    pub fn turn_to_death(&self, bell: impl AsFd, number: u32) {
        let data = epoll::EventData::new_u64(DEATH | u64::from(number));
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        // ENOENT is the only error: then it was taken out, and nobody waits.
        let _ = epoll::modify(&self.0, bell, data, flags);
    }

    /// Adds a descriptor of a device; it wakes for as long as it is readable.
    ///
    /// # Errors
    /// ENOSPC, ENOMEM, EPERM for an fd that cannot be polled.
    pub fn add_device(&self, fd: impl AsFd, number: u32) -> io::Result<()> {
        let data = epoll::EventData::new_u64(DEVICE | u64::from(number));
        Ok(epoll::add(&self.0, fd, data, epoll::EventFlags::IN)?)
    }

    /// Adds any descriptor; it wakes once, and stays in the set until [`Self::remove`].
    ///
    /// # Errors
    /// EEXIST when it is in the set already; ENOSPC, ENOMEM, EPERM for an fd that cannot be polled.
    pub fn watch(&self, fd: impl AsFd, interest: Interest, number: u32) -> io::Result<()> {
        let what = match interest {
            Interest::Readable => epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
            Interest::Writable => epoll::EventFlags::OUT,
        };
        Ok(epoll::add(
            &self.0,
            fd,
            epoll::EventData::new_u64(READY | u64::from(number)),
            what | epoll::EventFlags::ONESHOT,
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
    match data & !u64::from(u32::MAX) {
        DEATH => Wake::Death(number),
        READY => Wake::Ready(number),
        DEVICE => Wake::Device(number),
        _ => Wake::Bell(number),
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
        let mine = Bell::create().expect("a bell");
        let theirs = Bell::check(mine.try_clone().expect("dup")).expect("a timer");
        waker.add_bell(&mine, 7).expect("add");
        assert_eq!(waker.take().expect("not rung yet"), []);
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
        let mine = Bell::create().expect("a bell");
        let theirs = Bell::check(mine.try_clone().expect("dup")).expect("a timer");
        waker.add_bell(&mine, 1).expect("add");
        theirs.ring();
        theirs.ring();
        assert_eq!(waker.take().expect("take"), [Wake::Bell(1)]);
        waker.remove(&mine);
        theirs.ring();
        assert_eq!(waker.take().expect("take"), []);
    }

    #[test]
    fn a_watched_descriptor_wakes_once() {
        let waker = Waker::new().expect("epoll");
        let (read, write) = rustix::pipe::pipe().expect("pipe");
        waker.watch(&read, Interest::Readable, 5).expect("add");
        waker.watch(&write, Interest::Writable, 6).expect("add");
        assert_eq!(waker.take().expect("take"), [Wake::Ready(6)]);
        rustix::io::write(&write, b"x").expect("room");
        assert_eq!(waker.take().expect("take"), [Wake::Ready(5)]);
        assert_eq!(waker.take().expect("take"), [], "once");
        waker.remove(&read);
        waker.watch(&read, Interest::Readable, 7).expect("again");
        assert_eq!(waker.take().expect("take"), [Wake::Ready(7)]);
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
