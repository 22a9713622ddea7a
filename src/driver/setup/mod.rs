//! How two ends on one host become a connection: the frames of the rendezvous connection and the CLC handshake together.
//!
//! ```text
//! server -> client  rendezvous  Hello                  who I am
//! client -> server  rendezvous  Go + memory, bell      (or Stop: TCP)
//! client -> server  TCP         CLC Proposal
//! server -> client  rendezvous  Memory + memory [, bell]
//! server -> client  TCP         CLC Accept             once the Memory is on its way
//! client -> server  TCP         CLC Confirm            both are on the ring from here on
//! ```
//!
//! Whatever can fail fails before the Confirm: the server has mapped the client's memory and sent its own before it accepts,
//! the client has mapped the server's before it confirms. A failure is a Decline with the right code, and TCP goes on behind
//! it. Only a Stop, or the end of the rendezvous connection, says that no Proposal follows a Hello: whatever else a server
//! gets in place of a Go, it reads the Proposal and declines it.
//!
//! That is SMC-D. SMC-R needs no rendezvous connection; between the two ends' Accept and Confirm, and behind them, the link
//! comes up by itself over RDMA, while TCP still may carry a Decline. See `link`.
//!
//! Nothing here reads or writes a socket: the caller carries the bytes and the file descriptors.

mod client;
mod link;
mod offer;
mod server;

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Duration;

use thiserror::Error;

use super::endpoint::Endpoint;
use super::engine::random;
use crate::fabric::shm::{Bell, Dmb};
use crate::mem::header::LAYOUT_HASH;
use crate::mem::memfd::Refused;
use crate::proto::handshake::{Agreed, Failure, Outcome};
use crate::wire::clc::{Diagnosis, Gid, Mtu, U24};
use crate::wire::rendezvous::{Frame, FrameError};
use crate::wire::{EngineId, SizeCode};

pub use client::ClientSetup;
pub use offer::{Offer, RdmaOffer};
pub use server::ServerSetup;

/// What this end brings.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The size of the own ring.
    pub size: SizeCode,
    /// Whether all pages of the own memory are taken at once.
    pub preallocate: bool,
}

/// Why the two ends do not even begin a CLC handshake; both go on with plain TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Incompatible {
    /// Another version of the rendezvous protocol.
    #[error("the peer speaks version {theirs} of the rendezvous protocol, this end version {ours}")]
    Version {
        /// In the peer's frame.
        theirs: u16,
        /// Of this build.
        ours: u16,
    },
    /// Another layout of the shared memory.
    #[error("the peer lays out shared memory differently ({theirs:#018x}, this end {ours:#018x})")]
    Layout {
        /// In the peer's frame.
        theirs: u64,
        /// Of this build.
        ours: u64,
    },
    /// The peer has said that it cannot.
    #[error("the peer has stopped the rendezvous: reason {reason}")]
    Stopped {
        /// In its Stop.
        reason: u32,
    },
    /// A frame that is none.
    #[error("{0}")]
    Invalid(#[from] crate::wire::InvalidMessage),
    /// A frame that is not due.
    #[error("rendezvous frame: kind: not the one that is due")]
    NotDue,
}

/// Reasons in a Stop.
mod stop {
    pub(super) const VERSION: u32 = 1;
    pub(super) const LAYOUT: u32 = 2;
    pub(super) const INVALID: u32 = 3;
}

impl Incompatible {
    /// The Stop that tells the peer.
    pub fn frame(&self) -> Vec<u8> {
        let reason = match self {
            Self::Version { .. } => stop::VERSION,
            Self::Layout { .. } => stop::LAYOUT,
            Self::Stopped { .. } | Self::Invalid(_) | Self::NotDue => stop::INVALID,
        };
        Frame::Stop { reason }.encode(LAYOUT_HASH)
    }

    /// Whether it comes of two builds that differ, as far as is known.
    pub fn is_version(&self) -> bool {
        match self {
            Self::Version { .. } | Self::Layout { .. } => true,
            Self::Stopped { reason } => matches!(*reason, stop::VERSION | stop::LAYOUT),
            Self::Invalid(_) | Self::NotDue => false,
        }
    }
}

fn decode(frame: &[u8]) -> Result<Frame, Incompatible> {
    Frame::decode(frame, LAYOUT_HASH).map_err(|error| match error {
        FrameError::Version { theirs } => Incompatible::Version {
            theirs,
            ours: crate::wire::rendezvous::VERSION,
        },
        FrameError::Layout { theirs } => Incompatible::Layout {
            theirs,
            ours: LAYOUT_HASH,
        },
        FrameError::Invalid(invalid) => Incompatible::Invalid(invalid),
    })
}

