//! How a thread waits: it looks for a while, arms, and sleeps.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyBlockingIOError, PyTimeoutError};
use pyo3::prelude::*;

use super::super::awaitable::spin;
use super::super::endpoint::Inner;
use super::super::errors::from_system;
use super::super::fds::{self, Beside, Slept};
use super::super::gate::{asleep, detached};
use super::Channel;
use crate::driver::endpoint::Incoming;
use crate::fabric::shm::{Interest, Wake, Waker};

const EAGAIN: i32 = 11;

/// How long one call may wait.
pub(super) struct Patience {
    never: bool,
    until: Option<Instant>,
}

impl Patience {
    /// By a socket's timeout; what the clock cannot count is no end.
    pub(super) fn new(timeout: Option<f64>) -> Self {
        let time = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Self {
            never: timeout == Some(0.0),
            until: time.and_then(|time| Instant::now().checked_add(time)),
        }
    }

    fn left(&self) -> Option<Duration> {
        self.until
            .map(|until| until.saturating_duration_since(Instant::now()))
    }

    fn error(&self) -> PyErr {
        if self.never {
            PyBlockingIOError::new_err((EAGAIN, "Resource temporarily unavailable"))
        } else {
            PyTimeoutError::new_err("timed out")
        }
    }
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Bytes,
    /// For so many bytes.
    Room(usize),
}

/// Those who wait for the same.
#[derive(Default)]
pub(super) struct Sleepers {
    count: AtomicUsize,
    /// Whose turn it is to take what is there.
    pub(super) turn: Mutex<()>,
}

/// One of them, from before he arms until his call is over.
pub(super) struct Waiting<'a> {
    channel: &'a Channel,
    what: What,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        Python::attach(|py| self.leave(py));
    }
}

impl Waiting<'_> {
    fn leave(&self, py: Python<'_>) {
        // Locked as everywhere: another thread may have the lock and wait for the interpreter.
        let Ok(inner) = self.channel.endpoint.get().ours(py) else {
            return; // A signal handler has forked.
        };
        let sleepers = self.channel.sleepers(self.what);
        if sleepers.count.fetch_sub(1, Ordering::SeqCst) > 1 {
            // The wake-up that was taken may have been theirs.
            self.channel.wake(&inner);
        } else if !self.channel.is_lit.load(Ordering::SeqCst) {
            match self.what {
                What::Bytes => inner.end.disarm_read(),
                What::Room(_) => inner.end.disarm_write(),
            }
        }
    }
}

impl Channel {
    pub(super) fn sleepers(&self, what: What) -> &Sleepers {
        match what {
            What::Bytes => &self.readers,
            What::Room(_) => &self.writers,
        }
    }

