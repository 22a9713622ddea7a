//! The frames of the rendezvous connection, on which two engines of one host pass each other their memory.
//!
//! A private protocol, version 1: one frame is one packet of an `AF_UNIX` `SOCK_SEQPACKET` connection, and file
//! descriptors travel beside it. All integers are little-endian. Every frame of every version starts alike, so that an
//! end can name the version that it does not speak:
//!
//! ```text
//!  0  magic "smcfast\0" (8)     8  version u16     10  kind u16
//! 12  length u32, of the whole frame               16  layout hash u64
//! 24  body:
//!     1 Hello    engine id (16)
//!     2 Go       engine id (16), token u64, known link id u32 (0 none), size code u8, zero (3)  + memory, bell
//!     3 Stop     reason u32, zero (4)
//!     4 Memory   token u64, link id u32, size code u8, first contact u8 (0, 1), zero (2)    + memory [, bell]
//! ```
//!
//! The layout hash stands for the layout of the shared memory; whoever owns that layout supplies the hash. Here zero
//! bytes must be zero: both ends are of one version, and what a later one adds gets a later version number.

use std::fmt;

pub use super::engine_id::EngineId;
use super::prim::{Reader, Writer};
use super::{Fault, InvalidMessage, SizeCode};

/// The version of the frames that this module speaks.
pub const VERSION: u16 = 1;
/// Bytes of the longest frame of this version: what to offer when receiving one.
pub const MAX_LEN: usize = HEADER_LEN + 32;

const MAGIC: [u8; 8] = *b"smcfast\0";
const HEADER_LEN: usize = 24;
const NAME: &str = "rendezvous frame";

/// One frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// Server: this is who I am.
    Hello {
        /// The server's engine.
        engine: EngineId,
    },
    /// Client: let us use shared memory; here is mine. Carries two file descriptors: memory and bell.
    Go {
        /// The client's engine.
        engine: EngineId,
        /// The token of the client's memory, which its CLC Confirm will repeat.
        token: u64,
        /// The link group with this server that the client still has and could reuse; 0 if it has none. Only the client
        /// knows: a server that guessed would name a group that the client has let go of.
        known_link: u32,
        /// The size of the ring in the client's memory.
        size: SizeCode,
    },
    /// Either end: this connection stays TCP. The codes are the business of the layer above.
    Stop {
        /// Why.
        reason: u32,
    },
    /// Server: here is my memory. Carries its file descriptor, and on first contact the bell's.
    Memory {
        /// The token of the server's memory, which its CLC Accept will repeat.
        token: u64,
        /// The link group that the connection joins.
        link_id: u32,
        /// The size of the ring in the server's memory.
        size: SizeCode,
        /// Whether the link group is new.
        first_contact: bool,
    },
}

/// Why bytes are no frame of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// The peer speaks another version of this protocol.
    Version {
        /// The version in its frame.
        theirs: u16,
    },
    /// The peer's shared memory has another layout.
    Layout {
        /// The hash in its frame.
        theirs: u64,
    },
    /// Anything else.
    Invalid(InvalidMessage),
}

/// Whether `bytes` are a Stop, of this version or any other: magic and kinds are the same in all of them. Whoever sends a
/// Stop goes on with TCP, even if the rest of the frame is beyond this build.
#[must_use]
pub fn is_stop(bytes: &[u8]) -> bool {
    let mut reader = Reader::new(NAME, bytes);
    reader.take("magic").is_ok_and(|magic| magic == MAGIC)
        && reader.le16("version").is_ok()
        && reader
            .le16("kind")
            .is_ok_and(|kind| kind == Kind::Stop as u16)
}

impl Frame {
    /// How many file descriptors travel with the frame.
    #[must_use]
    pub const fn fd_count(&self) -> usize {
        match self {
            Self::Hello { .. } | Self::Stop { .. } => 0,
            Self::Go { .. } => 2,
            Self::Memory { first_contact, .. } => 1 + *first_contact as usize,
        }
    }

    /// The bytes of the frame; `layout` is the hash of the layout of our shared memory.
    #[must_use]
    pub fn encode(&self, layout: u64) -> Vec<u8> {
        let mut writer = Writer::with_capacity(MAX_LEN);
        writer.put(&MAGIC);
        writer.le16(VERSION);
        writer.le16(self.kind() as u16);
        writer.le32(self.kind().len() as u32);
        writer.le64(layout);
        match *self {
            Self::Hello { engine } => writer.put(&engine.0),
            Self::Go {
                engine,
                token,
                known_link,
                size,
            } => {
                writer.put(&engine.0);
                writer.le64(token);
                writer.le32(known_link);
                writer.u8(size.code());
                writer.zeros(3);
            }
            Self::Stop { reason } => {
                writer.le32(reason);
                writer.zeros(4);
            }
            Self::Memory {
                token,
                link_id,
                size,
                first_contact,
            } => {
                writer.le64(token);
                writer.le32(link_id);
                writer.u8(size.code());
                writer.u8(first_contact.into());
                writer.zeros(2);
            }
        }
        writer.finish()
    }

