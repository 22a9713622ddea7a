//! ADD_LINK_CONT: after an accepted ADD_LINK of version 1, the keys for the new link, two a message (RFC 7609 A.3.3).
//! Server and client send in turn until both have said all.
//!
//! ```text
//! 4  link number    5  keys still to send, those here included    6  reserved (2)
//! 8  keys of 16 bytes (2)    40  reserved (4)
//! ```

use std::num::NonZeroU8;

use super::batch::Batch;
use super::confirm_link::link_number;
use super::header::{self, Header, Kind, Turn};
use super::key::MovedKey;
use crate::wire::InvalidMessage;
use crate::wire::clc::Version;
use crate::wire::prim::Reader;

/// An ADD_LINK_CONT.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AddLinkCont {
    /// The server asks, the client answers; each says its own keys.
    pub turn: Turn,
    /// The new link.
    pub link: NonZeroU8,
    /// The sender's next keys.
    pub keys: Batch<MovedKey, 2>,
}

impl AddLinkCont {
    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = header::begin_v1(Kind::AddLinkCont, 0, self.turn.flags());
        writer.u8(self.link.get());
        writer.u8(self.keys.count());
        writer.zeros(2);
        self.keys.iter().for_each(|key| key.write(&mut writer));
        header::end(writer, Version::V1)
    }

    pub(super) fn read(reader: &mut Reader<'_>, header: Header) -> Result<Self, InvalidMessage> {
        let link = link_number(reader)?;
        let left = reader.u8("rkeys left")?;
        reader.reserved::<2>()?;
        Ok(Self {
            turn: header.turn(),
            link,
            keys: Batch::read(reader, left, MovedKey::read)?,
        })
    }
}
