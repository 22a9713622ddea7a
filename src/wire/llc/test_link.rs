//! TEST_LINK: is somebody there? (RFC 7609 A.3.8)
//!
//! ```text
//! 4  user data (16)    20  reserved (24)
//! ```

use super::header::{self, Header, Kind, Turn};
use crate::wire::InvalidMessage;
use crate::wire::clc::Version;
use crate::wire::prim::Reader;

/// A TEST_LINK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TestLink {
    /// The version of the link group.
    pub version: Version,
    /// Either end asks.
    pub turn: Turn,
    /// Anything; the response repeats it. Linux sends zeros.
    pub user_data: [u8; 16],
}

impl TestLink {
    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = header::begin(Kind::TestLink, self.version, self.turn.flags());
        writer.put(&self.user_data);
        header::end(writer, self.version)
    }

    pub(super) fn read(reader: &mut Reader<'_>, header: Header) -> Result<Self, InvalidMessage> {
        Ok(Self {
            version: header.version,
            turn: header.turn(),
            user_data: reader.take("user data")?,
        })
    }
}
