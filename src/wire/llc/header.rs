//! The four bytes in front of every LLC message.
//!
//! ```text
//! 0  type; version 2: 0x20 more
//! 1  version 1: length 44; 2: bits 3-0 the reason of a rejected ADD_LINK
//! 1  version 2: length u16 in the sender's byte order, of the whole message
//! 3  flags: 0x80 response; others depend on the type
//! ```

use crate::wire::clc::Version;
use crate::wire::prim::{Reader, Writer};
use crate::wire::{Fault, InvalidMessage};

/// Bytes of every message of version 1, and of a message of version 2 that says no more.
pub const LEN: usize = 44;

/// The type of an LLC message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The server asks with the first message of every link.
    ConfirmLink = 1,
    /// The server asks; in version 1 the client too, as a hint.
    AddLink,
    /// The server asks. Version 1 only.
    AddLinkCont,
    /// Either asks.
    DeleteLink,
    /// The client asks. Version 2 only.
    ReqAddLink,
    /// Either asks.
    ConfirmRkey,
    /// Either asks.
    TestLink,
    /// Either asks, right after a CONFIRM_RKEY that was too short. Version 1 only, and never sent by Linux.
    ConfirmRkeyCont,
    /// Either asks.
    DeleteRkey,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::ConfirmLink,
        Self::AddLink,
        Self::AddLinkCont,
        Self::DeleteLink,
        Self::ReqAddLink,
        Self::ConfirmRkey,
        Self::TestLink,
        Self::ConfirmRkeyCont,
        Self::DeleteRkey,
    ];
    const V2: u8 = 0x20;

    /// The type and version that the first byte of a SEND stands for; `None` when it begins no LLC message. The kernel
    /// ignores what begins with a byte that it does not know, and so should a reader.
    #[must_use]
    pub fn of(byte: u8) -> Option<(Self, Version)> {
        let is = |&(kind, version): &(Self, Version)| kind.code(version) == Some(byte);
        let versions = |kind| [(kind, Version::V1), (kind, Version::V2)];
        Self::ALL.into_iter().flat_map(versions).find(is)
    }

    /// The first byte of such a message; `None` when the version has no such type.
    #[must_use]
    pub const fn code(self, version: Version) -> Option<u8> {
        match (self, version) {
            (Self::ReqAddLink, Version::V1) => None,
            (Self::AddLinkCont | Self::ConfirmRkeyCont, Version::V2) => None,
            (kind, Version::V1) => Some(kind as u8),
            (kind, Version::V2) => Some(Self::V2 + kind as u8),
        }
    }

    /// Whether such a message can have more than 44 bytes.
    const fn may_be_longer(self, version: Version) -> bool {
        let lists = matches!(self, Self::AddLink | Self::ReqAddLink | Self::DeleteRkey);
        lists && matches!(version, Version::V2)
    }

    /// The name that errors carry.
    const fn name(self) -> &'static str {
        match self {
            Self::ConfirmLink => "LLC CONFIRM_LINK",
            Self::AddLink => "LLC ADD_LINK",
            Self::AddLinkCont => "LLC ADD_LINK_CONT",
            Self::DeleteLink => "LLC DELETE_LINK",
            Self::ReqAddLink => "LLC REQ_ADD_LINK",
            Self::ConfirmRkey => "LLC CONFIRM_RKEY",
            Self::TestLink => "LLC TEST_LINK",
            Self::ConfirmRkeyCont => "LLC CONFIRM_RKEY_CONT",
            Self::DeleteRkey => "LLC DELETE_RKEY",
        }
    }
}

/// Whether a message asks or answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Turn {
    /// It asks.
    Request,
    /// It answers.
    Response,
}

impl Turn {
    /// The flag of a response.
    pub(super) const fn flags(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Response => 0x80,
        }
    }
}

/// A header that was read and checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) version: Version,
    /// The low half of byte 2 in version 1, which has a meaning in one message; 0 in version 2.
    pub(super) reason: u8,
    pub(super) flags: u8,
}

impl Header {
    /// Reads the header and gives the reader its name. The message has 44 bytes, or more where its type allows that:
    /// how many more is for the reader of the type to check.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, InvalidMessage> {
        let byte = reader.u8("type")?;
        let Some((kind, version)) = Kind::of(byte) else {
            return Err(reader.error("type", Fault::Illegal("is that of no LLC message")));
        };
        reader.rename(kind.name());
        if !kind.may_be_longer(version) || reader.len() < LEN {
            reader.expect_length(LEN)?;
        }
        let reason = match version {
            Version::V1 => {
                let length = reader.u8("length")?;
                reader.expect("length", length.into(), LEN as u64)?;
                reader.u8("reject reason")? & 0x0f
            }
            // In the order of the sender's machine, which nobody knows here; the kernel refuses less than 44 and is
            // content with any order of that. What was received has been counted.
            Version::V2 => reader.take::<2>("length").map(|_| 0)?,
        };
        let flags = reader.u8("flags")?;
        Ok(Self {
            kind,
            version,
            reason,
            flags,
        })
    }

    pub(super) const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) const fn turn(self) -> Turn {
        if self.has(Turn::Response.flags()) {
            Turn::Response
        } else {
            Turn::Request
        }
    }
}

/// A writer behind the header of a message of version 1.
pub(super) fn begin_v1(kind: Kind, reason: u8, flags: u8) -> Writer {
    let mut writer = Writer::with_capacity(LEN);
    writer.put(&[kind as u8, LEN as u8, reason, flags]);
    writer
}

/// A writer behind the header of a message of version 2.
pub(super) fn begin_v2(kind: Kind, flags: u8) -> Writer {
    let mut writer = Writer::with_capacity(LEN);
    writer.put(&[Kind::V2 + kind as u8, 0, 0, flags]); // the length is known in `end_v2`
    writer
}

/// A writer behind the header of a message that both versions have.
pub(super) fn begin(kind: Kind, version: Version, flags: u8) -> Writer {
    match version {
        Version::V1 => begin_v1(kind, 0, flags),
        Version::V2 => begin_v2(kind, flags),
    }
}

/// The message with its reserved end, and with its length where version 2 has it.
pub(super) fn end(writer: Writer, version: Version) -> Vec<u8> {
    let mut bytes = writer.finish();
    bytes.resize(bytes.len().max(LEN), 0);
    if version == Version::V2 {
        let length = bytes.len() as u16; // all values are bounded: see `super::MAX_LEN`
        bytes[1..3].copy_from_slice(&length.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_its_byte() {
        let known: Vec<_> = (0..=255).filter(|byte| Kind::of(*byte).is_some()).collect();
        let v1 = [1, 2, 3, 4, 6, 7, 8, 9];
        let v2 = [0x21, 0x22, 0x24, 0x25, 0x26, 0x27, 0x29];
        assert_eq!(known, [&v1[..], &v2].concat());
        for byte in known {
            let (kind, version) = Kind::of(byte).unwrap();
            assert_eq!(kind.code(version), Some(byte));
            assert_eq!(version == Version::V2, byte >= 0x20);
        }
    }
}
