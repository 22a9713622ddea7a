//! Work without the interpreter's lock, made safe at its end.
//!
//! Before Python 3.14 a thread that asks for the lock while the interpreter is ending does not get it: it is ended on the
//! spot, by an unwinding that runs through our frames and crashes. So nobody may be without the lock when the end begins.
//! A function that `atexit` calls before that closes the gate and waits until everybody is back.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use pyo3::prelude::*;

static CLOSED: AtomicBool = AtomicBool::new(false);
static AWAY: AtomicUsize = AtomicUsize::new(0);

/// How long the end waits between two looks; what it waits for are copies, the longest of which take milliseconds.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// Runs `work` without the interpreter's lock, or with it once the end has begun.
///
/// `work` gives back what it locks before it returns, so that nobody who waits for that holds the interpreter's lock.
pub(super) fn detached<R: Send>(py: Python<'_>, work: impl FnOnce() -> R + Send) -> R {
    // SYNC POINT with `close`: either it sees this thread away, or this thread sees the gate closed.
    AWAY.fetch_add(1, Ordering::SeqCst);
    let result = if CLOSED.load(Ordering::SeqCst) {
        work()
    } else {
        py.detach(work)
    };
    AWAY.fetch_sub(1, Ordering::SeqCst);
    result
}

/// The end of the interpreter is near: nobody leaves any more, and all who have left come back first.
#[pyfunction]
#[pyo3(name = "_close_gate")]
pub(super) fn close(py: Python<'_>) {
    CLOSED.store(true, Ordering::SeqCst);
    while AWAY.load(Ordering::SeqCst) > 0 {
        py.detach(|| std::thread::sleep(LOOK_AGAIN));
    }
}
