//! Positions in a byte stream, sizes of rings, and their two forms: absolute inside, wrapping on the wire.

use std::fmt;

use thiserror::Error;

use crate::wire::SizeCode;
use crate::wire::cdc::Cursor;

/// An absolute place in one direction of a stream: the number of bytes in front of it.
///
/// It never wraps: at 100 GB/s the 64 bits last five years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position(u64);

impl Position {
    /// The place behind the first `bytes` bytes of the stream.
    #[inline]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// How many bytes lie in front of this place.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The place `bytes` further on.
    #[inline]
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }

    /// How many bytes lie between `earlier` and this place.
    ///
    /// Panics if `earlier` is later (in builds with overflow checks, which the release profile keeps).
    #[inline]
    pub const fn since(self, earlier: Position) -> u64 {
        self.0 - earlier.0
    }
}

/// The size of a ring (an RMB element or a DMB): a power of two, 16 KiB to 512 MiB.
///
/// Every byte of a ring holds data; a full ring is told from an empty one by the wrap count (kernel 6.12 fills its
/// buffers completely too).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RingSize(u32);

/// A contiguous part of a ring, in bytes from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// First byte, counted from the start of the ring.
    pub offset: u32,
    /// Number of bytes; may be 0.
    pub len: u32,
}

/// What is wrong with a cursor that a peer sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CursorError {
    /// The count is not below the size of the ring.
    #[error("count outside the ring")]
    CountOutOfRange,
    /// The cursor lies behind the one received before.
    #[error("goes backwards")]
    Backwards,
    /// The cursor lies further on than the window allows.
    #[error("goes beyond the window")]
    BeyondWindow,
}

impl RingSize {
    /// The smallest ring: 16 KiB.
    pub const MIN: Self = Self::from_code(SizeCode::MIN);
    /// The largest ring: 512 MiB.
    pub const MAX: Self = Self::from_code(SizeCode::MAX);

    /// The size that a CLC Accept or Confirm names.
    #[inline]
    #[must_use]
    pub const fn from_code(code: SizeCode) -> Self {
        Self(code.bytes())
    }

    /// The size in bytes.
    #[inline]
    pub const fn bytes(self) -> u32 {
        self.0
    }

    /// The wire's form of `position`: 16 bits of wraps, and the bytes since the last one (RFC 7609, 4.7.4).
    #[inline]
    pub const fn cursor(self, position: Position) -> Cursor {
        Cursor {
            wrap: (position.0 >> self.shift()) as u16,
            count: self.offset(position),
        }
    }

    /// How far `cursor` lies beyond `from`, in bytes, if that is at most `max`.
    ///
    /// The wire's wrap count has 16 bits, so distances are taken modulo 65536 rings: what would be more than half of
    /// that ahead is counted as going backwards. Kernel 6.12 ignores a cursor that goes backwards and does not check
    /// the rest; here all three are errors, since memory behind an unchecked cursor is memory of somebody else.
    #[inline]
    pub fn advance(self, from: Position, cursor: Cursor, max: u64) -> Result<u64, CursorError> {
        let there = (u64::from(cursor.wrap) << self.shift()) | u64::from(cursor.count);
        let delta = there.wrapping_sub(from.0) & self.cycle_mask();
        if cursor.count < self.0 && delta <= max {
            Ok(delta)
        } else {
            Err(self.cursor_error(cursor, delta))
        }
    }

    /// The `n` bytes from `position` on, as one part of the ring or, at its end, two. The second is empty otherwise.
    ///
    /// `n` must not exceed the size of the ring.
    #[inline]
    pub fn spans(self, position: Position, n: u32) -> [Span; 2] {
        debug_assert!(n <= self.0, "{n} bytes do not fit into {self}");
        let offset = self.offset(position);
        let len = n.min(self.0 - offset);
        [
            Span { offset, len },
            Span {
                offset: 0,
                len: n - len,
            },
        ]
    }

    #[inline]
    const fn shift(self) -> u32 {
        self.0.trailing_zeros()
    }

    #[inline]
    const fn offset(self, position: Position) -> u32 {
        position.0 as u32 & (self.0 - 1)
    }

    /// Positions that differ by a multiple of 65536 rings have the same cursor.
    #[inline]
    const fn cycle_mask(self) -> u64 {
        (1 << (self.shift() + 16)) - 1
    }

    #[cold]
    fn cursor_error(self, cursor: Cursor, delta: u64) -> CursorError {
        if cursor.count >= self.0 {
            CursorError::CountOutOfRange
        } else if delta > self.cycle_mask() / 2 {
            CursorError::Backwards
        } else {
            CursorError::BeyondWindow
        }
    }
}

