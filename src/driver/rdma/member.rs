//! What a group knows of one of its connections, under the port's lock.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering as Order};
use std::time::Duration;

use super::nudge::Nudge;
use super::place::KeyState;
use super::pool::Buffer;
use super::sending::Sending;
use super::standing::{Standing, Wakes};
use crate::fabric::shm::signal;
use crate::mem::header::Header;
use crate::mem::sync::Ordering;
use crate::proto::link::{Cause, Misbehaviour};
use crate::proto::position::{Position, RingSize};
use crate::wire::cdc::{Cdc, Cursor, Half, ProducerFlags, RdmaCdc, Sequence, StateFlags};
use crate::wire::llc::Key;

/// Flags by which a peer asks to hear at once how far this end has read.
const READ_WANTED: ProducerFlags = ProducerFlags::CONSUMER_UPDATE_REQUESTED
    .union(ProducerFlags::URGENT_PENDING)
    .union(ProducerFlags::URGENT_PRESENT);
/// Flags by which a peer asks to hear of what was read.
const UPDATE_WANTED: ProducerFlags = ProducerFlags::WRITE_BLOCKED.union(READ_WANTED);
/// The ends behind which a peer writes nothing more.
const ENDS: StateFlags = StateFlags::CLOSED.union(StateFlags::ABNORMAL_CLOSE);

/// What the endpoint sees without the lock.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Bytes of the stream whose posts are done.
    pub(super) completed: AtomicU64,
    /// Bytes of the stream that were pushed.
    pub(super) pushed: AtomicU64,
    /// Why the connection is lost although its group is not.
    pub(super) cause: OnceLock<Cause>,
}

/// A connection: a place first, and then a lane; when its handle is gone, what waits for the peer's end.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) header: Header,
    pub(super) rmb: Buffer,
    pub(super) seen: Arc<Seen>,
    /// Until all has gone that its handle has left.
    pub(super) sending: Option<Sending>,
    /// What has become of telling the key.
    pub(super) key: KeyState,
    /// Of a place: what wakes the set-up.
    pub(super) news: Option<Arc<Nudge>>,
    /// The key and the token were told: the peer may write.
    pub(super) is_known: bool,
    /// It is a lane, or was.
    pub(super) is_attached: bool,
    /// The handle is gone.
    pub(super) is_left: bool,
    /// The peer writes nothing more.
    pub(super) has_ended: bool,
    /// TCP has ended, by a reset or not: when that ends the connection.
    pub(super) tcp_due: Option<(Duration, bool)>,
    /// The number of the last CDC.
    heard: Sequence,
    flags: (ProducerFlags, StateFlags),
    /// Where the producer stood when urgent data came.
    urgent: Option<Cursor>,
}

impl Member {
    pub(super) fn new(header: Header, rmb: Buffer, news: Arc<Nudge>) -> Self {
        Self {
            header,
            rmb,
            seen: Arc::default(),
            sending: None,
            key: KeyState::Waiting,
            news: Some(news),
            is_known: false,
            is_attached: false,
            is_left: false,
            has_ended: false,
            tcp_due: None,
            heard: Sequence::default(),
            flags: Default::default(),
            urgent: None,
        }
    }

    /// Whether nothing comes any more and nothing has to go: what it has may be used for another.
    pub(super) fn is_over(&self) -> bool {
        self.is_left && self.has_ended && self.sending.is_none()
    }

    /// Whether nothing has to go any more, and the peer has not ended: it may have yet to read.
    pub(super) fn is_only_the_peers(&self) -> bool {
        self.is_left && self.sending.is_none() && self.seen.cause.get().is_none()
    }

