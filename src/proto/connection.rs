//! One connection: two windows and a close state, in numbers.

use crate::wire::cdc::{Cdc, Cursor, ProducerFlags, StateFlags};

use super::close::{Closing, State};
use super::error::{Fault, PeerMisbehaved};
use super::position::{CursorError, Position, RingSize, Span};
use super::stats::{Counters, Stats};
use super::window::{ReceiveWindow, SendWindow};

/// Flags of a peer that asks for the consumer cursor as soon as it moves. Kernel 6.12 sends nothing more while the
/// byte that it marked as urgent is unread.
const UPDATE_WANTED: ProducerFlags = ProducerFlags::CONSUMER_UPDATE_REQUESTED
    .union(ProducerFlags::URGENT_PENDING)
    .union(ProducerFlags::URGENT_PRESENT);

/// The windows, flags and counters of one connection (RFC 7609, 4.7 and 4.8).
///
/// It never sees a byte of data. The caller copies into [`write_spans`](Self::write_spans) and then says
/// [`produced`](Self::produced); it copies out of [`read_spans`](Self::read_spans) and then says
/// [`consumed`](Self::consumed). What the peer publishes goes into `handle_*`, which check it: an error changes nothing.
///
/// What must be published, and when:
/// * after `produced`: [`producer_cursor`](Self::producer_cursor);
/// * when [`update_due`](Self::update_due), to be asked after `consumed` and after `handle_*` (a peer may run full
///   later than the last read), and in any case after a change of [`flags`](Self::flags):
///   [`take_consumer`](Self::take_consumer).
///
/// A caller that loads cursors and flags one by one loads the flags **before** the producer cursor and handles them
/// **after** it: then the producer cursor is at least as new as an end that the flags declare.
///
/// ```
/// use smcfast::proto::connection::Connection;
/// use smcfast::proto::position::RingSize;
///
/// let (small, large) = (RingSize::MIN, RingSize::MAX);
/// let mut a = Connection::new(small, large);
/// let mut b = Connection::new(large, small);
///
/// let [first, _] = a.write_spans(5);
/// assert_eq!((first.offset, first.len), (0, 5)); // copy five bytes there, then:
/// a.produced(5);
/// assert_eq!(b.handle_producer(a.producer_cursor()), Ok(5));
/// assert_eq!(b.readable(), 5);
/// ```
#[derive(Debug, Clone)]
pub struct Connection {
    send: SendWindow,
    receive: ReceiveWindow,
    closing: Closing,
    own_flags: ProducerFlags,
    peer_flags: ProducerFlags,
    counters: Counters,
}

/// What a message of the peer has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Received {
    /// Bytes that have become readable.
    pub readable: u32,
    /// Bytes that have become free in the peer's ring.
    pub freed: u32,
    /// Whether a flag has changed.
    pub flags: bool,
}

/// Getters.
impl Connection {
    /// A fresh connection: all cursors at the start. `rmb` is the own ring, which the peer writes; `peer_rmb` is the
    /// peer's.
    pub fn new(rmb: RingSize, peer_rmb: RingSize) -> Self {
        Self {
            send: SendWindow::new(peer_rmb),
            receive: ReceiveWindow::new(rmb),
            closing: Closing::new(),
            own_flags: ProducerFlags::empty(),
            peer_flags: ProducerFlags::empty(),
            counters: Counters::default(),
        }
    }

    /// Bytes that lie in the own ring, received and not yet consumed.
    #[inline]
    pub fn readable(&self) -> u32 {
        self.receive.readable()
    }

    /// Bytes that may be written into the peer's ring now. 0 when [`can_send`](Self::can_send) is false.
    #[inline]
    pub fn writable(&self) -> u32 {
        if self.can_send() {
            self.send.writable()
        } else {
            0
        }
    }