    /// The frame in one packet; `layout` is the hash of the layout of our shared memory.
    ///
    /// The order of the checks is part of the protocol: magic, version, layout, kind, length, body. An end of another
    /// version or layout is thus told apart from one that is broken.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn decode(bytes: &[u8], layout: u64) -> Result<Self, FrameError> {
        let mut reader = Reader::new(NAME, bytes);
        if reader.take("magic")? != MAGIC {
            return Err(reader
                .error("magic", Fault::Illegal("is not that of smcfast"))
                .into());
        }
        let version = reader.le16("version")?;
        let kind = reader.le16("kind")?;
        let length = reader.le32("length")?;
        let theirs = reader.le64("layout")?;
        if version != VERSION {
            return Err(FrameError::Version { theirs: version });
        }
        if theirs != layout {
            return Err(FrameError::Layout { theirs });
        }
        let Some(kind) = Kind::new(kind) else {
            return Err(reader
                .error(
                    "kind",
                    Fault::OutOfRange {
                        found: kind.into(),
                        min: 1,
                        max: 4,
                    },
                )
                .into());
        };
        reader.expect("length", length.into(), kind.len() as u64)?;
        reader.expect_length(kind.len())?;
        Ok(Self::body(&mut reader, kind)?)
    }

    fn body(reader: &mut Reader<'_>, kind: Kind) -> Result<Self, InvalidMessage> {
        Ok(match kind {
            Kind::Hello => Self::Hello {
                engine: EngineId(reader.take("engine id")?),
            },
            Kind::Go => {
                let engine = EngineId(reader.take("engine id")?);
                let token = reader.le64("token")?;
                let known_link = reader.le32("known link id")?;
                let size = size_code(reader)?;
                reader.zero::<3>("padding")?;
                Self::Go {
                    engine,
                    token,
                    known_link,
                    size,
                }
            }
            Kind::Stop => {
                let reason = reader.le32("reason")?;
                reader.zero::<4>("padding")?;
                Self::Stop { reason }
            }
            Kind::Memory => {
                let token = reader.le64("token")?;
                let link_id = reader.le32("link id")?;
                let size = size_code(reader)?;
                let first_contact = boolean(reader, "first contact")?;
                reader.zero::<2>("padding")?;
                Self::Memory {
                    token,
                    link_id,
                    size,
                    first_contact,
                }
            }
        })
    }

    const fn kind(&self) -> Kind {
        match self {
            Self::Hello { .. } => Kind::Hello,
            Self::Go { .. } => Kind::Go,
            Self::Stop { .. } => Kind::Stop,
            Self::Memory { .. } => Kind::Memory,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Hello = 1,
    Go = 2,
    Stop = 3,
    Memory = 4,
}

impl Kind {
    const fn new(kind: u16) -> Option<Self> {
        match kind {
            1 => Some(Self::Hello),
            2 => Some(Self::Go),
            3 => Some(Self::Stop),
            4 => Some(Self::Memory),
            _ => None,
        }
    }

    const fn len(self) -> usize {
        HEADER_LEN
            + match self {
                Self::Hello | Self::Memory => 16,
                Self::Go => 32,
                Self::Stop => 8,
            }
    }
}

fn size_code(reader: &mut Reader<'_>) -> Result<SizeCode, InvalidMessage> {
    let code = reader.u8("size code")?;
    let max = SizeCode::MAX.code().into();
    SizeCode::new(code).ok_or_else(|| {
        reader.error(
            "size code",
            Fault::OutOfRange {
                found: code.into(),
                min: 0,
                max,
            },
        )
    })
}

fn boolean(reader: &mut Reader<'_>, field: &'static str) -> Result<bool, InvalidMessage> {
    match reader.u8(field)? {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(reader.error(
            field,
            Fault::OutOfRange {
                found: found.into(),
                min: 0,
                max: 1,
            },
        )),
    }
}

impl From<InvalidMessage> for FrameError {
    fn from(error: InvalidMessage) -> Self {
        Self::Invalid(error)
    }
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { theirs } => write!(f, "{NAME}: version: {theirs}, ours is {VERSION}"),
            Self::Layout { theirs } => write!(f, "{NAME}: layout: {theirs:#018x} is not ours"),
            Self::Invalid(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for FrameError {}

#[cfg(test)]
mod tests;
