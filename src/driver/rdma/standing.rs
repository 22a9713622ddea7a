//! What of a link group can be seen without its port's lock.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::fabric::shm::{Bell, Waker};
use crate::mem::fork;
use crate::proto::link::Cause;

/// The number of a group, its bell, and whether it is dead.
#[derive(Debug)]
pub(super) struct Standing {
    number: u32,
    waker: Arc<Waker>,
    bell: Bell,
    dead: AtomicBool,
    cause: OnceLock<Cause>,
    generation: u64,
}

impl Standing {
    /// A living group whose bell is added to `waker`.
    ///
    /// # Errors
    /// EMFILE; ENOSPC, ENOMEM of the epoll set.
    pub(super) fn new(number: u32, waker: &Arc<Waker>) -> io::Result<Self> {
        let bell = Bell::check(Bell::create()?)?;
        let generation = fork::generation()?;
        waker.add_bell(&bell, number)?;
        Ok(Self {
            number,
            waker: Arc::clone(waker),
            bell,
            dead: AtomicBool::new(false),
            cause: OnceLock::new(),
            generation,
        })
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    #[inline]
    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub(super) fn cause(&self) -> Option<Cause> {
        self.cause.get().copied()
    }

    /// The group has ended: the event loop is told of a death. Returns whether it lived until now.
    pub(super) fn set_dead(&self, cause: Cause) -> bool {
        let first = self.cause.set(cause).is_ok();
        // Release: who sees it dead sees why.
        self.dead.store(true, Ordering::Release);
        if first && fork::is_current(self.generation) {
            self.waker.turn_to_death(&self.bell, self.number);
            self.bell.ring();
        }
        first
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        // The epoll set is shared with a forked parent.
        if fork::is_current(self.generation) {
            self.waker.remove(&self.bell);
        }
    }
}

/// Who is told that sleepers of a group were claimed.
#[derive(Debug)]
pub(super) enum Wakes<'a> {
    /// The event loop, by the group's bell.
    Ring,
    /// The caller, who is the event loop: numbers of groups.
    Collect(&'a mut Vec<u32>),
}

impl Wakes<'_> {
    pub(super) fn wake(&mut self, standing: &Standing) {
        match self {
            Self::Ring => standing.bell.ring(),
            Self::Collect(numbers) if !numbers.contains(&standing.number) => {
                numbers.push(standing.number);
            }
            Self::Collect(_) => {}
        }
    }
}
