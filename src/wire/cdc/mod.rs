//! CDC, connection data control: how far each end has written and read, and how the connection stands.
//!
//! What is said is the same everywhere and is the value [`Cdc`]. There are two forms to say it in: 32 bytes that one end
//! stores into memory of the other, for SMC-D ([`Cdc::encode`]), and a message of 44 bytes on a queue pair, for SMC-R,
//! which also says whose connection it is about ([`RdmaCdc`]).

mod sequence;
mod smc_d;
mod smc_r;

use bitflags::bitflags;

pub use sequence::Sequence;
pub use smc_d::Half;
pub use smc_r::RdmaCdc;

/// A position in a ring buffer as the wire counts it: an offset, and how often the ring has wrapped around.
///
/// Both start at zero. Adding n bytes adds to `count`; when `count` reaches the size of the ring, the size is
/// subtracted and `wrap` goes up by one, modulo 65536 (RFC 7609 4.4.1). Equal counts with different wraps are a full
/// ring. The codec accepts any pair; whether it is possible for a given ring is checked by [`crate::proto`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Cursor {
    /// Rounds completed, modulo 65536.
    pub wrap: u16,
    /// Bytes from the start of the ring.
    pub count: u32,
}

impl Cursor {
    /// Where the byte before this position stands in a ring of `size` bytes; `None` in a ring of none, and for a
    /// position that the ring does not have.
    #[must_use]
    pub const fn before(self, size: u32) -> Option<u32> {
        match self.count {
            0 => size.checked_sub(1),
            count if count < size => Some(count - 1),
            _ => None,
        }
    }
}

bitflags! {
    /// What the sender of the CDC asks of its reader, and urgent data. Unknown bits are retained.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
    pub struct ProducerFlags: u8 {
        /// The writer has data that does not fit: announce freed space at once.
        const WRITE_BLOCKED = 0x80;
        /// Urgent data is on its way: set from the moment its sending begins.
        const URGENT_PENDING = 0x40;
        /// The byte before the producer cursor is urgent; the kernel sends it together with the flag above.
        const URGENT_PRESENT = 0x20;
        /// Announce the consumer cursor.
        const CONSUMER_UPDATE_REQUESTED = 0x10;
        /// The CDC repeats a sequence number to validate a failover; it carries no cursors of its own.
        const FAILOVER_VALIDATION = 0x08;
        const _ = !0;
    }
}

bitflags! {
    /// How the sender of the CDC leaves the connection. Levels, not events: once set they stay. Unknown bits are
    /// retained.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
    pub struct StateFlags: u8 {
        /// Nothing more will be written.
        const SENDING_DONE = 0x80;
        /// Closed in both directions; all data had been read.
        const CLOSED = 0x40;
        /// Closed while data was unread, or aborted.
        const ABNORMAL_CLOSE = 0x20;
        const _ = !0;
    }
}

/// What a CDC says, in either form.
///
/// It says everything each time: flags are levels, and news that was overtaken by later news is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Cdc {
    /// How far the sender has written in the receiver's ring: the next free byte.
    pub producer: Cursor,
    /// How far the sender has read in its own ring.
    pub consumer: Cursor,
    /// Requests and urgent data.
    pub producer_flags: ProducerFlags,
    /// How the sender leaves the connection.
    pub state_flags: StateFlags,
}

impl Cdc {
    /// Where the urgent byte stands in the receiver's ring of `size` bytes: the one before the producer cursor
    /// (RFC 7609 A.4; Linux 6.12). `None` when none is announced, or the cursor is none of that ring.
    ///
    /// A flag is a level: whether the byte is a new one, the movement of the cursor tells.
    #[must_use]
    pub const fn urgent_at(&self, size: u32) -> Option<u32> {
        if self.producer_flags.contains(ProducerFlags::URGENT_PRESENT) {
            self.producer.before(size)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(count: u32, flags: ProducerFlags) -> Cdc {
        Cdc {
            producer: Cursor { wrap: 1, count },
            producer_flags: flags,
            ..Cdc::default()
        }
    }

    #[test]
    fn the_urgent_byte_stands_before_the_producer_cursor() {
        let urgent = ProducerFlags::URGENT_PRESENT;
        assert_eq!(at(12, urgent).urgent_at(16384), Some(11));
        assert_eq!(at(1, urgent).urgent_at(16384), Some(0));
        assert_eq!(at(0, urgent).urgent_at(16384), Some(16383));
        assert_eq!(at(16383, urgent).urgent_at(16384), Some(16382));
        assert_eq!(at(12, !urgent).urgent_at(16384), None);
    }

    #[test]
    fn a_cursor_of_no_such_ring_has_no_byte_before_it() {
        let urgent = ProducerFlags::URGENT_PRESENT;
        assert_eq!(at(16384, urgent).urgent_at(16384), None);
        assert_eq!(at(u32::MAX, urgent).urgent_at(16384), None);
        assert_eq!(at(0, urgent).urgent_at(0), None);
    }
}
