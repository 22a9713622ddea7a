//! A link group under its port's lock: queue pair, LLC machine, memory, connections.

mod link;
mod traffic;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::num::NonZeroU32;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::group::{Group, LinkState};
use super::lane::News;
use super::member::{Member, Seen};
use super::nudge::Nudge;
use super::pool::{Buffer, Pool, Ring};
use super::queue::Queue;
use super::sending::{Sending, key_of};
use super::standing::{Standing, Wakes};
use super::{Ending, Identity, Side};
use crate::driver::engine::random;
use crate::fabric::rdma::{Access, Domain, Pair};
use crate::mem::header::Header;
use crate::proto::handshake;
use crate::proto::link::{Cause, Link, OwnLink};
use crate::wire::SizeCode;
use crate::wire::clc::{Gid, SmcR, U24, Version};
use crate::wire::llc::{DeleteReason, Limits};

/// How long a server keeps a group that has no connection (kernel 6.12).
pub(super) const SERVER_IDLE: Duration = Duration::from_secs(600);
/// How long a client does, so that the server comes first (kernel 6.12).
pub(super) const CLIENT_IDLE: Duration = Duration::from_secs(610);
/// How long the last messages of a dead group may take to leave.
const LAST_MOMENT: Duration = Duration::from_secs(1);
/// Connections of a group whose peers have agreed on no number (kernel 6.12).
const MEMBERS_MAX: u8 = 255;

/// The other end of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) who: Identity,
    pub(super) gid: Gid,
    pub(super) pair: U24,
}

/// A group. Declared in the order in which its parts go: the pair first, so that nothing comes in any more. A thread that still
/// connects it keeps it for a moment longer; what protects the memory then is that it is deregistered before it is unmapped.
#[derive(Debug)]
pub(super) struct Body {
    pair: Box<dyn Pair>,
    queue: Queue,
    members: BTreeMap<NonZeroU32, Member>,
    /// Tokens of those that have something to tell, each once.
    line: VecDeque<NonZeroU32>,
    pool: Pool,
    pub(super) side: Side,
    own: OwnLink,
    pub(super) peer: Option<Peer>,
    /// From the connect on.
    link: Option<Link>,
    pub(super) standing: Arc<Standing>,
    handle: Weak<Group>,
    last_token: u32,
    /// The pair is ready to send.
    sends: bool,
    /// The pair has failed, or its device.
    is_broken: bool,
    /// It was flushed, for a reason that has not come.
    is_flushed: bool,
    /// Messages were taken out, whose receives can be posted again.
    has_received: bool,
    /// What has gone wrong, to be told.
    failed: Option<Cause>,
    /// No further connection gets a place.
    is_retired: bool,
    /// Since when it has no connection.
    pub(super) idle_since: Option<Duration>,
    /// When a dead group goes although its last messages have not left.
    ending: Option<Duration>,
}

/// What a group is made of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) domain: Box<dyn Domain>,
    pub(super) pair: Box<dyn Pair>,
    pub(super) side: Side,
    pub(super) own: OwnLink,
    pub(super) standing: Arc<Standing>,
}

impl Body {
    /// A group that is not connected.
    ///
    /// # Errors
    /// Those of getrandom(2).
    pub(super) fn new(parts: Parts) -> io::Result<Self> {
        let Parts {
            domain,
            pair,
            side,
            own,
            standing,
        } = parts;
        Ok(Self {
            pair,
            queue: Queue::new(),
            members: BTreeMap::new(),
            line: VecDeque::new(),
            pool: Pool::new(domain),
            side,
            own,
            peer: None,
            link: None,
            standing,
            handle: Weak::new(),
            last_token: u32::from_ne_bytes(random()?),
            sends: false,
            is_broken: false,
            is_flushed: false,
            has_received: false,
            failed: None,
            is_retired: false,
            idle_since: None,
            ending: None,
        })
    }

    /// The handle that others have, or the one that `make` makes.
    pub(super) fn handle(&mut self, make: impl FnOnce(&Self) -> Group) -> Arc<Group> {
        self.handle.upgrade().unwrap_or_else(|| {
            let handle = Arc::new(make(self));
            self.handle = Arc::downgrade(&handle);
            handle
        })
    }

