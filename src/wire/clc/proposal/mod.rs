//! The Proposal, with which a client begins.
//!
//! ```text
//!  0  header; flags: bits 3-2 paths of version 2, bits 1-0 paths of version 1 (0 R, 1 D, 2 neither, 3 both)
//!  8  peer id (8)     16  RoCEv1 GID (16)     32  MAC (6)     38  IP area offset u16, counted from 40
//! 40  SMC-D area (40): ISM GID u64, ISM CHID u16, V2 extension offset u16 counted from 52, reserved (28)
//!     prefix area            when version 1 is offered
//!     V2 extension           when version 2 is offered
//!     SMC-Dv2 extension      when SMC-D is offered in version 2
//!     trailer (4)
//! ```
//!
//! A message of version 1 has the SMC-D area only when it offers SMC-D (newer kernels send it always, which is read
//! here but not written).

mod v1;
mod v2;

pub use v1::OfferV1;
pub use v2::{OfferV2, RoceV2, SmcDV2};

use super::field::{Gid, Mac, PeerId};
use super::header::{self, Header, Kind, Letter, Version};
use super::ism::{IsmList, NativeIsm};
use super::paths::{NEITHER, offers_d, offers_r};
use super::prefix::Prefixes;
use crate::wire::prim::{Reader, Writer};
use crate::wire::{Fault, InvalidMessage};

/// A Proposal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Proposal {
    /// The client. Zero in a kernel's proposal of version 2 alone.
    pub peer_id: PeerId,
    /// The MAC of the client's RoCE port. Zero in a kernel's proposal of version 2 alone; a kernel server uses it for
    /// its queue pair all the same.
    pub mac: Mac,
    /// What the client can do.
    pub offer: Offer,
}

/// What a client can do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Offer {
    /// Version 1, in a message of version 1.
    V1(OfferV1),
    /// Version 1 alone, in a message of version 2.
    V1InV2(OfferV1),
    /// Version 2 alone.
    V2(OfferV2),
    /// Both versions.
    Both(OfferV1, OfferV2),
}

impl Offer {
    /// The version of the message, in which a Decline must answer.
    #[must_use]
    pub const fn version(&self) -> Version {
        if matches!(self, Self::V1(_)) {
            Version::V1
        } else {
            Version::V2
        }
    }

    /// The offer of version 1, if there is one.
    #[must_use]
    pub const fn v1(&self) -> Option<&OfferV1> {
        match self {
            Self::V1(v1) | Self::V1InV2(v1) | Self::Both(v1, _) => Some(v1),
            Self::V2(_) => None,
        }
    }

    /// The offer of version 2, if there is one.
    #[must_use]
    pub const fn v2(&self) -> Option<&OfferV2> {
        match self {
            Self::V2(v2) | Self::Both(_, v2) => Some(v2),
            Self::V1(_) | Self::V1InV2(_) => None,
        }
    }
}

/// Bytes of the SMC-D area, the area for growth of RFC 7609.
const AREA_LEN: u16 = 40;
/// From where the offset of the V2 extension counts to the end of the SMC-D area.
const V2_OFFSET_BASE: u16 = 28;