/// How a set-up has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// [`ClientSetup::finish`] or [`ServerSetup::finish`] has the endpoint.
    Established,
    /// TCP goes on behind the Decline.
    Declined {
        /// In the Decline.
        diagnosis: Diagnosis,
        /// Why, as far as it is known.
        text: String,
    },
    /// The TCP stream holds bytes that are not the application's.
    Failed {
        /// Why.
        text: String,
    },
}

impl Ended {
    fn of(outcome: Outcome, refusal: Option<&Refusal>) -> Self {
        match outcome {
            Outcome::Established(_) => Self::Established,
            Outcome::Declined(declined) => {
                let diagnosis = declined.diagnosis;
                let text = refusal
                    .filter(|refusal| refusal.diagnosis == diagnosis)
                    .map(|refusal| refusal.text.clone());
                Self::Declined {
                    diagnosis,
                    text: text.unwrap_or_else(|| diagnosis.text().to_owned()),
                }
            }
            Outcome::Failed(failure) => Self::failed(failure),
        }
    }

    fn failed(failure: Failure) -> Self {
        Self::Failed {
            text: failure.to_string(),
        }
    }
}

/// Why this end will decline, and what it will say.
#[derive(Debug, Clone)]
struct Refusal {
    diagnosis: Diagnosis,
    text: String,
}

impl Refusal {
    fn new(diagnosis: Diagnosis, text: impl ToString) -> Self {
        Self {
            diagnosis,
            text: text.to_string(),
        }
    }
}

impl From<std::io::Error> for Refusal {
    /// Out of memory, file descriptors or watches: this end lacks something.
    fn from(error: std::io::Error) -> Self {
        let diagnosis = match error.kind() {
            // Of what a peer has sent: no doorbell, memory that cannot be written.
            std::io::ErrorKind::InvalidInput | std::io::ErrorKind::PermissionDenied => {
                Diagnosis::INTERNAL_ERROR
            }
            std::io::ErrorKind::QuotaExceeded => Diagnosis::DMB_LIMIT,
            _ => Diagnosis::OUT_OF_MEMORY,
        };
        Self::new(diagnosis, error)
    }
}

impl From<Incompatible> for Refusal {
    fn from(incompatible: Incompatible) -> Self {
        let diagnosis = if incompatible.is_version() {
            Diagnosis::VERSION_MISMATCH
        } else {
            Diagnosis::INTERNAL_ERROR
        };
        Self::new(diagnosis, incompatible)
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Os(error) => error.into(),
            other => Self::new(Diagnosis::INTERNAL_ERROR, other),
        }
    }
}

/// The own memory and its names.
#[derive(Debug)]
struct OwnMemory {
    dmb: Dmb,
    fd: OwnedFd,
    token: u64,
    size: SizeCode,
}

impl OwnMemory {
    fn new(options: Options) -> std::io::Result<Self> {
        let (dmb, fd) = Dmb::create(options.size.bytes() as usize, options.preallocate)?;
        Ok(Self {
            dmb,
            fd,
            token: u64::from_ne_bytes(random()?),
            size: options.size,
        })
    }
}

/// Takes exactly `N` descriptors.
fn exactly<const N: usize>(fds: Vec<OwnedFd>) -> Result<[OwnedFd; N], Refusal> {
    let got = fds.len();
    fds.try_into().map_err(|_| {
        let text = format!("rendezvous frame: file descriptors: {got}, expected {N}");
        Refusal::new(Diagnosis::INTERNAL_ERROR, text)
    })
}

/// What is known about an established connection.
#[derive(Debug, Clone)]
pub struct Established {
    /// What both sides agreed on.
    pub agreed: Agreed,
    /// Where it leads.
    pub far: Far,
}

/// Where a connection leads.
#[derive(Debug, Clone)]
pub enum Far {
    /// To another engine on this host.
    Memory {
        /// That engine.
        peer: EngineId,
    },
    /// Over a link.
    Link {
        /// The name of the own device.
        device: String,
        /// Its port.
        port: u8,
        /// The own address.
        gid: Gid,
        /// The peer's.
        peer_gid: Gid,
        /// What both use.
        mtu: Mtu,
        /// The number of the own queue pair.
        qp_number: U24,
    },
}

/// The moment of a float number of seconds.
pub fn moment(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// This host's name, as it was when the process first asked.
fn host_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let name = rustix::system::uname();
        name.nodename().to_string_lossy().into_owned()
    })
}

#[cfg(test)]
mod tests;
