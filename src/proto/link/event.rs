//! What a link tells its caller.

use thiserror::Error;

use crate::proto::handshake::Side;
use crate::wire::InvalidMessage;
use crate::wire::clc::Diagnosis;
use crate::wire::llc::{DeleteReason, Key};

/// What a link tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkEvent {
    /// Client: the server has asked. The caller makes its queue pair ready to send, registers its buffer, and says
    /// [`confirm`](super::Link::confirm).
    Confirmable,
    /// Both ends have confirmed the link: connections may use it.
    Up,
    /// What has become of [`confirm_key`](super::Link::confirm_key).
    KeyAnswered {
        /// The key of the request.
        key: Key,
        /// What the peer said.
        answer: KeyAnswer,
    },
    /// The peer has forgotten the key of [`delete_key`](super::Link::delete_key), never knew it, or did not answer: there
    /// is nothing more to wait for.
    KeyDeleted(u32),
    /// The end; nothing follows.
    Down(Cause),
}

/// An answer to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyAnswer {
    /// The peer can write to the buffer.
    Confirmed,
    /// It has no room, or does not want it.
    Refused {
        /// It may want it later.
        retry: bool,
    },
    /// It did not answer in time, to this or to a question before it.
    Silent,
}

/// Why a link is down, and with it its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Cause {
    /// The peer's CONFIRM_LINK did not come in time.
    #[error("the peer did not confirm the link in time")]
    Unconfirmed,
    /// The peer puts eyecatchers into its buffers, which nobody here skips.
    #[error("the peer uses eyecatchers in its receive buffers")]
    Eyecatcher,
    /// Nothing was heard from the peer, which was asked.
    #[error("the peer did not answer a test of the link in time")]
    Silent,
    /// The caller has found that the path is dead.
    #[error("the path to the peer is lost")]
    PathLost,
    /// The queue pair has failed, in the words of the device.
    #[error("the queue pair has failed: {0}")]
    PairFailed(&'static str),
    /// The port of the device does not work any more.
    #[error("the port of the RDMA device is down")]
    PortDown,
    /// The port has lost the address that the link uses.
    #[error("the port of the RDMA device has lost its address")]
    AddressGone,
    /// The device is gone, or has lost what it had to tell.
    #[error("the RDMA device is gone")]
    DeviceGone,
    /// TCP has ended, and the peer has not closed the connection within the time that is left for it.
    #[error("{} while the connection was open", if *.reset { "TCP was reset" } else { "TCP has ended" })]
    TcpEnded {
        /// By a reset.
        reset: bool,
    },
    /// A DELETE_LINK.
    #[error("the link was ended by {by:?} with reason {:#010x}", .reason.0)]
    Ended {
        /// Who asked for it.
        by: Side,
        /// The reason given.
        reason: DeleteReason,
    },
    /// The peer broke a rule.
    #[error("the peer misbehaved: {0}")]
    Misbehaved(#[from] Misbehaviour),
}

/// What a peer should not do on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Misbehaviour {
    /// Its message has not the version of the group.
    #[error("a message of another version")]
    OtherVersion,
    /// Its CONFIRM_LINK is about another link than the one it came on.
    #[error("another link number was confirmed")]
    OtherNumber,
    /// It asks and asks, and does not take the answers.
    #[error("more questions than answers that can wait")]
    TooManyQuestions,
    /// It has sent what is no message.
    #[error(transparent)]
    Malformed(#[from] InvalidMessage),
    /// It has taken back the key of a buffer that still has to be written.
    #[error("the key of a buffer in use was taken back")]
    KeyTakenBack,
    /// It says after a failover what it had sent before, and not all of it has come.
    #[error("data was lost in a failover")]
    LostInFailover,
}

impl Cause {
    /// The code of a Decline for this, while the handshake over TCP is not over.
    #[must_use]
    pub const fn diagnosis(&self) -> Diagnosis {
        match self {
            Self::Unconfirmed => Diagnosis::TIMEOUT_CONFIRM_LINK,
            Self::Eyecatcher => Diagnosis::RMBE_EYECATCHER,
            Self::Silent
            | Self::PathLost
            | Self::PairFailed(_)
            | Self::PortDown
            | Self::AddressGone
            | Self::DeviceGone
            | Self::TcpEnded { .. }
            | Self::Ended { .. } => Diagnosis::NO_ACTIVE_LINK,
            Self::Misbehaved(_) => Diagnosis::INTERNAL_ERROR,
        }
    }
}