    pub(super) fn version(&self) -> Version {
        match self.own.limits {
            Limits::V1 { .. } => Version::V1,
            Limits::V2 { .. } => Version::V2,
        }
    }

    /// Whether the next connection can use it.
    pub(super) fn has_room(&self) -> bool {
        let limit = match self.own.limits {
            Limits::V2 {
                max_connections, ..
            } if max_connections > 0 => max_connections,
            _ => MEMBERS_MAX,
        };
        !self.is_retired && !self.standing.is_dead() && self.members.len() < usize::from(limit)
    }

    pub(super) fn link_state(&self) -> LinkState {
        match (self.standing.cause(), self.is_up()) {
            (Some(cause), _) => LinkState::Down(cause),
            (None, true) => LinkState::Up,
            (None, false) => LinkState::Coming,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.link.as_ref().is_some_and(Link::is_up)
    }

    /// Whether somebody sleeps until something comes; else who is interested looks by himself.
    pub(super) fn is_awaited(&self) -> bool {
        !self.is_up() || self.members.values().any(Member::is_awaited)
    }

    /// Whether nothing is left of it: it can be dropped.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        let sends = self.sends && !self.is_broken && !self.queue.is_empty();
        self.standing.is_dead() && !(sends && self.ending.is_some_and(|due| due > now))
    }

    pub(super) fn member(&mut self, token: NonZeroU32) -> Option<&mut Member> {
        self.members.get_mut(&token)
    }

    /// Where to register a ring that the next connection needs, unless one lies ready; see [`Pool::lacks`].
    pub(super) fn lacks(&self, size: SizeCode, access: Access) -> Option<Arc<dyn Domain>> {
        let is_wanted = match access {
            Access::RemoteWrite => self.has_room(),
            Access::Local => !self.standing.is_dead(),
        };
        is_wanted.then(|| self.pool.lacks(size, access))?
    }

    /// Adds what was lacking.
    pub(super) fn stock(&mut self, fresh: Buffer, access: Access) {
        self.pool.add(fresh, access);
    }

    /// What is to be dropped behind the lock.
    pub(super) fn take_gone(&mut self) -> Vec<Buffer> {
        self.pool.take_gone()
    }

