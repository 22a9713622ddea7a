//! CONFIRM_RKEY_CONT: the keys that did not fit into a CONFIRM_RKEY of version 1, three a message (RFC 7609 A.3.6). Only
//! a group of more than three links needs it; Linux has none, and never sends it.
//!
//! ```text
//! 3  flags as CONFIRM_RKEY    4  keys still to send, those here included    5  keys of 13 bytes (3)
//! ```

use super::batch::Batch;
use super::confirm_rkey::KeyTurn;
use super::header::{self, Header, Kind};
use super::key::KeyOnLink;
use crate::wire::InvalidMessage;
use crate::wire::clc::Version;
use crate::wire::prim::Reader;

/// A CONFIRM_RKEY_CONT.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConfirmRkeyCont {
    /// The question, or the answer with its result.
    pub turn: KeyTurn,
    /// The next keys.
    pub keys: Batch<KeyOnLink, 3>,
}

impl ConfirmRkeyCont {
    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = header::begin_v1(Kind::ConfirmRkeyCont, 0, self.turn.flags());
        writer.u8(self.keys.count());
        self.keys.iter().for_each(|key| key.write(&mut writer));
        header::end(writer, Version::V1)
    }

    pub(super) fn read(reader: &mut Reader<'_>, header: Header) -> Result<Self, InvalidMessage> {
        let left = reader.u8("rkeys left")?;
        Ok(Self {
            turn: KeyTurn::of(header),
            keys: Batch::read(reader, left, KeyOnLink::read)?,
        })
    }
}
