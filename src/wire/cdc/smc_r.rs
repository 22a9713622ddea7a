//! The form of SMC-R: a message of 44 bytes that follows upon the data on the same queue pair (RFC 7609 A.4).
//!
//! ```text
//!  0  type 0xfe    1  length 44    2  sequence number u16    4  alert token u32
//!  8  reserved (2)    10  producer wrap u16    12  producer count u32
//! 16  reserved (2)    18  consumer wrap u16    20  consumer count u32
//! 24  producer flags    25  state flags    26  reserved (18)
//! ```

use std::num::NonZeroU32;

use super::{Cdc, Cursor, ProducerFlags, Sequence, StateFlags};
use crate::wire::prim::Reader;
use crate::wire::{Fault, InvalidMessage};

/// A CDC on a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RdmaCdc {
    /// Its number in its connection and direction.
    pub sequence: Sequence,
    /// The connection, by the token that the receiver chose in CLC. No connection has the token 0.
    pub token: NonZeroU32,
    /// The news. That of a validation is nothing: see [`Self::is_failover_validation`].
    pub cdc: Cdc,
}

impl RdmaCdc {
    /// Bytes of the message.
    pub const LEN: usize = 44;

    pub(in crate::wire) const NAME: &'static str = "SMC-R CDC";

    /// What the sender says first on another link after a failover: the number that it recorded with its last completed
    /// send. Cursors and state flags are zero, and mean nothing (Linux 6.12; RFC 7609 4.6).
    #[must_use]
    pub const fn failover_validation(sequence: Sequence, token: NonZeroU32) -> Self {
        let nowhere = Cursor { wrap: 0, count: 0 };
        Self {
            sequence,
            token,
            cdc: Cdc {
                producer: nowhere,
                consumer: nowhere,
                producer_flags: ProducerFlags::FAILOVER_VALIDATION,
                state_flags: StateFlags::empty(),
            },
        }
    }

    /// Whether this only asks if the receiver has got everything up to [`Self::sequence`]. Its cursors and other flags
    /// are no news.
    #[must_use]
    pub const fn is_failover_validation(&self) -> bool {
        let flags = self.cdc.producer_flags;
        flags.contains(ProducerFlags::FAILOVER_VALIDATION)
    }

    /// The CDC in 44 bytes.
    ///
    /// # Errors
    /// [`InvalidMessage`] when there are not 44 bytes, type or length say otherwise, or the token is 0.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidMessage> {
        Self::read(&mut Reader::new(Self::NAME, bytes))
    }

    pub(in crate::wire) fn read(reader: &mut Reader<'_>) -> Result<Self, InvalidMessage> {
        reader.rename(Self::NAME);
        reader.expect_length(Self::LEN)?;
        let kind = reader.u8("type")?;
        reader.expect("type", kind.into(), Cdc::TYPE.into())?;
        let length = reader.u8("length")?;
        reader.expect("length", length.into(), Self::LEN as u64)?;
        let sequence = Sequence(reader.be16("sequence number")?);
        let token = reader.be32("alert token")?;
        let zero = Fault::Illegal("must not be zero");
        let token = NonZeroU32::new(token).ok_or_else(|| reader.error("alert token", zero))?;
        let cdc = Cdc {
            producer: cursor(reader, ["producer wrap", "producer count"])?,
            consumer: cursor(reader, ["consumer wrap", "consumer count"])?,
            producer_flags: ProducerFlags::from_bits_retain(reader.u8("producer flags")?),
            state_flags: StateFlags::from_bits_retain(reader.u8("state flags")?),
        };
        reader.reserved::<18>()?;
        Ok(Self {
            sequence,
            token,
            cdc,
        })
    }

    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = Cdc::TYPE;
        bytes[1] = Self::LEN as u8;
        bytes[2..4].copy_from_slice(&self.sequence.0.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.token.get().to_be_bytes());
        for (at, cursor) in [(10, self.cdc.producer), (18, self.cdc.consumer)] {
            bytes[at..at + 2].copy_from_slice(&cursor.wrap.to_be_bytes());
            bytes[at + 2..at + 6].copy_from_slice(&cursor.count.to_be_bytes());
        }
        bytes[24] = self.cdc.producer_flags.bits();
        bytes[25] = self.cdc.state_flags.bits();
        bytes
    }
}

fn cursor(
    reader: &mut Reader<'_>,
    [wrap, count]: [&'static str; 2],
) -> Result<Cursor, InvalidMessage> {
    reader.reserved::<2>()?;
    Ok(Cursor {
        wrap: reader.be16(wrap)?,
        count: reader.be32(count)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> RdmaCdc {
        RdmaCdc {
            sequence: Sequence(0x0102),
            token: NonZeroU32::new(0x0304_0506).unwrap(),
            cdc: Cdc {
                producer: Cursor {
                    wrap: 0x0708,
                    count: 0x090a_0b0c,
                },
                consumer: Cursor {
                    wrap: 0x1718,
                    count: 0x191a_1b1c,
                },
                producer_flags: ProducerFlags::WRITE_BLOCKED | ProducerFlags::from_bits_retain(1),
                state_flags: StateFlags::SENDING_DONE | StateFlags::CLOSED,
            },
        }
    }

    #[test]
    fn the_bytes_stand_where_rfc_7609_puts_them() {
        let mut expected = vec![0xfe, 44, 1, 2, 3, 4, 5, 6, 0, 0, 7, 8, 9, 10, 11, 12];
        expected.extend([0, 0, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x81, 0xc0]);
        expected.extend([0; 18]);
        assert_eq!(example().encode()[..], expected);
        assert_eq!(RdmaCdc::decode(&expected), Ok(example()));
    }

    #[test]
    fn reserved_bytes_are_ignored() {
        let mut bytes = example().encode();
        bytes[8..10].fill(0xff);
        bytes[16..18].fill(0xff);
        bytes[26..].fill(0xff);
        assert_eq!(RdmaCdc::decode(&bytes), Ok(example()));
    }

    #[test]
    fn a_validation_has_a_number_and_a_token_and_nothing_else() {
        let validation = RdmaCdc::failover_validation(Sequence(2), example().token);
        assert!(validation.is_failover_validation());
        assert!(!example().is_failover_validation());
        let mut expected = [0; 44];
        expected[..8].copy_from_slice(&[0xfe, 44, 0, 2, 3, 4, 5, 6]);
        expected[24] = 0x08;
        assert_eq!(validation.encode(), expected);
    }
}
