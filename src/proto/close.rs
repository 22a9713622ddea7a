//! How a connection ends: the close states and every transition between them.

use crate::wire::cdc::StateFlags;

use super::error::{Fault, PeerMisbehaved};

/// The close state of a connection, with the names of kernel 6.12 (RFC 7609, 4.8).
///
/// Three flags travel, and none of them is ever taken back: *done* (0x80, no more data will come), *closed* (0x40, the
/// application has closed) and *abort* (0x20, closed with data unread or lost). *final* below is closed, or abort if
/// unread data is in the own ring. Local calls are in capitals, flags of the peer in small letters.
///
/// ```text
///                                   Active
///        SHUTDOWN or CLOSE            |             done or closed
///            .------------------------+------------------------.
///            v                                                 v
///     PeerCloseWait1                                     AppCloseWait1
///      |     | done                              SHUTDOWN |       |
///      |     v                                            v       |
///      |  PeerCloseWait2                         AppCloseWait2    |
///      |     |                                            |       |
///      +--+--'                                            '---+---+
///  closed |                                             CLOSE |
///         +-- after CLOSE ------------> Closed <-- closed ----+
///         |                             ^    ^      before    |
///         '-- after only SHUTDOWN       |    |                | not closed before
///                   v                   |    |                v
///            AppFinCloseWait --- CLOSE -'    '-- closed -- PeerFinCloseWait
///                                                or abort
///
///   abort:             after CLOSE -> Closed;  before -> ProcessAbort -- CLOSE --> Closed
///   the link is lost:  after CLOSE -> Closed;  before -> PeerAbortWait -- CLOSE --> Closed
/// ```
///
/// One deviation: kernel 6.12 goes from AppCloseWait2 straight to Closed on an abort and never says closed itself, which
/// leaves a peer that waits for it without any time-out. Here the application closes first, and that is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Both directions are open.
    Active,
    /// We ended first; waiting for any end of the peer.
    PeerCloseWait1,
    /// We ended first and the peer sends no more; waiting for its closed.
    PeerCloseWait2,
    /// The peer ended first; waiting for the application, which may still write unless the peer has closed.
    AppCloseWait1,
    /// As before, and the application writes no more; waiting for it to close.
    AppCloseWait2,
    /// The peer has closed, our side has only shut down writing; waiting for the application to close.
    AppFinCloseWait,
    /// We have closed, the peer only sends no more; waiting for its closed.
    PeerFinCloseWait,
    /// The peer aborted; waiting for the application to close.
    ProcessAbort,
    /// The link was lost; waiting for the application to close.
    PeerAbortWait,
    /// Both sides have closed, or nothing of the peer can come any more: the ring may be used for something else.
    Closed,
}

/// The close machine of one connection: its state and the flags of both sides.
#[derive(Debug, Clone)]
pub(super) struct Closing {
    state: State,
    sent: StateFlags,
    seen: StateFlags,
}

/// Either of these says that the application of a side has closed.
const FINAL: StateFlags = StateFlags::CLOSED.union(StateFlags::ABNORMAL_CLOSE);
const ANY: StateFlags = StateFlags::SENDING_DONE.union(FINAL);

impl Closing {
    pub(super) fn new() -> Self {
        Self {
            state: State::Active,
            sent: StateFlags::empty(),
            seen: StateFlags::empty(),
        }
    }

    #[inline]
    pub(super) fn state(&self) -> State {
        self.state
    }

    /// The flags that the peer has to know of.
    #[inline]
    pub(super) fn sent(&self) -> StateFlags {
        self.sent
    }

    /// The flags that the peer has published.
    #[inline]
    pub(super) fn seen(&self) -> StateFlags {
        self.seen
    }

    /// Whether data may be sent: not after an end of ours, and not to a peer whose application will not read it.
    #[inline]
    pub(super) fn can_send(&self) -> bool {
        matches!(self.state, State::Active | State::AppCloseWait1) && !self.seen.intersects(FINAL)
    }

    /// Whether the peer has declared an end of any kind: nothing follows what it has produced by then.
    #[inline]
    pub(super) fn peer_done(&self) -> bool {
        !self.seen.is_empty()
    }

    fn closed_locally(&self) -> bool {
        self.sent.intersects(FINAL)
    }

    pub(super) fn shutdown_write(&mut self) {
        match self.state {
            State::Active => self.state = State::PeerCloseWait1,
            State::AppCloseWait1 => self.state = State::AppCloseWait2,
            _ => return,
        }
        self.sent |= StateFlags::SENDING_DONE;
    }

    /// The application closes; `end` is closed or abort. A second close changes nothing.
    pub(super) fn close(&mut self, end: StateFlags) {
        let (next, end) = match self.state {
            State::ProcessAbort | State::PeerAbortWait => {
                (State::Closed, StateFlags::ABNORMAL_CLOSE)
            }
            _ if self.closed_locally() => return,
            State::Active => (State::PeerCloseWait1, end),
            State::AppCloseWait1 | State::AppCloseWait2
                if !self.seen.contains(StateFlags::CLOSED) =>
            {
                (State::PeerFinCloseWait, end)
            }
            State::AppCloseWait1 | State::AppCloseWait2 | State::AppFinCloseWait => {
                (State::Closed, end)
            }
            waiting => (waiting, end),
        };
        self.state = next;
        self.sent |= end;
    }

    /// Nothing goes to the peer or comes from it any more.
    pub(super) fn link_lost(&mut self) {
        self.state = match self.state {
            State::Closed | State::PeerAbortWait => return,
            _ if self.closed_locally() => State::Closed,
            _ => State::PeerAbortWait,
        };
        self.sent |= StateFlags::ABNORMAL_CLOSE;
    }

    /// Takes in the flags of the peer. Flags are levels: only what is new has an effect. Returns whether any was.
    #[inline]
    pub(super) fn handle(&mut self, flags: StateFlags) -> Result<bool, PeerMisbehaved> {
        let flags = flags & ANY;
        if flags == self.seen {
            return Ok(false);
        }
        self.handle_change(flags)
    }

    #[cold]
    fn handle_change(&mut self, flags: StateFlags) -> Result<bool, PeerMisbehaved> {
        if !flags.contains(self.seen) {
            return Err(PeerMisbehaved {
                field: "connection state flags",
                fault: Fault::TakenBack,
            });
        }
        let new = flags - self.seen;
        self.seen = flags;
        // One message may bring several ends; taken in this order they lead where single messages would.
        if new.contains(StateFlags::SENDING_DONE) {
            self.handle_done();
        }
        if new.contains(StateFlags::CLOSED) {
            self.handle_closed();
        }
        if new.contains(StateFlags::ABNORMAL_CLOSE) {
            self.handle_abort();
        }
        Ok(true)
    }

    fn handle_done(&mut self) {
        self.state = match self.state {
            State::Active => State::AppCloseWait1,
            State::PeerCloseWait1 => State::PeerCloseWait2,
            state => state,
        };
    }

    fn handle_closed(&mut self) {
        self.state = match self.state {
            State::Active => State::AppCloseWait1,
            State::PeerCloseWait1 | State::PeerCloseWait2 if self.closed_locally() => State::Closed,
            State::PeerCloseWait1 | State::PeerCloseWait2 => State::AppFinCloseWait,
            State::PeerFinCloseWait => State::Closed,
            state => state,
        };
    }

    fn handle_abort(&mut self) {
        self.state = match self.state {
            state @ (State::PeerAbortWait | State::Closed) => state,
            _ if self.closed_locally() => State::Closed,
            _ => State::ProcessAbort,
        };
    }
}

#[cfg(test)]
mod tests;