    /// Bytes written that the peer has not yet released.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.send.in_flight()
    }

    /// The place behind the last byte written, in the own stream.
    #[inline]
    pub fn position(&self) -> Position {
        self.send.produced()
    }

    /// Whether data may still be sent: not after our own end, and not once the peer's application has closed.
    #[inline]
    pub fn can_send(&self) -> bool {
        self.closing.can_send()
    }

    /// The close state.
    #[inline]
    pub fn state(&self) -> State {
        self.closing.state()
    }

    /// Whether the peer has declared an end of any kind (done, closed or abort). What it wrote before can be read.
    #[inline]
    pub fn peer_done(&self) -> bool {
        self.closing.peer_done()
    }

    /// Whether the peer's application has closed in good order.
    #[inline]
    pub fn peer_closed(&self) -> bool {
        self.closing.seen().contains(StateFlags::CLOSED)
    }

    /// Whether the peer's application has closed with data unread or lost: readers and writers get a reset.
    #[inline]
    pub fn peer_aborted(&self) -> bool {
        self.closing.seen().contains(StateFlags::ABNORMAL_CLOSE)
    }

    /// Whether the peer's application has closed, in good order or not: nothing more is expected of it.
    #[inline]
    pub fn peer_ended(&self) -> bool {
        self.peer_closed() || self.peer_aborted()
    }

    /// Whether the peer's stream has no good end: the peer has aborted, or the link was lost before any end of the
    /// peer. Readers get a reset; after a lost link, behind the data that is still there.
    #[inline]
    pub fn is_reset(&self) -> bool {
        self.peer_aborted() || (self.state() == State::PeerAbortWait && !self.peer_done())
    }

    /// Whether the stream of the peer has ended in good order and everything was read.
    #[inline]
    pub fn at_eof(&self) -> bool {
        self.peer_done() && self.readable() == 0 && !self.peer_aborted()
    }

    /// Bytes consumed that were not yet announced to the peer.
    #[inline]
    pub fn released(&self) -> u32 {
        self.receive.released()
    }

    /// Whether the peer wants to write more than it has room for, as far as it has told.
    #[inline]
    pub fn peer_write_blocked(&self) -> bool {
        self.peer_flags.contains(ProducerFlags::WRITE_BLOCKED)
    }

    /// Whether bytes can be read of which the peer has asked to hear at once that they were: it may send nothing more before.
    /// So nobody may wait for others behind them.
    #[inline]
    pub fn peer_awaits_reader(&self) -> bool {
        self.peer_flags.intersects(UPDATE_WANTED) && self.readable() > 0
    }

    /// The own flags as they have to be known to the peer.
    #[inline]
    pub fn flags(&self) -> (ProducerFlags, StateFlags) {
        (self.own_flags, self.closing.sent())
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        Stats {
            bytes_sent: self.send.produced().get(),
            bytes_acknowledged: self.send.acknowledged().get(),
            bytes_received: self.receive.received().get(),
            bytes_read: self.receive.consumed().get(),
            writes: self.counters.writes,
            reads: self.counters.reads,
            updates: self.counters.updates,
            write_blocks: self.counters.write_blocks,
        }
    }
}

/// What comes in.
impl Connection {
    /// Takes in the peer's producer cursor. Returns the number of bytes that have become readable.
    ///
    /// # Errors
    /// The cursor is outside the ring, goes backwards, goes beyond the space that was announced to the peer, or moves
    /// after the peer has declared its end.
    #[inline]
    pub fn handle_producer(&mut self, cursor: Cursor) -> Result<u32, PeerMisbehaved> {
        let new = self
            .receive
            .new_bytes(cursor)
            .map_err(|error| bad_cursor("producer cursor", error))?;
        if new > 0 {
            if self.peer_done() {
                return Err(PeerMisbehaved {
                    field: "producer cursor",
                    fault: Fault::AfterEnd,
                });
            }
            self.receive.receive(new);
        }
        Ok(new)
    }

    /// Takes in the peer's consumer cursor. Returns the number of bytes that have become free in the peer's ring.
    ///
    /// # Errors
    /// The cursor is outside the ring, goes backwards, or releases more than was written.
    #[inline]
    pub fn handle_consumer(&mut self, cursor: Cursor) -> Result<u32, PeerMisbehaved> {
        self.send
            .handle_consumer(cursor)
            .map_err(|error| bad_cursor("consumer cursor", error))
    }

    /// Takes in the peer's flags. They are levels: repeating them has no effect. Returns whether any has changed.
    ///
    /// # Errors
    /// A state flag has gone back.
    #[inline]
    pub fn handle_flags(
        &mut self,
        producer: ProducerFlags,
        state: StateFlags,
    ) -> Result<bool, PeerMisbehaved> {
        let changed = self.closing.handle(state)?;
        let changed = changed || producer != self.peer_flags;
        self.peer_flags = producer;
        Ok(changed)
    }

