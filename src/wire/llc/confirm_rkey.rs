//! CONFIRM_RKEY: the keys of a receive buffer, for each link (RFC 7609 A.3.5). The response repeats them.
//!
//! ```text
//!  3  flags: response: 0x20 refused, 0x10 try again
//!  4  number of keys for other links    5  key of this link (12)
//! 17  keys of other links, 13 bytes each (2)    43  reserved
//! ```

use super::batch::Batch;
use super::header::{self, Header, Kind, Turn};
use super::key::{Key, KeyOnLink};
use crate::wire::InvalidMessage;
use crate::wire::clc::{Few, Version};
use crate::wire::prim::Reader;

/// The question, or the answer with its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyTurn {
    /// Here are keys.
    Request,
    /// They are known now.
    Confirmed,
    /// They are not.
    Refused {
        /// They may be offered again later. The kernel sets this whenever it refuses.
        retry: bool,
    },
}

impl KeyTurn {
    const REFUSED: u8 = 0x20;
    const RETRY: u8 = 0x10;

    /// Whether it is the question or the answer.
    #[must_use]
    pub const fn turn(self) -> Turn {
        match self {
            Self::Request => Turn::Request,
            Self::Confirmed | Self::Refused { .. } => Turn::Response,
        }
    }

    pub(super) const fn of(header: Header) -> Self {
        match header.turn() {
            Turn::Request => Self::Request,
            Turn::Response if header.has(Self::REFUSED) => Self::Refused {
                retry: header.has(Self::RETRY),
            },
            Turn::Response => Self::Confirmed,
        }
    }

    pub(super) const fn flags(self) -> u8 {
        let result = match self {
            Self::Request | Self::Confirmed => 0,
            Self::Refused { retry: false } => Self::REFUSED,
            Self::Refused { retry: true } => Self::REFUSED | Self::RETRY,
        };
        self.turn().flags() | result
    }
}

/// The keys for the other links of the group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum OtherKeys {
    /// Version 1: those that do not fit follow in a CONFIRM_RKEY_CONT.
    V1(Batch<KeyOnLink, 2>),
    /// Version 2, whose groups have no more links.
    V2(Few<KeyOnLink, 2>),
}

/// A CONFIRM_RKEY.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConfirmRkey {
    /// The question, or the answer with its result.
    pub turn: KeyTurn,
    /// The key for the link that the message travels on.
    pub key: Key,
    /// The keys for the others.
    pub others: OtherKeys,
}

impl ConfirmRkey {
    /// The version of the message.
    #[must_use]
    pub const fn version(&self) -> Version {
        match self.others {
            OtherKeys::V1(_) => Version::V1,
            OtherKeys::V2(_) => Version::V2,
        }
    }

    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = header::begin(Kind::ConfirmRkey, self.version(), self.turn.flags());
        let (count, others) = match &self.others {
            OtherKeys::V1(batch) => (batch.count(), &batch[..]),
            OtherKeys::V2(few) => (few.count(), &few[..]),
        };
        writer.u8(count);
        self.key.write(&mut writer);
        others.iter().for_each(|key| key.write(&mut writer));
        header::end(writer, self.version())
    }

    pub(super) fn read(reader: &mut Reader<'_>, header: Header) -> Result<Self, InvalidMessage> {
        let field = "count of other rkeys";
        let count = reader.u8(field)?;
        let key = Key::read(reader)?;
        let others = match header.version {
            Version::V1 => OtherKeys::V1(Batch::read(reader, count, KeyOnLink::read)?),
            Version::V2 => OtherKeys::V2(Few::read(reader, field, count, KeyOnLink::read)?),
        };
        Ok(Self {
            turn: KeyTurn::of(header),
            key,
            others,
        })
    }
}
