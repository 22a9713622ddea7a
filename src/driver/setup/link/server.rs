//! The server's part.

use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::connecting::Connecting;
use super::{
    Answer, Coming, SHORT, Telling, Wish, attach, far, news, no_buffer, no_pair, place_in,
};
use crate::driver::rdma::{Cause, Contact, Identity, KeyState, Place, Port, Side, Start, Waiting};
use crate::driver::setup::{Established, Options, RdmaOffer, Refusal};
use crate::proto::handshake::{Agreed, Confirmed, Device, Proposed, Side as By};
use crate::proto::link::RESPONSE_TIMEOUT;
use crate::wire::clc::{Diagnosis, Gid, SmcR, Version};

/// How long a connection waits at most for a first contact that is under way with its client, before it is one as well: as long
/// as the client has to answer on the link. No more than a third of its own time goes into it.
const TURN_MAX: Duration = RESPONSE_TIMEOUT;

/// A connection over RDMA being made, at the end that accepts.
///
/// Of many that come at once from one client the first one makes the group, and the others wait and use it again.
///
/// A group that cannot be used again after all, because the client refuses another key or does not confirm it, is no
/// obstacle: the client waits for its Accept three times as long, so it gets another group.
#[derive(Debug)]
pub(in crate::driver::setup) struct ServerLink {
    offer: RdmaOffer,
    options: Options,
    /// Where the client has connected from.
    host: Option<SocketAddr>,
    state: State,
    /// Holds off others of the client while this is its first contact. Behind the state: they find the end of a group that has
    /// come to nothing.
    contact: Option<Contact>,
}

#[derive(Debug)]
enum State {
    Idle,
    Proposed(Wanted),
    /// Until the first contact that is under way is over, or that moment.
    Queued(Waiting, Wanted, Duration),
    /// Reuse: until the client knows the key.
    Telling(Telling, Wanted),
    /// The Accept is on its way.
    Accepted(Offered),
    /// The Confirm is there.
    Confirmed(Offered, Agreed, SmcR),
    /// First contact.
    Connecting(Connecting, Established),
    Coming(Coming),
    Over,
}

/// What the client proposes.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    proposed: Proposed,
    who: Identity,
    gid: Gid,
    /// The number of the group that could not be used again after all; only a newer one may be.
    unusable: u32,
}

/// What it was offered in answer.
#[derive(Debug)]
struct Offered {
    place: Place,
    port: Arc<Port>,
    wanted: Wanted,
    answer: Answer,
}

impl ServerLink {
    pub(in crate::driver::setup) fn new(offer: RdmaOffer, options: Options) -> Self {
        Self {
            offer,
            options,
            host: None,
            state: State::Idle,
            contact: None,
        }
    }

    /// The client has connected from there. To be told before it proposes.
    pub(in crate::driver::setup) fn set_host(&mut self, host: Option<SocketAddr>) {
        self.host = host;
    }

    /// A client proposes this way.
    pub(in crate::driver::setup) fn handle_proposed(&mut self, proposed: Proposed) {
        if let Device::R(gid) = proposed.client {
            let who = Identity {
                id: proposed.peer_id,
                host: self.host,
            };
            self.state = State::Proposed(Wanted {
                proposed,
                who,
                gid,
                unusable: 0,
            });
        }
    }

    /// The client has confirmed, with `peer` as its end.
    pub(in crate::driver::setup) fn handle_confirmed(&mut self, confirmed: &Confirmed, peer: SmcR) {
        if let State::Accepted(offered) = mem::replace(&mut self.state, State::Over) {
            // As the kernel does: the address of the Proposal counts.
            let gid = offered.wanted.gid;
            self.state = State::Confirmed(offered, confirmed.agreed, SmcR { gid, ..peer });
        }
    }

    /// Whether the client has confirmed.
    pub(in crate::driver::setup) fn is_confirmed(&self) -> bool {
        matches!(
            self.state,
            State::Confirmed(..) | State::Connecting(..) | State::Coming(_)
        )
    }

