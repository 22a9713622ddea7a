//! CLC, connection layer control: the four messages of the handshake over TCP, versions 1 and 2 (releases 0 and 1).
//!
//! To receive one: read exactly [`HEADER_LEN`] bytes, ask [`peek_length`] how long the message is, read exactly the
//! rest, and give the whole to [`Message::decode`]. Application bytes may follow a Decline at once, so a reader must
//! take no byte more.
//!
//! Two forms that older or newer kernels send are read but written in the common form: a Proposal of version 1 that has
//! the SMC-D area without offering SMC-D, and a first contact extension of 36 bytes for SMC-Rv2 in release 0. The
//! letter of an eyecatcher, R or D, is free on receipt.

mod decline;
mod diagnosis;
mod eid;
mod few;
mod field;
mod first_contact;
mod header;
mod ism;
mod paths;
mod prefix;
mod proposal;
mod reply;

pub use decline::Decline;
pub use diagnosis::Diagnosis;
pub use eid::Eid;
pub use few::Few;
pub use field::{Features, Gid, Mac, Mtu, Os, PeerId, Release, U24};
pub use first_contact::{FirstContact, HostName, V21};
pub use header::{Kind, Version};
pub use ism::{Ism, IsmList, NativeIsm};
pub use paths::Paths;
pub use prefix::{Ipv4Prefix, Ipv6Prefix, Prefixes};
pub use proposal::{Offer, OfferV1, OfferV2, Proposal, RoceV2, SmcDV2};
pub use reply::{Accept, Confirm, ConfirmContact, Reply, SmcD, SmcR};

use self::header::Header;
use super::InvalidMessage;
use super::prim::Reader;

/// Bytes to read before the length of a message is known.
pub const HEADER_LEN: usize = Header::LEN;

/// Bytes of the longest message.
pub const MAX_LEN: usize = Proposal::MAX_LEN as usize;

/// The name of a message whose type is not known yet.
pub(super) const NAME: &str = "CLC message";

/// A CLC message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Message {
    /// Client: what I can do.
    Proposal(Proposal),
    /// Server: what we do, and my end of it.
    Accept(Accept),
    /// Client: agreed, and my end.
    Confirm(Confirm),
    /// Either: let us go on with TCP.
    Decline(Decline),
}

/// How many bytes the message has that begins with `header`: all of it, header and trailer included.
///
/// At most [`MAX_LEN`], and possible for the type and version of the message; [`Message::decode`] checks the rest.
///
/// # Errors
/// [`InvalidMessage`] when these bytes begin no CLC message, or one that is neither `expected` nor a Decline, which may
/// come at any time.
pub fn peek_length(header: &[u8; HEADER_LEN], expected: Kind) -> Result<usize, InvalidMessage> {
    let mut reader = Reader::new(NAME, header);
    let header = Header::peek(&mut reader)?;
    if header.kind != Kind::Decline {
        reader.expect("type", header.kind as u64, expected as u64)?;
    }
    Ok(header.length.into())
}

impl Message {
    /// The message in these bytes, which must be one whole message.
    ///
    /// # Errors
    /// [`InvalidMessage`].
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidMessage> {
        Self::read(&mut Reader::new(NAME, bytes))
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, InvalidMessage> {
        let header = Header::read(reader)?;
        match header.kind {
            Kind::Proposal => Proposal::read(reader, header).map(Self::Proposal),
            Kind::Accept => Accept::read(reader, header).map(Self::Accept),
            Kind::Confirm => Confirm::read(reader, header).map(Self::Confirm),
            Kind::Decline => Decline::read(reader, header).map(Self::Decline),
        }
    }

    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Proposal(proposal) => proposal.encode(),
            Self::Accept(accept) => accept.encode(),
            Self::Confirm(confirm) => confirm.encode(),
            Self::Decline(decline) => decline.encode(),
        }
    }

    /// The type of the message.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Proposal(_) => Kind::Proposal,
            Self::Accept(_) => Kind::Accept,
            Self::Confirm(_) => Kind::Confirm,
            Self::Decline(_) => Kind::Decline,
        }
    }

    /// The version of the message.
    #[must_use]
    pub const fn version(&self) -> Version {
        match self {
            Self::Proposal(proposal) => proposal.offer.version(),
            Self::Accept(accept) => accept.version(),
            Self::Confirm(confirm) => confirm.version(),
            Self::Decline(decline) => decline.version(),
        }
    }
}
