//! A link group: what the connections between one pair of engines share.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::fabric::shm::{Bell, Waker, ring};
use crate::mem::fork;
use crate::mem::header::Side;
use crate::wire::EngineId;

/// Connections in one link group at most; the next one makes a new group (kernel 6.12: 255 as well).
pub const CONNECTIONS_MAX: u32 = 255;

/// What identifies a link group; groups of the two roles are never mixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupKey {
    /// The engine at the other end.
    pub peer: EngineId,
    /// The role of this end.
    pub side: Side,
    /// The number that the server gave it; not 0.
    pub link_id: u32,
}

/// Doorbells both ways and a witness of the peer's death, shared by up to [`CONNECTIONS_MAX`] connections.
#[derive(Debug)]
pub struct LinkGroup {
    key: GroupKey,
    number: u32,
    waker: Arc<Waker>,
    own_bell: OwnedFd,
    peer_bell: Bell,
    witness: Option<OwnedFd>,
    members: AtomicU32,
    dead: AtomicBool,
    generation: u64,
}

impl LinkGroup {
    /// A group whose own bell and witness (a pidfd of the peer) are added to `waker` under `number`.
    ///
    /// # Errors
    /// ENOSPC or ENOMEM from the epoll set; the fork generation is not to be had.
    pub(super) fn new(
        key: GroupKey,
        number: u32,
        waker: Arc<Waker>,
        own_bell: OwnedFd,
        peer_bell: Bell,
        witness: Option<OwnedFd>,
    ) -> std::io::Result<Self> {
        let group = Self {
            key,
            number,
            waker,
            own_bell,
            peer_bell,
            witness,
            members: AtomicU32::new(0),
            dead: AtomicBool::new(false),
            generation: fork::generation()?,
        };
        group.waker.add_bell(&group.own_bell, number)?;
        if let Some(witness) = &group.witness {
            group.waker.add_death(witness, number)?;
        }
        Ok(group)
    }

    /// What identifies the group.
    pub fn key(&self) -> GroupKey {
        self.key
    }

    /// The number under which wake-ups of the group are reported in this process.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Takes one of the group's places, if one is free and the peer lives. The place is given back when the member drops.
    pub(super) fn join(self: &Arc<Self>) -> Option<Membership> {
        let join = |members: u32| (members < CONNECTIONS_MAX).then_some(members + 1);
        let joined = !self.is_dead()
            && self
                .members
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, join)
                .is_ok();
        joined.then(|| Membership(Arc::clone(self)))
    }

    /// Another descriptor of the own bell, for a group that may have to take the place of this one.
    ///
    /// # Errors
    /// EMFILE.
    pub(super) fn own_bell(&self) -> std::io::Result<OwnedFd> {
        self.own_bell.try_clone()
    }

    /// Has `waker` woken as well, with `number`: by each ring of the own bell, and by the death of the peer. A set hears of each
    /// ring by itself, whoever else does.
    ///
    /// # Errors
    /// ENOSPC or ENOMEM; then nothing was added.
    pub fn add_to(&self, waker: &Waker, number: u32) -> std::io::Result<()> {
        waker.add_bell(&self.own_bell, number)?;
        let Some(witness) = &self.witness else {
            return Ok(());
        };
        waker.add_death(witness, number).inspect_err(|_| {
            waker.remove(&self.own_bell);
        })
    }

    /// Takes out what [`Self::add_to`] has added.
    pub fn remove_from(&self, waker: &Waker) {
        waker.remove(&self.own_bell);
        if let Some(witness) = &self.witness {
            waker.remove(witness);
        }
    }

    /// Wakes who sleeps at the own bell: other threads of this process.
    pub fn ring_here(&self) {
        ring(&self.own_bell);
    }

    /// Whether it has a connection.
    pub(super) fn is_busy(&self) -> bool {
        self.members.load(Ordering::Relaxed) > 0
    }

    /// Whether the peer's process has ended.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// The witness has told that the peer's process has ended.
    pub(super) fn set_dead(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    /// Wakes the peer.
    #[inline]
    pub(super) fn ring(&self) {
        self.peer_bell.ring();
    }
}

impl Drop for LinkGroup {
    fn drop(&mut self) {
        // The epoll set is shared with a forked parent: a child that took its bells out would silence the parent.
        if fork::is_current(self.generation) {
            self.waker.remove(&self.own_bell);
            if let Some(witness) = &self.witness {
                self.waker.remove(witness);
            }
        }
    }
}

/// One connection's place in a link group.
#[derive(Debug)]
pub struct Membership(Arc<LinkGroup>);

impl std::ops::Deref for Membership {
    type Target = Arc<LinkGroup>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.members.fetch_sub(1, Ordering::Relaxed);
    }
}
