//! A port of a device: whoever drains its completion queue hands out what came, under one lock.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::body::{Body, Parts, Peer};
use super::contact::Contacts;
use super::group::Group;
use super::guard::PATIENCE;
use super::standing::{Standing, Wakes};
use super::{Ending, Hub, Identity, OwnPort, Side, queue};
use crate::driver::clock;
use crate::driver::engine::GROUPS_MAX;
use crate::fabric::rdma::{Completion, Nic, POLL_MAX, PairOptions, Trouble};
use crate::mem::fork;
use crate::proto::handshake::{self, Limits};
use crate::proto::link::{Cause, OwnLink};
use crate::wire::clc::{Gid, Mtu, PeerId, U24, Version};
use crate::wire::llc::{self, DeleteReason};

/// Receives that each pair has posted (kernel 6.12: 48).
const RECEIVES: u32 = 64;
/// Groups without a connection that a port keeps for the next one; each has a queue pair and its memory.
pub(super) const IDLE_MAX: usize = 16;

/// A port with one address, and the link groups on it.
#[derive(Debug)]
pub struct Port {
    own: OwnPort,
    /// The numbers of its wake-ups: of completions, and of troubles.
    numbers: [u32; 2],
    hub: Arc<Hub>,
    state: Mutex<State>,
    /// How often the queue was drained, whoever did it.
    served: AtomicU64,
    generation: u64,
}

/// What the lock protects. Declared in the order in which its parts must go.
#[derive(Debug)]
pub(super) struct State {
    /// By the number of the queue pair.
    bodies: BTreeMap<u32, Body>,
    pub(super) contacts: Contacts,
    found: Vec<Completion>,
    /// Completions were found since the queue was armed and drained behind that: most likely an event waits that tells of
    /// nothing any more.
    is_stale: bool,
    /// Somebody has looked since the last event, and has not said that it is about to sleep.
    is_polled: bool,
    /// The last event was taken while somebody looked, and the queue not armed again: when it is in any case.
    rearm_due: Option<Duration>,
    /// `None` when the device is gone: it is let go of whoever still has a handle of the port, for some devices are not removed
    /// before.
    nic: Option<Arc<dyn Nic>>,
    /// What nobody reaches any more.
    gone: Vec<Box<dyn Debug + Send>>,
}

/// The lock, held. What has gone meanwhile is dropped behind it: for destroying pairs and unpinning memory the kernel takes its time,
/// and nobody is to wait for that.
pub(super) struct Held<'a> {
    state: MutexGuard<'a, State>,
    gone: Vec<Box<dyn Debug + Send>>,
}

impl Deref for Held<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // The fields go in their order: the lock first.
        self.gone = std::mem::take(&mut self.state.gone);
    }
}

/// What others do.
impl Port {
    /// What it was opened for.
    pub fn own(&self) -> &OwnPort {
        &self.own
    }

    /// The active MTU.
    ///
    /// # Errors
    /// The device is gone.
    pub fn mtu(&self) -> io::Result<Mtu> {
        let unknown = || io::Error::other("the port has an MTU that is none");
        Mtu::new(self.nic()?.mtu()?).ok_or_else(unknown)
    }

    /// First contact: a group whose queue pair is made and not yet connected. `version` and `limits` are what is agreed:
    /// a client knows them from the Accept, a server when it accepts. A group without a link goes with its last `Arc`.
    ///
    /// # Errors
    /// ENOMEM, EMFILE; `QuotaExceeded`: too many groups; the device is gone; EPERM in a forked child.
    pub fn new_group(
        self: &Arc<Self>,
        side: Side,
        version: Version,
        limits: Option<Limits>,
    ) -> io::Result<Arc<Group>> {
        if !self.is_ours() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let number = self.hub.numbers.next();
        let domain = self.nic()?.domain()?;
        let pair = domain.pair(PairOptions {
            gid_index: self.own.gid_index,
            sends: queue::PLACES,
            receives: RECEIVES,
        })?;
        let unknown = || io::Error::other("the queue pair has a number that is none");
        let qp_number = U24::new(pair.number()).ok_or_else(unknown)?;
        let mut body = Body::new(Parts {
            domain,
            pair,
            side,
            own: OwnLink {
                mac: self.own.mac,
                gid: self.own.gid,
                qp_number,
                user_id: number << 8 | 1,
                limits: wire_limits(version, limits),
                test_after: self.own.test_after,
            },
            standing: Arc::new(Standing::new(number, &self.hub.waker)?),
        })?;
        self.hub.guard.add_group()?;
        let group = body.handle(|body| Group::new(self, body));
        let Some(mut state) = self.state() else {
            return Err(io::ErrorKind::PermissionDenied.into());
        };
        if state.nic.is_none() || state.bodies.len() >= GROUPS_MAX {
            let why = match state.nic {
                None => io::ErrorKind::NotFound,
                Some(_) => io::ErrorKind::QuotaExceeded,
            };
            drop(state);
            self.hub.guard.remove_groups(1);
            return Err(why.into());
        }
        // A pair that had the number before may have left some behind.
        self.drain(&mut state, &mut Wakes::Ring);
        state.bodies.insert(qp_number.get(), body);
        Ok(group)
    }

