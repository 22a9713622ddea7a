//! Errors of the protocol machines, named by blame.

use thiserror::Error;

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