impl Proposal {
    const FIXED_LEN: usize = 40 + AREA_LEN as usize;
    /// Bytes of the longest message of version 1.
    pub(super) const MAX_LEN_V1: u16 =
        (Self::FIXED_LEN + Prefixes::MAX_LEN + Header::TRAILER_LEN) as u16;
    /// Bytes of the longest message: 652, the buffer that the kernel has for it.
    pub const MAX_LEN: u16 = Self::MAX_LEN_V1
        + (OfferV2::MAX_LEN + SmcDV2::LEN + IsmList::MAX_ENTRIES * IsmList::ENTRY_LEN) as u16;

    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (v1, v2) = (self.offer.v1(), self.offer.v2());
        let codes = v2.map_or(NEITHER, |v2| v2.paths.code()) << 2
            | v1.map_or(NEITHER, |v1| v1.paths.code());
        let version = self.offer.version();
        let flags = if version == Version::V1 {
            codes & 3
        } else {
            codes
        };
        let mut writer = header::begin(Kind::Proposal, version, flags, Letter::R);
        writer.put(&self.peer_id.0);
        writer.put(&v1.and_then(|v1| v1.paths.r()).unwrap_or(&Gid::default()).0);
        writer.put(&self.mac.0);
        let has_area = version == Version::V2 || offers_d(codes & 3);
        writer.be16(if has_area && v1.is_some() {
            AREA_LEN
        } else {
            0
        });
        if has_area {
            Self::write_area(&mut writer, v1, v2.is_some());
        }
        if let Some(v1) = v1 {
            v1.prefixes.write(&mut writer);
        }
        if let Some(v2) = v2 {
            v2.write(&mut writer);
        }
        header::end(writer, Letter::R)
    }

    /// Without an offer of version 1 the ISM GID is always 0: the kernel then takes its lowest byte for the number of
    /// IPv6 prefixes and gives up the connection, without a Decline, when that is above 8.
    fn write_area(writer: &mut Writer, v1: Option<&OfferV1>, has_v2: bool) {
        let ism = v1.and_then(|v1| v1.paths.d().copied()).unwrap_or_default();
        writer.be64(ism.gid);
        writer.be16(ism.chid);
        writer.be16(if has_v2 {
            V2_OFFSET_BASE + v1.map_or(0, |v1| v1.prefixes.len() as u16)
        } else {
            0
        });
        writer.zeros(V2_OFFSET_BASE.into());
    }

    pub(super) fn read(reader: &mut Reader<'_>, header: Header) -> Result<Self, InvalidMessage> {
        let (v2_code, v1_code) = match header.version {
            Version::V1 => (NEITHER, header.flags & 3),
            Version::V2 => (header.flags >> 2, header.flags & 3),
        };
        if (v2_code, v1_code) == (NEITHER, NEITHER) {
            return Err(reader.error("paths", Fault::Illegal("offer neither SMC-R nor SMC-D")));
        }
        let peer_id = PeerId(reader.take("peer id")?);
        let gid = Gid(reader.take("GID")?);
        let mac = Mac(reader.take("MAC")?);
        let area = Self::read_ip_offset(reader, header.version, v1_code)?;
        let (ism, v2_offset) = if area {
            Self::read_area(reader)?
        } else {
            (NativeIsm::default(), 0)
        };

        let v1 = OfferV1::read(reader, v1_code, gid, ism)?;
        if header.version == Version::V2 {
            let behind = V2_OFFSET_BASE + v1.as_ref().map_or(0, |v1| v1.prefixes.len() as u16);
            let expected = if v2_code == NEITHER { 0 } else { behind };
            reader.expect("V2 extension offset", v2_offset.into(), expected.into())?;
        }
        let v2 = OfferV2::read(reader, v2_code)?;
        Header::finish(reader)?;

        let offer = match (v1, v2) {
            (Some(v1), Some(v2)) => Offer::Both(v1, v2),
            (None, Some(v2)) => Offer::V2(v2),
            (Some(v1), None) if header.version == Version::V2 => Offer::V1InV2(v1),
            (Some(v1), None) => Offer::V1(v1),
            (None, None) => {
                return Err(reader.error("paths", Fault::Illegal("offer neither SMC-R nor SMC-D")));
            }
        };
        Ok(Self {
            peer_id,
            mac,
            offer,
        })
    }

    /// Reads the IP area offset; tells whether the SMC-D area is there.
    fn read_ip_offset(
        reader: &mut Reader<'_>,
        version: Version,
        v1_code: u8,
    ) -> Result<bool, InvalidMessage> {
        let field = "IP area offset";
        let offset = reader.be16(field)?;
        let (found, area) = (offset.into(), AREA_LEN.into());
        match version {
            Version::V2 if v1_code == NEITHER => reader.expect(field, found, 0)?,
            Version::V2 => reader.expect(field, found, area)?,
            Version::V1 if offers_d(v1_code) => reader.expect(field, found, area)?,
            Version::V1 if offset == 0 => return Ok(false),
            Version::V1 => reader.expect(field, found, area)?,
        }
        Ok(true)
    }

    fn read_area(reader: &mut Reader<'_>) -> Result<(NativeIsm, u16), InvalidMessage> {
        let gid = reader.be64("ISM GID")?;
        let chid = reader.be16("ISM CHID")?;
        let v2_offset = reader.be16("V2 extension offset")?;
        reader.reserved::<28>()?; // vendor's OUI (3) and options (5), then 20 for growth
        Ok((NativeIsm { gid, chid }, v2_offset))
    }
}