    /// The newest group with this client whose link is up and which has room. The id is that of the Proposal, which may be
    /// zero, as is `gid`.
    pub fn find_for_client(
        self: &Arc<Self>,
        version: Version,
        who: impl Into<Identity>,
        gid: Gid,
    ) -> Option<Arc<Group>> {
        let who = who.into();
        self.find(Side::Server, version, |body, peer| {
            body.is_up() && peer.who == who && peer.gid == gid
        })
    }

    /// The group that the Accept of a server names. Its link may still be coming: the server can know of the end of that
    /// first contact before this end does. A server is known by its word alone: it may name the group to a connection that it has
    /// accepted at another of its addresses.
    pub fn find_for_server(
        self: &Arc<Self>,
        version: Version,
        peer_id: PeerId,
        peer_gid: Gid,
        peer_pair: U24,
    ) -> Option<Arc<Group>> {
        self.find(Side::Client, version, |_, peer| {
            peer.who.id == peer_id && peer.gid == peer_gid && peer.pair == peer_pair
        })
    }

    fn find(
        self: &Arc<Self>,
        side: Side,
        version: Version,
        is_it: impl Fn(&Body, &Peer) -> bool,
    ) -> Option<Arc<Group>> {
        let mut state = self.state()?;
        let fits = |body: &&mut Body| {
            body.side == side
                && body.version() == version
                && body.peer.as_ref().is_some_and(|peer| is_it(body, peer))
                && body.has_room()
        };
        let bodies = state.bodies.values_mut().filter(fits);
        let newest = bodies.max_by_key(|body| body.standing.number())?;
        Some(newest.handle(|body| Group::new(self, body)))
    }
}

/// The terms of a group as CONFIRM_LINK tells them. Without an agreement a kernel takes 2 links; here there is one.
fn wire_limits(version: Version, limits: Option<Limits>) -> llc::Limits {
    let max_links = limits.map_or(Limits::MIN_LINKS, |limits| limits.max_links);
    match version {
        Version::V1 => llc::Limits::V1 { max_links },
        Version::V2 => llc::Limits::V2 {
            max_links,
            max_connections: limits.map_or(0, |limits| limits.max_connections),
        },
    }
}

/// What the engine, the guard and the handles do.
impl Port {
    pub(super) fn new(own: OwnPort, hub: Arc<Hub>, nic: Arc<dyn Nic>) -> io::Result<Self> {
        let numbers = [hub.numbers.next(), hub.numbers.next()];
        nic.arm()?;
        for (fd, number) in fds(&*nic).into_iter().zip(numbers) {
            hub.waker.add_device(fd, number)?;
        }
        Ok(Self {
            own,
            numbers,
            hub,
            state: Mutex::new(State {
                bodies: BTreeMap::new(),
                contacts: Contacts::default(),
                found: Vec::new(),
                is_stale: false,
                is_polled: false,
                rearm_due: None,
                nic: Some(nic),
                gone: Vec::new(),
            }),
            served: AtomicU64::new(0),
            generation: fork::generation()?,
        })
    }

    /// Whether its wake-ups have this number, among others.
    pub(super) fn has_number(&self, number: u32) -> bool {
        self.numbers.contains(&number)
    }

    /// Names the engine to peers.
    pub(super) fn peer_id(&self) -> PeerId {
        self.hub.peer_id
    }

    pub(super) fn is_ours(&self) -> bool {
        fork::is_current(self.generation)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.nic().is_err()
    }

