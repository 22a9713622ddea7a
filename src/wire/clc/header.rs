//! The eight bytes in front of every CLC message and the four behind it.
//!
//! ```text
//! 0  eyecatcher (4), "SMCR" or "SMCD" in EBCDIC     4  type     5  length u16, of the whole message
//! 7  bits 7-4 version, bits 3-0 flags of the type   length-4  eyecatcher again
//! ```

use super::{Confirm, Decline, Proposal};
use crate::wire::prim::{Reader, Writer};
use crate::wire::{Fault, InvalidMessage};

/// "SMC" in EBCDIC; 'R' or 'D' follows.
const SMC: [u8; 3] = [0xe2, 0xd4, 0xc3];

/// The type of a CLC message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Client: what I can do.
    Proposal = 1,
    /// Server: what we do, and where my memory is.
    Accept,
    /// Client: agreed, and where mine is.
    Confirm,
    /// Either: let us go on with TCP.
    Decline,
}

impl Kind {
    const fn new(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Proposal),
            2 => Some(Self::Accept),
            3 => Some(Self::Confirm),
            4 => Some(Self::Decline),
            _ => None,
        }
    }

    /// The name that errors carry.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Proposal => "CLC Proposal",
            Self::Accept => "CLC Accept",
            Self::Confirm => "CLC Confirm",
            Self::Decline => "CLC Decline",
        }
    }

    /// The least and the greatest length of a message, in bytes.
    const fn bounds(self, version: Version) -> (u16, u16) {
        match (self, version) {
            (Self::Proposal, Version::V1) => (52, Proposal::MAX_LEN_V1),
            (Self::Proposal, Version::V2) => (92, Proposal::MAX_LEN),
            (Self::Accept | Self::Confirm, Version::V1) => (48, 68),
            (Self::Accept, Version::V2) => (78, 160),
            (Self::Confirm, Version::V2) => (78, Confirm::MAX_LEN),
            // The version tells the length: the kernel gives up the connection when they differ.
            (Self::Decline, Version::V1) => (Decline::LEN_V1, Decline::LEN_V1),
            (Self::Decline, Version::V2) => (Decline::LEN_V2, Decline::LEN_V2),
        }
    }
}

/// The version of a CLC message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// RFC 7609.
    V1 = 1,
    /// SMC version 2, releases 0 and 1.
    V2,
}

/// The last letter of an eyecatcher, as it is sent. On receipt both are good for every message.
#[derive(Debug, Clone, Copy)]
pub(super) enum Letter {
    R = 0xd9,
    D = 0xc4,
}

/// A header that was read and checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) version: Version,
    /// The low half of byte 7.
    pub(super) flags: u8,
    pub(super) length: u16,
}

impl Header {
    pub(super) const LEN: usize = 8;
    pub(super) const TRAILER_LEN: usize = 4;
    /// Accept and Confirm: first contact. Decline: out of sync.
    pub(super) const FLAG: u8 = 0x08;

    /// Reads the header of a message that should be whole, and gives the reader its name.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, InvalidMessage> {
        let header = Self::peek(reader)?;
        reader.expect_length(header.length.into())?;
        Ok(header)
    }

    /// Reads the header of a message of which there may be no more yet.
    pub(super) fn peek(reader: &mut Reader<'_>) -> Result<Self, InvalidMessage> {
        eyecatcher(reader, "eyecatcher")?;
        let code = reader.u8("type")?;
        let Some(kind) = Kind::new(code) else {
            return Err(reader.error(
                "type",
                Fault::OutOfRange {
                    found: code.into(),
                    min: 1,
                    max: 4,
                },
            ));
        };
        reader.rename(kind.name());
        let length = reader.be16("length")?;
        let byte = reader.u8("version and flags")?;
        let version = match byte >> 4 {
            1 => Version::V1,
            2 => Version::V2,
            other => {
                let fault = Fault::OutOfRange {
                    found: other.into(),
                    min: 1,
                    max: 2,
                };
                return Err(reader.error("version", fault));
            }
        };
        let (min, max) = kind.bounds(version);
        let length_is = |fault| Err(reader.error("length", fault));
        match length {
            found if min == max && found != min => length_is(Fault::Unexpected {
                found: found.into(),
                expected: min.into(),
            }),
            found if !(min..=max).contains(&found) => length_is(Fault::OutOfRange {
                found: found.into(),
                min: min.into(),
                max: max.into(),
            }),
            length => Ok(Self {
                kind,
                version,
                flags: byte & 0x0f,
                length,
            }),
        }
    }

    /// Reads the trailer; nothing may follow.
    pub(super) fn finish(reader: &mut Reader<'_>) -> Result<(), InvalidMessage> {
        eyecatcher(reader, "trailer")?;
        reader.expect_end()
    }
}

/// A writer behind the header of a message; `flags` has four bits.
pub(super) fn begin(kind: Kind, version: Version, flags: u8, letter: Letter) -> Writer {
    let mut writer = Writer::with_capacity(kind.bounds(version).1.into());
    put_eyecatcher(&mut writer, letter);
    writer.u8(kind as u8);
    writer.be16(0); // the length, known in `end`
    writer.u8((version as u8) << 4 | flags);
    writer
}

/// The message with its trailer and its length.
pub(super) fn end(mut writer: Writer, letter: Letter) -> Vec<u8> {
    put_eyecatcher(&mut writer, letter);
    let mut bytes = writer.finish();
    let length = bytes.len() as u16; // all values are bounded: see `Kind::bounds`
    bytes[5..7].copy_from_slice(&length.to_be_bytes());
    bytes
}

fn put_eyecatcher(writer: &mut Writer, letter: Letter) {
    writer.put(&SMC);
    writer.u8(letter as u8);
}

fn eyecatcher(reader: &mut Reader<'_>, field: &'static str) -> Result<(), InvalidMessage> {
    let [smc @ .., letter] = reader.take::<4>(field)?;
    if smc == SMC && [Letter::R as u8, Letter::D as u8].contains(&letter) {
        return Ok(());
    }
    Err(reader.error(field, Fault::Illegal("is neither SMCR nor SMCD")))
}
