//! A link group, as its users hold it.

use std::io;
use std::sync::Arc;

use super::body::Body;
use super::nudge::Nudge;
use super::place::Place;
use super::pool::Buffer;
use super::port::Port;
use super::standing::Standing;
use super::{Identity, Side};
use crate::fabric::rdma::Access;
use crate::mem::Memory;
use crate::mem::header::{HEADER_LEN, Header};
use crate::proto::link::Cause;
use crate::wire::SizeCode;
use crate::wire::clc::{SmcR, Version};
use crate::wire::llc::DeleteReason;

/// How a link stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// Not confirmed yet.
    Coming,
    /// Connections may use it.
    Up,
    /// The end.
    Down(Cause),
}

/// A link with a peer, and the connections on it. It stays for ten minutes after the last of them, for the next one.
#[derive(Debug)]
pub struct Group {
    pub(super) port: Arc<Port>,
    /// The number of the queue pair, and that of its first packet.
    pub(super) pair: (u32, u32),
    pub(super) side: Side,
    version: Version,
    pub(super) standing: Arc<Standing>,
}

impl Group {
    pub(super) fn new(port: &Arc<Port>, body: &Body) -> Self {
        Self {
            port: Arc::clone(port),
            pair: body.pair_numbers(),
            side: body.side,
            version: body.version(),
            standing: Arc::clone(&body.standing),
        }
    }

    /// The number under which its wake-ups are reported, as [`Wake::Bell`](crate::fabric::shm::Wake::Bell); no other group of
    /// the engine has it.
    pub fn number(&self) -> u32 {
        self.standing.number()
    }

    /// Whether the link has ended: all connections are lost.
    pub fn is_dead(&self) -> bool {
        self.standing.is_dead()
    }

    /// Why it has ended, if it has.
    pub fn cause(&self) -> Option<Cause> {
        self.standing.cause()
    }

    /// How the link stands.
    pub fn link(&self) -> LinkState {
        if let Some(cause) = self.cause() {
            return LinkState::Down(cause);
        }
        let state = self.port.with(self, |body, _, _| body.link_state());
        state.unwrap_or(LinkState::Down(self.cause().unwrap_or(Cause::PathLost)))
    }

    /// A place for one connection, whose receive buffer has the size `rmb`: registered, so that all of its pages are taken. `None`:
    /// the group is full or dead.
    ///
    /// # Errors
    /// ENOMEM: no memory, or RLIMIT_MEMLOCK does not allow more of it; EMFILE.
    pub fn place(self: &Arc<Self>, rmb: SizeCode) -> io::Result<Option<Place>> {
        self.stock(rmb, Access::RemoteWrite)?;
        let header = Header::new(Arc::new(Memory::anonymous(HEADER_LEN)?), self.side);
        let news = Arc::new(Nudge::new()?);
        let joined = self
            .port
            .with(self, |body, _, _| body.join(rmb, &header, &news));
        let Some((token, rmb)) = joined.transpose()?.flatten() else {
            return Ok(None);
        };
        let group = Arc::clone(self);
        Ok(Some(Place::new(group, token, header, rmb, news)))
    }

    /// Has a ring of this size lie ready for who takes it next. The kernel may take its time over a large one, so nobody waits for
    /// that but the caller.
    ///
    /// # Errors
    /// Those of [`Self::place`].
    pub(super) fn stock(&self, size: SizeCode, access: Access) -> io::Result<()> {
        let lacking = self
            .port
            .with(self, |body, _, _| body.lacks(size, access))
            .flatten();
        if let Some(domain) = lacking {
            let fresh = Buffer::register(&*domain, size, access)?;
            self.port.with(self, |body, _, _| body.stock(fresh, access));
        }
        Ok(())
    }

    /// Connects the queue pair, after a client got the Accept and before it sends its Confirm, after a server got the
    /// Confirm; the link's messages go out and are waited for by themselves from here on, so that a client has nothing to
    /// do when its Confirm is sent. `who` is the peer for later finds: a server takes its id from the Proposal.
    ///
    /// Takes up to a second, while the host asks for the peer's address, and holds nobody up meanwhile.
    ///
    /// # Errors
    /// No route to the peer; the device is gone; `AlreadyExists`: it is connected, or dead.
    pub fn connect(&self, peer: &SmcR, who: impl Into<Identity>, direct: bool) -> io::Result<()> {
        self.connect_with(peer, who.into(), direct, |_| ())
    }

    /// The same, and does something with the group before the first message goes out.
    pub(super) fn connect_with<T>(
        &self,
        peer: &SmcR,
        who: Identity,
        direct: bool,
        what: impl FnOnce(&mut Body) -> T,
    ) -> io::Result<T> {
        let gone = io::ErrorKind::NotConnected;
        let mtu = self.port.mtu()?.min(peer.mtu).code();
        let connecting = self
            .port
            .with(self, |body, _, _| body.connecting(peer, who, (mtu, direct)));
        connecting.ok_or(gone)??()?;
        let connected = self.port.with(self, |body, _, now| {
            body.connected(now)?;
            Ok(what(body))
        });
        connected.ok_or(gone)?
    }

    /// The version that was agreed on.
    pub fn version(&self) -> Version {
        self.version
    }

    /// No find gives this group to anybody any more; its connections go on.
    pub fn retire(&self) {
        self.port.with(self, |body, _, _| body.retire());
    }

    /// A first contact has taken too long: ends the link unless it is up. How it stands then, in one look: what is not up now
    /// never will be.
    pub fn give_up(&self) -> LinkState {
        self.port.with(self, |body, wakes, now| {
            if !body.is_up() {
                body.die(Cause::Unconfirmed, wakes, now);
                body.end(DeleteReason::PROGRAM);
            }
        });
        self.link()
    }

    /// Ends the link and all connections on it, with a DELETE_LINK if the peer knows the link.
    pub fn end(&self) {
        self.port
            .with(self, |body, _, _| body.end(DeleteReason::PROGRAM));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Nothing in a forked child, where `with` finds nothing.
        self.port.with(self, |body, _, _| body.handle_unused());
    }
}