    /// The device, to be kept for a moment only: while anybody has it, it is not removed.
    ///
    /// # Errors
    /// It is gone; EPERM in a forked child.
    pub(super) fn nic(&self) -> io::Result<Arc<dyn Nic>> {
        let state = self.state().ok_or(io::ErrorKind::PermissionDenied)?;
        Ok(state.nic.clone().ok_or(io::ErrorKind::NotFound)?)
    }

    /// How often the queue was drained.
    pub(super) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// The lock; nobody has it in a forked child, where a thread may have held it that did not come along.
    pub(super) fn state(&self) -> Option<Held<'_>> {
        self.is_ours().then(|| Held {
            state: self.state.lock().unwrap_or_else(PoisonError::into_inner),
            gone: Vec::new(),
        })
    }

    /// Does something with a group, and what follows from it. `None`: the group is gone.
    pub(super) fn with<T>(
        &self,
        group: &Group,
        what: impl FnOnce(&mut Body, &mut Wakes<'_>, Duration) -> T,
    ) -> Option<T> {
        let mut state = self.state()?;
        let (mut wakes, now) = (Wakes::Ring, clock::now());
        let done = what(state.body(group)?, &mut wakes, now);
        self.settle(&mut state, group.pair.0, &mut wakes, now);
        Some(done)
    }

    /// The same for what has nothing to do with time, and only gives something to send.
    #[inline]
    pub(super) fn send(&self, group: &Group, what: impl FnOnce(&mut Body)) {
        let Some(mut state) = self.state() else {
            return;
        };
        let Some(body) = state.body(group) else {
            return;
        };
        what(body);
        if !body.flush() {
            self.settle(&mut state, group.pair.0, &mut Wakes::Ring, clock::now());
        }
    }

    /// Something is due then.
    pub(super) fn hasten(&self, due: Duration) {
        self.hub.guard.hasten(due);
    }

    /// Drains the queue, and hands out what came.
    pub(super) fn poll(&self) {
        if let Some(mut state) = self.state() {
            state.is_polled = true;
            self.drain(&mut state, &mut Wakes::Ring);
        }
    }

    /// Has the next completion wake the engine, and drains the queue.
    pub(super) fn arm(&self) {
        let Some(mut state) = self.state() else {
            return;
        };
        let is_stale = state.is_stale;
        if is_stale {
            state.rearm();
        }
        state.is_polled = false;
        self.drain(&mut state, &mut Wakes::Ring);
        state.is_stale &= !is_stale;
    }

    /// Serves the wake-up with this number. Troubles cost system calls even where there are none, so they are not looked for at
    /// each completion.
    pub(super) fn serve(&self, number: u32, wakes: &mut Wakes<'_>) {
        if number == self.numbers[0]
            && let Some(mut state) = self.state()
        {
            // Who spins looks by itself, and each event that comes meanwhile would cost it four system calls.
            if state.is_awaited() {
                self.serve_armed(&mut state, wakes);
            } else {
                self.serve_unarmed(&mut state, wakes);
            }
        } else {
            self.serve_all(wakes);
        }
    }

    fn serve_armed(&self, state: &mut State, wakes: &mut Wakes<'_>) {
        state.rearm();
        self.drain(state, wakes);
        state.is_stale = false;
    }

    fn serve_unarmed(&self, state: &mut State, wakes: &mut Wakes<'_>) {
        if let Some(nic) = &state.nic {
            // As in `rearm`.
            let _ = nic.take_events();
        }
        self.drain(state, wakes);
        state.is_stale = true;
        let due = clock::now() + PATIENCE;
        state.rearm_due = Some(due);
        self.hub.guard.hasten(due);
    }

    /// Serves what its descriptors tell of.
    pub(super) fn serve_all(&self, wakes: &mut Wakes<'_>) {
        let Some(mut state) = self.state() else {
            return;
        };
        self.serve_armed(&mut state, wakes);
        let troubles = state.nic.as_ref().map(|nic| nic.take_troubles());
        for trouble in troubles.unwrap_or_default() {
            self.handle_trouble(&mut state, trouble, wakes);
        }
    }

    /// Does what is due, and says when the next is.
    pub(super) fn handle_timeout(&self, now: Duration) -> Option<Duration> {
        let mut state = self.state()?;
        if state.rearm_due.is_some_and(|due| due <= now) {
            self.serve_armed(&mut state, &mut Wakes::Ring);
        }
        let pairs: Vec<u32> = state.bodies.keys().copied().collect();
        for pair in pairs {
            let Some(body) = state.bodies.get_mut(&pair) else {
                continue;
            };
            if body.poll_timeout().is_some_and(|due| due <= now) {
                body.handle_timeout(&mut Wakes::Ring, now);
                self.settle(&mut state, pair, &mut Wakes::Ring, now);
            }
        }
        let bodies = state.bodies.values().filter_map(Body::poll_timeout);
        bodies.chain(state.rearm_due).min()
    }

    /// Ends these groups, each with a DELETE_LINK. Whether there is something to wait for: that it leaves, or that others may end.
    pub(super) fn end(&self, who: Ending) -> bool {
        let Some(mut state) = self.state() else {
            return false;
        };
        let now = clock::now();
        let ends = state.bodies.iter().filter(|(_, body)| body.ends(who));
        let pairs: Vec<u32> = ends.map(|(pair, _)| *pair).collect();
        for pair in pairs {
            if let Some(body) = state.bodies.get_mut(&pair) {
                body.end(DeleteReason::PROGRAM);
                self.settle(&mut state, pair, &mut Wakes::Ring, now);
            }
        }
        let mut bodies = state.bodies.values();
        bodies.any(|body| who == Ending::Used || body.standing.is_dead())
    }

    /// Waits for a completion, until `due`.
    pub(super) fn wait(&self, due: Duration) {
        let Ok(nic) = self.nic() else {
            return;
        };
        let left = due.saturating_sub(clock::now());
        let fd = PollFd::from_borrowed_fd(nic.completion_fd(), PollFlags::IN);
        // What fails is interrupted: the caller looks at the clock.
        let _ = poll(&mut [fd], Some(&clock::timespec(left)));
    }

    /// Whether there is no group.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.state().is_none_or(|state| state.bodies.is_empty())
    }

    /// Lets go of all groups, and of the device.
    pub(super) fn close(&self) {
        if let Some(mut state) = self.state() {
            let by = handshake::Side::Us;
            let reason = DeleteReason::PROGRAM;
            self.let_go(&mut state, Cause::Ended { by, reason }, &mut Wakes::Ring);
        }
    }

    fn drain(&self, state: &mut State, wakes: &mut Wakes<'_>) {
        self.served.fetch_add(1, Ordering::Relaxed);
        let mut touched = Vec::new();
        let mut now = Duration::ZERO;
        let mut found = std::mem::take(&mut state.found);
        loop {
            found.clear();
            match state.nic.as_ref().map(|nic| nic.poll(&mut found)) {
                None | Some(Ok(0)) => break,
                Some(Ok(_)) => {}
                Some(Err(_)) => {
                    self.let_go(state, Cause::DeviceGone, wakes);
                    break;
                }
            }
            if touched.is_empty() {
                now = clock::now();
                state.is_stale = true;
            }
            for completion in &found {
                let pair = state.handle(*completion, wakes, now);
                if touched.last() != Some(&pair) && !touched.contains(&pair) {
                    touched.push(pair);
                }
            }
            // Receives are posted again behind this, so that a peer cannot keep anybody here.
            if found.len() < POLL_MAX {
                break;
            }
        }
        state.found = found;
        for pair in touched {
            self.settle(state, pair, wakes, now);
        }
    }

    /// Does what follows from what was done with a group.
    fn settle(&self, state: &mut State, pair: u32, wakes: &mut Wakes<'_>, now: Duration) {
        let Some(body) = state.bodies.get_mut(&pair) else {
            return;
        };
        body.settle(wakes, now);
        let gone = body.take_gone();
        if !gone.is_empty() {
            state.gone.push(Box::new(gone));
        }
        if body.is_over(now) {
            let body = state.bodies.remove(&pair);
            state.gone.push(Box::new(body));
            self.hub.guard.remove_groups(1);
            return;
        }
        let rests = body.idle_since == Some(now);
        if let Some(due) = body.next_timeout() {
            self.hub.guard.hasten(due);
        }
        if rests {
            self.limit_idle(state, wakes, now);
        }
    }

    /// Ends the group that rests longest, when there are too many.
    fn limit_idle(&self, state: &mut State, wakes: &mut Wakes<'_>, now: Duration) {
        let alive = state
            .bodies
            .iter_mut()
            .filter(|(_, body)| !body.standing.is_dead());
        let resting = alive.filter_map(|(pair, body)| Some((body.idle_since?, *pair)));
        let resting: Vec<(Duration, u32)> = resting.collect();
        if resting.len() > IDLE_MAX
            && let Some((_, oldest)) = resting.into_iter().min()
            && let Some(body) = state.bodies.get_mut(&oldest)
        {
            body.end(DeleteReason::PROGRAM);
            self.settle(state, oldest, wakes, now);
        }
    }

    fn handle_trouble(&self, state: &mut State, trouble: Trouble, wakes: &mut Wakes<'_>) {
        match trouble {
            Trouble::Pair { pair } => {
                let now = clock::now();
                if let Some(body) = state.bodies.get_mut(&pair) {
                    let cause = Cause::PairFailed("the device reports that it is broken");
                    body.break_down(cause, wakes, now);
                }
                self.settle(state, pair, wakes, now);
            }
            Trouble::PortDown => self.lose_all(state, Cause::PortDown, wakes),
            Trouble::PortUp => {}
            Trouble::GidChange => {
                let nic = state.nic.as_ref();
                let gid = nic.and_then(|nic| nic.gid(self.own.gid_index).ok());
                if gid != Some(self.own.gid.0) {
                    self.lose_all(state, Cause::AddressGone, wakes);
                }
            }
            Trouble::Gone => self.let_go(state, Cause::DeviceGone, wakes),
        }
    }

    /// Lets go of all groups, and of the device and everything on it, which is not removed before.
    fn let_go(&self, state: &mut State, cause: Cause, wakes: &mut Wakes<'_>) {
        self.lose_all(state, cause, wakes);
        if let Some(nic) = state.nic.take() {
            // They would stay readable for ever.
            for fd in fds(&*nic) {
                self.hub.waker.remove(fd);
            }
            // The guard polls them, and has the device meanwhile.
            self.hub.guard.hasten(Duration::ZERO);
            state.gone.push(Box::new(nic));
        }
    }

    fn lose_all(&self, state: &mut State, cause: Cause, wakes: &mut Wakes<'_>) {
        let now = clock::now();
        for body in state.bodies.values_mut() {
            body.break_down(cause, wakes, now);
        }
        let bodies = std::mem::take(&mut state.bodies);
        self.hub.guard.remove_groups(bodies.len());
        state.gone.push(Box::new(bodies));
    }
}

