//! The two windows of a connection: what may be written into the peer's ring, and what may be read from the own one.
//!
//! ```text
//!             peer consumed        produced                               (send window, size of the peer's ring)
//!  ---------------|#################|...............|--->
//!                 |<-- in flight -->|<-- writable ->|
//!
//!      announced       consumed         received                          (receive window, size of the own ring)
//!  --------|--------------|################|......|--->
//!          |<- released ->|<-- readable -->|      |
//!          |<------------- size ----------------->|
//! ```

use crate::wire::cdc::Cursor;

use super::position::{CursorError, Position, RingSize, Span};

/// The least number of read bytes that is worth an announcement, in a small ring: kernel 6.12 on x86-64 uses the
/// same value (the truesize overhead of one socket buffer).
const UPDATE_MIN: u32 = 2304;

/// The writing side: our producer cursor in the peer's ring, and the peer's consumer cursor.
#[derive(Debug, Clone)]
pub(super) struct SendWindow {
    ring: RingSize,
    produced: Position,
    peer_consumed: Position,
}

impl SendWindow {
    pub(super) fn new(ring: RingSize) -> Self {
        Self {
            ring,
            produced: Position::default(),
            peer_consumed: Position::default(),
        }
    }

    /// Bytes written that the peer has not yet released.
    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        self.produced.since(self.peer_consumed) as u32
    }

    #[inline]
    pub(super) fn writable(&self) -> u32 {
        self.ring.bytes() - self.in_flight()
    }

    #[inline]
    pub(super) fn produced(&self) -> Position {
        self.produced
    }

    /// How far the peer has read, as far as it has told.
    pub(super) fn acknowledged(&self) -> Position {
        self.peer_consumed
    }

    #[inline]
    pub(super) fn cursor(&self) -> Cursor {
        self.ring.cursor(self.produced)
    }

    #[inline]
    pub(super) fn spans(&self, n: u32) -> [Span; 2] {
        self.ring.spans(self.produced, n)
    }

    /// Panics if `n` bytes were not free: they have overwritten data that the peer has not read.
    #[inline]
    pub(super) fn produce(&mut self, n: u32) {
        assert!(n <= self.writable(), "more bytes produced than were free");
        self.produced = self.produced.plus(u64::from(n));
    }

    /// The peer may release only what was written. Returns the bytes it has freed.
    #[inline]
    pub(super) fn handle_consumer(&mut self, cursor: Cursor) -> Result<u32, CursorError> {
        let freed = self
            .ring
            .advance(self.peer_consumed, cursor, u64::from(self.in_flight()))?;
        self.peer_consumed = self.peer_consumed.plus(freed);
        Ok(freed as u32)
    }
}

/// The reading side: the peer's producer cursor in our ring, and our consumer cursor, as it is and as the peer knows it.
#[derive(Debug, Clone)]
pub(super) struct ReceiveWindow {
    ring: RingSize,
    received: Position,
    consumed: Position,
    announced: Position,
    update_min: u32,
}

impl ReceiveWindow {
    pub(super) fn new(ring: RingSize) -> Self {
        let start = Position::default();
        let update_min = (ring.bytes() / 10).max(UPDATE_MIN);
        Self {
            ring,
            received: start,
            consumed: start,
            announced: start,
            update_min,
        }
    }

    #[inline]
    pub(super) fn readable(&self) -> u32 {
        self.received.since(self.consumed) as u32
    }

    #[inline]
    pub(super) fn received(&self) -> Position {
        self.received
    }

    #[inline]
    pub(super) fn consumed(&self) -> Position {
        self.consumed
    }

    #[inline]
    pub(super) fn spans(&self, n: u32) -> [Span; 2] {
        self.ring.spans(self.consumed, n)
    }

    /// Panics if `n` bytes were not readable.
    #[inline]
    pub(super) fn consume(&mut self, n: u32) {
        assert!(
            n <= self.readable(),
            "more bytes consumed than were readable"
        );
        self.consumed = self.consumed.plus(u64::from(n));
    }

    /// The free space that the peer knows of.
    #[inline]
    fn announced_free(&self) -> u32 {
        self.ring.bytes() - self.received.since(self.announced) as u32
    }