    /// The client does not have the group that was to be used again: it goes, and what is on it.
    pub(in crate::driver::setup) fn handle_out_of_sync(&self) {
        if let State::Accepted(offered) = &self.state {
            offered.place.group().end();
        }
    }

    /// Goes on as far as it can; an error is a reason to decline. All must be done by `due`.
    pub(in crate::driver::setup) fn step(
        &mut self,
        now: Duration,
        due: Duration,
    ) -> Result<Option<Wish>, Refusal> {
        let went = self.go_on(now, due);
        if matches!(went, Err(_) | Ok(Some(Wish::Linked(_)))) {
            self.contact = None;
        }
        went
    }

    fn go_on(&mut self, now: Duration, due: Duration) -> Result<Option<Wish>, Refusal> {
        match mem::replace(&mut self.state, State::Over) {
            State::Proposed(wanted) => self.answer(wanted, turn(now, due), (now, due)),
            State::Queued(_, wanted, until) => self.answer(wanted, until, (now, due)),
            State::Telling(telling, wanted) => self.look(telling, wanted, (now, due)),
            State::Confirmed(offered, agreed, peer) => self.link(offered, agreed, peer),
            State::Connecting(connecting, established) => match connecting.look(now >= due)? {
                Some(place) => {
                    self.state = State::Coming(Coming::new(place, established, due));
                    // The link may be up already.
                    self.go_on(now, due)
                }
                None => {
                    self.state = State::Connecting(connecting, established);
                    Ok(None)
                }
            },
            State::Coming(mut coming) => {
                if coming.look(now, patience)? {
                    return coming.finish(Side::Server).map(Some);
                }
                self.state = State::Coming(coming);
                Ok(None)
            }
            state @ (State::Idle | State::Accepted(_) | State::Over) => {
                self.state = state;
                Ok(None)
            }
        }
    }

    /// What has to be readable before the next step, and when that is due in any case.
    pub(in crate::driver::setup) fn waits(&self) -> Option<(RawFd, Option<Duration>)> {
        match &self.state {
            State::Queued(waiting, _, until) => Some((waiting.over_fd().as_raw_fd(), Some(*until))),
            State::Telling(telling, _) => Some((news(&telling.place), None)),
            State::Connecting(connecting, _) => Some((connecting.news(), None)),
            State::Coming(coming) => Some((news(&coming.place), Some(coming.due()))),
            _ => None,
        }
    }

    /// By the newest group with this client, if it has room; else by a new one, when it is its turn or `until` has come.
    fn answer(
        &mut self,
        wanted: Wanted,
        until: Duration,
        (now, due): (Duration, Duration),
    ) -> Result<Option<Wish>, Refusal> {
        let version = wanted.proposed.version;
        let port = self.port(version)?;
        let start = port
            .begin_contact(version, wanted.who, wanted.gid)
            .map_err(|error| no_pair(&error))?;
        if let Some(group) = port.find_for_client(version, wanted.who, wanted.gid)
            && group.number() > wanted.unusable
            && let Some(place) = place_in(&group, self.options)?
            && let Ok(telling) = Telling::new(place)
        {
            // This is no first contact, or not yet.
            drop(start);
            // A key that the client knows already is no news.
            return self.look(telling, wanted, (now, due));
        }
        match start {
            Start::Later(waiting) if now < until => {
                self.state = State::Queued(waiting, wanted, until);
                return Ok(None);
            }
            Start::Later(_) => {}
            Start::Now(contact) => self.contact = Some(contact),
        }
        self.first_contact(wanted).map(Some)
    }