    /// A member with a receive buffer of this size. `None`: there is no room.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn join(
        &mut self,
        size: SizeCode,
        header: &Header,
        news: &Arc<Nudge>,
    ) -> io::Result<Option<(NonZeroU32, Ring)>> {
        if !self.has_room() {
            return Ok(None);
        }
        let Some(rmb) = self.pool.take_receive(size)? else {
            return Ok(None);
        };
        self.idle_since = None;
        let token = self.next_token();
        let ring = rmb.ring();
        let member = Member::new(header.clone(), rmb, Arc::clone(news));
        self.members.insert(token, member);
        Ok(Some((token, ring)))
    }

    /// A token that no member has; those of former members come last, so that what is late finds nobody.
    fn next_token(&mut self) -> NonZeroU32 {
        loop {
            self.last_token = self.last_token.wrapping_add(1);
            if let Some(token) = NonZeroU32::new(self.last_token)
                && !self.members.contains_key(&token)
            {
                return token;
            }
        }
    }

    /// The peer's end of a member is known. Returns the send ring, and what is seen of it.
    ///
    /// # Errors
    /// ENOMEM; `QuotaExceeded`: the peer has too many keys; `NotConnected`: the group is dead, or not connected;
    /// `InvalidData`: the peer's buffer cannot be.
    pub(super) fn prepare(
        &mut self,
        token: NonZeroU32,
        peer: &SmcR,
        send: SizeCode,
    ) -> io::Result<(Ring, Arc<Seen>)> {
        let gone = io::Error::from(io::ErrorKind::NotConnected);
        let alive = !self.standing.is_dead();
        let Some(link) = self.link.as_mut().filter(|_| alive) else {
            return Err(gone);
        };
        let member = self.members.get_mut(&token).ok_or(gone)?;
        if !link.learn_key(key_of(peer)) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let buffer = self.pool.take_send(send.min(peer.size))?;
        let ring = buffer.ring();
        let Some(sending) = Sending::new(token, peer, buffer.clone()) else {
            self.pool.give_send(buffer);
            return Err(io::ErrorKind::InvalidData.into());
        };
        if let Some(before) = member.sending.replace(sending) {
            self.pool.give_send(before.into_ring());
        }
        Ok((ring, Arc::clone(&member.seen)))
    }

    /// A place has become a lane: the peer knows its key, by CLC.
    pub(super) fn attach(&mut self, token: NonZeroU32) {
        if let Some(member) = self.members.get_mut(&token) {
            member.is_attached = true;
            member.rmb.known = true;
            member.news = None;
        }
    }

    /// Has the peer of a member told this.
    pub(super) fn push(&mut self, token: NonZeroU32, news: News) {
        if let Some(member) = self.members.get_mut(&token)
            && let Some(sending) = &mut member.sending
        {
            sending.want(news);
        }
        self.queue_up(token);
    }

    /// The handle of a member is gone.
    pub(super) fn leave(&mut self, token: NonZeroU32, now: Duration) {
        let Some(member) = self.members.get_mut(&token) else {
            return;
        };
        member.is_left = true;
        member.news = None;
        member.tcp_due = None;
        if !member.is_attached {
            return self.withdraw(token, now);
        }
        if let Some(sending) = &mut member.sending {
            sending.leave();
        }
        self.queue_up(token);
        self.part(token, now);
    }

    /// Puts a member into the line, if it has something to tell.
    fn queue_up(&mut self, token: NonZeroU32) {
        if let Some(member) = self.members.get_mut(&token)
            && let Some(sending) = &mut member.sending
            && sending.is_dirty()
            && !sending.is_queued
        {
            sending.is_queued = true;
            self.line.push_back(token);
        }
    }

    /// A place came to nothing.
    fn withdraw(&mut self, token: NonZeroU32, now: Duration) {
        let Some(member) = self.members.remove(&token) else {
            return;
        };
        let Member {
            rmb,
            is_known,
            sending,
            ..
        } = member;
        if let Some(sending) = sending {
            self.pool.give_send(sending.into_ring());
        }
        let forget = if is_known {
            Some(self.pool.doom(rmb))
        } else {
            self.pool.give_receive(rmb)
        };
        self.forget(forget, now);
        self.rest(now);
    }

    /// Takes back what a member does not need any more: the send ring when its handle is gone and all has been sent, and all
    /// else when the peer has ended as well.
    fn part(&mut self, token: NonZeroU32, now: Duration) {
        let left = self.members.get_mut(&token).filter(|one| one.is_left);
        let Some(member) = left.filter(|_| !self.standing.is_dead()) else {
            return;
        };
        if let Some(sending) = member.sending.take_if(|sending| sending.is_idle()) {
            self.pool.give_send(sending.into_ring());
        }
        if !member.is_over() {
            return;
        }
        let Some(Member { rmb, .. }) = self.members.remove(&token) else {
            return;
        };
        let forget = self.pool.give_receive(rmb);
        self.forget(forget, now);
        self.rest(now);
    }

    /// Has the peer forget a key of ours.
    fn forget(&mut self, key: Option<u32>, now: Duration) {
        if let (Some(key), Some(link)) = (key, &mut self.link) {
            // A link that is not up goes with the pair: then the memory goes behind it.
            let _ = link.delete_key(key, now);
        }
    }

    /// Begins to rest, when there is no connection.
    fn rest(&mut self, now: Duration) {
        if self.members.is_empty() {
            self.idle_since = Some(now);
            if self.is_retired {
                self.end(DeleteReason::PROGRAM);
            }
        }
    }

    /// The last handle is gone. Nobody waits for a link that is not up.
    pub(super) fn handle_unused(&mut self) {
        if self.handle.strong_count() == 0 && !self.is_up() {
            self.end(DeleteReason::PROGRAM);
        }
    }

    /// TCP has ended, and the peer's end has until `due`. Returns that if it is news.
    pub(super) fn tcp_ended(
        &mut self,
        token: NonZeroU32,
        due: Duration,
        reset: bool,
    ) -> Option<Duration> {
        let member = self.members.get_mut(&token)?;
        let is_news = !member.explains_tcp(reset) && member.tcp_due.is_none();
        if is_news {
            member.tcp_due = Some((due, reset));
        }
        is_news.then_some(due)
    }

    /// No further connection gets a place.
    pub(super) fn retire(&mut self) {
        self.is_retired = true;
    }

    /// The peer gets to know the buffer of a place.
    pub(super) fn tells(&mut self, token: NonZeroU32) {
        if let Some(member) = self.members.get_mut(&token) {
            member.is_known = true;
        }
    }

    /// The number of the queue pair, and that of its first packet.
    pub(super) fn pair_numbers(&self) -> (u32, u32) {
        (self.pair.number(), self.pair.first_packet())
    }

    /// Whether a group ends with its engine, as far as its connections are concerned.
    pub(super) fn ends(&self, who: Ending) -> bool {
        let mut members = self.members.values();
        let stays = match who {
            Ending::Used => !self.members.is_empty() && members.all(|one| one.is_left),
            Ending::All => !self.members.is_empty() && members.all(Member::is_only_the_peers),
        };
        !stays && !self.standing.is_dead()
    }

    /// Ends the group. What it has to say is sent if it can be. [`Self::settle`] must follow, which wakes whoever sleeps.
    pub(super) fn end(&mut self, reason: DeleteReason) {
        match &mut self.link {
            Some(link) => link.end(reason, true),
            None => {
                let by = handshake::Side::Us;
                self.failed = self.failed.or(Some(Cause::Ended { by, reason }));
            }
        }
    }

    /// The group has ended: whoever sleeps is woken.
    pub(super) fn die(&mut self, cause: Cause, wakes: &mut Wakes<'_>, now: Duration) {
        if self.standing.set_dead(cause) {
            self.ending = Some(now + LAST_MOMENT);
            for member in self.members.values() {
                member.wake_all(&self.standing, wakes);
            }
        }
    }

    /// The pair, the port or the device has failed: nothing can be sent any more.
    pub(super) fn break_down(&mut self, cause: Cause, wakes: &mut Wakes<'_>, now: Duration) {
        self.is_broken = true;
        self.die(cause, wakes, now);
        if let Some(link) = &mut self.link {
            link.handle_path_lost();
        }
    }
}