    /// Whether somebody sleeps until something comes for it: a set-up, a reader, a writer, or the group for the peer's end.
    pub(super) fn is_awaited(&self) -> bool {
        let mine = self.header.mine();
        let armed = [&mine.reader_armed, &mine.writer_armed];
        self.news.is_some()
            || self.is_left
            || armed.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Whether its writer sleeps until there is room.
    pub(super) fn awaits_room(&self) -> bool {
        self.header.mine().writer_armed.load(Ordering::Relaxed) != 0
    }

    /// Takes in a CDC with the token of this connection.
    pub(super) fn handle_cdc(&mut self, cdc: &RdmaCdc, standing: &Standing, wakes: &mut Wakes<'_>) {
        if cdc.is_failover_validation() {
            if self.heard.is_behind(cdc.sequence) {
                self.fail(Misbehaviour::LostInFailover.into(), standing, wakes);
            }
            return;
        }
        if cdc.sequence.is_behind(self.heard) {
            return;
        }
        self.heard = cdc.sequence;
        let cdc = self.with_urgent(&cdc.cdc);
        let theirs = self.header.theirs();
        // SYNC POINT with the endpoint's look: flags never declare an end that the producer's word does not reach.
        theirs
            .producer
            .store(cdc.producer_word(), Ordering::Release);
        theirs
            .consumer
            .store(cdc.consumer_word(), Ordering::Release);
        self.flags = (cdc.producer_flags, cdc.state_flags);
        self.has_ended |= cdc.state_flags.intersects(ENDS);
        if self
            .tcp_due
            .is_some_and(|(_, reset)| self.explains_tcp(reset))
        {
            self.tcp_due = None;
        }
        self.wake(standing, wakes);
    }

    /// Whether the peer has told of what TCP has told, or a `reset` of it: the end of the connection. The kernel ends TCP in good
    /// order with a half-close, too, and goes on to read.
    pub(super) fn explains_tcp(&self, reset: bool) -> bool {
        self.has_ended || (!reset && self.flags.1.contains(StateFlags::SENDING_DONE))
    }

    /// Urgent data are announced once, although the kernel sends nothing behind them before it knows that they were read. The
    /// endpoint sees only the last of several CDC: until the producer moves they count as announced.
    fn with_urgent(&mut self, cdc: &Cdc) -> Cdc {
        let mut cdc = *cdc;
        if cdc.producer_flags.contains(ProducerFlags::URGENT_PRESENT) {
            self.urgent = Some(cdc.producer);
        } else if self.urgent == Some(cdc.producer) {
            cdc.producer_flags |= ProducerFlags::URGENT_PRESENT;
        }
        cdc
    }

    /// A post is done that carried the stream up to `upto`.
    pub(super) fn handle_done(
        &mut self,
        upto: Position,
        standing: &Standing,
        wakes: &mut Wakes<'_>,
    ) {
        if let Some(sending) = &mut self.sending {
            sending.handle_done(upto);
        }
        // SYNC POINT with `Lane::room`: what is free there is not read by the device any more.
        self.seen.completed.store(upto.get(), Order::Release);
        self.wake(standing, wakes);
    }

    /// The connection is lost, and the group is not.
    pub(super) fn fail(&mut self, cause: Cause, standing: &Standing, wakes: &mut Wakes<'_>) {
        self.tcp_due = None;
        if self.seen.cause.set(cause).is_ok() {
            self.wake_all(standing, wakes);
        }
    }

    /// The key with which its next post writes, if that writes.
    pub(super) fn next_key(&self) -> Option<Key> {
        let sending = self.sending.as_ref();
        sending
            .filter(|sending| sending.has_bytes())
            .map(Sending::key)
    }

    /// The peer has taken the key back. Nothing was written without it, and who takes its buffer back has left the connection,
    /// or has given it up while it was being set up: it writes nothing more, and others are not concerned.
    pub(super) fn lose_key(&mut self, standing: &Standing, wakes: &mut Wakes<'_>) {
        if let Some(sending) = &mut self.sending {
            sending.abort();
        }
        self.has_ended = true;
        self.fail(Misbehaviour::KeyTakenBack.into(), standing, wakes);
    }

    /// Wakes whoever sleeps, whatever for.
    pub(super) fn wake_all(&self, standing: &Standing, wakes: &mut Wakes<'_>) {
        self.claim(standing, wakes, || u64::MAX, || u64::MAX);
        self.tell_set_up();
    }

    /// Wakes the set-up that waits.
    pub(super) fn tell_set_up(&self) {
        if let Some(news) = &self.news {
            news.give();
        }
    }

    /// Wakes whoever has what it waits for.
    fn wake(&self, standing: &Standing, wakes: &mut Wakes<'_>) {
        if !self.flags.1.is_empty() {
            return self.claim(standing, wakes, || u64::MAX, || u64::MAX);
        }
        self.claim(standing, wakes, || self.readable(), || self.writable());
    }

    fn claim(
        &self,
        standing: &Standing,
        wakes: &mut Wakes<'_>,
        readable: impl FnOnce() -> u64,
        writable: impl FnOnce() -> u64,
    ) {
        let mine = self.header.mine();
        // Both words are claimed: no short cut between the two.
        let reader = signal::must_ring(&mine.reader_armed, readable);
        let writer = signal::must_ring(&mine.writer_armed, writable);
        if reader || writer {
            wakes.wake(standing);
        }
    }

    /// Bytes that a reader finds; more than there are when it has to look for another reason.
    fn readable(&self) -> u64 {
        let own = cursor(self.header.mine().consumer.load(Ordering::Acquire));
        let told = self.sending.as_ref().map(Sending::consumer);
        if self.flags.0.intersects(UPDATE_WANTED) && told.is_some_and(|told| told != own) {
            return u64::MAX;
        }
        let there = cursor(self.header.theirs().producer.load(Ordering::Relaxed));
        if self.flags.0.intersects(READ_WANTED) && there != own {
            return u64::MAX;
        }
        let size = RingSize::from_code(self.rmb.size);
        // A cursor that cannot be wakes whoever sleeps: it will see.
        distance(size, own, there).unwrap_or(u64::MAX)
    }

    /// Bytes that a writer has room for.
    fn writable(&self) -> u64 {
        let Some(sending) = &self.sending else {
            return 0;
        };
        let read = cursor(self.header.theirs().consumer.load(Ordering::Relaxed));
        let size = sending.peer_size();
        let unread = distance(size, read, size.cursor(sending.produced()));
        unread.map_or(u64::MAX, |unread| {
            sending.room(u64::from(size.bytes()) - unread)
        })
    }
}

fn cursor(word: u64) -> Cursor {
    Half::from_word(word).cursor
}

/// Bytes from one cursor to another of a ring; `None` when the ring has no such two.
fn distance(size: RingSize, from: Cursor, to: Cursor) -> Option<u64> {
    let bytes = u64::from(size.bytes());
    let from = Position::new(u64::from(from.wrap) * bytes + u64::from(from.count));
    size.advance(from, to, bytes).ok()
}
