//! The server's side of the handshake.

use std::mem;
use std::time::Duration;

use super::agreed::{Agreed, Device, Limits, OwnEnd, Path, PeerEnd};
use super::check::check_confirm;
use super::exchange::{CLC_TIMEOUT, Exchange};
use super::local::Local;
use super::select::{Choice, select};
use super::{Declined, Failure, Outcome, Side};
use crate::proto::error::{ApiMisuse, PeerIncompatible};
use crate::wire::clc::{
    Accept, Confirm, ConfirmContact, Decline, Diagnosis, Eid, Features, FirstContact, Gid, Kind,
    Mac, Message, PeerId, Proposal, Release, Reply, V21, Version,
};

/// The machine of a server, which chooses. See the [module](super) for how to drive it.
#[derive(Debug)]
pub struct ServerHandshake {
    local: Local,
    exchange: Exchange<ServerEvent>,
    state: State,
    /// What the client proposes, while the caller has the word.
    proposal: Option<Proposal>,
}

/// What a server learns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerEvent {
    /// The client proposes something that both sides can do. The caller answers with
    /// [`accept`](ServerHandshake::accept) or [`decline`](ServerHandshake::decline).
    Proposed(Proposed),
    /// The client has confirmed. With SMC-R the link comes up now.
    Confirmed(Confirmed),
    /// The end; nothing follows.
    Done(Outcome),
}

/// The best of what the client has proposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proposed {
    /// The client. Zero if it is a kernel that proposes version 2 alone: not enough to know it by.
    pub peer_id: PeerId,
    /// The MAC of its RoCE port; zero likewise.
    pub mac: Mac,
    /// The version that a link group would have.
    pub version: Version,
    /// The release that a new link group of version 2 would have.
    pub release: Option<Release>,
    /// The first of the client's enterprise ids that the server has too; none in version 1.
    pub eid: Option<Eid>,
    /// The limits that a new link group would have; from release 1 on, with SMC-R.
    pub limits: Option<Limits>,
    /// The own device.
    pub own: Device,
    /// The client's device.
    pub client: Device,
}

/// What the client has confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmed {
    /// What both do.
    pub agreed: Agreed,
    /// The client's end of the connection.
    pub peer: PeerEnd,
    /// What the client tells at first contact; none in version 1.
    pub contact: Option<FirstContact>,
    /// SMC-Rv2, first contact: the GIDs that the client can use for links.
    pub gids: Vec<Gid>,
}

const NOT_D: ApiMisuse = ApiMisuse {
    call: "pass_over_d",
    reason: "SMC-D was not proposed",
};

/// What a server waits for. The version is that of the Proposal, in which a Decline has to answer.
#[derive(Debug)]
enum State {
    /// The client's Proposal.
    Proposal,
    /// The caller's `accept` or `decline` of this choice.
    Caller(Version, Choice),
    /// The client's Confirm of this Accept.
    Confirm(Version, Accept, Choice),
    /// SMC-R: the caller's word about the new link, or a late Decline of the client.
    Link(Version, Agreed),
    /// Nothing.
    Done,
}

impl From<Outcome> for ServerEvent {
    fn from(outcome: Outcome) -> Self {
        Self::Done(outcome)
    }
}

impl ServerHandshake {
    /// Waits for a client; the time for its Proposal begins to run.
    #[must_use]
    pub fn new(local: Local, now: Duration) -> Self {
        let mut exchange = Exchange::new();
        exchange.wait_for(Kind::Proposal, Some(now + CLC_TIMEOUT));
        Self {
            local,
            exchange,
            state: State::Proposal,
            proposal: None,
        }
    }

    /// How many bytes to read now, at most; 0 means not to read.
    #[must_use]
    pub fn wanted(&self) -> usize {
        self.exchange.wanted()
    }

