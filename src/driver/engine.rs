//! An engine: one event loop's share of smcfast in one process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::rand::{GetRandomFlags, getrandom};

use super::group::{GroupKey, LinkGroup, Membership};
use crate::fabric::shm::{Bell, Wake, Waker};
use crate::mem::fork;
use crate::mem::header::Side;
use crate::wire::EngineId;

/// Link groups of one engine with one peer engine in one role at most: a peer that asks for more is declined.
pub const GROUPS_MAX: usize = 256;

/// Link groups, and the one fd that wakes their event loop.
#[derive(Debug)]
pub struct Engine {
    id: EngineId,
    waker: Arc<Waker>,
    groups: Mutex<Groups>,
    generation: u64,
}

#[derive(Debug, Default)]
struct Groups {
    last_number: u32,
    alive: Vec<Weak<LinkGroup>>,
}

/// What a new link group is made of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) own_bell: OwnedFd,
    pub(super) peer_bell: Bell,
    pub(super) witness: Option<OwnedFd>,
}

impl Engine {
    /// A new engine with a random id.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM; EINVAL on kernels older than 4.14.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            id: EngineId(random()?),
            waker: Arc::new(Waker::new()?),
            groups: Mutex::default(),
            generation: fork::generation()?,
        })
    }

    /// The engine's id: its SMC-D GID and GID extension.
    pub fn id(&self) -> EngineId {
        self.id
    }

    /// Whether this process made the engine; false in a forked child.
    pub fn is_ours(&self) -> bool {
        fork::is_current(self.generation)
    }

    /// The fd that becomes readable when [`Self::take_wakes`] has something.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }

    /// Takes the wake-ups that are there. A death has marked its group dead when this returns.
    ///
    /// # Errors
    /// The epoll set is broken.
    pub fn take_wakes(&self) -> io::Result<Vec<Wake>> {
        let wakes = self.waker.take()?;
        for wake in &wakes {
            if let Wake::Death(number) = wake
                && let Some(group) = self.groups().find(|group| group.number() == *number)
            {
                group.set_dead();
            }
        }
        Ok(wakes)
    }

    /// A place in the living group that `key` names, if it has one.
    pub(super) fn join(&self, key: GroupKey) -> Option<Membership> {
        self.groups().find(|group| group.key() == key)?.join()
    }

    /// A place in any living group with `peer` in the role `side`.
    pub(super) fn join_any(&self, peer: EngineId, side: Side) -> Option<Membership> {
        let is_ours = |key: GroupKey| key.peer == peer && key.side == side;
        self.groups()
            .alive
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|group| is_ours(group.key()))
            .find_map(|g| g.join())
    }

    /// A new group and the first place in it. `link_id` is the server's choice; `None` makes one up.
    ///
    /// # Errors
    /// `QuotaExceeded` when the peer has [`GROUPS_MAX`] groups; those of the epoll set.
    pub(super) fn first_contact(
        &self,
        peer: EngineId,
        side: Side,
        link_id: Option<u32>,
        parts: Parts,
    ) -> io::Result<Membership> {
        let mut groups = self.groups();
        groups.alive.retain(|group| group.strong_count() > 0);
        let with_peer = groups
            .alive
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|g| g.key().peer == peer && g.key().side == side);
        if with_peer.count() >= GROUPS_MAX {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!("{GROUPS_MAX} link groups with one peer"),
            ));
        }
        groups.last_number = groups.last_number.wrapping_add(1).max(1);
        let number = groups.last_number;
        let key = GroupKey {
            peer,
            side,
            link_id: link_id.unwrap_or(number),
        };
        let Parts {
            own_bell,
            peer_bell,
            witness,
        } = parts;
        let group = Arc::new(LinkGroup::new(
            key,
            number,
            Arc::clone(&self.waker),
            own_bell,
            peer_bell,
            witness,
        )?);
        groups.alive.push(Arc::downgrade(&group));
        group
            .join()
            .ok_or_else(|| io::Error::other("a new link group has no place"))
    }

    fn groups(&self) -> MutexGuard<'_, Groups> {
        // Nothing panics while the lock is held; a poisoned list is still a list.
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Groups {
    fn find(&self, is_it: impl Fn(&LinkGroup) -> bool) -> Option<Arc<LinkGroup>> {
        self.alive
            .iter()
            .filter_map(Weak::upgrade)
            .find(|group| is_it(group))
    }
}

/// Random bytes of the system.
///
/// # Errors
/// Those of getrandom(2), which never fails for so few bytes once the system has started.
pub(super) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let got = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if got == N {
        Ok(bytes)
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}
