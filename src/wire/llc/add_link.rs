//! ADD_LINK: the server offers another link, the client accepts it or not (RFC 7609 A.3.2; version 2 as Linux 6.12).
//!
//! ```text
//!  2  version 1, rejecting response: bits 3-0 reason
//!  3  flags: 0x40 rejected
//!  4  MAC (6)    10  reserved (2)    12  GID (16)    28  QP number (3)    31  link number
//! 32  bits 3-0 MTU    33  initial PSN (3)    36  reserved (8)
//! 44  version 2, but not in a rejection: bit 7 direct    45  reserved    46  target GID (16)    62  reserved (8)
//! 70  number of keys u16 in the sender's byte order    72  keys of 16 bytes
//! ```
//!
//! A link number of 0 makes a request of version 1 the client's wish for an offer.

use std::num::NonZeroU8;

use super::confirm_link::link_number;
use super::header::{self, Header, Kind, Turn};
use super::key::MovedKey;
use crate::wire::clc::{Few, Gid, Mac, Mtu, U24, Version};
use crate::wire::prim::{Reader, Writer};
use crate::wire::{Fault, InvalidMessage};

const REJECTED: u8 = 0x40;
const DIRECT: u8 = 0x80;
const EXTENSION_LEN: usize = 28;

/// An ADD_LINK.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AddLink {
    /// Request of the client, version 1: please offer a link.
    Wish {
        /// The MAC of the port that the client would use.
        mac: Mac,
        /// Its GID.
        gid: Gid,
    },
    /// Request of the server.
    Offer {
        /// Its end of the link.
        link: NewLink,
        /// The MTU of its port. An offer without a legal one is to be rejected: [`RejectReason::INVALID_MTU`].
        mtu: Option<Mtu>,
    },
    /// Response of the client: agreed.
    Accept {
        /// Its end of the link.
        link: NewLink,
        /// The MTU of its port.
        mtu: Mtu,
    },
    /// Response of the client: not this one.
    Reject(Rejection),
}

/// The sender's end of a new link.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NewLink {
    /// The MAC of its port.
    pub mac: Mac,
    /// The GID of its port.
    pub gid: Gid,
    /// Its queue pair.
    pub qp_number: U24,
    /// The number of the link: the server chooses it, the client repeats it.
    pub number: NonZeroU8,
    /// The first packet sequence number that it will use.
    pub psn: U24,
    /// What version 2 says here, and version 1 in the messages that follow; `None` makes it a message of version 1.
    pub extension: Option<Extension>,
}

/// What version 2 says of a new link besides.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Extension {
    /// Both ends are in one subnet.
    pub direct: bool,
    /// The GID at the other end. The kernel sends its own, and does not read it.
    pub target_gid: Gid,
    /// The keys of all buffers in use.
    pub keys: Few<MovedKey, 255>,
}

/// An offer that was not accepted: its fields are repeated, and nobody relies on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rejection {
    /// The reason, for which version 2 has no room; `None` makes it a message of version 2.
    pub reason: Option<RejectReason>,
    /// The MAC of the offer.
    pub mac: Mac,
    /// Its GID.
    pub gid: Gid,
    /// Its queue pair.
    pub qp_number: U24,
    /// Its number.
    pub number: u8,
    /// Its MTU.
    pub mtu: Option<Mtu>,
    /// Its packet sequence number.
    pub psn: U24,
}

/// Why an offer of version 1 was rejected, four bits. Unknown values are retained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RejectReason(u8);

impl RejectReason {
    /// The client has no other path.
    pub const NO_ALTERNATE_PATH: Self = Self(1);
    /// The offer has no legal MTU.
    pub const INVALID_MTU: Self = Self(2);

    /// The reason with this code; `None` above 15.
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        if code < 16 { Some(Self(code)) } else { None }
    }

    /// 0 to 15.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }
}

impl NewLink {
    /// The answer to the offer of this link that declines it. The reason is lost in version 2.
    #[must_use]
    pub fn reject(&self, mtu: Option<Mtu>, reason: RejectReason) -> AddLink {
        let is_v1 = self.extension.is_none();
        AddLink::Reject(Rejection {
            reason: is_v1.then_some(reason),
            mac: self.mac,
            gid: self.gid,
            qp_number: self.qp_number,
            number: self.number.get(),
            mtu,
            psn: self.psn,
        })
    }

    const fn version(&self) -> Version {
        if self.extension.is_some() {
            Version::V2
        } else {
            Version::V1
        }
    }

    fn encode(&self, turn: Turn, mtu: Option<Mtu>) -> Vec<u8> {
        let version = self.version();
        let mut writer = header::begin(Kind::AddLink, version, turn.flags());
        let (mac, gid) = (self.mac, self.gid);
        put_end(&mut writer, mac, gid, self.qp_number, self.number.get());
        put_mtu_and_psn(&mut writer, mtu, self.psn);
        if let Some(extension) = &self.extension {
            extension.write(&mut writer);
        }
        header::end(writer, version)
    }
}

