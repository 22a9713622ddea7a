//! The client's part.

use std::mem;
use std::os::fd::RawFd;
use std::time::Duration;

use super::connecting::Connecting;
use super::{
    Answer, Coming, SHORT, Telling, Wish, attach, far, news, no_buffer, no_pair, place_in,
};
use crate::driver::rdma::{Cause, KeyState, LinkState, Place, Side};
use crate::driver::setup::{Established, Options, RdmaOffer, Refusal};
use crate::proto::handshake::{Accepted, Side as By};
use crate::proto::link::CONFIRM_WAIT;
use crate::wire::clc::{Diagnosis, SmcR, Version};

/// A connection over RDMA being made, at the end that connects.
#[derive(Debug)]
pub(in crate::driver::setup) struct ClientLink {
    offer: RdmaOffer,
    options: Options,
    state: State,
}

#[derive(Debug)]
enum State {
    Proposed,
    Accepted(Box<Accepted>, SmcR),
    /// First contact: ready to receive before the Confirm goes out. The time until which the link must be up.
    Connecting(Connecting, Established, Answer, Duration),
    /// Reuse of a group whose link is not up yet at this end; the time until it must be.
    Joining(Place, Box<Accepted>, SmcR, Duration),
    /// Reuse: until the server knows the key.
    Telling(Telling, Established, Answer),
    /// Reuse: the Confirm is on its way.
    Told(Place, Established),
    Coming(Coming),
    Over,
}

impl ClientLink {
    pub(in crate::driver::setup) fn new(offer: RdmaOffer, options: Options) -> Self {
        Self {
            offer,
            options,
            state: State::Proposed,
        }
    }

    /// The server has accepted this way, with `peer` as its end.
    pub(in crate::driver::setup) fn handle_accepted(&mut self, accepted: Accepted, peer: SmcR) {
        self.state = State::Accepted(Box::new(accepted), peer);
    }

    /// Whether the link of a first contact has come up.
    pub(in crate::driver::setup) fn is_up(&self) -> bool {
        matches!(&self.state, State::Coming(coming) if coming.place.link() == LinkState::Up)
    }

    /// Goes on as far as it can; an error is a reason to decline. All must be done by `due`.
    pub(in crate::driver::setup) fn step(
        &mut self,
        now: Duration,
        due: Duration,
    ) -> Result<Option<Wish>, Refusal> {
        match mem::replace(&mut self.state, State::Over) {
            State::Accepted(accepted, peer) => self.take_up(accepted, peer, now, due),
            State::Connecting(connecting, established, answer, until) => {
                match connecting.look(now >= until)? {
                    Some(place) => {
                        self.state = State::Coming(Coming::new(place, established, until));
                        Ok(Some(Wish::Answer(answer)))
                    }
                    None => {
                        self.state = State::Connecting(connecting, established, answer, until);
                        Ok(None)
                    }
                }
            }
            State::Joining(place, accepted, peer, until) => {
                self.join(place, accepted, peer, now, until)
            }
            State::Telling(telling, established, answer) => self.look(telling, established, answer),
            State::Told(place, established) => attach(place, established, Side::Client).map(Some),
            State::Coming(mut coming) => {
                if coming.look(now, patience)? {
                    return coming.finish(Side::Client).map(Some);
                }
                self.state = State::Coming(coming);
                Ok(None)
            }
            state @ (State::Proposed | State::Over) => {
                self.state = state;
                Ok(None)
            }
        }
    }

    /// What has to be readable before the next step, and when that is due in any case.
    pub(in crate::driver::setup) fn waits(&self) -> Option<(RawFd, Option<Duration>)> {
        match &self.state {
            State::Connecting(connecting, _, _, until) => Some((connecting.news(), Some(*until))),
            State::Joining(place, _, _, until) => Some((news(place), Some(*until))),
            State::Telling(telling, ..) => Some((news(&telling.place), None)),
            State::Coming(coming) => Some((news(&coming.place), Some(coming.due()))),
            State::Proposed | State::Accepted(..) | State::Told(..) | State::Over => None,
        }
    }

    fn take_up(
        &mut self,
        accepted: Box<Accepted>,
        peer: SmcR,
        now: Duration,
        due: Duration,
    ) -> Result<Option<Wish>, Refusal> {
        let version = accepted.agreed.version;
        if version == Version::V2 && peer.gid.to_ipv4().is_none() {
            let text = "CLC Accept: GID: not an IPv4 address";
            return Err(Refusal::new(Diagnosis::NO_SMC_R_DEVICE, text));
        }
        if accepted.agreed.first_contact {
            self.first_contact(&accepted, peer, last_call(now, due))?;
            Ok(None)
        } else {
            let place = self.find(&accepted, &peer)?;
            self.join(place, accepted, peer, now, last_call(now, due))
        }
    }

