//! The CLC handshake over TCP, as two machines: [`ClientHandshake`] and [`ServerHandshake`].
//!
//! ```text
//!        client                                server
//!        new        --- Proposal --->          event Proposed
//!  event Accepted   <---  Accept  ---          accept
//!        confirm    ---  Confirm --->          event Confirmed
//!        Established (SMC-D)                   Established (SMC-D)
//!        linked, Established (SMC-R)           linked, Established (SMC-R)
//! ```
//!
//! Instead of any of its messages, a side may send a Decline; both then go on with TCP on the same stream, directly
//! behind the bytes of the Decline. That is why a machine asks for exact numbers of bytes: what follows a message may
//! belong to the application.
//!
//! The caller of a machine, after each `handle_*` and each command:
//! 1. writes all of `poll_transmit` to the TCP connection, until there is no more;
//! 2. takes events from `poll_event`, until there are none; the last one is `Done`;
//! 3. reads exactly `wanted` bytes, in any pieces, and gives them to `handle_bytes`; if `wanted` is 0 it does not read;
//! 4. calls `handle_timeout` when the moment of `poll_timeout` has come, and `handle_eof` when the stream ends.
//!
//! Moments are durations since any one fixed moment of the caller's.
//!
//! With SMC-R, LLC messages follow on the new link while both sides still wait for a Decline over TCP. That phase ends
//! when the caller says `linked`, or `decline`.

mod agreed;
mod check;
mod client;
mod exchange;
mod local;
mod select;
mod server;

use thiserror::Error;

pub use agreed::{Agreed, Device, Limits, OwnEnd, Path, PeerEnd};
pub use client::{Accepted, ClientEvent, ClientHandshake};
pub use exchange::CLC_TIMEOUT;
pub use local::{Local, LocalD, LocalR, SAME_HOST_CHID, Subnets};
pub use server::{Confirmed, Proposed, ServerEvent, ServerHandshake};

use crate::wire::InvalidMessage;
use crate::wire::clc::{Diagnosis, Kind};

/// How a handshake has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// SMC: application data goes through memory from here on; the TCP connection stays open and silent.
    Established(Agreed),
    /// TCP goes on behind the bytes of the Decline.
    Declined(Declined),
    /// Neither: the stream holds bytes that are not the application's.
    Failed(Failure),
}

/// A side that has declined, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declined {
    /// Who sent the Decline.
    pub by: Side,
    /// The code in it.
    pub diagnosis: Diagnosis,
    /// The client does not have the link group that the server wanted to use again: the server has to end it.
    pub out_of_sync: bool,
}

/// One of the two ends, seen from one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// This one.
    Us,
    /// The other one.
    Peer,
}

/// Why a handshake has come to nothing. Kernel 6.12 gives up the TCP connection in all these cases too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Failure {
    /// Something else than the message that was due, or a message that is none.
    #[error("{0}")]
    Invalid(#[from] InvalidMessage),
    /// The TCP connection has ended.
    #[error("the peer ended the connection during the handshake")]
    Eof,
    /// This message did not come in time.
    #[error("the peer's CLC {0:?} did not come in time")]
    TimedOut(Kind),
}
