//! One end of an established connection: protocol, memory and doorbell together.
//!
//! Methods are getters; `refresh` and `lost` for what comes in; commands; and arming. A command publishes what it changed
//! before it returns. Nothing here waits.

mod signals;

use thiserror::Error;

use super::backlog::Backlog;
use super::group::{LinkGroup, Membership};
use super::spin::Spin;
use crate::fabric::shm::Dmb;
use crate::mem::header::{Header, Side};
use crate::mem::sync::Ordering;
use crate::mem::{Source, Target};
use crate::proto::connection::Connection;
use crate::proto::error::PeerMisbehaved;
use crate::proto::position::{RingSize, Span};
use crate::proto::stats::Stats;
use crate::wire::cdc::{Half, ProducerFlags, StateFlags};

/// Why a connection cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Fault {
    /// The peer wrote into the shared memory what the protocol does not allow; the connection was aborted.
    #[error(transparent)]
    Misbehaved(#[from] PeerMisbehaved),
    /// The peer has sent bytes over TCP, which both sides have agreed to keep silent; the connection was aborted.
    #[error("the peer misbehaved: TCP: bytes arrived beside the shared memory")]
    Bypassed,
    /// The peer has ended without closing: its process died, or its TCP connection did.
    #[error("the peer has ended without closing the connection")]
    Lost,
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
    header: Header,
    own: Dmb,
    peer: Dmb,
    own_size: RingSize,
    peer_size: RingSize,
    group: Membership,
    backlog: Backlog,
    ending: Ending,
    fault: Option<Fault>,
    seen: Seen,
    spin: Spin,
    counters: Counters,
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
    /// An established end. Both rings are empty.
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
        Self {
            connection: Connection::new(own_size, peer_size),
            header,
            own,
            peer,
            own_size,
            peer_size,
            group,
            backlog: Backlog::default(),
            ending: Ending::Open,
            fault: None,
            seen: Seen::default(),
            spin: Spin::default(),
            counters: Counters::default(),
        }
    }

    /// The link group.
    pub fn group(&self) -> &LinkGroup {
        &self.group
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

    /// Bytes written by the application that are not yet in the peer's ring.
    #[inline]
    pub fn backlog(&self) -> usize {
        self.backlog.len()
    }

    /// Bytes that the application has not read, as far as is known without looking.
    #[inline]
    pub fn readable(&self) -> u32 {
        self.connection.readable()
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
            Some(Fault::ClosedHere)
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
        if let Err(misbehaved) = self.seen.refresh(&self.header, &mut self.connection) {
            self.misbehaved(misbehaved);
        } else if self.group.is_dead() {
            self.lost();
        }
    }

    /// A witness has told that the peer is gone: what it published until then still counts.
    pub fn lost(&mut self) {
        if self.fault.is_some() {
            return;
        }
        if let Err(misbehaved) = self.seen.refresh(&self.header, &mut self.connection) {
            return self.misbehaved(misbehaved);
        }
        if !self.connection.peer_closed() && !self.connection.peer_aborted() {
            self.connection.handle_link_lost();
            self.fault = Some(Fault::Lost);
            self.backlog.clear();
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
        let bad = matches!(self.fault, Some(Fault::Misbehaved(_) | Fault::Bypassed));
        // Whatever the peer wrote before it aborted or died is good; what it wrote against the rules is not.
        if readable > 0 && !bad && self.ending != Ending::Closed {
            return Incoming::Bytes(readable);
        }
        match self.stream_end() {
            None => Incoming::Empty,
            Some(Ok(())) => Incoming::End,
            Some(Err(fault)) => Incoming::Fault(fault),
        }
    }

    /// How the peer's stream ends behind the bytes that are readable; None while more may come.
    pub fn stream_end(&self) -> Option<Result<(), Fault>> {
        match self.fault {
            Some(fault @ (Fault::Misbehaved(_) | Fault::Bypassed)) => Some(Err(fault)),
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
            return Err(fault);
        }
        if self.is_ending() {
            return Err(Fault::ClosedHere);
        }
        self.backlog.push(later).map_err(|_| Fault::NoMemory)
    }

    /// Moves as much of the backlog as fits into the peer's ring, and carries out an end that waited for it.
    pub fn flush(&mut self) {
        while !self.backlog.is_empty() {
            let front = self.backlog.front();
            let n = front.len().min(self.room(front.len()));
            if n == 0 {
                break;
            }
            let [first, second] = self.connection.write_spans(n as u32);
            copy_in(
                &self.peer,
                first,
                second,
                Source::from(&self.backlog.front()[..n]),
            );
            self.backlog.drop_front(n);
            self.publish_producer(n as u32);
        }
        if self.backlog.is_empty()
            && self
                .connection
                .flags()
                .0
                .contains(ProducerFlags::WRITE_BLOCKED)
        {
            self.connection.set_write_blocked(false);
        }
        self.end();
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
        if !self.backlog.is_empty() && self.write_fault().is_none() {
            return;
        }
        self.backlog.clear();
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
        let [first, second] = self.connection.write_spans(bytes.len() as u32);
        copy_in(&self.peer, first, second, bytes);
        self.publish_producer(bytes.len() as u32);
    }

    /// Bytes that fit into the peer's ring; looks at the peer's words only if fewer than `enough` are known to fit.
    #[inline]
    fn room(&mut self, enough: usize) -> usize {
        if (self.connection.writable() as usize) < enough {
            self.refresh();
        }
        if self.fault.is_some() {
            0
        } else {
            self.connection.writable() as usize
        }
    }
}

#[inline]
fn copy_in(peer: &Dmb, first: Span, second: Span, bytes: Source<'_>) {
    let (head, tail) = bytes.split_at(first.len as usize);
    peer.write(first.offset as usize, head);
    peer.write(second.offset as usize, tail);
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // An end that nobody closed: tell the peer, unless this is a child that only inherited it.
        if self.is_ours() {
            self.abort();
        }
    }
}

#[cfg(test)]
mod tests;