    /// A group of its own.
    fn first_contact(
        &mut self,
        accepted: &Accepted,
        peer: SmcR,
        until: Duration,
    ) -> Result<(), Refusal> {
        let agreed = accepted.agreed;
        let port = self.offer.port(agreed.version).ok_or_else(mismatch)?;
        let group = port
            .new_group(Side::Client, agreed.version, agreed.limits)
            .map_err(|error| no_pair(&error))?;
        let place = place_in(&group, self.options)?.ok_or_else(full)?;
        let mtu = port.mtu().map_err(|error| no_pair(&error))?.min(peer.mtu);
        let answer = Answer {
            end: place.end(mtu),
            direct: accepted.contact.is_none_or(|contact| contact.direct),
            first: true,
        };
        let established = Established {
            agreed,
            far: far(port, &answer.end, &peer),
        };
        let connecting = Connecting::new(
            place,
            peer,
            peer.peer_id.into(),
            answer.direct,
            self.options,
        )?;
        self.state = State::Connecting(connecting, established, answer, until);
        Ok(())
    }

    /// A place in the group that the server names.
    fn find(&self, accepted: &Accepted, peer: &SmcR) -> Result<Place, Refusal> {
        let version = accepted.agreed.version;
        let port = self.offer.port(version).ok_or_else(mismatch)?;
        let group = port
            .find_for_server(version, peer.peer_id, peer.gid, peer.qp_number)
            .ok_or_else(unknown)?;
        place_in(&group, self.options)?.ok_or_else(full)
    }

    fn join(
        &mut self,
        place: Place,
        accepted: Box<Accepted>,
        peer: SmcR,
        now: Duration,
        until: Duration,
    ) -> Result<Option<Wish>, Refusal> {
        match place.link() {
            LinkState::Up => self.reuse(place, &accepted, &peer),
            LinkState::Coming if now < until => {
                self.state = State::Joining(place, accepted, peer, until);
                Ok(None)
            }
            LinkState::Coming | LinkState::Down(_) => Err(not_up()),
        }
    }

    fn reuse(
        &mut self,
        mut place: Place,
        accepted: &Accepted,
        peer: &SmcR,
    ) -> Result<Option<Wish>, Refusal> {
        let agreed = accepted.agreed;
        let port = self.offer.port(agreed.version).ok_or_else(mismatch)?;
        place
            .prepare(peer, self.options.size)
            .map_err(|error| no_buffer(&error))?;
        let mtu = port.mtu().map_err(|error| no_pair(&error))?.min(peer.mtu);
        let end = place.end(mtu);
        let established = Established {
            agreed,
            far: far(port, &end, peer),
        };
        let answer = Answer {
            end,
            direct: true,
            first: false,
        };
        // A key that the server knows already is no news.
        self.look(Telling::new(place)?, established, answer)
    }

    fn look(
        &mut self,
        telling: Telling,
        established: Established,
        answer: Answer,
    ) -> Result<Option<Wish>, Refusal> {
        match telling.state() {
            KeyState::Waiting => {
                self.state = State::Telling(telling, established, answer);
                Ok(None)
            }
            KeyState::Confirmed => {
                self.state = State::Told(telling.place, established);
                Ok(Some(Wish::Answer(answer)))
            }
            KeyState::Refused => Err(unregistered("the server refuses the key of the buffer")),
            KeyState::Silent => Err(unregistered("the server does not confirm the key in time")),
        }
    }
}

impl Drop for ClientLink {
    fn drop(&mut self) {
        // Nobody will use the group of a first contact that was given up, and the peer must not think so; unless its link is up: then
        // others may use it already.
        match &self.state {
            State::Connecting(connecting, ..) => drop(connecting.group().give_up()),
            State::Coming(coming) => drop(coming.place.group().give_up()),
            _ => {}
        }
    }
}

/// Until when a link may come up that is confirmed at `now`: a Decline has to reach the server before it gives up.
fn last_call(now: Duration, due: Duration) -> Duration {
    let share = due.saturating_sub(now) / 8;
    due.saturating_sub(share).min(now + CONFIRM_WAIT + SHORT)
}

/// A server that has failed by itself, or has seen the link fail, declines: then this end must not do so as well, or both
/// streams had a Decline too many.
fn patience(cause: &Cause) -> Duration {
    match cause {
        Cause::Ended { by: By::Us, .. } | Cause::Eyecatcher | Cause::Misbehaved(_) => {
            Duration::ZERO
        }
        _ => SHORT,
    }
}

fn unregistered(text: &str) -> Refusal {
    Refusal::new(Diagnosis::BUFFER_REGISTRATION, text)
}

fn mismatch() -> Refusal {
    Refusal::new(
        Diagnosis::MODE_MISMATCH,
        "CLC Accept: version: not offered for SMC-R",
    )
}

fn not_up() -> Refusal {
    Refusal::new(
        Diagnosis::NO_ACTIVE_LINK,
        "the link group that the server names has not come up",
    )
}

fn unknown() -> Refusal {
    Refusal::new(
        Diagnosis::SYNCHRONIZATION,
        "the server names a link group that is not known here",
    )
}

fn full() -> Refusal {
    Refusal::new(
        Diagnosis::RTOKEN,
        "the link group that the server names is full",
    )
}
