//! A descriptor that shows an endpoint to selectors: readable and writable as a socket is, for one who waits by himself.
//!
//! No descriptor of the kernel's is what a ring is, so one end of a pair of sockets stands for it: it is readable while a byte
//! lies in it, and writable while its queue is not full. Whoever uses the endpoint has the lamp show the truth when he is done
//! ([`Lamp::settle`]), and arms for what it does not show; from then on the peer's next ring changes it, by way of the thread
//! of [`Lamps`], since nobody else of this process may be awake. The thread looks at the two armed words alone: it touches
//! neither the endpoint nor Python.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt,
};

use super::Endpoint;
use super::endpoint::Incoming;
use super::group::LinkGroup;
use crate::fabric::shm::{Interest, Wake, Waker};
use crate::mem::fork;
use crate::mem::header::Header;
use crate::mem::sync::Ordering::Acquire;

/// Packets after which a queue of the least size is full in any case.
const PACKETS_MAX: usize = 256;

/// What one descriptor shows.
#[derive(Debug)]
pub struct Lamp {
    /// The user's, to poll.
    front: OwnedFd,
    /// Its other end.
    back: OwnedFd,
    header: Header,
    group: Arc<LinkGroup>,
    number: u32,
    shown: Mutex<Shown>,
}

#[derive(Debug)]
struct Shown {
    readable: bool,
    writable: bool,
    /// The peer has ended. It is told once, to this lamp; the endpoint need not have heard of it yet.
    over: bool,
}

/// What the calls of an endpoint's user are about, besides the one that is over.
#[derive(Debug, Clone, Copy, Default)]
pub struct Users {
    /// He reads no more: what comes counts as the end.
    pub deaf: bool,
    /// A thread waits for bytes, and settles the lamp when it is done.
    pub reading: bool,
    /// A thread waits for room, likewise.
    pub writing: bool,
}

impl Lamp {
    fn new(end: &Endpoint, group: &Arc<LinkGroup>, number: u32) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (front, back) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        // The kernel makes it the least that there is.
        sockopt::set_socket_send_buffer_size(&front, 1)?;
        Ok(Self {
            front,
            back,
            header: end.header().clone(),
            group: Arc::clone(group),
            number,
            shown: Mutex::new(Shown {
                readable: false,
                writable: true,
                over: false,
            }),
        })
    }

    /// The descriptor to poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.front.as_fd()
    }

    /// Has it show what `end`, whose lamp it is, has now, and tell of what comes next.
    pub fn settle(&self, end: &mut Endpoint, users: Users) {
        // While it is locked, a ring for a word that is armed here waits to be shown.
        let mut shown = self.lock();
        // A word that a sleeper has armed is left to him: to arm it anew may take it back, when the peer is about to look.
        let readable = shown.over
            || users.deaf
            || end.incoming(1) != Incoming::Empty
            || !(users.reading || end.arm_read(1));
        let writable =
            shown.over || end.is_writable() || !(users.writing || end.arm_room(usize::MAX));
        self.show_readable(&mut shown, readable);
        self.show_writable(&mut shown, writable);
    }

    /// The bell was rung: for whoever's word was taken back.
    fn rung(&self) {
        let mut shown = self.lock();
        let mine = self.header.mine();
        if mine.reader_armed.load(Acquire) == 0 {
            self.show_readable(&mut shown, true);
        }
        if mine.writer_armed.load(Acquire) == 0 {
            self.show_writable(&mut shown, true);
        }
    }

    /// The peer has ended: whoever reads or writes will find out how.
    fn ended(&self) {
        let mut shown = self.lock();
        shown.over = true;
        self.show_readable(&mut shown, true);
        self.show_writable(&mut shown, true);
    }

    fn lock(&self) -> MutexGuard<'_, Shown> {
        // Nothing panics while it is held.
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show_readable(&self, shown: &mut Shown, readable: bool) {
        if std::mem::replace(&mut shown.readable, readable) == readable {
            return;
        }
        if readable {
            fill(&self.back, 1);
        } else {
            empty(&self.front);
        }
    }

    fn show_writable(&self, shown: &mut Shown, writable: bool) {
        if std::mem::replace(&mut shown.writable, writable) == writable {
            return;
        }
        if writable {
            empty(&self.back);
        } else {
            fill(&self.front, PACKETS_MAX);
        }
    }
}

