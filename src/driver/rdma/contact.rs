//! First contacts, one at a time with each client: who comes meanwhile waits, for the group that is being made may be its own too.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use super::nudge::Nudge;
use super::port::Port;
use crate::wire::clc::{Gid, PeerId, Version};

/// Who a peer is: by its own word, and for a server by TCP's as well. What a Proposal says anybody may say, and kernels of version
/// 2 say an id of zeros; but nobody has a TCP connection from an address where no answer reaches him.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Its id in CLC.
    pub id: PeerId,
    /// Where a client has connected from, as [`Stream::host`](crate::fabric::Stream::host) has it.
    pub host: Option<SocketAddr>,
}

impl From<PeerId> for Identity {
    /// A peer that is known by its word alone.
    fn from(id: PeerId) -> Self {
        Self { id, host: None }
    }
}

/// A client, as its groups are found again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Client {
    version: Version,
    who: Identity,
    gid: Gid,
}

/// The first contacts of a port that are under way.
#[derive(Debug, Default)]
pub(super) struct Contacts(Vec<UnderWay>);

#[derive(Debug)]
struct UnderWay {
    client: Client,
    /// The descriptors of those who wait.
    waiting: Vec<Weak<Nudge>>,
}

/// Whether a first contact may begin.
#[derive(Debug)]
pub enum Start {
    /// It may, and holds off others until this is dropped.
    Now(Contact),
    /// Another one is under way.
    Later(Waiting),
}

/// A first contact.
#[derive(Debug)]
pub struct Contact {
    port: Arc<Port>,
    client: Client,
}

/// The wait for one that another has begun.
#[derive(Debug)]
pub struct Waiting(Arc<Nudge>);

impl Waiting {
    /// Becomes readable when the first contact is over, well or not: time to look again for a group, and for a turn.
    pub fn over_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Contacts {
    /// Begins one, unless one is under way. Returns the wait for that.
    ///
    /// # Errors
    /// EMFILE.
    fn begin(&mut self, client: Client) -> io::Result<Option<Waiting>> {
        let Some(under_way) = self.0.iter_mut().find(|other| other.client == client) else {
            let waiting = Vec::new();
            self.0.push(UnderWay { client, waiting });
            return Ok(None);
        };
        let over = Arc::new(Nudge::new()?);
        under_way.waiting.retain(|other| other.strong_count() > 0);
        under_way.waiting.push(Arc::downgrade(&over));
        Ok(Some(Waiting(over)))
    }

    fn end(&mut self, client: Client) {
        let at = self.0.iter().position(|other| other.client == client);
        let waiting = at.map(|at| self.0.swap_remove(at).waiting);
        for over in waiting.iter().flatten().filter_map(Weak::upgrade) {
            over.give();
        }
    }
}

impl Port {
    /// Begins a first contact with this client, named as for [`Self::find_for_client`]. To be had before that is asked: what it
    /// does not find then will not come any more.
    ///
    /// # Errors
    /// EMFILE; EPERM in a forked child.
    pub fn begin_contact(
        self: &Arc<Self>,
        version: Version,
        who: impl Into<Identity>,
        gid: Gid,
    ) -> io::Result<Start> {
        let who = who.into();
        let client = Client { version, who, gid };
        let mut state = self.state().ok_or(io::ErrorKind::PermissionDenied)?;
        Ok(match state.contacts.begin(client)? {
            Some(waiting) => Start::Later(waiting),
            None => Start::Now(Contact {
                port: Arc::clone(self),
                client,
            }),
        })
    }
}

impl Drop for Contact {
    fn drop(&mut self) {
        if let Some(mut state) = self.port.state() {
            state.contacts.end(self.client);
        }
    }
}
