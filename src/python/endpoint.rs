//! One end of a connection for Python: reads and writes that never wait. Those that must are in [`waiting`], those that
//! happen in place in [`loans`].

mod facts;
mod loans;
mod waiting;

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyByteArray, PyBytes, PyDict};

use super::awaitable;
use super::buffer::{Count, NewBytes, with_bytes, with_target};
use super::drain::Drain;
use super::engine::Engine;
use super::errors::{from_fault, inherited};
use super::gate::{detached, locked};
use super::read::Read;
use super::reservation::Reservation;
use super::status::{Address, Status, address};
use super::view::View;
use crate::driver;
use crate::driver::endpoint::{Fault, Incoming};
use crate::mem::{Source, Target, fork};
pub(super) use facts::{DeviceFacts, Facts, SpinTimes};
use loans::Loans;
use waiting::Waiters;

/// Copies of so many bytes and more are made without the interpreter's lock.
pub(super) const DETACH_MIN: usize = 64 << 10;

/// One established end, on shared memory or on a lane of an RDMA link. Made by `ClientSetup.finish` and `ServerSetup.finish`.
///
/// All methods belong to the event loop of its engine, and say so in another thread. The getters do not mind.
#[pyclass(frozen, weakref, module = "smcfast._core")]
pub(super) struct Endpoint {
    inner: Mutex<Inner>,
    pub(super) engine: Py<Engine>,
    group: u32,
    path: &'static str,
    facts: Facts,
    generation: u64,
}

pub(super) struct Inner {
    pub(super) end: driver::Endpoint,
    waiters: Waiters,
    loans: Loans,
    /// Fast completions since the loop last got its turn.
    fast: u32,
    /// What `read_now` has found out for the awaitable that follows it: whether polling is worthwhile.
    polls: Option<bool>,
    high_water: usize,
    low_water: usize,
    /// Whether the backlog went over the high-water mark and is not yet back at the low one.
    pub(super) paused: bool,
}

/// So many reads and drains may finish at once before the loop gets its turn: a reader that never suspends starves it.
const FAST_MAX: u32 = 64;

#[pymethods]
impl Endpoint {
    /// Takes all of `data`: what fits goes into the peer's ring at once, the rest waits. Returns the bytes that wait.
    ///
    /// Raises a ConnectionError if the connection cannot carry them.
    fn write(slf: &Bound<'_, Self>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let this = slf.get();
        let written = with_bytes(data, |bytes| this.write_bytes(slf.py(), bytes))?;
        if written.unsettled {
            Self::settle(slf)?;
        }
        Ok(written.waiting)
    }

