//! DELETE_RKEY: these buffers are not to be written any more (RFC 7609 A.3.7).
//!
//! ```text
//! 3  flags: response: 0x20 some are unknown    4  count
//! 5  response: version 1: bit 7 - i stands for key i; version 2: number of unknown keys
//! 6  reserved (2)    8  keys of 4 bytes; up to 8 in version 1, in version 2 as many as the count says
//! ```
//!
//! Keys are those of the link that the message travels on. A response of version 1 repeats them; Linux clears them in
//! one of version 2, where they mean nothing.

use super::header::{self, Header, Kind, Turn};
use crate::wire::InvalidMessage;
use crate::wire::clc::{Few, Version};
use crate::wire::prim::Reader;

const REFUSED: u8 = 0x20;
const KEYS_AT: usize = 8;

/// A DELETE_RKEY.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DeleteRkey {
    /// Forget these keys, version 1.
    RequestV1(Few<u32, 8>),
    /// Forget these keys, version 2. Linux sends one at a time and reads up to 255.
    RequestV2(Few<u32, 255>),
    /// The answer of version 1.
    ResponseV1 {
        /// The keys of the request.
        keys: Few<u32, 8>,
        /// What came of it.
        result: DeletedV1,
    },
    /// The answer of version 2.
    ResponseV2 {
        /// The count of the request.
        count: u8,
        /// What came of it.
        result: DeletedV2,
    },
}

/// What a response of version 1 says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeletedV1 {
    /// All are forgotten.
    All,
    /// Some were not known: bit 7 stands for the first key, bit 0 for the eighth.
    Unknown(u8),
}

/// What a response of version 2 says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeletedV2 {
    /// All are forgotten.
    All,
    /// So many were not known.
    Unknown(u8),
}

impl DeleteRkey {
    /// The version of the message.
    #[must_use]
    pub const fn version(&self) -> Version {
        match self {
            Self::RequestV1(_) | Self::ResponseV1 { .. } => Version::V1,
            Self::RequestV2(_) | Self::ResponseV2 { .. } => Version::V2,
        }
    }

    /// Whether the message asks or answers.
    #[must_use]
    pub const fn turn(&self) -> Turn {
        match self {
            Self::RequestV1(_) | Self::RequestV2(_) => Turn::Request,
            Self::ResponseV1 { .. } | Self::ResponseV2 { .. } => Turn::Response,
        }
    }

    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (count, unknown, keys) = match self {
            Self::RequestV1(keys) => (keys.count(), None, &keys[..]),
            Self::RequestV2(keys) => (keys.count(), None, &keys[..]),
            Self::ResponseV1 { keys, result } => (keys.count(), result.unknown(), &keys[..]),
            Self::ResponseV2 { count, result } => (*count, result.unknown(), &[][..]),
        };
        let refused = if unknown.is_some() { REFUSED } else { 0 };
        let flags = self.turn().flags() | refused;
        let mut writer = header::begin(Kind::DeleteRkey, self.version(), flags);
        writer.put(&[count, unknown.unwrap_or(0), 0, 0]);
        keys.iter().for_each(|key| writer.be32(*key));
        header::end(writer, self.version())
    }

    pub(super) fn read(reader: &mut Reader<'_>, header: Header) -> Result<Self, InvalidMessage> {
        let count = reader.u8("count")?;
        let unknown = reader.u8("unknown rkeys")?;
        let unknown = header.has(REFUSED).then_some(unknown);
        reader.reserved::<2>()?;
        match (header.version, header.turn()) {
            (Version::V1, Turn::Request) => keys(reader, count).map(Self::RequestV1),
            (Version::V1, Turn::Response) => Ok(Self::ResponseV1 {
                keys: keys(reader, count)?,
                result: unknown.map_or(DeletedV1::All, DeletedV1::Unknown),
            }),
            (Version::V2, Turn::Request) => {
                let end = KEYS_AT + 4 * usize::from(count);
                reader.expect_length(end.max(header::LEN))?;
                keys(reader, count).map(Self::RequestV2)
            }
            (Version::V2, Turn::Response) => {
                reader.expect_length(header::LEN)?;
                let result = unknown.map_or(DeletedV2::All, DeletedV2::Unknown);
                Ok(Self::ResponseV2 { count, result })
            }
        }
    }
}

impl DeletedV1 {
    const fn unknown(self) -> Option<u8> {
        match self {
            Self::All => None,
            Self::Unknown(mask) => Some(mask),
        }
    }
}

impl DeletedV2 {
    const fn unknown(self) -> Option<u8> {
        match self {
            Self::All => None,
            Self::Unknown(number) => Some(number),
        }
    }
}

fn keys<const MAX: usize>(
    reader: &mut Reader<'_>,
    count: u8,
) -> Result<Few<u32, MAX>, InvalidMessage> {
    Few::read(reader, "count", count, |reader| reader.be32("rkey"))
}