    /// Takes in bytes of the TCP stream.
    ///
    /// # Panics
    /// If there are more than [`wanted`](Self::wanted).
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        match self.exchange.handle_bytes(bytes) {
            Ok(None) => {}
            Ok(Some(message)) => self.handle_message(message),
            Err(invalid) => self.fail(invalid.into()),
        }
    }

    /// The TCP stream has ended.
    pub fn handle_eof(&mut self) {
        self.fail(Failure::Eof);
    }

    /// It is `now`: a message may be late.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.exchange.handle_timeout(now) {
            self.state = State::Done;
        }
    }

    /// Accepts what was [`Proposed`], with a new link group (`first_contact`) or one that exists. The time for the
    /// client's Confirm begins to run.
    ///
    /// # Errors
    /// Nothing was proposed, or not this way.
    pub fn accept(
        &mut self,
        own: OwnEnd,
        first_contact: bool,
        now: Duration,
    ) -> Result<(), ApiMisuse> {
        let misuse = |reason| {
            Err(ApiMisuse {
                call: "accept",
                reason,
            })
        };
        let State::Caller(version, choice) = self.state else {
            return misuse("there is nothing to accept");
        };
        let Some(accept) = self.acceptance(&choice, own, first_contact) else {
            return misuse("the other way was chosen");
        };
        self.proposal = None;
        self.exchange.send(&Message::Accept(accept.clone()));
        self.exchange
            .wait_for(Kind::Confirm, Some(now + CLC_TIMEOUT));
        self.state = State::Confirm(version, accept, choice);
        Ok(())
    }

    /// Declines what was [`Proposed`], or, with SMC-R, gives up the link that does not come up.
    ///
    /// # Errors
    /// Nothing was proposed, the client has the word, or everything is done.
    pub fn decline(&mut self, diagnosis: Diagnosis) -> Result<(), ApiMisuse> {
        let version = match &self.state {
            State::Caller(version, _) | State::Link(version, _) => *version,
            State::Proposal | State::Confirm(..) | State::Done => {
                return Err(ApiMisuse {
                    call: "decline",
                    reason: "there is nothing to decline",
                });
            }
        };
        self.state = self.send_decline(version, diagnosis);
        Ok(())
    }

    /// The memory of what was [`Proposed`] for SMC-D is out of reach: what else the client offers is proposed next. If there is
    /// nothing, `diagnosis` declines.
    ///
    /// # Errors
    /// SMC-D was not proposed.
    pub fn pass_over_d(&mut self, diagnosis: Diagnosis) -> Result<(), ApiMisuse> {
        let (State::Caller(version, choice), Some(proposal)) = (&self.state, self.proposal.take())
        else {
            return Err(NOT_D);
        };
        let version = *version;
        if choice.own.path() != Path::D {
            self.proposal = Some(proposal);
            return Err(NOT_D);
        }
        self.local.smc_d = None;
        self.state = match select(&self.local, &proposal) {
            Ok(choice) => self.propose(proposal, choice),
            Err(_) => self.send_decline(version, diagnosis),
        };
        Ok(())
    }

    /// SMC-R: the link is confirmed and data can flow.
    ///
    /// # Errors
    /// There is no link that would come up.
    pub fn linked(&mut self) -> Result<(), ApiMisuse> {
        let State::Link(_, agreed) = self.state else {
            return Err(ApiMisuse {
                call: "linked",
                reason: "no link is coming up",
            });
        };
        self.state = self.end(Outcome::Established(agreed));
        Ok(())
    }

    /// Bytes to write to the TCP stream.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.exchange.poll_transmit()
    }

    /// The moment at which to call [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.exchange.poll_timeout()
    }

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<ServerEvent> {
        self.exchange.poll_event()
    }

    fn handle_message(&mut self, message: Message) {
        self.state = match (mem::replace(&mut self.state, State::Done), message) {
            (State::Proposal, Message::Proposal(proposal)) => self.handle_proposal(proposal),
            (State::Confirm(version, accept, choice), Message::Confirm(confirm)) => {
                match check_confirm(&accept, &choice, &confirm) {
                    Ok(agreed) => self.handle_confirm(version, agreed, &confirm),
                    Err(PeerIncompatible { diagnosis }) => self.send_decline(version, diagnosis),
                }
            }
            (state, Message::Decline(decline)) => self.handle_decline(&state, &decline),
            // The exchange lets only those pass that are due.
            (state, _) => state,
        };
    }

    fn handle_proposal(&mut self, proposal: Proposal) -> State {
        match select(&self.local, &proposal) {
            Ok(choice) => self.propose(proposal, choice),
            Err(PeerIncompatible { diagnosis }) => {
                self.send_decline(proposal.offer.version(), diagnosis)
            }
        }
    }

    fn propose(&mut self, proposal: Proposal, choice: Choice) -> State {
        let Choice {
            version,
            release,
            eid,
            limits,
            own,
            client,
        } = choice;
        let proposed = Proposed {
            peer_id: proposal.peer_id,
            mac: proposal.mac,
            version,
            release,
            eid,
            limits,
            own,
            client,
        };
        let message_version = proposal.offer.version();
        self.proposal = Some(proposal);
        self.exchange.wait_for_caller();
        self.exchange.report(ServerEvent::Proposed(proposed));
        State::Caller(message_version, choice)
    }

    fn handle_confirm(&mut self, version: Version, agreed: Agreed, confirm: &Confirm) -> State {
        let (contact, gids) = contact(confirm);
        let peer = PeerEnd::of(confirm);
        self.exchange.report(ServerEvent::Confirmed(Confirmed {
            agreed,
            peer,
            contact,
            gids,
        }));
        match agreed.path {
            Path::D => self.end(Outcome::Established(agreed)),
            Path::R => {
                self.exchange.wait_for(Kind::Decline, None);
                State::Link(version, agreed)
            }
        }
    }

    /// A client is out of sync only with a link group that is to be used again.
    fn handle_decline(&mut self, state: &State, decline: &Decline) -> State {
        let reuse = matches!(state, State::Confirm(_, accept, _) if !accept.is_first_contact());
        self.end(Outcome::Declined(Declined {
            by: Side::Peer,
            diagnosis: decline.diagnosis,
            out_of_sync: decline.out_of_sync && reuse,
        }))
    }

    /// The Accept of `choice`.
    fn acceptance(&self, choice: &Choice, own: OwnEnd, first_contact: bool) -> Option<Accept> {
        Some(match (own, choice.own, choice.eid) {
            (OwnEnd::R { end, .. }, Device::R(_), None) => Reply::RV1 { end, first_contact },
            (OwnEnd::R { end, direct }, Device::R(_), Some(eid)) => {
                let first_contact = first_contact.then(|| self.terms(choice, direct));
                Reply::RV2 {
                    end,
                    eid,
                    first_contact,
                }
            }
            (OwnEnd::D(end), Device::D(device), None) => Reply::DV1 {
                gid: device.gid(),
                end,
                first_contact,
            },
            (OwnEnd::D(end), Device::D(device), Some(eid)) => {
                let first_contact = first_contact.then(|| self.terms(choice, false));
                Reply::DV2 {
                    device,
                    end,
                    eid,
                    first_contact,
                }
            }
            _ => return None,
        })
    }

    /// SMC-D has no limits and sends zeros for them.
    fn terms(&self, choice: &Choice, direct: bool) -> FirstContact {
        let none = Limits {
            max_connections: 0,
            max_links: 0,
        };
        let Limits {
            max_connections,
            max_links,
        } = choice.limits.unwrap_or(none);
        let v2_1 = V21::new(max_connections, max_links, Features::EMULATED_ISM);
        let v2_1 = choice
            .release
            .and_then(|release| v2_1.with_release(release));
        FirstContact {
            v2_1,
            ..self.local.first_contact(direct)
        }
    }

    fn send_decline(&mut self, version: Version, diagnosis: Diagnosis) -> State {
        self.exchange
            .decline(Decline::new(version, self.local.peer_id, diagnosis));
        State::Done
    }

    fn end(&mut self, outcome: Outcome) -> State {
        self.exchange.end(outcome);
        State::Done
    }

    fn fail(&mut self, failure: Failure) {
        self.exchange.fail(failure);
        self.state = State::Done;
    }
}

/// What the client tells at first contact.
fn contact(confirm: &Confirm) -> (Option<FirstContact>, Vec<Gid>) {
    match confirm {
        Reply::RV2 {
            first_contact: Some(ConfirmContact { terms, gids }),
            ..
        } => (Some(*terms), gids.to_vec()),
        Reply::DV2 { first_contact, .. } => (*first_contact, Vec::new()),
        _ => (None, Vec::new()),
    }
}
