//! What a SEND on a queue pair of SMC-R may be.

use super::InvalidMessage;
use super::cdc::{Cdc, RdmaCdc};
use super::llc::{Kind, Message};
use super::prim::Reader;

/// The content of one receive of a queue pair.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Received {
    /// News of a connection.
    Cdc(RdmaCdc),
    /// About links and keys.
    Llc(Message),
    /// A message of a type that nobody knows, by its first byte. The kernel ignores it silently.
    Unknown(u8),
}

impl Received {
    /// The message in these bytes: as many as the completion of the receive says, however many the buffer has.
    ///
    /// # Errors
    /// [`InvalidMessage`] when there is no byte, or a known type begins something that is no message of it.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidMessage> {
        Self::read(&mut Reader::new(Self::NAME, bytes))
    }

    pub(super) const NAME: &'static str = "message on a queue pair";

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, InvalidMessage> {
        match reader.peek(0) {
            Some(Cdc::TYPE) => RdmaCdc::read(reader).map(Self::Cdc),
            Some(byte) if Kind::of(byte).is_some() => Message::read(reader).map(Self::Llc),
            _ => reader.u8("type").map(Self::Unknown),
        }
    }
}
