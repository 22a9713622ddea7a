//! Where a peer may write: a key and an address, which are good for one link and one buffer.

use crate::wire::InvalidMessage;
use crate::wire::prim::{Reader, Writer};

/// The key and the address of a receive buffer (RMB), for the link that the message travels on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Key {
    /// The remote key.
    pub rkey: u32,
    /// Where the buffer starts.
    pub address: u64,
}

impl Key {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, InvalidMessage> {
        Ok(Self {
            rkey: reader.be32("rkey")?,
            address: reader.be64("address")?,
        })
    }

    pub(super) fn write(self, writer: &mut Writer) {
        writer.be32(self.rkey);
        writer.be64(self.address);
    }
}

/// The same for another link, 13 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct KeyOnLink {
    /// The number of the link. The kernel passes over the key when it knows no such link.
    pub link: u8,
    /// The key there.
    pub key: Key,
}

impl KeyOnLink {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, InvalidMessage> {
        Ok(Self {
            link: reader.u8("link number of rkey")?,
            key: Key::read(reader)?,
        })
    }

    pub(super) fn write(self, writer: &mut Writer) {
        writer.u8(self.link);
        self.key.write(writer);
    }
}

/// A buffer that the peer knows on one link, and its key on a new one: 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct MovedKey {
    /// Its key on the link that the message travels on.
    pub known: u32,
    /// The key on the new link.
    pub new: Key,
}

impl MovedKey {
    /// Bytes on the wire.
    pub(super) const LEN: usize = 16;

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, InvalidMessage> {
        Ok(Self {
            known: reader.be32("known rkey")?,
            new: Key::read(reader)?,
        })
    }

    pub(super) fn write(self, writer: &mut Writer) {
        writer.be32(self.known);
        self.new.write(writer);
    }
}
