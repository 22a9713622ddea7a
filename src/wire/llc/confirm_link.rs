//! CONFIRM_LINK: the first message of every link (RFC 7609 A.3.1). The server numbers the link; the client repeats that.
//!
//! ```text
//!  3  flags: 0x03 no eyecatchers in RMBEs
//!  4  MAC (6)    10  GID (16)    26  QP number (3)    29  link number    30  link user id u32
//! 34  max links    35  version 2: max connections, 0 before release 1    36  reserved (8)
//! ```

use std::num::NonZeroU8;

use bitflags::bitflags;

use super::header::{self, Header, Kind, Turn};
use crate::wire::clc::{Gid, Mac, U24, Version};
use crate::wire::prim::Reader;
use crate::wire::{Fault, InvalidMessage};

bitflags! {
    /// That the sender's receive buffers begin with data and not with an eyecatcher. The kernel sends both bits, is
    /// content with one, and declines without: [`crate::wire::clc::Diagnosis::RMBE_EYECATCHER`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct NoEyecatcher: u8 {
        /// One of the two.
        const ONE = 0x01;
        /// The other.
        const OTHER = 0x02;
    }
}

/// How much the link group may have, as both ends know from CLC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limits {
    /// Version 1.
    V1 {
        /// Links.
        max_links: u8,
    },
    /// Version 2.
    V2 {
        /// Links.
        max_links: u8,
        /// Connections; 0 before release 1.
        max_connections: u8,
    },
}

/// A CONFIRM_LINK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConfirmLink {
    /// The server asks, the client answers.
    pub turn: Turn,
    /// What is said of eyecatchers.
    pub no_eyecatcher: NoEyecatcher,
    /// The MAC of the sender's port.
    pub mac: Mac,
    /// The GID of the sender's port.
    pub gid: Gid,
    /// The sender's queue pair.
    pub qp_number: U24,
    /// The number of the link in its group.
    pub link: NonZeroU8,
    /// What the sender calls the link: for people.
    pub user_id: u32,
    /// How much the group may have.
    pub limits: Limits,
}

impl ConfirmLink {
    /// The version of the message.
    #[must_use]
    pub const fn version(&self) -> Version {
        match self.limits {
            Limits::V1 { .. } => Version::V1,
            Limits::V2 { .. } => Version::V2,
        }
    }

    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let flags = self.turn.flags() | self.no_eyecatcher.bits();
        let mut writer = header::begin(Kind::ConfirmLink, self.version(), flags);
        writer.put(&self.mac.0);
        writer.put(&self.gid.0);
        writer.put(&self.qp_number.to_bytes());
        writer.u8(self.link.get());
        writer.be32(self.user_id);
        match self.limits {
            Limits::V1 { max_links } => writer.u8(max_links),
            Limits::V2 {
                max_links,
                max_connections,
            } => writer.put(&[max_links, max_connections]),
        }
        header::end(writer, self.version())
    }

    pub(super) fn read(reader: &mut Reader<'_>, header: Header) -> Result<Self, InvalidMessage> {
        let mac = Mac(reader.take("MAC")?);
        let gid = Gid(reader.take("GID")?);
        let qp_number = U24::read(reader, "QP number")?;
        let link = link_number(reader)?;
        let user_id = reader.be32("link user id")?;
        let max_links = reader.u8("max links")?;
        let max_connections = reader.u8("max connections")?;
        reader.reserved::<8>()?;
        let limits = match header.version {
            Version::V1 => Limits::V1 { max_links },
            Version::V2 => Limits::V2 {
                max_links,
                max_connections,
            },
        };
        Ok(Self {
            turn: header.turn(),
            no_eyecatcher: NoEyecatcher::from_bits_truncate(header.flags),
            mac,
            gid,
            qp_number,
            link,
            user_id,
            limits,
        })
    }
}

/// Reads the number of a link, which counts from 1.
pub(super) fn link_number(reader: &mut Reader<'_>) -> Result<NonZeroU8, InvalidMessage> {
    let number = reader.u8("link number")?;
    let zero = Fault::Illegal("must not be zero");
    NonZeroU8::new(number).ok_or_else(|| reader.error("link number", zero))
}
