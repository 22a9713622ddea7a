//! An engine: one event loop's share of smcfast in one process.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::rand::{GetRandomFlags, getrandom};

use super::group::{GroupKey, LinkGroup, Membership};
use super::rdma::{Numbers, Ports};
use super::spin::Spin;
use crate::fabric::shm::{Bell, Interest, Wake, Waker};
use crate::mem::fork;
use crate::mem::header::Side;
use crate::wire::EngineId;

/// Link groups of one engine with one peer engine in one role at most: a peer that asks for more is declined.
pub const GROUPS_MAX: usize = 256;

/// So many of its latest link groups an engine keeps although they have no connection any more: the next one saves both ends
/// the making of doorbells and their hand-over. Each holds three descriptors.
pub const RESTING_MAX: usize = 4;

/// Link groups, and the one fd that wakes their event loop.
#[derive(Debug)]
pub struct Engine {
    id: EngineId,
    waker: Arc<Waker>,
    ports: Ports,
    numbers: Arc<Numbers>,
    groups: Mutex<Groups>,
    spin: Mutex<Spin>,
    /// Whether a handshake looks instead of sleeping.
    looks: AtomicBool,
    generation: u64,
}

#[derive(Debug, Default)]
struct Groups {
    alive: Vec<Weak<LinkGroup>>,
    /// The latest, so that they outlive their connections; a dead one is not kept.
    latest: VecDeque<Arc<LinkGroup>>,
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
        let waker = Arc::new(Waker::new()?);
        let numbers = Arc::default();
        Ok(Self {
            id: EngineId(random()?),
            ports: Ports::new(&waker, &numbers)?,
            waker,
            numbers,
            groups: Mutex::default(),
            spin: Mutex::default(),
            looks: AtomicBool::new(false),
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

    /// Takes the wake-ups that are there. A death has marked its group dead when this returns, and a device was served:
    /// those whom its news concern are in the bells.
    ///
    /// # Errors
    /// The epoll set is broken.
    pub fn take_wakes(&self) -> io::Result<Vec<Wake>> {
        let mut wakes = self.waker.take()?;
        let mut woken = Vec::new();
        wakes.retain(|wake| match wake {
            Wake::Device(number) => {
                self.ports.serve(*number, &mut woken);
                false
            }
            Wake::Death(number) => {
                if let Some(group) = self.groups().bury(*number) {
                    group.set_dead();
                }
                true
            }
            Wake::Bell(_) | Wake::Ready(_) => true,
        });
        wakes.extend(woken.into_iter().map(Wake::Bell));
        Ok(wakes)
    }

    /// The ports of RDMA devices.
    pub(super) fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Has the engine woken once, with [`Wake::Ready`] and `number`, when `fd` is ready; until [`Self::unwatch`].
    ///
    /// # Errors
    /// EEXIST when it is watched already; EPERM in a forked child; ENOSPC (the user's limit of watches), ENOMEM, EPERM for what cannot be polled.
    pub fn watch(&self, fd: BorrowedFd<'_>, interest: Interest, number: u32) -> io::Result<()> {
        if !self.is_ours() {
            // The epoll set is the parent's, which would be woken for this process's sockets.
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.waker.watch(fd, interest, number)
    }

    /// Watches `fd` no longer. Nothing in a forked child: the epoll set is its parent's.
    pub fn unwatch(&self, fd: BorrowedFd<'_>) {
        if self.is_ours() {
            self.waker.remove(fd);
        }
    }

    /// Whether a handshake that waits now should look for a little while before it sleeps; [`Self::spun`] must follow then.
    /// One looks at a time: more would only take the loop's time from each other.
    pub fn spin_is_worthwhile(&self) -> bool {
        let may = !self.looks.swap(true, Ordering::Relaxed);
        let worthwhile = may && self.spin().worth_trying();
        if may && !worthwhile {
            self.looks.store(false, Ordering::Relaxed);
        }
        worthwhile
    }

    /// Reports how that ended.
    pub fn spun(&self, found: bool) {
        self.looks.store(false, Ordering::Relaxed);
        if found {
            self.spin().succeeded();
        } else {
            self.spin().failed();
        }
    }

    fn spin(&self) -> MutexGuard<'_, Spin> {
        self.spin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place in the living group that `key` names, if it has one.
    pub(super) fn join(&self, key: GroupKey) -> Option<Membership> {
        self.groups().find(|group| group.key() == key)?.join()
    }

    /// A place in any living group with `peer` in the role `side`.
    pub(super) fn join_any(&self, peer: EngineId, side: Side) -> Option<Membership> {
        let is_ours = |key: GroupKey| key.peer == peer && key.side == side;
        // The latest first: the server may have let go of an older one.
        self.groups()
            .alive
            .iter()
            .rev()
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
        if groups.count(peer, side) >= GROUPS_MAX {
            groups.latest.retain(|kept| kept.is_busy());
        }
        if groups.count(peer, side) >= GROUPS_MAX {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!("{GROUPS_MAX} link groups with one peer"),
            ));
        }
        let number = self.numbers.next();
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
        groups.keep(Arc::clone(&group));
        drop(groups);
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
    /// How many there are with `peer` in the role `side`; forgets those that have gone.
    fn count(&mut self, peer: EngineId, side: Side) -> usize {
        self.alive.retain(|group| group.strong_count() > 0);
        self.alive
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|group| group.key().peer == peer && group.key().side == side)
            .count()
    }

    /// Keeps `group` as the latest.
    fn keep(&mut self, group: Arc<LinkGroup>) {
        self.latest.push_back(group);
        if self.latest.len() > RESTING_MAX {
            self.latest.pop_front();
        }
    }

    /// The group with this number, whose peer has died; it is not kept any longer.
    fn bury(&mut self, number: u32) -> Option<Arc<LinkGroup>> {
        let group = self.find(|group| group.number() == number)?;
        self.latest.retain(|kept| kept.number() != number);
        Some(group)
    }

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