impl fmt::Display for RingSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1 << 20 {
            write!(f, "{} KiB", self.0 >> 10)
        } else {
            write!(f, "{} MiB", self.0 >> 20)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: RingSize = RingSize::MIN;
    const SIZE: u64 = 16384;

    fn cursor(wrap: u16, count: u32) -> Cursor {
        Cursor { wrap, count }
    }

    #[test]
    fn codes_are_sizes() {
        assert_eq!(RingSize::MIN.bytes(), 16384);
        assert_eq!(
            RingSize::from_code(SizeCode::new(2).unwrap()).bytes(),
            65536
        );
        assert_eq!(RingSize::MAX.bytes(), 512 << 20);
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!(RingSize::MIN.to_string(), "16 KiB");
        assert_eq!(
            RingSize::from_code(SizeCode::new(5).unwrap()).to_string(),
            "512 KiB"
        );
        assert_eq!(
            RingSize::from_code(SizeCode::new(6).unwrap()).to_string(),
            "1 MiB"
        );
    }

    #[test]
    fn a_full_ring_is_the_same_count_with_one_more_wrap() {
        assert_eq!(SMALL.cursor(Position::new(0)), cursor(0, 0));
        assert_eq!(SMALL.cursor(Position::new(SIZE)), cursor(1, 0));
        assert_eq!(SMALL.cursor(Position::new(5 + SIZE)), cursor(1, 5));
        assert_eq!(
            SMALL.advance(Position::new(0), cursor(1, 0), SIZE),
            Ok(SIZE)
        );
        assert_eq!(
            SMALL.advance(Position::new(5), cursor(1, 5), SIZE),
            Ok(SIZE)
        );
        assert_eq!(SMALL.advance(Position::new(5), cursor(0, 5), SIZE), Ok(0));
    }

    #[test]
    fn the_wrap_count_wraps_at_16_bits() {
        let before = Position::new(65536 * SIZE - 1);
        assert_eq!(SMALL.cursor(before), cursor(65535, 16383));
        assert_eq!(SMALL.cursor(before.plus(1)), cursor(0, 0));
        assert_eq!(SMALL.advance(before, cursor(0, 0), SIZE), Ok(1));
        assert_eq!(SMALL.advance(before, cursor(0, 16383), SIZE), Ok(SIZE));
        let after = before.plus(1);
        assert_eq!(
            SMALL.advance(after, cursor(65535, 16383), SIZE),
            Err(CursorError::Backwards)
        );
    }

    #[test]
    fn the_largest_ring_uses_all_45_bits() {
        let last = Position::new((1 << 45) - 1);
        assert_eq!(RingSize::MAX.cursor(last), cursor(65535, (512 << 20) - 1));
        assert_eq!(RingSize::MAX.advance(last, cursor(0, 0), 512 << 20), Ok(1));
    }

    #[test]
    fn a_bad_cursor_is_named() {
        let from = Position::new(3 * SIZE + 100);
        for (bad, error) in [
            (cursor(3, 16384), CursorError::CountOutOfRange),
            (cursor(3, u32::MAX), CursorError::CountOutOfRange),
            (cursor(3, 99), CursorError::Backwards),
            (cursor(2, 16383), CursorError::Backwards),
            (cursor(4, 101), CursorError::BeyondWindow),
            (cursor(5, 0), CursorError::BeyondWindow),
        ] {
            assert_eq!(SMALL.advance(from, bad, SIZE), Err(error), "{bad:?}");
        }
        assert_eq!(
            SMALL.advance(from, cursor(3, 151), 50),
            Err(CursorError::BeyondWindow)
        );
        assert_eq!(SMALL.advance(from, cursor(3, 150), 50), Ok(50));
    }

    #[test]
    fn backwards_starts_at_half_a_cycle() {
        let half = 32768;
        assert_eq!(
            SMALL.advance(Position::new(0), cursor(half - 1, 16383), 0),
            Err(CursorError::BeyondWindow)
        );
        assert_eq!(
            SMALL.advance(Position::new(0), cursor(half, 0), 0),
            Err(CursorError::Backwards)
        );
    }

    #[test]
    fn spans_split_at_the_end_of_the_ring() {
        let span = |offset, len| Span { offset, len };
        assert_eq!(
            SMALL.spans(Position::new(0), 16384),
            [span(0, 16384), span(0, 0)]
        );
        assert_eq!(
            SMALL.spans(Position::new(SIZE + 16000), 384),
            [span(16000, 384), span(0, 0)]
        );
        assert_eq!(
            SMALL.spans(Position::new(SIZE + 16000), 385),
            [span(16000, 384), span(0, 1)]
        );
        assert_eq!(
            SMALL.spans(Position::new(7), 16384),
            [span(7, 16377), span(0, 7)]
        );
        assert_eq!(SMALL.spans(Position::new(7), 0), [span(7, 0), span(0, 0)]);
    }
}
