//! One end of an established connection: protocol, memory and doorbell together.
//!
//! Methods are getters; `refresh` and `lost` for what comes in; commands; and arming. A command publishes what it changed
//! before it returns. Nothing here waits.

mod direct;
mod lending;
mod medium;
mod showing;
mod signals;

use thiserror::Error;

use super::backlog::Backlog;
use super::group::{GroupKey, Membership};
use super::rdma::{Cause, Lane};
use super::spin::Spin;
use super::status::Place;
use crate::fabric::shm::Dmb;
use crate::mem::header::{Header, Side};
use crate::mem::sync::Ordering;
use crate::mem::{Region, Source, Target};
use crate::proto::connection::Connection;
use crate::proto::error::PeerMisbehaved;
use crate::proto::position::{RingSize, Span};
use crate::proto::stats::Stats;
use crate::wire::cdc::{Half, ProducerFlags, StateFlags};
use crate::wire::status::Path;
use lending::Wanted;
use medium::Medium;

/// Why a connection cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Fault {
    /// The peer has told what the protocol does not allow; the connection was aborted.
    #[error(transparent)]
    Misbehaved(#[from] PeerMisbehaved),
    /// The peer has sent bytes over TCP, which both sides have agreed to keep silent; the connection was aborted.
    #[error("the peer misbehaved: TCP: bytes arrived beside the SMC connection")]
    Bypassed,
    /// The peer has ended without closing: its process died, or its TCP connection did.
    #[error("the peer has ended without closing the connection")]
    Lost,
    /// The link to the peer has ended, and the connection with it.
    #[error("the RDMA link is lost: {0}")]
    Link(Cause),
    /// The peer has aborted the connection, or closed it with data unread.
    #[error("connection reset by peer")]
    Reset,
    /// The peer has closed the connection in good order: nothing can be written any more.
    #[error("the peer has closed the connection")]
    Closed,
    /// This end has closed the connection.
    #[error("the connection is closed")]
    ClosedHere,
    /// There is no memory for bytes that have to wait. The connection is none the worse for it.
    #[error("no memory for bytes that have to wait")]
    NoMemory,
}

impl Fault {
    /// Whether the peer broke the rules: then nothing else that is known of the connection is worth telling.
    pub fn blames_peer(self) -> bool {
        matches!(self, Self::Misbehaved(_) | Self::Bypassed)
    }
}

/// What a reader finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incoming {
    /// So many bytes can be read now; not 0.
    Bytes(u32),
    /// Nothing yet.
    Empty,
    /// The peer's stream has ended and was read to its end, or this end has closed.
    End,
    /// Nothing more can be read.
    Fault(Fault),
}

/// What a connection has done; all values only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes, writes, reads and announcements.
    pub stats: Stats,
    /// Times that the peer was rung.
    pub wakeups_sent: u64,
    /// Times that a wait of this end was ended by the doorbell.
    pub wakeups_received: u64,
    /// Waits that spinning ended.
    pub spins: u64,
    /// Waits that went to sleep for data.
    pub stalls_read: u64,
    /// Waits that went to sleep for room.
    pub stalls_write: u64,
}

/// How the application has ended this end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Open,
    /// The writing side ends behind the backlog.
    Eof,
    /// Everything ends behind the backlog.
    Close,
    Closed,
}

/// The memory of a connection: whose header counts, the ring that the peer writes and the one that this end writes.
#[derive(Debug)]
pub struct Buffers {
    /// This end's role.
    pub side: Side,
    /// The own DMB.
    pub own: Dmb,
    /// The size of its ring.
    pub own_size: RingSize,
    /// The peer's DMB.
    pub peer: Dmb,
    /// The size of its ring.
    pub peer_size: RingSize,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Endpoint {
    connection: Connection,
    /// What both ends say, and what they wait for.
    header: Header,
    /// The ring that is read.
    own: Region,
    own_size: RingSize,
    /// The ring that is written.
    out: Region,
    /// Its size. It divides that of the peer's ring, which it is in shared memory.
    out_size: RingSize,
    peer_size: RingSize,
    medium: Medium,
    backlog: Backlog,
    wanted: Wanted,
    /// Why bytes that waited were dropped, if any were.
    cut_short: Option<Fault>,
    ending: Ending,
    fault: Option<Fault>,
    seen: Seen,
    spin: Spin,
    counters: Counters,
    place: Option<Place>,
}

/// The words of the peer's half that were handled last.
#[derive(Debug, Default)]
struct Seen {
    producer: u64,
    consumer: u64,
}

impl Seen {
    /// Loads the peer's words once and hands what is new to the protocol.
    #[inline]
    fn refresh(
        &mut self,
        header: &Header,
        connection: &mut Connection,
    ) -> Result<(), PeerMisbehaved> {
        let theirs = header.theirs();
        // SYNC POINT with the stores in `publish_*` of the peer. The flags lie in the consumer's word: loaded first and
        // handled last, they never declare an end that the producer's word, loaded after, does not reach.
        let consumer = theirs.consumer.load(Ordering::Acquire);
        let producer = theirs.producer.load(Ordering::Acquire);
        if producer != self.producer {
            connection.handle_producer(Half::from_word(producer).cursor)?;
            self.producer = producer;
        }
        if consumer != self.consumer {
            let half = Half::from_word(consumer);
            connection.handle_consumer(half.cursor)?;
            connection.handle_flags(half.producer_flags, half.state_flags)?;
            self.consumer = consumer;
        }
        Ok(())
    }
}

/// Getters.
impl Endpoint {
    /// An established end on shared memory. Both rings are empty.
    pub fn new(buffers: Buffers, group: Membership) -> Self {
        let Buffers {
            side,
            own,
            own_size,
            peer,
            peer_size,
        } = buffers;
        let header = match side {
            Side::Server => own.header(side),
            Side::Client => peer.header(side),
        };
        Self::on(
            Medium::Shared(group),
            header,
            (own.ring().clone(), own_size),
            (peer.ring().clone(), peer_size),
            peer_size,
        )
    }

