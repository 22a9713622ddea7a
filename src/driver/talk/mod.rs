//! A set-up with its sockets: carries the bytes over TCP, and the frames and descriptors over the rendezvous connection.
//!
//! Nothing here waits: [`ClientTalk::step`] and [`ServerTalk::step`] go on as far as they can and say what has to happen
//! before the next step. Moments are durations since any one point of a clock that is the caller's.
//!
//! A client has less time than a server of the same configuration, and a late one says nothing any more: no Confirm, no
//! Decline. A server that is late takes what has come all the same. So no server gives up on a client that believes in what
//! it has sent. With SMC-R, where a link comes up behind the CLC messages, a client that has no link yet declines while there
//! is still time for that, and a server whenever it gives up: both may until the link is up.

mod client;
mod line;
mod server;

use std::os::fd::RawFd;
use std::time::Duration;

use super::setup::{Ended, Incompatible};

pub use client::ClientTalk;
pub use server::ServerTalk;

/// What the next step waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The descriptor has something to read.
    Readable(RawFd),
    /// The descriptor has room.
    Writable(RawFd),
    /// There is a rendezvous connection to the peer, which the caller has to make: `meet`.
    Meeting,
}

/// A step is to be made when one of `events` has happened, or at the moment `until` if that comes first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// What is waited for.
    pub events: Vec<Event>,
    /// How long.
    pub until: Duration,
}

impl Wait {
    /// For TCP and for a link, whichever of the two there is.
    fn for_both(
        tcp: Option<Event>,
        link: Option<(RawFd, Option<Duration>)>,
        due: Duration,
    ) -> Self {
        let news = link.map(|(news, _)| Event::Readable(news));
        let until = link.and_then(|(_, until)| until);
        Self {
            events: tcp.into_iter().chain(news).collect(),
            until: until.map_or(due, |until| until.min(due)),
        }
    }
}

/// Why the two ends part before the first CLC byte; both go on with plain TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Apart {
    /// Memory or descriptors are lacking here, or the system refuses them: its error, 0 for none.
    System(i32),
    /// The peer has not decided in time.
    TimedOut,
    /// The peer has hung up.
    Stopped,
    /// Two builds that differ, or a frame that is none.
    Incompatible(Incompatible),
}

/// How it has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// Before the CLC handshake.
    Apart(Apart),
    /// By the CLC handshake.
    Setup(Ended),
}

impl Ending {
    fn late() -> Self {
        Self::Setup(Ended::Failed {
            text: "the set-up was not done in time".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests;
