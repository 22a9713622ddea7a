//! The form of SMC-D: 32 bytes in host byte order that one end stores into memory of the other (kernel 6.12,
//! `struct smcd_cdc_msg`). Each half is 8 bytes, so that a peer can see it change in one atomic store:
//!
//! ```text
//!  0  type 0xfe     1  reserved (7)
//!  8  producer half: wrap u16, count u32, producer flags u8, state flags u8
//! 16  consumer half: the same
//! 24  reserved (8)
//! ```
//!
//! Both halves have room for flags; the kernel writes and evaluates those of the consumer half only, and so do we.

use super::{Cdc, Cursor, ProducerFlags, StateFlags};
use crate::wire::InvalidMessage;
use crate::wire::prim::{Reader, Writer};

/// One half of an SMC-D CDC: a cursor and room for flags, 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Half {
    /// The producer or the consumer.
    pub cursor: Cursor,
    /// Meaningful in the consumer half.
    pub producer_flags: ProducerFlags,
    /// Meaningful in the consumer half.
    pub state_flags: StateFlags,
}

impl Half {
    /// A half without flags.
    #[inline]
    #[must_use]
    pub const fn new(cursor: Cursor) -> Self {
        Self {
            cursor,
            producer_flags: ProducerFlags::empty(),
            state_flags: StateFlags::empty(),
        }
    }

    /// The half as the integer whose store in host byte order puts its 8 bytes into memory.
    #[inline]
    #[must_use]
    pub const fn to_word(self) -> u64 {
        let [w0, w1] = self.cursor.wrap.to_ne_bytes();
        let [c0, c1, c2, c3] = self.cursor.count.to_ne_bytes();
        u64::from_ne_bytes([
            w0,
            w1,
            c0,
            c1,
            c2,
            c3,
            self.producer_flags.bits(),
            self.state_flags.bits(),
        ])
    }

    /// The half from the integer that a load in host byte order gave. Every integer is a half.
    #[inline]
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        let [w0, w1, c0, c1, c2, c3, producer, state] = word.to_ne_bytes();
        Self {
            cursor: Cursor {
                wrap: u16::from_ne_bytes([w0, w1]),
                count: u32::from_ne_bytes([c0, c1, c2, c3]),
            },
            producer_flags: ProducerFlags::from_bits_retain(producer),
            state_flags: StateFlags::from_bits_retain(state),
        }
    }
}

/// The encoding of SMC-D.
impl Cdc {
    /// Bytes of the form of SMC-D.
    pub const LEN: usize = 32;
    /// The type in byte 0, of both forms.
    pub const TYPE: u8 = 0xfe;
    /// Where the producer half starts.
    pub const PRODUCER_AT: usize = 8;
    /// Where the consumer half starts.
    pub const CONSUMER_AT: usize = 16;

    const NAME: &'static str = "SMC-D CDC";

    /// The CDC whose halves were loaded as two integers. Flags in the producer half are ignored.
    #[inline]
    #[must_use]
    pub const fn from_words(producer: u64, consumer: u64) -> Self {
        let consumer = Half::from_word(consumer);
        Self {
            producer: Half::from_word(producer).cursor,
            consumer: consumer.cursor,
            producer_flags: consumer.producer_flags,
            state_flags: consumer.state_flags,
        }
    }

    /// The integer to store at [`Self::PRODUCER_AT`]; its flags are zero.
    #[inline]
    #[must_use]
    pub const fn producer_word(&self) -> u64 {
        Half::new(self.producer).to_word()
    }

    /// The integer to store at [`Self::CONSUMER_AT`].
    #[inline]
    #[must_use]
    pub const fn consumer_word(&self) -> u64 {
        let Self {
            consumer: cursor,
            producer_flags,
            state_flags,
            ..
        } = *self;
        Half {
            cursor,
            producer_flags,
            state_flags,
        }
        .to_word()
    }

    /// The CDC in 32 bytes of host byte order.
    ///
    /// # Errors
    /// [`InvalidMessage`] when there are not 32 bytes or the type is not 0xfe.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidMessage> {
        let mut reader = Reader::new(Self::NAME, bytes);
        reader.expect_length(Self::LEN)?;
        let kind = reader.u8("type")?;
        reader.expect("type", kind.into(), Self::TYPE.into())?;
        reader.reserved::<7>()?;
        let producer = reader.take("producer").map(u64::from_ne_bytes)?;
        let consumer = reader.take("consumer").map(u64::from_ne_bytes)?;
        Ok(Self::from_words(producer, consumer))
    }

    /// The 32 bytes of the message, in host byte order.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(Self::LEN);
        writer.u8(Self::TYPE);
        writer.zeros(7);
        writer.put(&self.producer_word().to_ne_bytes());
        writer.put(&self.consumer_word().to_ne_bytes());
        writer.zeros(8);
        writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Cdc {
        Cdc {
            producer: Cursor {
                wrap: 0x0102,
                count: 0x0304_0506,
            },
            consumer: Cursor {
                wrap: 0x1112,
                count: 0x1314_1516,
            },
            producer_flags: ProducerFlags::WRITE_BLOCKED | ProducerFlags::from_bits_retain(0x01),
            state_flags: StateFlags::SENDING_DONE | StateFlags::CLOSED,
        }
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn the_bytes_stand_where_the_kernel_puts_them() {
        let mut expected = vec![0xfe, 0, 0, 0, 0, 0, 0, 0];
        expected.extend([0x02, 0x01, 0x06, 0x05, 0x04, 0x03, 0, 0]);
        expected.extend([0x12, 0x11, 0x16, 0x15, 0x14, 0x13, 0x81, 0xc0]);
        expected.extend([0; 8]);
        assert_eq!(example().encode(), expected);
        assert_eq!(Cdc::decode(&expected), Ok(example()));
    }

    #[test]
    fn a_word_is_the_eight_bytes_of_a_half() {
        let bytes = example().encode();
        assert_eq!(
            bytes[Cdc::PRODUCER_AT..][..8],
            example().producer_word().to_ne_bytes()
        );
        assert_eq!(
            bytes[Cdc::CONSUMER_AT..][..8],
            example().consumer_word().to_ne_bytes()
        );
        assert_eq!(
            Cdc::from_words(example().producer_word(), example().consumer_word()),
            example()
        );
    }

    #[test]
    fn flags_of_the_producer_half_and_reserved_bytes_are_ignored() {
        let mut bytes = example().encode();
        bytes[1..8].fill(0xff);
        bytes[14..16].fill(0xff);
        bytes[24..].fill(0xff);
        assert_eq!(Cdc::decode(&bytes), Ok(example()));
    }

    #[test]
    fn unknown_flag_bits_survive() {
        assert_eq!(example().producer_flags.bits(), 0x81);
        let half = Half::from_word(u64::MAX);
        assert_eq!(
            (half.producer_flags.bits(), half.state_flags.bits()),
            (0xff, 0xff)
        );
        assert_eq!(half.to_word(), u64::MAX);
    }

    #[test]
    fn another_type_or_length_is_refused() {
        let mut bytes = example().encode();
        bytes[0] = 0;
        assert_eq!(
            Cdc::decode(&bytes).unwrap_err().to_string(),
            "SMC-D CDC: type: 0, expected 254"
        );
        bytes.push(0);
        assert_eq!(
            Cdc::decode(&bytes).unwrap_err().to_string(),
            "SMC-D CDC: length: 33, expected 32"
        );
    }
}
