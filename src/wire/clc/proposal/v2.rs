//! What a client offers in version 2.
//!
//! ```text
//! V2 extension:
//!  0  EID count   1  ISM GID entries   2  reserved   3  bits 7-4 release, bit 0 SEID present   4  reserved (2)
//!  6  SMC-Dv2 extension offset u16, counted from 8
//!  8  RoCEv2 GID (16)   24  max connections   25  max links   26  features u16   28  reserved (12)
//! 40  EIDs, 32 bytes each
//! SMC-Dv2 extension:
//!  0  SEID (32)   32  reserved (16)   48  {ISM GID u64, CHID u16} * entries
//! ```

use super::{Gid, InvalidMessage, IsmList, Reader, Writer, offers_d, offers_r};
use crate::wire::clc::eid::Eid;
use crate::wire::clc::few::Few;
use crate::wire::clc::field::{Features, Release};
use crate::wire::clc::paths::Paths;

/// An offer of version 2.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OfferV2 {
    /// SMC-R, SMC-D or both.
    pub paths: Paths<RoceV2, SmcDV2>,
    /// The user-defined enterprise ids of the client, the best first. SMC-R needs at least one.
    pub eids: Few<Eid, 8>,
    /// The greatest release that the client speaks.
    pub release: Release,
    /// The client's features.
    pub features: Features,
}

/// An offer of SMC-Rv2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RoceV2 {
    /// The client's RoCEv2 GID: an IPv4-mapped address, that from which its packets will come.
    pub gid: Gid,
    /// How many connections the client allows in a link group; 16 is the least that a kernel accepts.
    pub max_connections: u8,
    /// How many links it allows; 1 spares the exchange of a second link.
    pub max_links: u8,
}

/// An offer of SMC-Dv2.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SmcDV2 {
    /// The id that the hardware gives to the system, if any.
    pub seid: Option<Eid>,
    /// The client's devices.
    pub devices: IsmList,
}

impl OfferV2 {
    const FIXED_LEN: usize = 40;
    pub(super) const MAX_LEN: usize = Self::FIXED_LEN + 8 * Eid::LEN;

    /// Where the SMC-Dv2 extension stands behind `eids` enterprise ids, as its offset counts.
    const fn smc_d_offset(eids: usize) -> u16 {
        (Self::FIXED_LEN - 8 + eids * Eid::LEN) as u16
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        let (r, d) = (self.paths.r(), self.paths.d());
        let seid = d.and_then(|d| d.seid);
        writer.u8(self.eids.count());
        writer.u8(d.map_or(0, |d| d.devices.count()));
        writer.u8(0);
        writer.u8(self.release.number() << 4 | u8::from(seid.is_some()));
        writer.zeros(2);
        writer.be16(if d.is_some() {
            Self::smc_d_offset(self.eids.len())
        } else {
            0
        });
        writer.put(&r.map_or(Gid::default(), |r| r.gid).0);
        writer.u8(r.map_or(0, |r| r.max_connections));
        writer.u8(r.map_or(0, |r| r.max_links));
        writer.be16(self.features.bits());
        writer.zeros(12);
        self.eids.iter().for_each(|eid| writer.put(eid.as_bytes()));
        if let Some(d) = d {
            writer.put(&seid.map_or([0; Eid::LEN], |seid| *seid.as_bytes()));
            writer.zeros(16);
            d.devices.write(writer);
        }
    }

    /// Reads both extensions, when `code` offers anything.
    pub(super) fn read(reader: &mut Reader<'_>, code: u8) -> Result<Option<Self>, InvalidMessage> {
        if !offers_r(code) && !offers_d(code) {
            return Ok(None);
        }
        let eid_count = reader.u8("EID count")?;
        let entries = reader.u8("ISM GID count")?;
        reader.reserved::<1>()?;
        let byte = reader.u8("release and SEID flag")?;
        reader.reserved::<2>()?;
        let offset = reader.be16("SMC-Dv2 extension offset")?;
        let gid = Gid(reader.take("RoCEv2 GID")?);
        let max_connections = reader.u8("max connections")?;
        let max_links = reader.u8("max links")?;
        let features = Features::from_bits_retain(reader.be16("features")?);
        reader.reserved::<12>()?;
        let eids = Few::read(reader, "EID count", eid_count, |reader| {
            Eid::read(reader, "EID")
        })?;

        let expected = if offers_d(code) {
            Self::smc_d_offset(eids.len())
        } else {
            0
        };
        reader.expect("SMC-Dv2 extension offset", offset.into(), expected.into())?;
        let r = offers_r(code).then_some(RoceV2 {
            gid,
            max_connections,
            max_links,
        });
        let d = if offers_d(code) {
            Some(SmcDV2::read(reader, byte & 1 != 0, entries)?)
        } else {
            None
        };
        let release = Release::from_high_nibble(byte);
        Ok(Paths::of(r, d).map(|paths| Self {
            paths,
            eids,
            release,
            features,
        }))
    }
}

impl SmcDV2 {
    /// Bytes in front of the entries.
    pub(super) const LEN: usize = 48;

    fn read(reader: &mut Reader<'_>, has_seid: bool, entries: u8) -> Result<Self, InvalidMessage> {
        reader.at_most("ISM GID count", entries.into(), IsmList::MAX_ENTRIES as u64)?;
        let seid = if has_seid {
            Some(Eid::read(reader, "SEID")?)
        } else {
            reader.reserved::<32>()?;
            None
        };
        reader.reserved::<16>()?;
        Ok(Self {
            seid,
            devices: IsmList::read(reader, entries)?,
        })
    }
}