    /// Takes in a whole message, all of it or, on an error, nothing.
    ///
    /// # Errors
    /// Those of the other `handle_*`; the first fault is reported.
    pub fn handle_cdc(&mut self, cdc: &Cdc) -> Result<Received, PeerMisbehaved> {
        let mut next = self.clone();
        let received = Received {
            readable: next.handle_producer(cdc.producer)?,
            freed: next.handle_consumer(cdc.consumer)?,
            flags: next.handle_flags(cdc.producer_flags, cdc.state_flags)?,
        };
        *self = next;
        Ok(received)
    }

    /// The link or the peer's process is gone: nothing can be published any more, and nothing will come.
    ///
    /// What was received can be read, and an end that the peer had declared before stays what it was: a peer that
    /// closed and went away is no failure.
    pub fn handle_link_lost(&mut self) {
        self.closing.link_lost();
    }
}

/// Commands.
impl Connection {
    /// Where the next bytes go in the peer's ring: as many of `n` as are writable, in one part or two.
    #[inline]
    pub fn write_spans(&self, n: u32) -> [Span; 2] {
        self.send.spans(n.min(self.writable()))
    }

    /// `n` bytes lie in the peer's ring, at the place that [`write_spans`](Self::write_spans) gave.
    ///
    /// # Panics
    /// If so many bytes were not free.
    #[inline]
    pub fn produced(&mut self, n: u32) {
        self.send.produce(n);
        self.counters.writes += 1;
    }

    /// Where the next bytes lie in the own ring: as many of `n` as are readable, in one part or two.
    #[inline]
    pub fn read_spans(&self, n: u32) -> [Span; 2] {
        self.receive.spans(n.min(self.readable()))
    }

    /// `n` bytes have been copied out of the place that [`read_spans`](Self::read_spans) gave.
    ///
    /// # Panics
    /// If so many bytes were not readable.
    #[inline]
    pub fn consumed(&mut self, n: u32) {
        self.receive.consume(n);
        self.counters.reads += 1;
    }

    /// Says whether there is more to write than the peer has room for. A peer that is not told may wait until half of
    /// its ring is free before it announces any of it, so a writer that is stuck must say so.
    #[inline]
    pub fn set_write_blocked(&mut self, blocked: bool) {
        let was = self.own_flags.contains(ProducerFlags::WRITE_BLOCKED);
        self.own_flags.set(ProducerFlags::WRITE_BLOCKED, blocked);
        self.counters.write_blocks += u64::from(blocked && !was);
    }

    /// Ends the own direction; reading goes on. To be called when everything to be sent was produced.
    pub fn shutdown_write(&mut self) {
        self.closing.shutdown_write();
    }

    /// The application closes. The peer sees *closed*, or *abort* if there is data that nobody will read now. To be
    /// called when everything to be sent was produced.
    pub fn close(&mut self) {
        let unread = self.readable() > 0;
        self.closing.close(if unread {
            StateFlags::ABNORMAL_CLOSE
        } else {
            StateFlags::CLOSED
        });
    }

    /// The application closes and does not care for what was not yet sent or read. After [`close`](Self::close) it has
    /// no effect.
    pub fn abort(&mut self) {
        self.closing.close(StateFlags::ABNORMAL_CLOSE);
    }
}

/// What goes out.
impl Connection {
    /// The own producer cursor, in the peer's ring.
    #[inline]
    pub fn producer_cursor(&self) -> Cursor {
        self.send.cursor()
    }

    /// How far the own ring was read, whether or not the peer knows.
    #[inline]
    pub fn consumer_cursor(&self) -> Cursor {
        self.receive.cursor()
    }

    /// Whether what was consumed deserves a message of its own.
    ///
    /// The rule of kernel 6.12, which its peers are used to: more than max(size / 10, 2304) bytes since the last
    /// announcement, and a peer that is blocked or knows of at most half of the ring as free. Also when the peer asks
    /// for every movement, and when it is blocked by a ring that is empty now.
    #[inline]
    pub fn update_due(&self) -> bool {
        self.receive.update_due(self.peer_write_blocked())
            || (self.peer_flags.intersects(UPDATE_WANTED) && self.receive.released() > 0)
    }

    /// The own consumer cursor and flags, to be published now: from here on the peer counts as knowing them.
    #[inline]
    pub fn take_consumer(&mut self) -> (Cursor, ProducerFlags, StateFlags) {
        self.counters.updates += u64::from(self.receive.released() > 0);
        (self.receive.announce(), self.own_flags, self.closing.sent())
    }
}

#[cold]
fn bad_cursor(field: &'static str, error: CursorError) -> PeerMisbehaved {
    PeerMisbehaved {
        field,
        fault: error.into(),
    }
}

#[cfg(test)]
mod tests;