    /// An established end on a lane of a link, in the role `side`. What has come in already counts.
    pub fn on_lane(lane: Lane, side: Side) -> Self {
        let header = lane.header().clone();
        let own = (lane.rmb().clone(), lane.rmb_size());
        let out = (lane.send_ring().clone(), lane.send_size());
        let peer_size = lane.peer_size();
        Self::on(Medium::Lane(lane, side), header, own, out, peer_size)
    }

    fn on(
        medium: Medium,
        header: Header,
        (own, own_size): (Region, RingSize),
        (out, out_size): (Region, RingSize),
        peer_size: RingSize,
    ) -> Self {
        Self {
            connection: Connection::new(own_size, peer_size),
            header,
            own,
            own_size,
            out,
            out_size,
            peer_size,
            medium,
            backlog: Backlog::default(),
            wanted: Wanted::default(),
            cut_short: None,
            ending: Ending::Open,
            fault: None,
            seen: Seen::default(),
            spin: Spin::default(),
            counters: Counters::default(),
            place: None,
        }
    }

    /// What carries the bytes.
    pub fn path(&self) -> Path {
        self.medium.path()
    }

    /// The link group. In shared memory both ends know it by this key; that of a link has a number for this end alone.
    pub fn group(&self) -> GroupKey {
        self.medium.key()
    }

    /// The number under which wake-ups of the link group are reported in this process.
    pub fn group_number(&self) -> u32 {
        self.medium.number()
    }

    /// Sizes of the own ring and the peer's.
    pub fn sizes(&self) -> (RingSize, RingSize) {
        (self.own_size, self.peer_size)
    }

    /// Whether this process made the connection; false in a forked child, which must not touch it.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.header.is_ours()
    }

    /// Bytes written by the application that are not yet in the ring that is written.
    #[inline]
    pub fn backlog(&self) -> usize {
        self.backlog.len()
    }

    /// Bytes that the application has not read, as far as is known without looking.
    #[inline]
    pub fn readable(&self) -> u32 {
        self.connection.readable()
    }

    /// Whether bytes of this end waited when the peer ended, and were dropped.
    pub fn is_cut_short(&self) -> bool {
        self.cut_short.is_some()
    }

    /// Whether close or abort has been published: nothing is left to do for this end.
    pub fn is_closed(&self) -> bool {
        self.ending == Ending::Closed
    }

    /// Whether the application has ended writing.
    pub fn is_ending(&self) -> bool {
        self.ending != Ending::Open
    }

    /// Why this end cannot write any more, if it cannot.
    pub fn write_fault(&self) -> Option<Fault> {
        if self.fault.is_some() {
            return self.fault;
        }
        if self.ending == Ending::Closed {
            Some(self.cut_short.unwrap_or(Fault::ClosedHere))
        } else if self.connection.peer_aborted() {
            Some(Fault::Reset)
        } else if self.connection.peer_closed() {
            Some(Fault::Closed)
        } else {
            None
        }
    }

    /// The counters.
    pub fn counters(&self) -> Counters {
        Counters {
            stats: self.connection.stats(),
            ..self.counters
        }
    }
}

