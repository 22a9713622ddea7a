//! Errors of the protocol machines, named by blame.

use thiserror::Error;

use crate::wire::clc::Diagnosis;

use super::position::CursorError;

/// The peer did what the protocol does not allow. The connection cannot go on; a state machine that returns this has
/// not changed its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the peer misbehaved: {field}: {fault}")]
pub struct PeerMisbehaved {
    /// What the peer sent, in the words of the protocol.
    pub field: &'static str,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a field that a peer sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Fault {
    /// A cursor that cannot be.
    #[error(transparent)]
    Cursor(#[from] CursorError),
    /// Data behind the end that the peer itself has declared.
    #[error("moves on after the declared end")]
    AfterEnd,
    /// A flag that never goes back has gone back.
    #[error("a flag was taken back")]
    TakenBack,
}

/// The peer speaks the protocol, but the two sides have nothing in common. TCP goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the peer is incompatible: {diagnosis}")]
pub struct PeerIncompatible {
    /// What is missing, as the Decline says it.
    pub diagnosis: Diagnosis,
}

/// The caller of a machine did what the machine cannot do now. The machine has not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{call} is not possible: {reason}")]
pub struct ApiMisuse {
    /// The method that was called.
    pub call: &'static str,
    /// Why it is not possible.
    pub reason: &'static str,
}

impl PeerIncompatible {
    /// The error with this code, unless what is needed is there.
    pub(super) fn unless(there: bool, diagnosis: Diagnosis) -> Result<(), Self> {
        if there {
            Ok(())
        } else {
            Err(Self { diagnosis })
        }
    }
}
