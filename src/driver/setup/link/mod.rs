//! The way over RDMA: from a Proposal to a lane, at either end.
//!
//! ```text
//! first contact   server: group, place                Accept  ->
//!                 client: group, place, connected     Confirm <-
//!                 server: connected; CONFIRM_LINK there and back, by themselves
//! reuse           server: place, CONFIRM_RKEY         Accept  ->
//!                 client: place, CONFIRM_RKEY         Confirm <-
//! ```
//!
//! Whatever may be lacking is taken before the own word goes out: a client's send ring before its Confirm, a server's before
//! its CONFIRM_LINK. Connecting a queue pair takes its time, and is done in a thread. What is given up takes its group with it at first contact, and otherwise only its place in the group.

mod client;
mod connecting;
mod server;

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::{Endpoint, Established, Far, Options, Refusal};
use crate::driver::rdma::{Cause, Group, KeyState, LinkState, Place, Port, Side};
use crate::wire::clc::{Diagnosis, SmcR};

pub(super) use client::ClientLink;
pub(super) use server::ServerLink;

/// How long an end whose link does not come up leaves the peer to say why, over TCP (kernel 6.12).
const SHORT: Duration = Duration::from_secs(1);

/// What a link wants of its handshake.
#[derive(Debug)]
pub(super) enum Wish {
    /// A client's Confirm, or a server's Accept.
    Answer(Answer),
    /// The connection is there.
    Linked(Box<(Endpoint, Established)>),
}

/// What a Confirm or an Accept says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    pub(super) end: SmcR,
    /// No router is between the two.
    pub(super) direct: bool,
    /// The group is new.
    pub(super) first: bool,
}

/// A first contact whose link comes up by itself, or whose end the peer is left to explain.
#[derive(Debug)]
struct Coming {
    place: Place,
    established: Established,
    state: ComingState,
}

#[derive(Debug, Clone, Copy)]
enum ComingState {
    /// It must be up by then.
    Waiting(Duration),
    /// It has failed. Until then the peer may say why.
    Broken(Cause, Duration),
}

impl Coming {
    fn new(place: Place, established: Established, until: Duration) -> Self {
        Self {
            place,
            established,
            state: ComingState::Waiting(until),
        }
    }

    /// Whether the link is up; an error once there is nothing to wait for. `patience` says how long the peer has for its word
    /// on a failure.
    fn look(
        &mut self,
        now: Duration,
        patience: impl Fn(&Cause) -> Duration,
    ) -> Result<bool, Refusal> {
        if let ComingState::Waiting(until) = self.state {
            let is_late = now >= until;
            let link = if is_late {
                // In one look: a link that is not up now must not come up behind a Decline.
                self.place.group().give_up()
            } else {
                self.place.link()
            };
            match link {
                LinkState::Up => return Ok(true),
                LinkState::Coming if is_late => return Err(broken(Cause::Unconfirmed)),
                LinkState::Coming => return Ok(false),
                LinkState::Down(cause) => {
                    let last = until.min(now.saturating_add(patience(&cause)));
                    self.state = ComingState::Broken(cause, last);
                }
            }
        }
        match self.state {
            ComingState::Broken(cause, last) if last <= now => Err(broken(cause)),
            ComingState::Broken(..) | ComingState::Waiting(_) => Ok(false),
        }
    }

    /// When to look again, if nothing happens before.
    fn due(&self) -> Duration {
        match self.state {
            ComingState::Waiting(until) | ComingState::Broken(_, until) => until,
        }
    }

    fn finish(self, side: Side) -> Result<Wish, Refusal> {
        attach(self.place, self.established, side)
    }
}

fn broken(cause: Cause) -> Refusal {
    Refusal::new(cause.diagnosis(), cause)
}

/// A key that was told to the peer of a group that is used again.
#[derive(Debug)]
struct Telling {
    place: Place,
}

impl Telling {
    /// Tells it.
    fn new(place: Place) -> Result<Self, Refusal> {
        match place.tell_key() {
            Ok(()) => Ok(Self { place }),
            Err(error) => Err(Refusal::new(Diagnosis::NO_ACTIVE_LINK, error)),
        }
    }

    /// What has become of it.
    fn state(&self) -> KeyState {
        match self.place.link() {
            LinkState::Up => self.place.key_state(),
            LinkState::Coming | LinkState::Down(_) => KeyState::Silent,
        }
    }
}

fn news(place: &Place) -> RawFd {
    place.news_fd().as_raw_fd()
}

/// A place, if the group has one.
fn place_in(group: &Arc<Group>, options: Options) -> Result<Option<Place>, Refusal> {
    group.place(options.size).map_err(|error| no_buffer(&error))
}

/// What is known of a connection whose ends are these.
fn far(port: &Port, own: &SmcR, peer: &SmcR) -> Far {
    Far::Link {
        device: port.own().device.clone(),
        port: port.own().port,
        gid: own.gid,
        peer_gid: peer.gid,
        mtu: own.mtu.min(peer.mtu),
        qp_number: own.qp_number,
    }
}

fn attach(place: Place, established: Established, side: Side) -> Result<Wish, Refusal> {
    // It was up a moment ago.
    let lane = place
        .attach()
        .map_err(|error| Refusal::new(Diagnosis::NO_ACTIVE_LINK, error))?;
    Ok(Wish::Linked(Box::new((
        Endpoint::on_lane(lane, side),
        established,
    ))))
}

/// A buffer that cannot be registered.
fn no_buffer(error: &io::Error) -> Refusal {
    let diagnosis = match error.kind() {
        io::ErrorKind::QuotaExceeded => Diagnosis::RTOKEN,
        _ => Diagnosis::BUFFER_REGISTRATION,
    };
    Refusal::new(diagnosis, error)
}

/// A queue pair that cannot be made, or connected.
fn no_pair(error: &io::Error) -> Refusal {
    let diagnosis = match error.kind() {
        io::ErrorKind::OutOfMemory | io::ErrorKind::QuotaExceeded => Diagnosis::OUT_OF_MEMORY,
        _ => Diagnosis::QUEUE_PAIR,
    };
    Refusal::new(diagnosis, error)
}