    fn look(
        &mut self,
        telling: Telling,
        wanted: Wanted,
        (now, due): (Duration, Duration),
    ) -> Result<Option<Wish>, Refusal> {
        match telling.state() {
            KeyState::Waiting => {
                self.state = State::Telling(telling, wanted);
                Ok(None)
            }
            KeyState::Confirmed => {
                let port = self.port(wanted.proposed.version)?;
                self.offer_place(telling.place, port, wanted, false)
                    .map(Some)
            }
            state @ (KeyState::Refused | KeyState::Silent) => {
                let group = telling.place.group();
                let unusable = group.number();
                if state == KeyState::Silent {
                    group.retire();
                }
                drop(telling);
                // As if it came now: others may have met the same, and one group is enough for all.
                let wanted = Wanted { unusable, ..wanted };
                self.answer(wanted, turn(now, due), (now, due))
            }
        }
    }

    fn first_contact(&mut self, wanted: Wanted) -> Result<Wish, Refusal> {
        let Proposed {
            version, limits, ..
        } = wanted.proposed;
        let port = self.port(version)?;
        let group = port
            .new_group(Side::Server, version, limits)
            .map_err(|error| no_pair(&error))?;
        let place = place_in(&group, self.options)?.ok_or_else(|| {
            Refusal::new(Diagnosis::INTERNAL_ERROR, "a new link group has no place")
        })?;
        self.offer_place(place, port, wanted, true)
    }

    fn offer_place(
        &mut self,
        place: Place,
        port: Arc<Port>,
        wanted: Wanted,
        first: bool,
    ) -> Result<Wish, Refusal> {
        let mtu = port.mtu().map_err(|error| no_pair(&error))?;
        let direct = wanted.proposed.version == Version::V1 || self.offer.is_direct(wanted.gid);
        let answer = Answer {
            end: place.end(mtu),
            direct,
            first,
        };
        self.state = State::Accepted(Offered {
            place,
            port,
            wanted,
            answer,
        });
        Ok(Wish::Answer(answer))
    }

    /// What the Confirm brings: the connection of a group that is used again, or a link that comes up now.
    fn link(
        &mut self,
        offered: Offered,
        agreed: Agreed,
        peer: SmcR,
    ) -> Result<Option<Wish>, Refusal> {
        let Offered {
            mut place,
            port,
            wanted,
            answer,
        } = offered;
        let established = Established {
            agreed,
            far: far(&port, &answer.end, &peer),
        };
        if !answer.first {
            place
                .prepare(&peer, self.options.size)
                .map_err(|error| no_buffer(&error))?;
            return attach(place, established, Side::Server).map(Some);
        }
        let connecting = Connecting::new(place, peer, wanted.who, answer.direct, self.options)?;
        self.state = State::Connecting(connecting, established);
        Ok(None)
    }

    fn port(&self, version: Version) -> Result<Arc<Port>, Refusal> {
        // What was proposed is out of this very offer.
        self.offer.port(version).cloned().ok_or_else(|| {
            Refusal::new(
                Diagnosis::NO_SMC_R_DEVICE,
                Diagnosis::NO_SMC_R_DEVICE.text(),
            )
        })
    }
}

impl Drop for ServerLink {
    fn drop(&mut self) {
        // Nobody will use the group of a first contact that was given up, and the peer must not think so; unless its link is up: then
        // others may use it already.
        match &self.state {
            State::Connecting(connecting, _) => drop(connecting.group().give_up()),
            State::Coming(coming) => drop(coming.place.group().give_up()),
            _ => {}
        }
    }
}

/// Until when a connection waits at most for its turn.
fn turn(now: Duration, due: Duration) -> Duration {
    now + TURN_MAX.min(due.saturating_sub(now) / 3)
}

/// A client that ends the link declines as well, and one that does not answer may be about to: then this end must not do so
/// too, or both streams had a Decline too many. On all else it is the server that speaks.
fn patience(cause: &Cause) -> Duration {
    match cause {
        Cause::Unconfirmed | Cause::Ended { by: By::Peer, .. } => SHORT,
        _ => Duration::ZERO,
    }
}
