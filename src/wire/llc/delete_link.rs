//! DELETE_LINK: one link of the group is gone or shall go, or all of them (RFC 7609 A.3.4).
//!
//! ```text
//! 3  flags: 0x40 all links, 0x20 orderly    4  link number, 0 with "all"    5  reason u32    9  reserved (35)
//! ```

use std::num::NonZeroU8;

use super::confirm_link::link_number;
use super::header::{self, Header, Kind, Turn};
use crate::wire::InvalidMessage;
use crate::wire::clc::Version;
use crate::wire::prim::Reader;

const ALL: u8 = 0x40;
const ORDERLY: u8 = 0x20;

/// What a DELETE_LINK is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Doomed {
    /// This link.
    Link(NonZeroU8),
    /// The group. Both ends ask for that, and neither answers: see Linux 6.12.
    All,
}

/// Why, or in a response what came of it. Unknown codes are retained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeleteReason(pub u32);

impl DeleteReason {
    /// Response: done.
    pub const DONE: Self = Self(0);
    /// The path is lost.
    pub const LOST_PATH: Self = Self(0x0001_0000);
    /// The operator ended it: shut-down, removal of the device.
    pub const OPERATOR: Self = Self(0x0002_0000);
    /// The program ended it: the group was idle for too long. Linux's reason for want of another.
    pub const PROGRAM: Self = Self(0x0003_0000);
    /// The peer broke the protocol.
    pub const PROTOCOL_VIOLATION: Self = Self(0x0004_0000);
    /// An asymmetric link is not needed any more.
    pub const NO_ASYMMETRIC_NEEDED: Self = Self(0x0005_0000);
    /// Response: there is no such link.
    pub const UNKNOWN_LINK: Self = Self(0x0010_0000);
    /// Response: there is no such group. Linux does not send it.
    pub const UNKNOWN_GROUP: Self = Self(0x0020_0000);
}

/// A DELETE_LINK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeleteLink {
    /// The version of the link group.
    pub version: Version,
    /// A client that asks gets a request back, and answers that.
    pub turn: Turn,
    /// Which links.
    pub doomed: Doomed,
    /// Whether connections are to be moved away first.
    pub orderly: bool,
    /// Why.
    pub reason: DeleteReason,
}

impl DeleteLink {
    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let orderly = if self.orderly { ORDERLY } else { 0 };
        let (all, number) = match self.doomed {
            Doomed::Link(number) => (0, number.get()),
            Doomed::All => (ALL, 0),
        };
        let flags = self.turn.flags() | all | orderly;
        let mut writer = header::begin(Kind::DeleteLink, self.version, flags);
        writer.u8(number);
        writer.be32(self.reason.0);
        header::end(writer, self.version)
    }

    pub(super) fn read(reader: &mut Reader<'_>, header: Header) -> Result<Self, InvalidMessage> {
        let doomed = if header.has(ALL) {
            reader.u8("link number").map(|_| Doomed::All)?
        } else {
            Doomed::Link(link_number(reader)?)
        };
        Ok(Self {
            version: header.version,
            turn: header.turn(),
            doomed,
            orderly: header.has(ORDERLY),
            reason: DeleteReason(reader.be32("reason")?),
        })
    }
}
