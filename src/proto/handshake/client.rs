//! The client's side of the handshake.

use std::mem;
use std::time::Duration;

use super::agreed::{Agreed, OwnEnd, Path, PeerEnd};
use super::check::check_accept;
use super::exchange::{CLC_TIMEOUT, Exchange};
use super::local::Local;
use super::{Declined, Failure, Outcome, Side};
use crate::proto::error::{ApiMisuse, PeerIncompatible};
use crate::wire::clc::{
    Accept, Confirm, ConfirmContact, Decline, Diagnosis, Few, FirstContact, Kind, Message, Offer,
    Reply, Version,
};

/// The machine of a client, which proposes. See the [module](super) for how to drive it.
///
/// A client without any device declines at once, as kernel 6.12 does when it has announced SMC and cannot do it.
///
/// ```
/// use std::time::Duration;
/// use smcfast::proto::handshake::{
///     ClientEvent, ClientHandshake, Local, Outcome, OwnEnd, ServerEvent, ServerHandshake,
/// };
/// use smcfast::wire::clc::SmcD;
/// use smcfast::wire::{EngineId, SizeCode};
///
/// let now = Duration::ZERO;
/// let mut client = ClientHandshake::new(Local::same_host(EngineId([1; 16]), "host"), now);
/// let mut server = ServerHandshake::new(Local::same_host(EngineId([2; 16]), "host"), now);
/// let memory = |token| OwnEnd::D(SmcD { token, dmbe_index: 0, size: SizeCode::MIN, link_id: 7 });
///
/// // What the two would read from and write to a TCP connection; a message comes in two pieces here.
/// let header_and_rest = |message: Vec<u8>| (message[..8].to_vec(), message[8..].to_vec());
///
/// let (header, rest) = header_and_rest(client.poll_transmit().unwrap());
/// assert_eq!(server.wanted(), 8);
/// server.handle_bytes(&header);
/// assert_eq!(server.wanted(), rest.len());
/// server.handle_bytes(&rest);
/// assert!(matches!(server.poll_event(), Some(ServerEvent::Proposed(_))));
/// server.accept(memory(22), true, now).unwrap();
///
/// let (header, rest) = header_and_rest(server.poll_transmit().unwrap());
/// client.handle_bytes(&header);
/// client.handle_bytes(&rest);
/// assert!(matches!(client.poll_event(), Some(ClientEvent::Accepted(_))));
/// client.confirm(memory(11)).unwrap();
/// assert!(matches!(client.poll_event(), Some(ClientEvent::Done(Outcome::Established(_)))));
/// ```
#[derive(Debug)]
pub struct ClientHandshake {
    local: Local,
    exchange: Exchange<ClientEvent>,
    state: State,
}

/// What a client learns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEvent {
    /// The server accepts. The caller answers with [`confirm`](ClientHandshake::confirm) or
    /// [`decline`](ClientHandshake::decline).
    Accepted(Accepted),
    /// The end; nothing follows.
    Done(Outcome),
}

/// What the server has accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// What both will do.
    pub agreed: Agreed,
    /// The server's end of the connection.
    pub peer: PeerEnd,
    /// What the server tells at first contact; none in version 1.
    pub contact: Option<FirstContact>,
}

/// What a client waits for.
#[derive(Debug)]
enum State {
    /// The server's Accept, after this offer.
    Accept(Offer),
    /// The caller's `confirm` or `decline`.
    Caller(Accept, Agreed),
    /// SMC-R: the caller's word about the new link, or a late Decline of the server.
    Link(Agreed),
    /// Nothing.
    Done,
}

impl From<Outcome> for ClientEvent {
    fn from(outcome: Outcome) -> Self {
        Self::Done(outcome)
    }
}

impl ClientHandshake {
    /// Proposes all that `local` has; the time for the server's answer begins to run.
    #[must_use]
    pub fn new(local: Local, now: Duration) -> Self {
        let mut exchange = Exchange::new();
        let state = match local.proposal() {
            Some(proposal) => {
                let offer = proposal.offer.clone();
                exchange.send(&Message::Proposal(proposal));
                exchange.wait_for(Kind::Accept, Some(now + CLC_TIMEOUT));
                State::Accept(offer)
            }
            None => {
                let version = local.first_decline_version();
                exchange.decline(Decline::new(
                    version,
                    local.peer_id,
                    Diagnosis::NO_SMC_DEVICE,
                ));
                State::Done
            }
        };
        Self {
            local,
            exchange,
            state,
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

    /// It is `now`: the answer may be late.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.exchange.handle_timeout(now) {
            self.state = State::Done;
        }
    }

    /// Sends the Confirm of what was [`Accepted`]. With SMC-D this is the end; with SMC-R the link comes up now.
    ///
    /// # Errors
    /// Nothing was accepted, or not this way.
    pub fn confirm(&mut self, own: OwnEnd) -> Result<(), ApiMisuse> {
        let misuse = |reason| {
            Err(ApiMisuse {
                call: "confirm",
                reason,
            })
        };
        let State::Caller(accept, agreed) = &self.state else {
            return misuse("there is nothing to confirm");
        };
        let agreed = *agreed;
        let Some(confirm) = self.confirmation(accept, own) else {
            return misuse("the server has accepted the other way");
        };
        self.exchange.send(&Message::Confirm(confirm));
        self.state = match agreed.path {
            Path::D => self.end(Outcome::Established(agreed)),
            Path::R => {
                self.exchange.wait_for(Kind::Decline, None);
                State::Link(agreed)
            }
        };
        Ok(())
    }

