//! One end of an SMC-D connection, as Accept and Confirm describe it.
//!
//! ```text
//!  8  ISM GID u64    16  DMB token u64    24  DMBE index    25  bits 7-4 size code    26  reserved (2)
//! 28  link id u32
//! 32  version 1: reserved (12)
//! 32  version 2: ISM CHID u16, EID (32), ISM GID extension u64
//! 74  version 2, first contact: first contact extension, in release 0 its first 36 bytes
//! ```

use crate::wire::prim::{Reader, Writer};
use crate::wire::{InvalidMessage, SizeCode};

/// The sender's end of an SMC-D connection; its device stands beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SmcD {
    /// Names the sender's DMB, the memory into which the receiver will write.
    pub token: u64,
    /// The element of the DMB, counted from 0.
    pub dmbe_index: u8,
    /// The size of the element.
    pub size: SizeCode,
    /// The link group. Four bytes of the sender's own making, taken here as big-endian.
    pub link_id: u32,
}

impl SmcD {
    pub(super) fn write(&self, writer: &mut Writer) {
        writer.be64(self.token);
        writer.u8(self.dmbe_index);
        writer.u8(self.size.code() << 4);
        writer.zeros(2);
        writer.be32(self.link_id);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, InvalidMessage> {
        let token = reader.be64("DMB token")?;
        let dmbe_index = reader.u8("DMBE index")?;
        let size = SizeCode::from_high_nibble(reader.u8("size code")?);
        reader.reserved::<2>()?;
        let link_id = reader.be32("link id")?;
        Ok(Self {
            token,
            dmbe_index,
            size,
            link_id,
        })
    }
}