/// What time does.
impl Body {
    /// Does what is due.
    pub(super) fn handle_timeout(&mut self, wakes: &mut Wakes<'_>, now: Duration) {
        if let Some(link) = &mut self.link {
            link.handle_timeout(now);
        }
        for member in self.members.values_mut() {
            if let Some((due, reset)) = member.tcp_due
                && due <= now
            {
                member.fail(Cause::TcpEnded { reset }, &self.standing, wakes);
            }
        }
        if self.idle_due().is_some_and(|due| due <= now) {
            self.end(DeleteReason::PROGRAM);
        }
        self.settle(wakes, now);
    }

    /// When to call [`Self::handle_timeout`].
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        let tcp = self.members.values().filter_map(|member| member.tcp_due);
        let tcp = tcp.map(|(due, _)| due).min();
        [self.next_timeout(), tcp].into_iter().flatten().min()
    }

    /// The same, without what single connections wait for.
    pub(super) fn next_timeout(&self) -> Option<Duration> {
        if self.standing.is_dead() {
            return self.ending;
        }
        let link = self.link.as_ref().and_then(Link::poll_timeout);
        [link, self.idle_due()].into_iter().flatten().min()
    }

    fn idle_due(&self) -> Option<Duration> {
        let time = match self.side {
            Side::Server => SERVER_IDLE,
            Side::Client => CLIENT_IDLE,
        };
        let since = self.idle_since.filter(|_| !self.standing.is_dead());
        since.map(|since| since + time)
    }
}