/// What to poll for.
pub(super) fn fds(nic: &dyn Nic) -> [BorrowedFd<'_>; 2] {
    [nic.completion_fd(), nic.trouble_fd()]
}

impl State {
    /// What is behind this handle. A handle may outlive its group, whose pair's number the device gives to another.
    fn body(&mut self, group: &Group) -> Option<&mut Body> {
        let body = self.bodies.get_mut(&group.pair.0)?;
        Arc::ptr_eq(&body.standing, &group.standing).then_some(body)
    }

    /// Whether an event would be for somebody who sleeps, or may by now.
    fn is_awaited(&mut self) -> bool {
        !std::mem::take(&mut self.is_polled) || self.bodies.values().any(Body::is_awaited)
    }

    fn rearm(&mut self) {
        self.rearm_due = None;
        if let Some(nic) = &self.nic {
            // A device that is gone says so when it is polled.
            let _ = nic.take_events();
            let _ = nic.arm();
        }
    }

    /// Takes in a completion; returns whose it is.
    fn handle(&mut self, completion: Completion, wakes: &mut Wakes<'_>, now: Duration) -> u32 {
        let (Completion::Received { pair, .. }
        | Completion::Sent { pair, .. }
        | Completion::Failed { pair, .. }) = completion;
        // A pair that is gone has left some behind.
        if let Some(body) = self.bodies.get_mut(&pair) {
            match completion {
                Completion::Received { slot, len, .. } => {
                    body.handle_received(slot, len, wakes, now);
                }
                Completion::Sent { id, .. } => body.handle_sent(id, wakes, now),
                Completion::Failed { status, .. } => body.handle_failed(status, wakes, now),
            }
        }
        pair
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if self.is_ours() {
            self.close();
        } else if let Ok(state) = self.state.get_mut() {
            // The pairs and the memory are the parent's.
            std::mem::forget(std::mem::take(&mut state.bodies));
        }
    }
}
