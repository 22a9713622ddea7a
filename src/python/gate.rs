//! Leaving the interpreter, and calling it, made safe at its end.
//!
//! Before Python 3.14 a thread that asks for the interpreter's lock while the interpreter is ending does not get it: it is
//! ended on the spot, by an unwinding through all frames of its stack. Ours must not be among them: their cleaning up
//! needs the lock, and the unwinder that a wheel brings along is not the one that is unwinding. So `atexit` closes a gate
//! before the end begins. It waits until every other thread is back from its calls of Python and from its work without
//! the lock; and a thread that comes to the closed gate stays there, asleep, which is what Python 3.14 does with it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::{ThreadId, sleep};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::sync::MutexExt;

/// Who closed the gate: the thread that ends the interpreter, and the only one that still passes.
static CLOSED_BY: OnceLock<ThreadId> = OnceLock::new();
/// Threads that are out: in a call of Python, or at work without the lock.
static OUT: AtomicUsize = AtomicUsize::new(0);

const LOOK_AGAIN: Duration = Duration::from_micros(50);
/// The end does not wait longer for a callback of the application that does not return.
const WAIT_MAX: Duration = Duration::from_secs(1);

struct Outing;

impl Outing {
    /// SYNC POINT with `close`: either it sees this thread out, or this thread sees the gate closed.
    fn begin(py: Python<'_>) -> Self {
        let outing = Self::enter();
        if Self::is_late() {
            drop(outing);
            py.detach(|| stay());
        }
        outing
    }

    fn enter() -> Self {
        OUT.fetch_add(1, Ordering::SeqCst);
        Self
    }

    /// Whether another thread has closed the gate.
    fn is_late() -> bool {
        let here = std::thread::current().id();
        CLOSED_BY.get().is_some_and(|closer| *closer != here)
    }
}

fn stay() -> ! {
    loop {
        sleep(Duration::MAX);
    }
}

impl Drop for Outing {
    fn drop(&mut self) {
        OUT.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs `work` without the interpreter's lock. It gives back what it locks before it returns, so that nobody who waits
/// for that holds the interpreter's lock.
pub(super) fn detached<R: Send>(py: Python<'_>, work: impl FnOnce() -> R + Send) -> R {
    let _outing = Outing::begin(py);
    py.detach(work)
}

/// Runs `sleep` without the interpreter's lock, for as long as it takes: the end of the interpreter does not wait for it. Who
/// comes back too late stays there.
pub(super) fn asleep<R: Send>(py: Python<'_>, sleep: impl FnOnce() -> R + Send) -> R {
    let (result, _outing) = py.detach(|| {
        let result = sleep();
        let outing = Outing::enter();
        if Outing::is_late() {
            drop(outing);
            stay();
        }
        (result, outing)
    });
    result
}

/// Runs `call`, which may run Python code: that of the event loop, or the application's.
pub(super) fn calling<R>(py: Python<'_>, call: impl FnOnce() -> R) -> R {
    let _outing = Outing::begin(py);
    call()
}

/// Locks `mutex`. Who has to wait for another thread is out meanwhile, and gives the interpreter's lock up.
#[inline]
pub(super) fn locked<'a, T>(py: Python<'_>, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
    match mutex.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
        Err(TryLockError::WouldBlock) => {
            calling(py, || mutex.lock_py_attached(py)).unwrap_or_else(PoisonError::into_inner)
        }
    }
}

/// The end of the interpreter is near: nobody leaves any more, and all who have left come back first.
#[pyfunction]
#[pyo3(name = "_close_gate")]
pub(super) fn close(py: Python<'_>) {
    CLOSED_BY.get_or_init(|| std::thread::current().id());
    let until = Instant::now() + WAIT_MAX;
    while OUT.load(Ordering::SeqCst) > 0 && Instant::now() < until {
        py.detach(|| sleep(LOOK_AGAIN));
    }
}