    /// Declines what was [`Accepted`], or, with SMC-R, gives up the link that does not come up.
    ///
    /// A [synchronization error](Diagnosis::SYNCHRONIZATION) in answer to a server that wants to use a link group again
    /// says so with the flag of its own. In answer to a first contact the flag is left out: it hangs a kernel's server.
    ///
    /// # Errors
    /// Nothing was accepted, or everything is done.
    pub fn decline(&mut self, diagnosis: Diagnosis) -> Result<(), ApiMisuse> {
        let (version, reuse) = match &self.state {
            State::Caller(accept, agreed) => (accept.version(), !agreed.first_contact),
            State::Link(agreed) => (agreed.version, false),
            State::Accept(_) | State::Done => {
                return Err(ApiMisuse {
                    call: "decline",
                    reason: "there is nothing to decline",
                });
            }
        };
        self.state = self.send_decline(
            version,
            diagnosis,
            reuse && diagnosis == Diagnosis::SYNCHRONIZATION,
        );
        Ok(())
    }

    /// SMC-R: the link is confirmed and data can flow.
    ///
    /// # Errors
    /// There is no link that would come up.
    pub fn linked(&mut self) -> Result<(), ApiMisuse> {
        let State::Link(agreed) = self.state else {
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
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        self.exchange.poll_event()
    }

    fn handle_message(&mut self, message: Message) {
        self.state = match (mem::replace(&mut self.state, State::Done), message) {
            (State::Accept(offer), Message::Accept(accept)) => self.handle_accept(&offer, accept),
            (_, Message::Decline(Decline { diagnosis, .. })) => {
                let declined = Declined {
                    by: Side::Peer,
                    diagnosis,
                    out_of_sync: false,
                };
                self.end(Outcome::Declined(declined))
            }
            // The exchange lets only those pass that are due.
            (state, _) => state,
        };
    }

    fn handle_accept(&mut self, offer: &Offer, accept: Accept) -> State {
        match check_accept(offer, &accept) {
            Ok(agreed) => {
                self.exchange.wait_for_caller();
                let (peer, contact) = (PeerEnd::of(&accept), contact(&accept));
                self.exchange.report(ClientEvent::Accepted(Accepted {
                    agreed,
                    peer,
                    contact,
                }));
                State::Caller(accept, agreed)
            }
            Err(PeerIncompatible { diagnosis }) => {
                self.send_decline(accept.version(), diagnosis, false)
            }
        }
    }

    /// The Confirm that answers `accept`: it repeats what was agreed on.
    fn confirmation(&self, accept: &Accept, own: OwnEnd) -> Option<Confirm> {
        Some(match (accept, own) {
            (
                &Reply::RV1 {
                    end: server,
                    first_contact,
                },
                OwnEnd::R { mut end, .. },
            ) => {
                end.mtu = end.mtu.min(server.mtu);
                Reply::RV1 { end, first_contact }
            }
            (
                &Reply::RV2 {
                    end: server,
                    eid,
                    first_contact,
                },
                OwnEnd::R { mut end, direct },
            ) => {
                end.mtu = end.mtu.min(server.mtu);
                let terms = |contact| self.repeat(contact, direct);
                let first_contact = first_contact.map(|contact| ConfirmContact {
                    terms: terms(contact),
                    gids: Few::one(end.gid),
                });
                Reply::RV2 {
                    end,
                    eid,
                    first_contact,
                }
            }
            (&Reply::DV1 { first_contact, .. }, OwnEnd::D(end)) => {
                let gid = self.local.smc_d.as_ref()?.native?.gid;
                Reply::DV1 {
                    gid,
                    end,
                    first_contact,
                }
            }
            (
                &Reply::DV2 {
                    device,
                    eid,
                    first_contact,
                    ..
                },
                OwnEnd::D(end),
            ) => {
                let device = self.local.ism(device.chid())?;
                let first_contact = first_contact.map(|contact| self.repeat(contact, false));
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

    fn repeat(&self, contact: FirstContact, direct: bool) -> FirstContact {
        FirstContact {
            v2_1: contact.v2_1,
            ..self.local.first_contact(direct)
        }
    }

    fn send_decline(&mut self, version: Version, diagnosis: Diagnosis, out_of_sync: bool) -> State {
        let decline = Decline::new(version, self.local.peer_id, diagnosis);
        self.exchange.decline(Decline {
            out_of_sync,
            ..decline
        });
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

/// What the server tells at first contact.
fn contact(accept: &Accept) -> Option<FirstContact> {
    match accept {
        Reply::RV2 { first_contact, .. } | Reply::DV2 { first_contact, .. } => *first_contact,
        Reply::RV1 { .. } | Reply::DV1 { .. } => None,
    }
}
