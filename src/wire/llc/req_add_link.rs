//! REQ_ADD_LINK: a client of version 2 that has further devices asks for an ADD_LINK (Linux 6.12).
//!
//! ```text
//! 4  reserved (20)    24  GID count    25  reserved (3)    28  GIDs of 16 bytes
//! ```
//!
//! The server starts an ADD_LINK, or answers that it cannot: 44 bytes without any GIDs.

use super::header::{self, Header, Kind, Turn};
use crate::wire::InvalidMessage;
use crate::wire::clc::{Few, Gid, Version};
use crate::wire::prim::Reader;

const GIDS_AT: usize = 28;

/// A REQ_ADD_LINK.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReqAddLink {
    /// The GIDs that the client can use for links, that of the present one among them.
    Request(Few<Gid, 255>),
    /// The server cannot add a link.
    Response,
}

impl ReqAddLink {
    /// Whether the message asks or answers.
    #[must_use]
    pub const fn turn(&self) -> Turn {
        match self {
            Self::Request(_) => Turn::Request,
            Self::Response => Turn::Response,
        }
    }

    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = header::begin_v2(Kind::ReqAddLink, self.turn().flags());
        if let Self::Request(gids) = self {
            writer.zeros(20);
            writer.u8(gids.count());
            writer.zeros(3);
            gids.iter().for_each(|gid| writer.put(&gid.0));
        }
        header::end(writer, Version::V2)
    }

    pub(super) fn read(reader: &mut Reader<'_>, header: Header) -> Result<Self, InvalidMessage> {
        if header.turn() == Turn::Response {
            reader.expect_length(header::LEN)?;
            return Ok(Self::Response);
        }
        reader.reserved::<20>()?;
        let count = reader.u8("GID count")?;
        reader.reserved::<3>()?;
        let end = GIDS_AT + 16 * usize::from(count);
        reader.expect_length(end.max(header::LEN))?;
        let gid = |reader: &mut Reader<'_>| reader.take("GID").map(Gid);
        Few::read(reader, "GID count", count, gid).map(Self::Request)
    }
}