/// What comes in.
impl Endpoint {
    /// Looks at what the peer has published. A peer that broke the protocol becomes the connection's [`Fault`].
    #[inline]
    pub fn refresh(&mut self) {
        if self.fault.is_some() {
            return;
        }
        self.medium.poll();
        if let Err(misbehaved) = self.seen.refresh(&self.header, &mut self.connection) {
            self.misbehaved(misbehaved);
        } else if self.medium.is_dead() {
            self.gone(self.medium.loss());
        } else if self.medium.is_lane() && self.connection.update_due() {
            // In shared memory a reader announces all that it has read before it sleeps; here that would be a message.
            self.announce();
        }
    }

    /// A witness has told that the peer is gone: what it published until then still counts. A lane knows by itself.
    pub fn lost(&mut self) {
        if self.medium.is_lane() {
            self.refresh();
        } else if self.fault.is_none() {
            self.gone(self.medium.loss());
        }
    }

    /// The TCP connection beside this one has ended, in good order or by a reset. In shared memory that is the last word: what
    /// the peer has published came before. A link may have its end under way still; see [`Lane::tcp_ended`].
    pub fn tcp_ended(&mut self, is_reset: bool) {
        self.refresh();
        if self.fault.is_some() || self.connection.peer_ended() {
            return;
        }
        match &self.medium {
            Medium::Shared(_) | Medium::Left(..) => self.lost(),
            Medium::Lane(lane, _) => {
                lane.tcp_ended(is_reset);
                self.refresh();
            }
        }
    }

    #[cold]
    fn gone(&mut self, loss: Fault) {
        if let Err(misbehaved) = self.seen.refresh(&self.header, &mut self.connection) {
            return self.misbehaved(misbehaved);
        }
        if !self.connection.peer_ended() {
            self.connection.handle_link_lost();
            self.fault = Some(loss);
            self.backlog.clear();
            self.show_all();
        }
    }

    /// An end that is closed, or has a fault, has nothing to tell any more: lets go of the link group and its descriptors, whoever
    /// holds this end still. What has come in can be read.
    pub fn leave_group(&mut self) {
        if let Medium::Shared(group) = &self.medium
            && (self.is_closed() || self.fault.is_some())
        {
            self.medium = Medium::Left(group.key(), group.number());
        }
    }

    /// Bytes have come over TCP.
    pub fn bypassed(&mut self) {
        if self.fault.is_none() {
            self.abort();
            self.fault = Some(Fault::Bypassed);
        }
    }

    #[cold]
    fn misbehaved(&mut self, misbehaved: PeerMisbehaved) {
        self.abort();
        self.fault = Some(Fault::Misbehaved(misbehaved));
    }

    /// What a reader finds now; looks at the peer's words only if fewer than `enough` bytes are known.
    #[inline]
    pub fn incoming(&mut self, enough: u32) -> Incoming {
        if self.connection.readable() < enough {
            self.refresh();
        }
        let readable = self.connection.readable();
        if readable > 0 && self.fault.is_none() && self.ending != Ending::Closed {
            return Incoming::Bytes(readable);
        }
        self.incoming_rare(readable)
    }

    #[cold]
    fn incoming_rare(&self, readable: u32) -> Incoming {
        let bad = self.fault.is_some_and(Fault::blames_peer);
        // Whatever the peer wrote before it aborted or died is good; what it wrote against the rules is not.
        if readable > 0 && !bad && self.ending != Ending::Closed {
            return Incoming::Bytes(readable);
        }
        let end = self.stream_end();
        if end.is_some() {
            self.show_all();
        }
        match end {
            None => Incoming::Empty,
            Some(Ok(())) => Incoming::End,
            Some(Err(fault)) => Incoming::Fault(fault),
        }
    }

    /// How the peer's stream ends behind the bytes that are readable; None while more may come.
    pub fn stream_end(&self) -> Option<Result<(), Fault>> {
        match self.fault {
            Some(fault) if fault.blames_peer() => Some(Err(fault)),
            _ if self.ending == Ending::Closed => Some(Ok(())),
            _ if self.connection.peer_aborted() => Some(Err(Fault::Reset)),
            _ if self.connection.peer_done() => Some(Ok(())),
            fault => fault.map(Err),
        }
    }
}

/// Commands.
impl Endpoint {
    /// Copies the next bytes out of the own ring: as many as `into` has room for, which must be readable.
    ///
    /// # Panics
    /// Fewer are readable.
    #[inline]
    pub fn read(&mut self, into: Target<'_>) {
        let n = into.len() as u32;
        let [first, second] = self.connection.read_spans(n);
        assert_eq!(first.len + second.len, n, "reading more than is readable");
        let (head, tail) = into.split_at(first.len as usize);
        self.own.read(first.offset as usize, head);
        self.own.read(second.offset as usize, tail);
        self.consume(n);
    }

    /// Drops the next `n` readable bytes.
    ///
    /// # Panics
    /// Fewer are readable.
    #[inline]
    pub fn consume(&mut self, n: u32) {
        self.connection.consumed(n);
        self.show_read();
        if self.connection.update_due() {
            self.announce();
        }
    }