    /// The path of a busy stream: `n` bytes (or, unless `exact`, 1 to n) if they are there now and few enough to be copied
    /// at once. None for everything else, and when the loop must have its turn: then `read` and `read_exactly` know.
    fn read_now<'py>(
        &self,
        py: Python<'py>,
        n: Count,
        exact: bool,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let Count(n) = n;
        let mut inner = self.entered(py)?;
        let enough = if exact {
            u32::try_from(n).unwrap_or(u32::MAX)
        } else {
            1
        };
        if inner.fast + 1 >= FAST_MAX || inner.waiters.reading || inner.loans.view.is_some() {
            return Ok(None);
        }
        let mut incoming = inner.end.incoming(enough);
        if incoming == Incoming::Empty {
            incoming = self.spin_in_place(&mut inner, enough);
        }
        let n = match incoming {
            Incoming::Bytes(there) if !exact => n.min(there as usize),
            Incoming::Bytes(there) if there as usize >= n => n,
            _ => return Ok(None),
        };
        if n >= DETACH_MIN {
            return Ok(None);
        }
        inner.fast += 1;
        let mut bytes = NewBytes::new(py, n)?;
        bytes.fill(n, |target| {
            inner.end.read(target);
            Ok(())
        })?;
        Ok(Some(bytes.finish().into_bound(py)))
    }

    /// read(n): an awaitable of 1 to n bytes, b"" at the end of the stream.
    fn read(slf: Bound<'_, Self>, n: Count) -> Read {
        Read::some(slf.unbind(), n.0)
    }

    /// read_exactly(n): an awaitable of n bytes; asyncio.IncompleteReadError if the stream ends before.
    fn read_exactly(slf: Bound<'_, Self>, n: Count) -> Read {
        Read::exactly(slf.unbind(), n.0)
    }

    /// ready(n): an awaitable of how many bytes can be read, 0 at the end of the stream. At least `n`, unless no more will
    /// come before some of them are read.
    fn ready(slf: Bound<'_, Self>, n: Count) -> Read {
        Read::ready(slf.unbind(), n.0)
    }

    /// drain(): an awaitable that is done once the backlog is small enough.
    fn drain(slf: Bound<'_, Self>) -> Drain {
        Drain::new(slf.unbind())
    }

    /// room(n, least): an awaitable that is done once there is room for `n` bytes in the ring that is written, or at least
    /// for `least`, or for half of it.
    fn room(slf: Bound<'_, Self>, n: Count, least: Count) -> PyResult<Drain> {
        Drain::of_room(slf.unbind(), n.0, least.0)
    }

    /// Up to `n` bytes that are there now, in one piece and in their place; None if there are none.
    fn view(slf: &Bound<'_, Self>, n: Count) -> PyResult<Option<View>> {
        Self::lend_view(slf, n.0)
    }

    /// Room for up to `n` bytes that is there now, in one piece and in its place; None if there is none.
    fn reserve(slf: &Bound<'_, Self>, n: Count) -> PyResult<Option<Reservation>> {
        Self::lend_room(slf, n.0)
    }

    /// RuntimeError unless this end may be used here: in the process that made it, and in the thread of its loop.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.entered(py).map(drop)
    }

    /// Up to `n` bytes that are there now; None if there are none yet, b"" at the end of the stream.
    fn take<'py>(&self, py: Python<'py>, n: usize) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.ours(py)?.check_unviewed("take")?;
        match self.incoming(py, n)? {
            Incoming::Empty => Ok(None),
            Incoming::End => Ok(Some(PyBytes::new(py, b""))),
            Incoming::Fault(fault) => Err(from_fault(py, fault)),
            Incoming::Bytes(there) => Ok(Some(
                self.take_bytes(py, (there as usize).min(n))?.into_bound(py),
            )),
        }
    }

    /// Fills as much of a writable buffer as is there now; None if nothing is there yet, 0 at the end of the stream.
    fn take_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        self.ours(py)?.check_unviewed("take_into")?;
        with_target(buffer, |target| match self.incoming(py, target.len())? {
            Incoming::Empty => Ok(None),
            Incoming::End => Ok(Some(0)),
            Incoming::Fault(fault) => Err(from_fault(py, fault)),
            Incoming::Bytes(there) => {
                let n = (there as usize).min(target.len());
                self.read_into(py, target.split_at(n).0)?;
                Ok(Some(n))
            }
        })
    }

    /// Whether the stream has ended and everything was read.
    fn at_eof(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.incoming(py, 1)? == Incoming::End)
    }

    /// Whether a read waits.
    #[getter]
    fn reading(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.ours(py)?.waiters.reading)
    }

    /// Whether a view of received bytes is open.
    #[getter]
    fn viewed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.ours(py)?.loans.view.is_some())
    }

    /// Whether a reservation of room is open, or waited for.
    #[getter]
    fn reserved(&self, py: Python<'_>) -> PyResult<bool> {
        let inner = self.ours(py)?;
        Ok(inner.loans.reservation.is_some() || inner.waiters.awaits_room())
    }

    /// Bytes of the application that are not yet in the peer's ring.
    #[getter]
    fn backlog(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.ours(py)?.end.backlog())
    }

    /// Whether everything was published, the end included.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.ours(py)?.end.is_closed())
    }

    /// Whether the peer is gone or has aborted; not if it has closed in good order, and its stream can be read to its end.
    #[getter]
    fn broken(&self, py: Python<'_>) -> PyResult<bool> {
        let mut inner = self.ours(py)?;
        inner.end.refresh();
        let fault = inner.end.write_fault();
        Ok(fault.is_some_and(|fault| !matches!(fault, Fault::Closed | Fault::ClosedHere)))
    }

    /// Whether bytes of this end waited when the peer ended, and were dropped.
    #[getter]
    fn cut_short(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.ours(py)?.end.is_cut_short())
    }

    /// The exception that tells why nothing more can be written, or None.
    fn write_fault(&self, py: Python<'_>) -> PyResult<Option<PyErr>> {
        let mut inner = self.ours(py)?;
        inner.end.refresh();
        let fault = inner.end.write_fault();
        drop(inner);
        Ok(fault.map(|fault| from_fault(py, fault)))
    }

    /// Sets the marks between which writing is paused, in bytes. Who waits and would not with the new ones goes on.
    fn set_write_limits(slf: &Bound<'_, Self>, high: Count, low: Count) -> PyResult<()> {
        let (Count(high), Count(low)) = (high, low);
        if low > high {
            let text = format!("high ({high}) must be at least low ({low})");
            return Err(PyValueError::new_err(text));
        }
        let mut inner = slf.get().entered(slf.py())?;
        (inner.high_water, inner.low_water) = (high, low);
        drop(inner);
        Self::wake(slf)
    }

    /// Whether the backlog went over the high-water mark and is not yet back at the low one.
    #[getter]
    fn paused(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.ours(py)?.paused)
    }

    /// The low and the high mark, in bytes.
    #[getter]
    fn write_limits(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        let inner = self.ours(py)?;
        Ok((inner.low_water, inner.high_water))
    }

    /// Sets where a cancelled read_exactly puts back what it has collected.
    fn set_side_buffer(&self, py: Python<'_>, side: Py<PyByteArray>) -> PyResult<()> {
        self.put_side(py, side)
    }

    /// Sets or takes away the callback for news: pausing has ended, the end was published, or writing is impossible.
    fn set_on_progress(&self, py: Python<'_>, callback: Option<Py<PyAny>>) -> PyResult<()> {
        self.put_on_progress(py, callback)
    }

    /// Has `callback()` called whenever there is something to read or the stream has ended, until None is set.
    fn set_on_readable(slf: &Bound<'_, Self>, callback: Option<Py<PyAny>>) -> PyResult<()> {
        slf.get().put_on_readable(slf.py(), callback)?;
        Self::wake(slf)
    }

    /// The callback of `set_on_readable` has taken what was there, and waits for more, unless it was taken away meanwhile.
    /// Whether there is more already: then `set_on_readable` must follow, once the loop has had its turn.
    fn await_more(slf: &Bound<'_, Self>) -> PyResult<bool> {
        Self::wait_for_more(slf)
    }

    /// Ends the own stream behind what was written.
    fn write_eof(slf: &Bound<'_, Self>) -> PyResult<()> {
        let mut inner = slf.get().entered(slf.py())?;
        inner.loans.reservation = None;
        inner.end.write_eof();
        let awaited = inner.waiters.awaits_room();
        drop(inner);
        if awaited {
            Self::wake(slf)
        } else {
            Self::settle(slf)
        }
    }

    /// Closes behind what was written. Up to `unread_max` unread bytes are no reason for the peer to see a reset.
    ///
    /// Returns the unread bytes that were taken out so.
    fn close<'py>(slf: &Bound<'py, Self>, unread_max: usize) -> PyResult<Bound<'py, PyBytes>> {
        let (this, py) = (slf.get(), slf.py());
        this.entered(py)?.loans.end();
        let unread = match this.incoming(py, usize::MAX)? {
            Incoming::Bytes(there) if there as usize <= unread_max => {
                this.take_bytes(py, there as usize)?.into_bound(py)
            }
            _ => PyBytes::new(py, b""),
        };
        this.ours(py)?.end.close();
        Self::wake(slf)?;
        Ok(unread)
    }

    /// Closes at once; the peer sees a reset.
    fn abort(slf: &Bound<'_, Self>) -> PyResult<()> {
        let mut inner = slf.get().entered(slf.py())?;
        inner.loans.end();
        inner.end.abort();
        drop(inner);
        Self::wake(slf)
    }

    /// The connection is lost: lets go of the link group and its descriptors, although the reader has this end still.
    fn leave_group(&self, py: Python<'_>) -> PyResult<()> {
        self.ours(py)?.end.leave_group();
        Ok(())
    }

    /// The TCP connection has ended, by a reset or in good order. What the peer published before it went counts; a link gives
    /// it a moment to arrive, and `on_progress` tells of a loss that follows.
    fn tcp_ended(slf: &Bound<'_, Self>, reset: bool) -> PyResult<()> {
        slf.get().ours(slf.py())?.tcp_ended(reset);
        Self::wake(slf)
    }

    /// The process at the other end, or the link to it, is gone.
    fn lost(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.get().ours(slf.py())?.end.lost();
        Self::wake(slf)
    }

    /// Bytes have come over TCP, which both sides had agreed to keep silent.
    fn bypassed(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.get().ours(slf.py())?.end.bypassed();
        Self::wake(slf)
    }

    /// What carries the bytes: "smc-d" or "smc-r".
    #[getter]
    fn path(&self) -> &'static str {
        self.path
    }

    /// The number of the link group in this engine, as `on_death` names it.
    #[getter]
    fn group(&self) -> u32 {
        self.group
    }

    /// Shows this end in `status`, with the addresses of its TCP connection.
    fn show(
        &self,
        py: Python<'_>,
        status: &Status,
        local: Option<Address>,
        remote: Option<Address>,
    ) -> PyResult<()> {
        let (local, remote) = (address(local)?, address(remote)?);
        self.ours(py)?.end.show(status.driver(), local, remote);
        Ok(())
    }

    /// What does not change, for SmcInfo.
    fn description<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let inner = self.ours(py)?;
        let (own, peer) = inner.end.sizes();
        let link_group = inner.end.group().link_id;
        drop(inner);
        let facts = &self.facts;
        let device = facts.device.as_ref();
        let any = |object: Bound<'py, PyAny>| object;
        [
            ("path", any(self.path.into_pyobject(py)?.into_any())),
            ("version", any(facts.version.into_pyobject(py)?.into_any())),
            ("release", any(facts.release.into_pyobject(py)?.into_any())),
            ("eid", any((&facts.eid).into_pyobject(py)?.into_any())),
            ("rmb_size", any(own.bytes().into_pyobject(py)?.into_any())),
            (
                "peer_rmb_size",
                any(peer.bytes().into_pyobject(py)?.into_any()),
            ),
            ("gid", any((&facts.gid).into_pyobject(py)?.into_any())),
            (
                "peer_gid",
                any((&facts.peer_gid).into_pyobject(py)?.into_any()),
            ),
            ("link_group", any(link_group.into_pyobject(py)?.into_any())),
            (
                "device",
                any(device.map(|device| &device.name).into_pyobject(py)?),
            ),
            (
                "port",
                any(device.map(|device| device.port).into_pyobject(py)?),
            ),
            (
                "mtu",
                any(device.map(|device| device.mtu).into_pyobject(py)?),
            ),
            (
                "qpn",
                any(device.map(|device| device.pair).into_pyobject(py)?),
            ),
        ]
        .into_py_dict(py)
    }

    /// Counters of both directions, always in this order; all only grow.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = self.ours(py)?.end.counters();
        [
            ("bytes_sent", counters.stats.bytes_sent),
            ("bytes_received", counters.stats.bytes_received),
            ("messages_sent", counters.stats.writes),
            ("messages_received", counters.stats.reads),
            ("wakeups_sent", counters.wakeups_sent),
            ("wakeups_received", counters.wakeups_received),
            ("spins", counters.spins),
            ("stalls_sent", counters.stalls_write),
            ("stalls_received", counters.stalls_read),
        ]
        .into_py_dict(py)
    }

    /// Moves the backlog on and arms for the rest. The loop calls it; see `write`.
    fn _flush(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::flush(slf)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.engine)?;
        if let Ok(inner) = self.inner.try_lock() {
            for object in inner.waiters.objects() {
                visit.call(object)?;
            }
            visit.call(inner.waiters.side())?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        // A lock that is taken here was taken by a thread that did not come along into this child: nothing is cleared then.
        let Ok(mut inner) = self.inner.try_lock() else {
            return;
        };
        let waiters = std::mem::take(&mut inner.waiters);
        drop(inner);
        if waiters.reading {
            self.engine.get().waits.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// For the awaitables.
impl Endpoint {
    /// # Errors
    /// The fork generation is not to be had.
    pub(super) fn new(engine: Py<Engine>, end: driver::Endpoint, facts: Facts) -> PyResult<Self> {
        let (group, path) = (end.group_number(), end.path().name());
        let inner = Inner {
            end,
            waiters: Waiters::default(),
            loans: Loans::default(),
            fast: 0,
            polls: None,
            high_water: 64 << 10,
            low_water: 16 << 10,
            paused: false,
        };
        Ok(Self {
            inner: Mutex::new(inner),
            engine,
            group,
            path,
            facts,
            generation: fork::generation()?,
        })
    }

    /// The lock, if this process made the connection. A child must not even wait for it: whoever held it at the fork
    /// is not there to give it back.
    #[inline]
    pub(super) fn ours(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Inner>> {
        if !fork::is_current(self.generation) {
            return Err(inherited());
        }
        Ok(self.lock(py))
    }

    /// The lock for one who has given the interpreter up, and has asked for it by [`Self::ours`] before. Whoever has not would
    /// wait for a thread that waits for the interpreter.
    pub(super) fn lock_detached(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, Inner> {
        // A poisoned lock is that of a panic which the application has seen; the endpoint checks itself at every step.
        locked(py, &self.inner)
    }

    /// The lock for a call of the application, which must come from the loop's thread as well.
    #[inline]
    pub(super) fn entered(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Inner>> {
        if !fork::is_current(self.generation) || !self.engine.get().is_here() {
            self.refuse_entry(py)?;
        }
        Ok(self.lock(py))
    }

    #[cold]
    fn refuse_entry(&self, py: Python<'_>) -> PyResult<()> {
        drop(self.ours(py)?);
        self.engine.get().check_thread(py)
    }

    /// Looks for a few microseconds, if the peer runs and nobody else of this loop waits: what is there then.
    fn spin_in_place(&self, inner: &mut Inner, enough: u32) -> Incoming {
        let SpinTimes { inline, poll } = self.facts.spin;
        let worthwhile = !poll.is_zero() && inner.end.spin_is_worthwhile();
        inner.polls = Some(worthwhile);
        if !worthwhile || !self.engine.get().has_no_wait() {
            return Incoming::Empty;
        }
        let mut incoming = Incoming::Empty;
        let came = awaitable::spin(Instant::now() + inline, || {
            incoming = inner.end.incoming(enough);
            incoming != Incoming::Empty
        });
        if came {
            inner.polls = None;
            inner.end.spun(true);
        }
        incoming
    }

    /// Whether a read that waits should poll before it sleeps.
    pub(super) fn polls(&self, py: Python<'_>) -> PyResult<bool> {
        let mut inner = self.ours(py)?;
        let known = inner.polls.take();
        Ok(known
            .unwrap_or_else(|| !self.facts.spin.poll.is_zero() && inner.end.spin_is_worthwhile()))
    }

    #[inline]
    pub(super) fn incoming(&self, py: Python<'_>, enough: usize) -> PyResult<Incoming> {
        Ok(self
            .ours(py)?
            .end
            .incoming(u32::try_from(enough).unwrap_or(u32::MAX)))
    }

    /// A new bytes object of `n` bytes that are readable.
    #[inline]
    pub(super) fn take_bytes(&self, py: Python<'_>, n: usize) -> PyResult<Py<PyBytes>> {
        let mut bytes = NewBytes::new(py, n)?;
        bytes.fill(n, |target| self.read_into(py, target))?;
        Ok(bytes.finish())
    }

    /// Fills `target` with bytes that are readable.
    #[inline]
    pub(super) fn read_into(&self, py: Python<'_>, target: Target<'_>) -> PyResult<()> {
        let read = if target.len() < DETACH_MIN {
            self.ours(py)?.try_read(target)
        } else {
            // The lock is taken and given back without the interpreter: nobody who holds it waits for us.
            detached(py, || self.lock_detached().try_read(target))
        };
        read.then_some(())
            .ok_or_else(|| PyRuntimeError::new_err("two threads read one stream at the same time"))
    }

    #[inline]
    fn write_bytes(&self, py: Python<'_>, bytes: Source<'_>) -> PyResult<Written> {
        let mut inner = self.entered(py)?;
        if inner.loans.reservation.is_some() {
            return Err(loans::reserved("write"));
        }
        let written = if bytes.len() < DETACH_MIN {
            inner.write(bytes)
        } else {
            drop(inner);
            detached(py, || self.lock_detached().write(bytes))
        };
        written.map_err(|fault| from_fault(py, fault))
    }
}

/// What a write came to.
struct Written {
    /// Bytes that wait.
    waiting: usize,
    /// Whether the backlog has changed.
    unsettled: bool,
}

impl Inner {
    /// Whether a read waits.
    fn is_reading(&self) -> bool {
        self.waiters.reading
    }

    /// Counts a fast completion; true for every so many: then the loop must have its turn first.
    #[inline]
    fn must_yield(&mut self) -> bool {
        self.fast += 1;
        let due = self.fast >= FAST_MAX;
        if due {
            self.fast = 0;
        }
        due
    }

    #[inline]
    fn try_read(&mut self, target: Target<'_>) -> bool {
        let there = self.end.readable() as usize >= target.len();
        if there {
            self.end.read(target);
        }
        there
    }

    #[inline]
    fn write(&mut self, bytes: Source<'_>) -> Result<Written, Fault> {
        let before = self.end.backlog();
        self.end.write(bytes)?;
        let waiting = self.end.backlog();
        let unsettled = before > 0 || waiting > 0;
        if unsettled {
            self.note_backlog();
            // Whoever writes looks at `paused` next, so that is no news any more; that it has ended will be.
            self.waiters.tell_paused(self.paused);
        }
        Ok(Written { waiting, unsettled })
    }

    /// Compares the backlog with the marks.
    pub(super) fn note_backlog(&mut self) {
        let backlog = self.end.backlog();
        if backlog > self.high_water {
            self.paused = true;
        } else if backlog <= self.low_water {
            self.paused = false;
        }
    }
}
