//! Connections over RDMA: ports of devices, link groups on them, and one lane for each connection.
//!
//! ```text
//! Port      a port of a device with one address: its completion queue is drained and its news handed out under one lock
//!  `- Group     a link with a peer: queue pair, LLC machine, registered memory, connections
//!      `- Place     what one connection has before the peer's end is known: a receive buffer and its token
//!          `- Lane      the connection: a header page with what the peer has told, and both rings
//! ```
//!
//! What comes in is handed out by whoever drains the queue: a lane that looks, the engine's
//! [`take_wakes`](super::Engine::take_wakes), or, when the loop does neither for too long, the guard thread. It goes into the header page of the lane that
//! it is for, as a peer in shared memory would have written it, and the group's bell rings for who sleeps.

mod body;
mod contact;
mod group;
mod guard;
mod lane;
mod member;
mod nudge;
mod place;
mod pool;
mod port;
mod queue;
mod sending;
mod standing;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::guard::Guard;
use self::standing::Wakes;
use super::engine::random;
use super::{Engine, clock};
use crate::fabric::rdma::Nic;
use crate::fabric::shm::Waker;
use crate::fabric::verbs;
use crate::wire::clc::{Gid, Mac, PeerId};

pub use self::contact::{Contact, Identity, Start, Waiting};
pub use self::group::{Group, LinkState};
pub(super) use self::lane::TCP_GRACE;
pub use self::lane::{Lane, News};
pub use self::nudge::Nudge;
pub use self::place::{KeyState, Place};
pub use self::port::Port;
pub use crate::mem::header::Side;
pub use crate::proto::link::Cause;

/// How long the last messages of an engine that ends may take to leave.
const LAST_MOMENT: Duration = Duration::from_millis(200);

/// A port of a device and the address to use there, as the choice of devices has found them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnPort {
    /// The name of the device.
    pub device: String,
    /// The number of the port, from 1 on.
    pub port: u8,
    /// The place of the address in the port's GID table.
    pub gid_index: u8,
    /// The address.
    pub gid: Gid,
    /// The MAC of the network device behind it.
    pub mac: Mac,
    /// How long nothing may be heard from a peer before it is asked whether it is there; `None` never asks.
    pub test_after: Option<Duration>,
}

/// Gives out numbers for wake-ups.
#[derive(Debug, Default)]
pub(super) struct Numbers(AtomicU32);

impl Numbers {
    /// The next number; not 0.
    pub(super) fn next(&self) -> u32 {
        loop {
            let next = self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            if next != 0 {
                return next;
            }
        }
    }
}

/// Which groups end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Those without a connection, and those with an open one.
    Used,
    /// All but those whose connections are only their peers' any more.
    All,
}

/// What the ports of an engine share.
#[derive(Debug)]
struct Hub {
    peer_id: PeerId,
    waker: Arc<Waker>,
    numbers: Arc<Numbers>,
    guard: Arc<Guard>,
}

/// An engine's share of RDMA.
#[derive(Debug)]
pub(super) struct Ports {
    hub: Arc<Hub>,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    ports: Vec<Arc<Port>>,
    /// To be used by the next port that names them.
    nics: Vec<Arc<dyn Nic>>,
}

impl Ports {
    /// None yet.
    ///
    /// # Errors
    /// Those of getrandom(2); the fork generation is not to be had.
    pub(super) fn new(waker: &Arc<Waker>, numbers: &Arc<Numbers>) -> io::Result<Self> {
        Ok(Self {
            hub: Arc::new(Hub {
                peer_id: PeerId(random()?),
                waker: Arc::clone(waker),
                numbers: Arc::clone(numbers),
                guard: Arc::new(Guard::new()?),
            }),
            open: Mutex::default(),
        })
    }

    /// Serves the port with this number; adds the numbers of the groups that have to look.
    pub(super) fn serve(&self, number: u32, woken: &mut Vec<u32>) {
        let open = self.open();
        let port = open.ports.iter().find(|port| port.has_number(number));
        let port = port.cloned();
        drop(open);
        if let Some(port) = port {
            port.serve(number, &mut Wakes::Collect(woken));
        }
    }

    fn port(&self, own: &OwnPort) -> io::Result<Arc<Port>> {
        let mut open = self.open();
        open.ports.retain(|port| !port.is_gone());
        if let Some(found) = open.ports.iter().find(|port| port.own() == own) {
            return Ok(Arc::clone(found));
        }
        let is_it = |nic: &Arc<dyn Nic>| nic.device() == own.device && nic.port() == own.port;
        let nic = match open.nics.iter().position(is_it) {
            Some(at) => open.nics.swap_remove(at),
            None => verbs::open(&own.device, own.port)?,
        };
        let port = Arc::new(Port::new(own.clone(), Arc::clone(&self.hub), nic)?);
        self.hub.guard.add_port(&port);
        open.ports.push(Arc::clone(&port));
        Ok(port)
    }

    /// Ends the groups, and lets what they say leave. Connections that were closed here have a bounded moment for what waits
    /// in them and for the end at their peers. A peer that still reads then keeps its group: a DELETE_LINK would take from it
    /// what it has not read yet.
    fn end(&self) {
        let ports = self.open().ports.clone();
        for who in [Ending::Used, Ending::All] {
            let due = clock::now() + LAST_MOMENT;
            let busy = || {
                ports
                    .iter()
                    .fold(None, |busy, port| port.end(who).then_some(port).or(busy))
            };
            while let Some(port) = busy()
                && clock::now() < due
            {
                port.wait(due);
                ports.iter().for_each(|port| port.arm());
            }
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        // Nothing panics while it is held.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        // A forked child has neither the thread nor, perhaps, the locks.
        if !self.hub.guard.is_ours() {
            return;
        }
        self.end();
        self.hub.guard.end();
        for port in &self.open().ports {
            port.close();
        }
    }
}

impl Engine {
    /// The port that `own` names: opened now, or found open.
    ///
    /// # Errors
    /// There is no such device or port, or no libibverbs; ENOMEM, EMFILE; EPERM in a forked child.
    pub fn port(&self, own: &OwnPort) -> io::Result<Arc<Port>> {
        if !self.is_ours() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.ports().port(own)
    }

    /// Has the next [`Self::port`] that names the device and the port of `nic` use it, instead of opening one.
    pub fn add_nic(&self, nic: Arc<dyn Nic>) {
        if self.is_ours() {
            self.ports().open().nics.push(nic);
        }
    }

    /// Names this engine to peers in CLC: random, and never that of another engine or an earlier process, so that no peer
    /// takes this one's link groups for those of another.
    pub fn peer_id(&self) -> PeerId {
        self.ports().hub.peer_id
    }

    /// Ends all link groups with a DELETE_LINK, and lets it leave for a bounded moment; but those stay that have nothing but
    /// connections whose data a peer has yet to read. Also done when the engine drops.
    pub fn close_links(&self) {
        if self.is_ours() {
            self.ports().end();
        }
    }
}