/// Sends up to `most` packets, until there is no room.
fn fill(fd: &OwnedFd, most: usize) {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    for _ in 0..most {
        if send(fd, &[0], flags).is_err() {
            return;
        }
    }
}

/// Takes every packet that is there.
fn empty(fd: &OwnedFd) {
    let mut byte = [MaybeUninit::uninit(); 1];
    while let Ok((_, 1..)) = recv(fd, &mut byte, RecvFlags::DONTWAIT) {}
}

/// The lamps of this process, and the thread that changes them.
#[derive(Debug)]
pub struct Lamps {
    waker: Waker,
    lit: Mutex<HashMap<u32, Arc<Lamp>>>,
    last: AtomicU32,
    generation: u64,
}

impl Lamps {
    /// No lamps, and a thread that sleeps for as long as the process lives.
    ///
    /// # Errors
    /// EAGAIN: no thread is to be had; EMFILE, ENFILE, ENOMEM.
    pub fn begin() -> io::Result<Arc<Self>> {
        let lamps = Arc::new(Self {
            waker: Waker::new()?,
            lit: Mutex::default(),
            last: AtomicU32::new(0),
            generation: fork::generation()?,
        });
        let own = Arc::clone(&lamps);
        let builder = std::thread::Builder::new().name("smcfast-lamps".into());
        builder.spawn(move || own.run())?;
        Ok(lamps)
    }

    /// Whether this process made them; a forked child has no thread.
    pub fn is_ours(&self) -> bool {
        fork::is_current(self.generation)
    }

    /// A lamp for `end`, which shows the truth for `users` already; `tcp` is the connection beside it. [`Self::put_out`] must
    /// follow.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM, ENOSPC; ENOTSUP for an end that is not on shared memory.
    pub fn light(
        &self,
        end: &mut Endpoint,
        tcp: BorrowedFd<'_>,
        users: Users,
    ) -> io::Result<Arc<Lamp>> {
        let Some(group) = end.shared_group() else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let lamp = Arc::new(Lamp::new(end, group, number)?);
        // First: a death is told once, perhaps at once, and to nobody if the number is not known yet.
        self.lit().insert(number, Arc::clone(&lamp));
        if let Err(error) = lamp.group.add_to(&self.waker, number) {
            self.lit().remove(&number);
            return Err(error);
        }
        if let Err(error) = self.waker.watch(tcp, Interest::Readable, number) {
            self.put_out(&lamp, tcp);
            return Err(error);
        }
        lamp.settle(end, users);
        Ok(lamp)
    }

    /// Changes `lamp` no more; `tcp` is still open.
    pub fn put_out(&self, lamp: &Lamp, tcp: BorrowedFd<'_>) {
        if self.is_ours() {
            self.waker.remove(tcp);
            lamp.group.remove_from(&self.waker);
            self.lit().remove(&lamp.number);
        }
    }

    fn run(&self) {
        // Signals are for the threads of the program.
        let _ = SigSet::all().thread_block();
        loop {
            // What fails is interrupted, or short of memory: then it is looked at once more.
            let _ = poll(&mut [PollFd::new(&self.waker, PollFlags::IN)], None);
            let Ok(wakes) = self.waker.take() else {
                return; // A broken set wakes nobody any more.
            };
            for wake in wakes {
                self.serve(wake);
            }
        }
    }

    fn serve(&self, wake: Wake) {
        let (Wake::Bell(number) | Wake::Death(number) | Wake::Ready(number) | Wake::Device(number)) =
            wake;
        let lamp = self.lit().get(&number).cloned();
        let Some(lamp) = lamp else { return };
        match wake {
            Wake::Bell(_) => lamp.rung(),
            _ => lamp.ended(),
        }
    }

    fn lit(&self) -> MutexGuard<'_, HashMap<u32, Arc<Lamp>>> {
        // Nothing panics while it is held.
        self.lit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::endpoint::tests::pairs::{Kind, Pair, pair};
    use crate::mem::{Source, Target};
    use rustix::event::Timespec;

    /// Hang guard, in seconds.
    const PATIENCE: i64 = 20;

