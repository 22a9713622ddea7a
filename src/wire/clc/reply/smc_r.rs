//! One end of an SMC-R connection, as Accept and Confirm describe it.
//!
//! ```text
//!   8  peer id (8)    16  GID (16)    32  MAC (6)    38  QP number (3)    41  RMB rkey u32    45  RMBE index
//!  46  alert token u32    50  bits 7-4 size code, bits 3-0 MTU    51  reserved    52  RMB address u64
//!  60  reserved    61  initial PSN (3)
//!  64  version 2: EID (32), reserved (8)
//! 104  version 2, first contact: first contact extension
//! 156  Confirm of it: GID count, reserved (3), GIDs of 16 bytes
//! ```

use std::num::{NonZeroU8, NonZeroU32};

use super::{FirstContact, Header};
use crate::wire::clc::few::Few;
use crate::wire::clc::field::{Gid, Mac, Mtu, PeerId, U24};
use crate::wire::prim::{Reader, Writer};
use crate::wire::{Fault, InvalidMessage, SizeCode};

/// The sender's end of an SMC-R connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SmcR {
    /// The sender.
    pub peer_id: PeerId,
    /// The GID of its link.
    pub gid: Gid,
    /// The MAC of its link.
    pub mac: Mac,
    /// The number of its queue pair.
    pub qp_number: U24,
    /// The key for writing into its RMB over this link.
    pub rkey: u32,
    /// The element of the RMB, counted from 1. The kernel would write in front of the buffer for element 0.
    pub rmbe_index: NonZeroU8,
    /// What the receiver must put into each CDC that it sends.
    pub alert_token: NonZeroU32,
    /// The size of the element.
    pub size: SizeCode,
    /// In an Accept the sender's MTU, in a Confirm the lesser of both ends'.
    pub mtu: Mtu,
    /// The address of the RMB, where element 1 starts.
    pub rmb_address: u64,
    /// The first packet sequence number that the sender will use.
    pub psn: U24,
}

impl SmcR {
    pub(super) fn write(&self, writer: &mut Writer) {
        writer.put(&self.peer_id.0);
        writer.put(&self.gid.0);
        writer.put(&self.mac.0);
        writer.put(&self.qp_number.to_bytes());
        writer.be32(self.rkey);
        writer.u8(self.rmbe_index.get());
        writer.be32(self.alert_token.get());
        writer.u8(self.size.code() << 4 | self.mtu.code());
        writer.u8(0);
        writer.be64(self.rmb_address);
        writer.u8(0);
        writer.put(&self.psn.to_bytes());
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, InvalidMessage> {
        let zero = Fault::Illegal("must not be zero");
        let peer_id = PeerId(reader.take("peer id")?);
        let gid = Gid(reader.take("GID")?);
        let mac = Mac(reader.take("MAC")?);
        let qp_number = U24::read(reader, "QP number")?;
        let rkey = reader.be32("RMB rkey")?;
        let index = reader.u8("RMBE index")?;
        let rmbe_index = NonZeroU8::new(index).ok_or_else(|| reader.error("RMBE index", zero))?;
        let token = reader.be32("alert token")?;
        let alert_token =
            NonZeroU32::new(token).ok_or_else(|| reader.error("alert token", zero))?;
        let byte = reader.u8("size code and MTU")?;
        let mtu = Mtu::of(reader, byte & 0x0f)?;
        reader.reserved::<1>()?;
        let rmb_address = reader.be64("RMB address")?;
        reader.reserved::<1>()?;
        let psn = U24::read(reader, "initial PSN")?;
        let size = SizeCode::from_high_nibble(byte);
        Ok(Self {
            peer_id,
            gid,
            mac,
            qp_number,
            rkey,
            rmbe_index,
            alert_token,
            size,
            mtu,
            rmb_address,
            psn,
        })
    }
}

/// The greatest number of GIDs: as many as fit into the 652 bytes that the kernel has for a Confirm.
pub(super) const MAX_GIDS: usize = 30;

/// What a Confirm says on first contact for SMC-Rv2.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConfirmContact {
    /// The extension; the client repeats the terms of the Accept.
    pub terms: FirstContact,
    /// The GIDs that the client can use for links, that of this link first.
    pub gids: Few<Gid, MAX_GIDS>,
}

pub(super) fn read_accept_contact(reader: &mut Reader<'_>) -> Result<FirstContact, InvalidMessage> {
    let short = reader.len() == FIRST_CONTACT_AT + FirstContact::SHORT + Header::TRAILER_LEN;
    FirstContact::read(reader, !short)
}

pub(super) fn write_accept_contact(contact: &FirstContact, writer: &mut Writer) {
    contact.write(writer, true);
}

impl ConfirmContact {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, InvalidMessage> {
        // The count of GIDs stands where the shorter extension ends only if that is the one that was sent: in the
        // longer one these bytes are zero, and the message is longer than one without GIDs.
        let list_at = FIRST_CONTACT_AT + FirstContact::SHORT;
        let list_len = |count: u8| 4 + 16 * usize::from(count);
        let short = reader
            .peek(list_at)
            .is_some_and(|count| reader.len() == list_at + list_len(count) + Header::TRAILER_LEN);
        let terms = FirstContact::read(reader, !short)?;
        let count = reader.u8("GID count")?;
        reader.reserved::<3>()?;
        let gids = Few::read(reader, "GID count", count, |reader| {
            reader.take("link GID").map(Gid)
        })?;
        Ok(Self { terms, gids })
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        self.terms.write(writer, true);
        writer.u8(self.gids.count());
        writer.zeros(3);
        self.gids.iter().for_each(|gid| writer.put(&gid.0));
    }
}

const FIRST_CONTACT_AT: usize = 104;
