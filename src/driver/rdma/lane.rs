//! One connection on a link.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::group::Group;
use super::member::Seen;
use super::pool::Ring;
use crate::mem::Region;
use crate::mem::header::Header;
use crate::proto::link::Cause;
use crate::proto::position::{Position, RingSize};
use crate::wire::SizeCode;
use crate::wire::cdc::{Cursor, Half, ProducerFlags, StateFlags};

/// How long the end of a connection may come behind that of its TCP connection.
pub(in crate::driver) const TCP_GRACE: Duration = Duration::from_secs(1);

/// What the peer is to know of this end. It says everything each time, as a CDC does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct News {
    /// The bytes before this position of the stream lie in the send ring, or have left it.
    pub produced: Position,
    /// How far this end has read its own ring.
    pub consumer: Cursor,
    /// Requests.
    pub producer_flags: ProducerFlags,
    /// How this end leaves the connection.
    pub state_flags: StateFlags,
}

/// One connection on a link. To be dropped after its close or abort was pushed (it aborts otherwise): the group sends
/// what is left, and takes the receive buffer back when the peer has ended as well.
#[derive(Debug)]
pub struct Lane {
    group: Arc<Group>,
    token: NonZeroU32,
    header: Header,
    rmb: Region,
    rmb_size: RingSize,
    send_ring: Region,
    send_size: RingSize,
    peer_size: RingSize,
    seen: Arc<Seen>,
}

impl Lane {
    pub(super) fn new(
        group: Arc<Group>,
        token: NonZeroU32,
        header: Header,
        (rmb, send, peer): (Ring, Ring, SizeCode),
        seen: Arc<Seen>,
    ) -> Self {
        Self {
            group,
            token,
            header,
            rmb_size: RingSize::from_code(rmb.size),
            rmb: rmb.region,
            send_size: RingSize::from_code(send.size),
            send_ring: send.region,
            peer_size: RingSize::from_code(peer),
            seen,
        }
    }

    /// The words of both ends, on private memory. `theirs()` holds what the peer has sent, as if it had stored it there:
    /// the producer's word first, the consumer's with the flags behind it. The cursors are not checked against the rings.
    ///
    /// Who sleeps arms `mine().reader_armed` or `writer_armed` as in shared memory ([`crate::fabric::shm::signal`]); who
    /// hands out the news claims them and rings the group's bell. What is there to read is computed from `mine().consumer`, which
    /// therefore holds the own cursor before a reader arms; [`Self::push`] stores it, and the endpoint may store a later
    /// one without a push. A writer is woken for room in both the peer's ring and the send ring, of which half is
    /// as good as all.
    #[inline]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The ring that the peer writes.
    #[inline]
    pub fn rmb(&self) -> &Region {
        &self.rmb
    }

    /// Its size.
    pub fn rmb_size(&self) -> RingSize {
        self.rmb_size
    }

    /// The size of the peer's ring.
    pub fn peer_size(&self) -> RingSize {
        self.peer_size
    }

    /// The ring from which the peer's is written: byte n of the stream lies at n modulo [`Self::send_size`].
    #[inline]
    pub fn send_ring(&self) -> &Region {
        &self.send_ring
    }

    /// Its size, which divides [`Self::peer_size`].
    pub fn send_size(&self) -> RingSize {
        self.send_size
    }

    /// Bytes free in the send ring behind what was pushed last, as far as is known without looking at the queue.
    #[inline]
    pub fn room(&self) -> u32 {
        let waits = self.seen.pushed.load(Ordering::Relaxed)
            // SYNC POINT with `Member::handle_done`: the device has read what counts as completed.
            - self.seen.completed.load(Ordering::Acquire);
        self.send_size.bytes() - waits as u32 // of at most the size, by `push`
    }

    /// Has the peer told these news: posts what the queue has room for now, and the rest by itself when places come free. An abort drops
    /// what was not posted.
    ///
    /// # Panics
    /// More was produced than there was room for, or less than before.
    #[inline]
    pub fn push(&self, news: News) {
        if !self.header.is_ours() {
            return;
        }
        let pushed = self.seen.pushed.load(Ordering::Relaxed);
        let fresh = news.produced.since(Position::new(pushed));
        assert!(
            fresh <= self.room().into(),
            "{fresh} bytes pushed without room"
        );
        self.seen
            .pushed
            .store(news.produced.get(), Ordering::Relaxed);
        let consumer = Half {
            cursor: news.consumer,
            producer_flags: news.producer_flags,
            state_flags: news.state_flags,
        };
        let mine = self.header.mine();
        mine.consumer.store(consumer.to_word(), Ordering::Release);
        self.group
            .port
            .send(&self.group, |body| body.push(self.token, news));
    }

    /// Drains the completion queue and hands out the news of all lanes of the port.
    #[inline]
    pub fn poll(&self) {
        self.group.port.poll();
    }

    /// Makes sure that the next completion wakes the engine, then polls.
    pub fn arm(&self) {
        self.group.port.arm();
    }

    /// The number of the group.
    pub fn number(&self) -> u32 {
        self.group.number()
    }

    /// Whether the connection is lost, alone or with its group.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.group.is_dead() || self.seen.cause.get().is_some()
    }

    /// Why it is lost, if it is.
    pub fn cause(&self) -> Option<Cause> {
        let own = self.seen.cause.get().copied();
        own.or_else(|| self.group.cause())
    }

    /// TCP has ended, or was reset. That may have overtaken the end of the connection, which gets a second to come; then
    /// the lane is dead.
    pub fn tcp_ended(&self, is_reset: bool) {
        let port = &self.group.port;
        let due = port.with(&self.group, |body, _, now| {
            body.tcp_ended(self.token, now + TCP_GRACE, is_reset)
        });
        if let Some(Some(due)) = due {
            port.hasten(due);
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let port = &self.group.port;
        port.with(&self.group, |body, _, now| body.leave(self.token, now));
    }
}
