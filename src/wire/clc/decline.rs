//! The Decline, after which both ends go on with TCP on the same byte stream.
//!
//! ```text
//!  0  header; flag 0x08 out of sync    8  peer id (8)    16  diagnosis u32    20  bits 7-4 OS    21  reserved (3)
//! 24  version 2: four more diagnoses u32
//! ```

use super::diagnosis::Diagnosis;
use super::field::{Os, PeerId};
use super::header::{self, Header, Kind, Letter, Version};
use crate::wire::InvalidMessage;
use crate::wire::prim::Reader;

/// A Decline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decline {
    /// The sender; may be zero.
    pub peer_id: PeerId,
    /// Why.
    pub diagnosis: Diagnosis,
    /// The sender does not have the link group that the peer wants to use again. A kernel then ends that link group;
    /// in answer to a first contact this flag hangs it.
    pub out_of_sync: bool,
    /// The sender's operating system; none in version 1.
    pub os: Os,
    /// Further codes, which only version 2 has; `None` makes it a message of version 1.
    ///
    /// The answer to a Proposal or an Accept has the version of that message.
    pub more: Option<[Diagnosis; 4]>,
}

impl Decline {
    /// Bytes of a Decline of version 1.
    pub const LEN_V1: u16 = 28;
    /// Bytes of a Decline of version 2.
    pub const LEN_V2: u16 = 44;

    /// A Decline of this version, as Linux sends it.
    #[must_use]
    pub const fn new(version: Version, peer_id: PeerId, diagnosis: Diagnosis) -> Self {
        let (os, more) = match version {
            Version::V1 => (Os::NONE, None),
            Version::V2 => (Os::LINUX, Some([Diagnosis::NONE; 4])),
        };
        Self {
            peer_id,
            diagnosis,
            out_of_sync: false,
            os,
            more,
        }
    }

    /// The version of the message.
    #[must_use]
    pub const fn version(&self) -> Version {
        if self.more.is_some() {
            Version::V2
        } else {
            Version::V1
        }
    }

    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let flag = if self.out_of_sync { Header::FLAG } else { 0 };
        let mut writer = header::begin(Kind::Decline, self.version(), flag, Letter::R);
        writer.put(&self.peer_id.0);
        writer.be32(self.diagnosis.0);
        writer.u8(self.os.code() << 4);
        writer.zeros(3);
        self.more
            .iter()
            .flatten()
            .for_each(|diagnosis| writer.be32(diagnosis.0));
        header::end(writer, Letter::R)
    }

    pub(super) fn read(reader: &mut Reader<'_>, header: Header) -> Result<Self, InvalidMessage> {
        let peer_id = PeerId(reader.take("peer id")?);
        let diagnosis = Diagnosis(reader.be32("diagnosis")?);
        let os = Os::from_high_nibble(reader.u8("OS")?);
        reader.reserved::<3>()?;
        let more = match header.version {
            Version::V1 => None,
            Version::V2 => {
                let mut more = [Diagnosis::NONE; 4];
                for diagnosis in &mut more {
                    *diagnosis = Diagnosis(reader.be32("further diagnosis")?);
                }
                Some(more)
            }
        };
        Header::finish(reader)?;
        Ok(Self {
            peer_id,
            diagnosis,
            out_of_sync: header.flags & Header::FLAG != 0,
            os,
            more,
        })
    }
}