    /// Waits until it is worth while to look once more. `waiting` is kept by the call until it is over.
    ///
    /// # Errors
    /// BlockingIOError, TimeoutError; what a signal handler raises; OSError: EMFILE, ENOMEM, ENOSPC.
    pub(super) fn wait<'a>(
        &'a self,
        py: Python<'_>,
        what: What,
        patience: &Patience,
        waiting: &mut Option<Waiting<'a>>,
    ) -> PyResult<()> {
        if patience.never {
            // What only a sleeper would see: the end of the peer's process, or of TCP.
            let waker = self.waker(py, what)?;
            self.join(what, waiting);
            self.serve(py, what, waker)?;
            return if self.is_there(&mut *self.endpoint.get().ours(py)?, what) {
                Ok(())
            } else {
                Err(patience.error())
            };
        }
        if waiting.is_none() && self.spin(py, what)? {
            return Ok(());
        }
        let waker = self.waker(py, what)?;
        self.join(what, waiting);
        if !arm(&mut *self.endpoint.get().ours(py)?, what) {
            return Ok(());
        }
        py.check_signals()?;
        let slept = asleep(py, || fds::sleep(waker.fd(), patience.left()));
        match slept.map_err(|error| from_system(&error))? {
            Slept::TimedOut => {
                return if self.is_there(&mut *self.endpoint.get().ours(py)?, what) {
                    Ok(())
                } else {
                    Err(patience.error())
                };
            }
            // Handlers run in the next round, before it sleeps again.
            Slept::Interrupted | Slept::Woken => {}
        }
        self.serve(py, what, waker)
    }

    fn join<'a>(&'a self, what: What, waiting: &mut Option<Waiting<'a>>) {
        if waiting.is_none() {
            self.sleepers(what).count.fetch_add(1, Ordering::SeqCst);
            *waiting = Some(Waiting {
                channel: self,
                what,
            });
        }
    }

    /// Looks for a little while; whether it came.
    fn spin(&self, py: Python<'_>, what: What) -> PyResult<bool> {
        let endpoint = self.endpoint.get();
        let time = endpoint.spin_times().poll;
        if time.is_zero() || !endpoint.ours(py)?.end.spin_is_worthwhile() {
            return Ok(false);
        }
        Ok(detached(py, || {
            let came = spin(Instant::now() + time, || {
                self.is_there(&mut endpoint.lock_detached(), what)
            });
            endpoint.lock_detached().end.spun(came);
            came
        }))
    }

    fn is_there(&self, inner: &mut Inner, what: What) -> bool {
        match what {
            What::Bytes => inner.end.incoming(1) != Incoming::Empty,
            What::Room(_) => inner.end.is_writable(),
        }
    }

    /// What those sleep at who wait for it.
    fn waker(&self, py: Python<'_>, what: What) -> PyResult<Set<'_>> {
        if what == What::Bytes {
            return Ok(Set::Bytes(self));
        }
        if let Some(room) = self.room.get() {
            return Ok(Set::Room(room));
        }
        let inner = self.endpoint.get().ours(py)?;
        let made = (|| {
            let waker = Waker::new()?;
            if let Some(group) = inner.end.shared_group() {
                group.add_to(&waker, 0)?;
            }
            if !self.is_closed.load(Ordering::SeqCst) {
                fds::with(self.tcp, |tcp| waker.watch(tcp, Interest::Readable, 0))?;
            }
            Ok(waker)
        })();
        // Under the lock of the endpoint, so that nobody else makes one.
        let made = made.map_err(|error| from_system(&error))?;
        Ok(Set::Room(self.room.get_or_init(|| made)))
    }

    /// Takes the wake-ups that are there.
    fn serve(&self, py: Python<'_>, what: What, set: Set<'_>) -> PyResult<()> {
        let wakes = set.take().map_err(|error| from_system(&error))?;
        let mut inner = self.endpoint.get().ours(py)?;
        for wake in wakes {
            match wake {
                Wake::Bell(_) => inner.end.woken(),
                Wake::Death(_) => inner.end.lost(),
                Wake::Ready(_) => self.look_beside(&mut inner, &set)?,
                Wake::Device(_) => {}
            }
        }
        // Bytes beside the ring are taken by who looks first: the others would not hear of them.
        if inner.end.write_fault().is_some() && self.sleepers(what.other()).is_anybody() {
            self.wake(&inner);
        }
        Ok(())
    }

    /// The TCP connection has an end or a fault or, against all agreements, data. It is open: who closes it closes this end
    /// before, under the lock that `inner` is.
    fn look_beside(&self, inner: &mut Inner, set: &Set<'_>) -> PyResult<()> {
        if self.is_closed.load(Ordering::SeqCst) {
            return Ok(());
        }
        match fds::beside(self.tcp) {
            Beside::Silent => set
                .watch_again(self.tcp)
                .map_err(|error| from_system(&error))?,
            Beside::Bytes => inner.end.bypassed(),
            Beside::End => inner.end.tcp_ended(false),
            Beside::Reset => inner.end.tcp_ended(true),
        }
        Ok(())
    }
}

impl What {
    fn other(self) -> Self {
        match self {
            Self::Bytes => Self::Room(1),
            Self::Room(_) => Self::Bytes,
        }
    }
}

impl Sleepers {
    pub(super) fn is_anybody(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }
}

/// Asks to be woken; false when it is there.
fn arm(inner: &mut Inner, what: What) -> bool {
    match what {
        What::Bytes => inner.end.arm_read(1),
        What::Room(wanted) => inner.end.arm_room(wanted),
    }
}

/// The epoll set of those who wait for the same. That of the readers is the engine's.
enum Set<'a> {
    Bytes(&'a Channel),
    Room(&'a Waker),
}

impl Set<'_> {
    fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Self::Bytes(channel) => channel.endpoint.get().engine.get().driver.wake_fd(),
            Self::Room(waker) => std::os::fd::AsFd::as_fd(waker),
        }
    }

    fn take(&self) -> std::io::Result<Vec<Wake>> {
        match self {
            Self::Bytes(channel) => channel.endpoint.get().engine.get().driver.take_wakes(),
            Self::Room(waker) => waker.take(),
        }
    }

    fn watch_again(&self, tcp: std::os::fd::RawFd) -> std::io::Result<()> {
        fds::with(tcp, |tcp| match self {
            Self::Bytes(channel) => {
                let driver = &channel.endpoint.get().engine.get().driver;
                driver.unwatch(tcp);
                driver.watch(tcp, Interest::Readable, 0)
            }
            Self::Room(waker) => {
                waker.remove(tcp);
                waker.watch(tcp, Interest::Readable, 0)
            }
        })
    }
}