    /// Takes all of `bytes`: as much as fits goes into the peer's ring, the rest into the backlog.
    ///
    /// # Errors
    /// The [`Fault`] that stops this end from writing, or [`Fault::NoMemory`]; nothing was taken.
    #[inline]
    pub fn write(&mut self, bytes: Source<'_>) -> Result<(), Fault> {
        let fits = if self.backlog.is_empty() {
            bytes.len().min(self.room(bytes.len()))
        } else {
            0
        };
        let (now, later) = bytes.split_at(fits);
        if !later.is_empty() {
            self.keep(later)?;
        }
        if !now.is_empty() {
            self.put(now);
        }
        if !later.is_empty() {
            self.flush();
        }
        Ok(())
    }

    /// Keeps what does not fit, if it may ever be written.
    fn keep(&mut self, later: Source<'_>) -> Result<(), Fault> {
        self.refresh();
        if let Some(fault) = self.write_fault() {
            self.show_all();
            return Err(fault);
        }
        if self.is_ending() {
            return Err(Fault::ClosedHere);
        }
        self.backlog.push(later).map_err(|_| Fault::NoMemory)?;
        self.show_backlog();
        Ok(())
    }

    /// Moves as much of the backlog as fits into the peer's ring, and carries out an end that waited for it.
    pub fn flush(&mut self) {
        while !self.backlog.is_empty() {
            let front = self.backlog.front();
            let n = front.len().min(self.room(front.len()));
            if n == 0 {
                break;
            }
            let spans = self.out_size.spans(self.connection.position(), n as u32);
            copy_in(&self.out, spans, Source::from(&self.backlog.front()[..n]));
            self.backlog.drop_front(n);
            self.publish_producer(n as u32);
        }
        self.calm();
        self.tell_blocked();
        self.show_backlog();
        self.end();
    }

    /// Nothing waits any more: the peer hears of it when it is told the next time.
    fn calm(&mut self) {
        let blocked = ProducerFlags::WRITE_BLOCKED;
        if self.waiting() == 0 && self.connection.flags().0.contains(blocked) {
            self.connection.set_write_blocked(false);
        }
    }

    /// Ends this end's stream behind what was written. Reading goes on.
    pub fn write_eof(&mut self) {
        if self.ending == Ending::Open {
            self.ending = Ending::Eof;
            self.end();
        }
    }

    /// Closes this end behind what was written.
    pub fn close(&mut self) {
        if self.ending != Ending::Closed {
            self.ending = Ending::Close;
            self.end();
        }
    }

    /// Closes this end at once; the peer sees a reset.
    pub fn abort(&mut self) {
        if self.ending != Ending::Closed {
            self.backlog.clear();
            self.ending = Ending::Closed;
            self.connection.abort();
            self.publish_flags();
        }
    }

    fn end(&mut self) {
        if !self.backlog.is_empty() {
            let Some(fault) = self.write_fault() else {
                return;
            };
            self.cut_short = Some(fault);
            self.backlog.clear();
        }
        match self.ending {
            Ending::Eof if !self.connection.flags().1.contains(StateFlags::SENDING_DONE) => {
                self.connection.shutdown_write();
                self.publish_flags();
            }
            Ending::Close => {
                self.refresh();
                self.ending = Ending::Closed;
                self.connection.close();
                self.publish_flags();
            }
            _ => {}
        }
    }

    /// Copies bytes that fit, and publishes them.
    #[inline]
    fn put(&mut self, bytes: Source<'_>) {
        let n = bytes.len() as u32;
        let spans = self.out_size.spans(self.connection.position(), n);
        copy_in(&self.out, spans, bytes);
        self.publish_producer(n);
    }

    /// Bytes that can be written now; looks at the peer's words only if fewer than `enough` are known to be.
    #[inline]
    fn room(&mut self, enough: usize) -> usize {
        if (self.free() as usize) < enough {
            self.refresh();
        }
        if self.fault.is_some() {
            0
        } else {
            self.free() as usize
        }
    }

    /// Bytes that are known to fit, into the peer's ring and into the one that is written.
    #[inline]
    fn free(&self) -> u32 {
        self.medium.free(&self.connection)
    }
}

#[inline]
fn copy_in(out: &Region, [first, second]: [Span; 2], bytes: Source<'_>) {
    let (head, tail) = bytes.split_at(first.len as usize);
    out.write(first.offset as usize, head);
    out.write(second.offset as usize, tail);
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // An end that nobody closed: tell the peer, unless this is a child that only inherited it.
        if self.is_ours() {
            self.abort();
            self.leave();
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
#[cfg(test)]
mod two_threads;
