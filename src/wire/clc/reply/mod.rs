//! Accept and Confirm: the same message from the server and from the client.

mod smc_d;
mod smc_r;

pub use smc_d::SmcD;
pub use smc_r::{ConfirmContact, SmcR};

use super::eid::Eid;
use super::first_contact::FirstContact;
use super::header::{self, Header, Kind, Letter, Version};
use super::ism::Ism;
use crate::wire::prim::{Reader, Writer};
use crate::wire::{Fault, InvalidMessage};

/// The server's answer to a Proposal: what both will do, and the server's end of it.
pub type Accept = Reply<FirstContact>;

/// The client's answer to an Accept: the client's end.
pub type Confirm = Reply<ConfirmContact>;

/// An [`Accept`] or a [`Confirm`]; `X` is the first contact extension for SMC-Rv2, in which they differ.
///
/// First contact means that the connection is the first of a new link group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reply<X> {
    /// SMC-R, version 1.
    RV1 {
        /// The sender's end.
        end: SmcR,
        /// Whether the link group is new.
        first_contact: bool,
    },
    /// SMC-R, version 2.
    RV2 {
        /// The sender's end.
        end: SmcR,
        /// The enterprise id that both have: the first of the client's that the server knows.
        eid: Eid,
        /// The terms of a new link group.
        first_contact: Option<X>,
    },
    /// SMC-D, version 1.
    DV1 {
        /// The GID of the sender's ISM device.
        gid: u64,
        /// The sender's end.
        end: SmcD,
        /// Whether the link group is new.
        first_contact: bool,
    },
    /// SMC-D, version 2.
    DV2 {
        /// The sender's ISM device.
        device: Ism,
        /// The sender's end.
        end: SmcD,
        /// The enterprise id that both have.
        eid: Eid,
        /// The terms of a new link group.
        first_contact: Option<FirstContact>,
    },
}

impl Accept {
    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.encode_as(Kind::Accept, smc_r::write_accept_contact)
    }

    pub(super) fn read(reader: &mut Reader<'_>, header: Header) -> Result<Self, InvalidMessage> {
        Self::read_with(reader, header, smc_r::read_accept_contact)
    }
}

impl Confirm {
    /// Bytes of the longest Confirm: what fits into the 652 bytes that the kernel has for it.
    pub const MAX_LEN: u16 = 164 + 16 * smc_r::MAX_GIDS as u16;

    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.encode_as(Kind::Confirm, ConfirmContact::write)
    }

    pub(super) fn read(reader: &mut Reader<'_>, header: Header) -> Result<Self, InvalidMessage> {
        Self::read_with(reader, header, ConfirmContact::read)
    }
}

impl<X> Reply<X> {
    /// The version that the link group has.
    #[must_use]
    pub const fn version(&self) -> Version {
        match self {
            Self::RV1 { .. } | Self::DV1 { .. } => Version::V1,
            Self::RV2 { .. } | Self::DV2 { .. } => Version::V2,
        }
    }

    /// Whether the connection is the first of a new link group.
    #[must_use]
    pub const fn is_first_contact(&self) -> bool {
        match self {
            Self::RV1 { first_contact, .. } | Self::DV1 { first_contact, .. } => *first_contact,
            Self::RV2 { first_contact, .. } => first_contact.is_some(),
            Self::DV2 { first_contact, .. } => first_contact.is_some(),
        }
    }

    const fn letter(&self) -> Letter {
        match self {
            Self::RV1 { .. } | Self::RV2 { .. } => Letter::R,
            Self::DV1 { .. } | Self::DV2 { .. } => Letter::D,
        }
    }

    fn encode_as(&self, kind: Kind, write_contact: impl Fn(&X, &mut Writer)) -> Vec<u8> {
        let letter = self.letter();
        let path = match letter {
            Letter::R => PATH_R,
            Letter::D => PATH_D,
        };
        let flag = if self.is_first_contact() {
            Header::FLAG
        } else {
            0
        };
        let mut writer = header::begin(kind, self.version(), flag | path, letter);
        match self {
            Self::RV1 { end, .. } => end.write(&mut writer),
            Self::RV2 {
                end,
                eid,
                first_contact,
            } => {
                end.write(&mut writer);
                writer.put(eid.as_bytes());
                writer.zeros(8);
                if let Some(contact) = first_contact {
                    write_contact(contact, &mut writer);
                }
            }
            Self::DV1 { gid, end, .. } => {
                writer.be64(*gid);
                end.write(&mut writer);
                writer.zeros(12);
            }
            Self::DV2 {
                device,
                end,
                eid,
                first_contact,
            } => {
                writer.be64(device.gid());
                end.write(&mut writer);
                writer.be16(device.chid());
                writer.put(eid.as_bytes());
                writer.be64(device.extension());
                if let Some(contact) = first_contact {
                    contact.write(&mut writer, false);
                }
            }
        }
        header::end(writer, letter)
    }

    fn read_with(
        reader: &mut Reader<'_>,
        header: Header,
        read_contact: impl Fn(&mut Reader<'_>) -> Result<X, InvalidMessage>,
    ) -> Result<Self, InvalidMessage> {
        let first_contact = header.flags & Header::FLAG != 0;
        let reply = match (header.flags & 3, header.version) {
            (PATH_R, Version::V1) => {
                reader.expect_length(68)?;
                Self::RV1 {
                    end: SmcR::read(reader)?,
                    first_contact,
                }
            }
            (PATH_R, Version::V2) => {
                let end = SmcR::read(reader)?;
                let eid = Eid::read(reader, "EID")?;
                reader.reserved::<8>()?;
                let first_contact = first_contact.then(|| read_contact(reader)).transpose()?;
                Self::RV2 {
                    end,
                    eid,
                    first_contact,
                }
            }
            (PATH_D, Version::V1) => {
                reader.expect_length(48)?;
                let gid = reader.be64("ISM GID")?;
                let end = SmcD::read(reader)?;
                reader.reserved::<12>()?;
                Self::DV1 {
                    gid,
                    end,
                    first_contact,
                }
            }
            (PATH_D, Version::V2) => Self::read_d_v2(reader, first_contact)?,
            (other, _) => {
                let fault = Fault::OutOfRange {
                    found: other.into(),
                    min: 0,
                    max: 1,
                };
                return Err(reader.error("path", fault));
            }
        };
        Header::finish(reader)?;
        Ok(reply)
    }

    fn read_d_v2(reader: &mut Reader<'_>, first_contact: bool) -> Result<Self, InvalidMessage> {
        let gid = reader.be64("ISM GID")?;
        let end = SmcD::read(reader)?;
        let chid = reader.be16("ISM CHID")?;
        let eid = Eid::read(reader, "EID")?;
        let extension = reader.be64("ISM GID extension")?;
        let first_contact = first_contact
            .then(|| FirstContact::read(reader, false))
            .transpose()?;
        Ok(Self::DV2 {
            device: Ism::of_chid(gid, extension, chid),
            end,
            eid,
            first_contact,
        })
    }
}

const PATH_R: u8 = 0;
const PATH_D: u8 = 1;