    /// How far `cursor` is beyond what was received. The peer may write only into space that was announced to it.
    #[inline]
    pub(super) fn new_bytes(&self, cursor: Cursor) -> Result<u32, CursorError> {
        let max = u64::from(self.announced_free());
        Ok(self.ring.advance(self.received, cursor, max)? as u32)
    }

    #[inline]
    pub(super) fn receive(&mut self, n: u32) {
        self.received = self.received.plus(u64::from(n));
    }

    /// Bytes released that the peer does not know of.
    #[inline]
    pub(super) fn released(&self) -> u32 {
        self.consumed.since(self.announced) as u32
    }

    /// Whether the released bytes deserve an announcement by themselves: a tenth of the ring, and a peer that could
    /// do with it; or, for a blocked peer, an empty ring, whatever its size.
    #[inline]
    pub(super) fn update_due(&self, peer_blocked: bool) -> bool {
        let released = self.released();
        if released > self.update_min {
            return peer_blocked || self.announced_free() <= self.ring.bytes() / 2;
        }
        released > 0 && peer_blocked && self.readable() == 0
    }

    #[inline]
    pub(super) fn cursor(&self) -> Cursor {
        self.ring.cursor(self.consumed)
    }

    /// The consumer cursor, taken note of as known to the peer.
    #[inline]
    pub(super) fn announce(&mut self) -> Cursor {
        self.announced = self.consumed;
        self.cursor()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::SizeCode;

    const SIZE: u32 = 16384;

    fn receiver(received: u32, consumed: u32) -> ReceiveWindow {
        let mut window = ReceiveWindow::new(RingSize::MIN);
        window.receive(received);
        window.consume(consumed);
        window
    }

    #[test]
    fn a_small_ring_uses_the_least_update() {
        // 16384 / 10 is below 2304.
        assert!(!receiver(SIZE, 2304).update_due(false));
        assert!(receiver(SIZE, 2305).update_due(false));
    }

    #[test]
    fn a_large_ring_uses_a_tenth() {
        let mut window = ReceiveWindow::new(RingSize::from_code(SizeCode::new(2).unwrap()));
        window.receive(65536);
        window.consume(6553);
        assert!(!window.update_due(false));
        window.consume(1);
        assert!(window.update_due(false));
    }

    #[test]
    fn a_peer_with_more_than_half_free_is_left_alone() {
        assert!(!receiver(SIZE / 2 - 1, SIZE / 2 - 1).update_due(false));
        assert!(receiver(SIZE / 2, SIZE / 2).update_due(false));
    }

    #[test]
    fn a_blocked_peer_hears_of_a_tenth_at_once() {
        assert!(receiver(4000, 2305).update_due(true));
        assert!(!receiver(4000, 2304).update_due(true));
    }

    #[test]
    fn a_blocked_peer_hears_of_an_empty_ring() {
        assert!(receiver(10, 10).update_due(true));
        assert!(!receiver(10, 9).update_due(true));
        assert!(!receiver(10, 10).update_due(false));
        assert!(!receiver(0, 0).update_due(true));
    }

    #[test]
    fn announced_bytes_are_not_announced_again() {
        let mut window = receiver(SIZE, 5000);
        assert_eq!(window.released(), 5000);
        assert_eq!(
            window.announce(),
            Cursor {
                wrap: 0,
                count: 5000
            }
        );
        assert_eq!(window.released(), 0);
        assert!(!window.update_due(true));
    }

    #[test]
    fn the_peer_may_use_only_announced_space() {
        let mut window = receiver(SIZE, 100);
        let one_more = Cursor { wrap: 1, count: 1 };
        assert_eq!(window.new_bytes(one_more), Err(CursorError::BeyondWindow));
        window.announce();
        assert_eq!(window.new_bytes(one_more), Ok(1));
    }

    #[test]
    #[should_panic(expected = "more bytes produced")]
    fn producing_over_unread_data_panics() {
        let mut window = SendWindow::new(RingSize::MIN);
        window.produce(SIZE);
        window.produce(1);
    }

    #[test]
    #[should_panic(expected = "more bytes consumed")]
    fn consuming_what_is_not_there_panics() {
        receiver(5, 6);
    }
}