impl Extension {
    fn write(&self, writer: &mut Writer) {
        writer.put(&[if self.direct { DIRECT } else { 0 }, 0]);
        writer.put(&self.target_gid.0);
        writer.zeros(8);
        writer.le16(self.keys.count().into());
        self.keys.iter().for_each(|key| key.write(writer));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, InvalidMessage> {
        let direct = reader.u8("direct")? & DIRECT != 0;
        reader.reserved::<1>()?;
        let target_gid = Gid(reader.take("target GID")?);
        reader.reserved::<8>()?;
        let count = reader.take::<2>("rkey count")?;
        let [little, big] = [u16::from_le_bytes(count), u16::from_be_bytes(count)];
        // The order of the bytes is the sender's, and the number of bytes that were received tells which that is. Linux
        // on x86 sends little-endian, and takes a big-endian 1 for 0.
        let found = (reader.len() - header::LEN - EXTENSION_LEN) / MovedKey::LEN;
        let count = if usize::from(big) == found {
            big
        } else {
            little
        };
        let Ok(few) = u8::try_from(count) else {
            let fault = Fault::OutOfRange {
                found: count.into(),
                min: 0,
                max: 255,
            };
            return Err(reader.error("rkey count", fault));
        };
        let keys = usize::from(few) * MovedKey::LEN;
        reader.expect_length(header::LEN + EXTENSION_LEN + keys)?;
        Ok(Self {
            direct,
            target_gid,
            keys: Few::read(reader, "rkey count", few, MovedKey::read)?,
        })
    }
}

impl AddLink {
    /// Bytes of the longest one: of version 2 with 255 keys.
    pub const MAX_LEN: usize = header::LEN + EXTENSION_LEN + 255 * MovedKey::LEN;

    /// The version of the message.
    #[must_use]
    pub const fn version(&self) -> Version {
        match self {
            Self::Wish { .. } => Version::V1,
            Self::Offer { link, .. } | Self::Accept { link, .. } => link.version(),
            Self::Reject(rejection) => rejection.version(),
        }
    }

    /// Whether the message asks or answers.
    #[must_use]
    pub const fn turn(&self) -> Turn {
        match self {
            Self::Wish { .. } | Self::Offer { .. } => Turn::Request,
            Self::Accept { .. } | Self::Reject(_) => Turn::Response,
        }
    }

    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Wish { mac, gid } => {
                let mut writer = header::begin_v1(Kind::AddLink, 0, 0);
                put_end(&mut writer, *mac, *gid, U24::default(), 0);
                header::end(writer, Version::V1)
            }
            Self::Offer { link, mtu } => link.encode(Turn::Request, *mtu),
            Self::Accept { link, mtu } => link.encode(Turn::Response, Some(*mtu)),
            Self::Reject(rejection) => rejection.encode(),
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>, header: Header) -> Result<Self, InvalidMessage> {
        let turn = header.turn();
        if turn == Turn::Response && header.has(REJECTED) {
            return Rejection::read(reader, header).map(Self::Reject);
        }
        let mac = Mac(reader.take("MAC")?);
        reader.reserved::<2>()?;
        let gid = Gid(reader.take("GID")?);
        let qp_number = U24::read(reader, "QP number")?;
        // Version 1 tells a client's wish by its link number. Only the server may use version 2's offer.
        let wishes = reader.peek(LINK_NUMBER_AT) == Some(0);
        if wishes && turn == Turn::Request && header.version == Version::V1 {
            return Ok(Self::Wish { mac, gid });
        }
        let number = link_number(reader)?;
        let mtu_code = reader.u8("MTU")? & 0x0f;
        let psn = U24::read(reader, "initial PSN")?;
        reader.reserved::<8>()?;
        let extension = match header.version {
            Version::V1 => None,
            Version::V2 => Some(Extension::read(reader)?),
        };
        let link = NewLink {
            mac,
            gid,
            qp_number,
            number,
            psn,
            extension,
        };
        match turn {
            Turn::Request => {
                let mtu = Mtu::new(mtu_code);
                Ok(Self::Offer { link, mtu })
            }
            Turn::Response => {
                let mtu = Mtu::of(reader, mtu_code)?;
                Ok(Self::Accept { link, mtu })
            }
        }
    }
}

impl Rejection {
    const fn version(&self) -> Version {
        if self.reason.is_some() {
            Version::V1
        } else {
            Version::V2
        }
    }

    fn encode(&self) -> Vec<u8> {
        let flags = Turn::Response.flags() | REJECTED;
        let mut writer = match self.reason {
            Some(reason) => header::begin_v1(Kind::AddLink, reason.code(), flags),
            None => header::begin_v2(Kind::AddLink, flags),
        };
        put_end(&mut writer, self.mac, self.gid, self.qp_number, self.number);
        put_mtu_and_psn(&mut writer, self.mtu, self.psn);
        header::end(writer, self.version())
    }

    fn read(reader: &mut Reader<'_>, header: Header) -> Result<Self, InvalidMessage> {
        reader.expect_length(header::LEN)?;
        let mac = Mac(reader.take("MAC")?);
        reader.reserved::<2>()?;
        let rejection = Self {
            reason: (header.version == Version::V1).then_some(RejectReason(header.reason)),
            mac,
            gid: Gid(reader.take("GID")?),
            qp_number: U24::read(reader, "QP number")?,
            number: reader.u8("link number")?,
            mtu: Mtu::new(reader.u8("MTU")? & 0x0f),
            psn: U24::read(reader, "initial PSN")?,
        };
        reader.reserved::<8>()?;
        Ok(rejection)
    }
}

const LINK_NUMBER_AT: usize = 31;

fn put_end(writer: &mut Writer, mac: Mac, gid: Gid, qp_number: U24, number: u8) {
    writer.put(&mac.0);
    writer.zeros(2);
    writer.put(&gid.0);
    writer.put(&qp_number.to_bytes());
    writer.u8(number);
}

fn put_mtu_and_psn(writer: &mut Writer, mtu: Option<Mtu>, psn: U24) {
    writer.u8(mtu.map_or(0, Mtu::code));
    writer.put(&psn.to_bytes());
    writer.zeros(8);
}
