//! LLC, link layer control: what both ends of a link group tell each other about its links and keys, on the queue pairs
//! themselves (RFC 7609 A.3, and version 2 as Linux 6.12 speaks it).
//!
//! A message is one SEND. It has 44 bytes; in version 2 a few have more, at most [`MAX_LEN`], which a receive buffer
//! must have room for. A link group speaks the version that its CLC handshake agreed upon. To take a SEND apart without
//! knowing yet what it is: [`super::Received`].
//!
//! The layouts are those of their modules; the first four bytes are those of `header`.

mod add_link;
mod add_link_cont;
mod batch;
mod confirm_link;
mod confirm_rkey;
mod confirm_rkey_cont;
mod delete_link;
mod delete_rkey;
mod header;
mod key;
mod req_add_link;
mod test_link;

pub use add_link::{AddLink, Extension, NewLink, RejectReason, Rejection};
pub use add_link_cont::AddLinkCont;
pub use batch::Batch;
pub use confirm_link::{ConfirmLink, Limits, NoEyecatcher};
pub use confirm_rkey::{ConfirmRkey, KeyTurn, OtherKeys};
pub use confirm_rkey_cont::ConfirmRkeyCont;
pub use delete_link::{DeleteLink, DeleteReason, Doomed};
pub use delete_rkey::{DeleteRkey, DeletedV1, DeletedV2};
pub use header::{Kind, LEN, Turn};
pub use key::{Key, KeyOnLink, MovedKey};
pub use req_add_link::ReqAddLink;
pub use test_link::TestLink;

use self::header::Header;
use super::InvalidMessage;
use super::clc::Version;
use super::prim::Reader;

/// Bytes of the longest message: an ADD_LINK of version 2 with 255 keys.
pub const MAX_LEN: usize = AddLink::MAX_LEN;

/// The name of a message whose type is not known yet.
const NAME: &str = "LLC message";

/// An LLC message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Message {
    /// This is a link of our group.
    ConfirmLink(ConfirmLink),
    /// Let us have another link.
    AddLink(AddLink),
    /// Keys for the other link, in version 1.
    AddLinkCont(AddLinkCont),
    /// Let us have a link less, or none.
    DeleteLink(DeleteLink),
    /// The client: please add a link, in version 2.
    ReqAddLink(ReqAddLink),
    /// You may write here.
    ConfirmRkey(ConfirmRkey),
    /// The keys of further links, in version 1.
    ConfirmRkeyCont(ConfirmRkeyCont),
    /// You may not write there any more.
    DeleteRkey(DeleteRkey),
    /// Are you there?
    TestLink(TestLink),
}

impl Message {
    /// The message in these bytes: those of one SEND, as its completion counts them.
    ///
    /// # Errors
    /// [`InvalidMessage`].
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidMessage> {
        Self::read(&mut Reader::new(NAME, bytes))
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, InvalidMessage> {
        let header = Header::read(reader)?;
        match header.kind {
            Kind::ConfirmLink => ConfirmLink::read(reader, header).map(Self::ConfirmLink),
            Kind::AddLink => AddLink::read(reader, header).map(Self::AddLink),
            Kind::AddLinkCont => AddLinkCont::read(reader, header).map(Self::AddLinkCont),
            Kind::DeleteLink => DeleteLink::read(reader, header).map(Self::DeleteLink),
            Kind::ReqAddLink => ReqAddLink::read(reader, header).map(Self::ReqAddLink),
            Kind::ConfirmRkey => ConfirmRkey::read(reader, header).map(Self::ConfirmRkey),
            Kind::ConfirmRkeyCont => {
                ConfirmRkeyCont::read(reader, header).map(Self::ConfirmRkeyCont)
            }
            Kind::DeleteRkey => DeleteRkey::read(reader, header).map(Self::DeleteRkey),
            Kind::TestLink => TestLink::read(reader, header).map(Self::TestLink),
        }
    }

    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::ConfirmLink(message) => message.encode(),
            Self::AddLink(message) => message.encode(),
            Self::AddLinkCont(message) => message.encode(),
            Self::DeleteLink(message) => message.encode(),
            Self::ReqAddLink(message) => message.encode(),
            Self::ConfirmRkey(message) => message.encode(),
            Self::ConfirmRkeyCont(message) => message.encode(),
            Self::DeleteRkey(message) => message.encode(),
            Self::TestLink(message) => message.encode(),
        }
    }

    /// The type of the message.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::ConfirmLink(_) => Kind::ConfirmLink,
            Self::AddLink(_) => Kind::AddLink,
            Self::AddLinkCont(_) => Kind::AddLinkCont,
            Self::DeleteLink(_) => Kind::DeleteLink,
            Self::ReqAddLink(_) => Kind::ReqAddLink,
            Self::ConfirmRkey(_) => Kind::ConfirmRkey,
            Self::ConfirmRkeyCont(_) => Kind::ConfirmRkeyCont,
            Self::DeleteRkey(_) => Kind::DeleteRkey,
            Self::TestLink(_) => Kind::TestLink,
        }
    }

    /// The version of the message, which must be that of the link group.
    #[must_use]
    pub const fn version(&self) -> Version {
        match self {
            Self::ConfirmLink(message) => message.version(),
            Self::AddLink(message) => message.version(),
            Self::AddLinkCont(_) | Self::ConfirmRkeyCont(_) => Version::V1,
            Self::DeleteLink(message) => message.version,
            Self::ReqAddLink(_) => Version::V2,
            Self::ConfirmRkey(message) => message.version(),
            Self::DeleteRkey(message) => message.version(),
            Self::TestLink(message) => message.version,
        }
    }

    /// Whether the message asks or answers.
    #[must_use]
    pub const fn turn(&self) -> Turn {
        match self {
            Self::ConfirmLink(message) => message.turn,
            Self::AddLink(message) => message.turn(),
            Self::AddLinkCont(message) => message.turn,
            Self::DeleteLink(message) => message.turn,
            Self::ReqAddLink(message) => message.turn(),
            Self::ConfirmRkey(message) => message.turn.turn(),
            Self::ConfirmRkeyCont(message) => message.turn.turn(),
            Self::DeleteRkey(message) => message.turn(),
            Self::TestLink(message) => message.turn,
        }
    }
}