    /// A pair whose client has a lamp; the stream that stands for its TCP.
    fn lit() -> (Pair, Arc<Lamps>, Arc<Lamp>, OwnedFd, OwnedFd) {
        let mut pair = pair(Kind::Shared);
        let (tcp, other) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("sockets");
        let lamps = Lamps::begin().expect("a thread");
        let lamp = lamps
            .light(&mut pair.client, tcp.as_fd(), Users::default())
            .expect("a lamp");
        (pair, lamps, lamp, tcp, other)
    }

    fn shows(lamp: &Lamp, what: PollFlags) -> bool {
        shows_within(lamp, what, 0)
    }

    fn shows_within(lamp: &Lamp, what: PollFlags, tv_sec: i64) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(lamp.fd(), what)];
        let timeout = Timespec { tv_sec, tv_nsec: 0 };
        poll(&mut fds, Some(&timeout)).expect("poll") == 1
    }

    #[test]
    fn bytes_make_it_readable_until_they_are_read() {
        let (mut pair, _lamps, lamp, _tcp, _other) = lit();
        for _ in 0..3 {
            assert!(!shows(&lamp, PollFlags::IN) && shows(&lamp, PollFlags::OUT));
            pair.server
                .write_some(Source::from(&b"ab"[..]))
                .expect("room");
            assert!(shows_within(&lamp, PollFlags::IN, PATIENCE));
            for left in [1, 0] {
                assert!(shows(&lamp, PollFlags::IN), "{left} and one more are there");
                assert_eq!(pair.client.incoming(1), Incoming::Bytes(left + 1));
                let mut one = [0];
                pair.client.read(Target::from(&mut one[..]));
                lamp.settle(&mut pair.client, Users::default());
            }
        }
    }

    #[test]
    fn a_full_ring_makes_it_unwritable_until_the_peer_reads() {
        let (mut pair, _lamps, lamp, _tcp, _other) = lit();
        let bytes = vec![7; 1 << 20];
        let taken = pair
            .client
            .write_some(Source::from(&bytes[..]))
            .expect("room");
        assert_eq!(pair.client.write_some(Source::from(&bytes[..])), Ok(0));
        lamp.settle(&mut pair.client, Users::default());
        assert!(!shows(&lamp, PollFlags::OUT) && !shows(&lamp, PollFlags::IN));
        assert_eq!(pair.server.incoming(1), Incoming::Bytes(taken as u32));
        let mut into = vec![0; taken];
        pair.server.read(Target::from(&mut into[..]));
        assert!(shows_within(&lamp, PollFlags::OUT, PATIENCE));
        assert!(!shows(&lamp, PollFlags::IN));
    }

    #[test]
    fn one_that_cannot_be_lit_leaves_nothing_and_the_other_as_it_is() {
        let (mut pair, lamps, lamp, tcp, _other) = lit();
        let second = lamps.light(&mut pair.client, tcp.as_fd(), Users::default());
        let error = second.expect_err("its bell is in the set already");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(lamps.lit().len(), 1);
        pair.server
            .write_some(Source::from(&b"a"[..]))
            .expect("room");
        assert!(shows_within(&lamp, PollFlags::IN, PATIENCE));
    }

    #[test]
    fn an_end_that_was_told_is_shown_when_what_came_before_is_read() {
        let (mut pair, _lamps, lamp, _tcp, other) = lit();
        let bytes = vec![7; 1 << 20];
        assert!(
            pair.client
                .write_some(Source::from(&bytes[..]))
                .expect("room")
                > 0
        );
        lamp.settle(&mut pair.client, Users::default());
        assert!(!shows(&lamp, PollFlags::OUT));
        pair.server
            .write_some(Source::from(&b"a"[..]))
            .expect("room");
        drop(other);
        assert!(shows_within(&lamp, PollFlags::OUT, PATIENCE));
        let mut one = [0];
        assert_eq!(pair.client.incoming(1), Incoming::Bytes(1));
        pair.client.read(Target::from(&mut one[..]));
        lamp.settle(&mut pair.client, Users::default());
        assert!(shows(&lamp, PollFlags::IN) && shows(&lamp, PollFlags::OUT));
    }

    #[test]
    fn an_end_of_any_kind_makes_it_both() {
        let (mut pair, _lamps, lamp, _tcp, _other) = lit();
        pair.server.close();
        assert!(shows_within(&lamp, PollFlags::IN, PATIENCE));
        let (_pair, _lamps, lamp, _tcp, other) = lit();
        drop(other);
        assert!(shows_within(&lamp, PollFlags::IN, PATIENCE));
    }
}
