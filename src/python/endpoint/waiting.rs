//! Who waits at an endpoint, and how they are woken.
//!
//! Two rules hold whenever the lock is free. The endpoint is in its engine's list exactly while one of its words in the
//! shared memory is armed: then the group's bell finds it, and nothing else keeps it alive. And a backlog is armed, or
//! planned to be looked after in the loop's next round, or in the hands of a drain that polls. [`Endpoint::settle`]
//! restores both after every change. A protocol that waits for data may be looked after in the loop's rounds instead of being
//! armed, see [`super::super::polling`]; that ends by itself, soon.

use std::sync::atomic::Ordering;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PySlice};

use super::super::awaitable::resolve;
use super::super::engine::Engine;
use super::super::gate::calling;
use super::super::names;
use super::super::polling::Look;
use super::loans::reserved;
use super::{Endpoint, Incoming, Inner, SpinTimes};

#[derive(Default)]
pub(super) struct Waiters {
    /// The future of the read that sleeps.
    read: Option<Py<PyAny>>,
    /// A read is polling or asleep.
    pub(super) reading: bool,
    need: u32,
    drains: Vec<Py<PyAny>>,
    /// The future of who waits for room in place, asleep.
    room: Option<Py<PyAny>>,
    /// Somebody polls or sleeps until there is room in place.
    rooming: bool,
    /// Drains that poll; they look after the backlog themselves.
    polling_drains: u32,
    /// Called when there is something to read, until it is taken away.
    on_readable: Option<Py<PyAny>>,
    /// Called when there are [`News`].
    on_progress: Option<Py<PyAny>>,
    /// Where a cancelled readexactly puts back what it has collected.
    side: Option<Py<PyByteArray>>,
    /// The own word of a reader is armed: the bell will be rung for it.
    read_armed: bool,
    /// The own word of a writer is armed.
    write_armed: bool,
    /// In the engine's list, which the next bell takes.
    listed: bool,
    /// The engine looks in the loop's rounds; nothing is armed for `on_readable` meanwhile.
    looked_after: bool,
    /// `_flush` is in the loop's next round.
    flush_planned: bool,
    /// TCP has ended before the peer has: its end, or the loss, is awaited as well when nobody reads.
    end_awaited: bool,
    told: News,
}

/// What the transport has to know.
#[derive(Default, Clone, Copy, PartialEq)]
struct News {
    paused: bool,
    closed: bool,
    faulty: bool,
}

impl Waiters {
    /// Every Python object that is held.
    pub(super) fn objects(&self) -> impl Iterator<Item = &Py<PyAny>> {
        let futures = self.read.iter().chain(&self.drains).chain(&self.room);
        futures.chain(&self.on_readable).chain(&self.on_progress)
    }

    /// Whether somebody waits for room in place.
    pub(super) fn awaits_room(&self) -> bool {
        self.rooming
    }

    /// The transport sees by itself that writing is paused.
    pub(super) fn tell_paused(&mut self, paused: bool) {
        self.told.paused |= paused;
    }

    pub(super) fn side(&self) -> Option<&Py<PyByteArray>> {
        self.side.as_ref()
    }
}

/// Reads that wait.
impl Endpoint {
    /// Whether the loop must have its turn before a read may finish.
    ///
    /// # Errors
    /// RuntimeError in asyncio's words if another read waits.
    pub(in crate::python) fn enter_read(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let mut inner = self.entered(py)?;
        if inner.waiters.reading {
            drop(inner);
            let text = format!(
                "{name}() called while another coroutine is already waiting for incoming data"
            );
            return Err(PyRuntimeError::new_err(text));
        }
        inner.check_unviewed(name)?;
        Ok(inner.must_yield())
    }

    /// Takes the place of the one read that may wait.
    pub(in crate::python) fn begin_read(&self, py: Python<'_>) -> PyResult<()> {
        self.ours(py)?.waiters.reading = true;
        self.engine.get().waits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The read waits no more, however it ended.
    pub(in crate::python) fn end_read(slf: &Bound<'_, Self>) -> PyResult<()> {
        let Ok(mut inner) = slf.get().ours(slf.py()) else {
            return Ok(());
        };
        if !std::mem::take(&mut inner.waiters.reading) {
            return Ok(());
        }
        let future = inner.waiters.read.take();
        if inner.waiters.on_readable.is_none() {
            inner.rest();
        }
        drop(inner);
        drop(future);
        slf.get().engine.get().waits.fetch_sub(1, Ordering::Relaxed);
        Self::settle(slf)
    }

    /// Puts the read to sleep until `need` bytes are there: the future to wait for, or None if they are there already.
    pub(in crate::python) fn sleep_for_bytes<'py>(
        slf: &Bound<'py, Self>,
        need: u32,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (this, py) = (slf.get(), slf.py());
        let future = this.engine.get().create_future(py)?;
        let mut inner = this.ours(py)?;
        let need = need.min(inner.end.read_need_max());
        inner.waiters.read_armed = inner.end.arm_read(need);
        let sleeps = inner.waiters.read_armed;
        let mut old = None;
        if sleeps {
            inner.fast = 0;
            inner.waiters.need = need;
            old = inner.waiters.read.replace(future.clone().unbind());
        }
        drop(inner);
        drop(old);
        Self::settle(slf)?;
        Ok(sleeps.then_some(future))
    }

    /// Puts what a cancelled read has collected in front of the stream.
    pub(in crate::python) fn put_back(
        &self,
        py: Python<'_>,
        bytes: Bound<'_, PyBytes>,
    ) -> PyResult<()> {
        match self.side(py)? {
            // Later bytes may be there already: those that were taken out of the ring when this end was closed.
            Some(side) => side.set_item(PySlice::new(py, 0, 0, 1), bytes),
            None => Err(PyRuntimeError::new_err(
                "no buffer to put back what a cancelled read has collected",
            )),
        }
    }

    /// Takes what lies in front of the stream: the bytes behind those that a read has collected, once this end is closed.
    pub(in crate::python) fn take_side<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let Some(side) = self.side(py)? else {
            return Ok(PyBytes::new(py, b""));
        };
        let bytes = PyBytes::new(py, &side.to_vec());
        side.call_method0(names::clear(py))?;
        Ok(bytes)
    }

    fn side<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyByteArray>>> {
        Ok(self
            .ours(py)?
            .waiters
            .side
            .as_ref()
            .map(|side| side.bind(py).clone()))
    }

    pub(super) fn put_side(&self, py: Python<'_>, side: Py<PyByteArray>) -> PyResult<()> {
        let old = self.ours(py)?.waiters.side.replace(side);
        drop(old);
        Ok(())
    }
}

/// Drains that wait.
impl Endpoint {
    /// Whether the loop must have its turn before a drain may finish.
    pub(in crate::python) fn enter_drain(&self, py: Python<'_>) -> PyResult<bool> {
        let mut inner = self.entered(py)?;
        Ok(inner.end.is_closed() || inner.must_yield())
    }

    /// A drain begins to poll; meanwhile it looks after the backlog.
    pub(in crate::python) fn begin_polling(&self, py: Python<'_>) -> PyResult<()> {
        self.ours(py)?.waiters.polling_drains += 1;
        Ok(())
    }

    /// A drain polls no more.
    pub(in crate::python) fn end_polling(slf: &Bound<'_, Self>) -> PyResult<()> {
        let Ok(mut inner) = slf.get().ours(slf.py()) else {
            return Ok(());
        };
        inner.waiters.polling_drains = inner.waiters.polling_drains.saturating_sub(1);
        drop(inner);
        Self::settle(slf)
    }

    /// Puts a drain to sleep: the future to wait for, or None if the backlog is small enough by now.
    pub(in crate::python) fn sleep_for_room<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (this, py) = (slf.get(), slf.py());
        let future = this.engine.get().create_future(py)?;
        let mut inner = this.ours(py)?;
        inner.arm_write();
        let sleeps = inner.paused && inner.end.write_fault().is_none();
        if sleeps {
            inner.fast = 0;
            inner.waiters.drains.push(future.clone().unbind());
        }
        drop(inner);
        Self::settle(slf)?;
        Ok(sleeps.then_some(future))
    }

    /// A drain waits no more.
    pub(in crate::python) fn forget_drain(&self, py: Python<'_>, future: &Bound<'_, PyAny>) {
        let Ok(mut inner) = self.ours(py) else { return };
        let drains = &mut inner.waiters.drains;
        let old = drains
            .iter()
            .position(|waiter| waiter.is(future))
            .map(|place| drains.swap_remove(place));
        drop(inner);
        drop(old);
    }
}

/// The wait for room in place.
impl Endpoint {
    /// Whether the loop must have its turn before the wait may be over.
    ///
    /// # Errors
    /// RuntimeError if somebody else waits, or has a reservation.
    pub(in crate::python) fn enter_room(&self, py: Python<'_>) -> PyResult<bool> {
        let mut inner = self.entered(py)?;
        if inner.waiters.rooming {
            let text = "reserve() called while another coroutine is already waiting for room";
            return Err(PyRuntimeError::new_err(text));
        }
        if inner.loans.reservation.is_some() {
            return Err(reserved("reserve"));
        }
        Ok(inner.must_yield())
    }

    /// Takes the place of the one that may wait for room: for `n` bytes, or at least for `least`.
    pub(in crate::python) fn begin_room(&self, py: Python<'_>, n: u32, least: u32) -> PyResult<()> {
        let mut inner = self.ours(py)?;
        inner.waiters.rooming = true;
        inner.end.want_room(n, least);
        Ok(())
    }

    /// The future of who sleeps until there is room, or None if there is by now.
    pub(in crate::python) fn sleep_for_place<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (this, py) = (slf.get(), slf.py());
        let future = this.engine.get().create_future(py)?;
        let mut inner = this.ours(py)?;
        inner.arm_write();
        let sleeps = inner.awaits_place();
        let mut old = None;
        if sleeps {
            inner.fast = 0;
            old = inner.waiters.room.replace(future.clone().unbind());
        }
        drop(inner);
        drop(old);
        Self::settle(slf)?;
        Ok(sleeps.then_some(future))
    }

    /// Nobody waits for room any more, however the wait has ended.
    pub(in crate::python) fn end_room(slf: &Bound<'_, Self>) -> PyResult<()> {
        let Ok(mut inner) = slf.get().ours(slf.py()) else {
            return Ok(());
        };
        if !std::mem::take(&mut inner.waiters.rooming) {
            return Ok(());
        }
        let future = inner.waiters.room.take();
        inner.end.want_no_room();
        inner.waiters.write_armed &= inner.end.backlog() > 0;
        drop(inner);
        drop(future);
        Self::settle(slf)
    }
}

/// Callbacks, and waking.
impl Endpoint {
    pub(super) fn put_on_progress(
        &self,
        py: Python<'_>,
        callback: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let old = std::mem::replace(&mut self.ours(py)?.waiters.on_progress, callback);
        drop(old);
        Ok(())
    }

    pub(super) fn put_on_readable(
        &self,
        py: Python<'_>,
        callback: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let old = std::mem::replace(&mut self.ours(py)?.waiters.on_readable, callback);
        drop(old);
        Ok(())
    }

    pub(in crate::python) fn spin_times(&self) -> SpinTimes {
        self.facts.spin
    }

    /// The protocol waits for more: it is looked after for a while if that pays, or armed. Whether there is more already.
    pub(super) fn wait_for_more(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let (this, py) = (slf.get(), slf.py());
        drop(this.entered(py)?); // a child must not wait for a lock of the engine
        let engine = this.engine.bind(py);
        let spin = this.spin_times().poll;
        let together = !spin.is_zero() && engine.get().polls(py);
        let mut inner = this.ours(py)?;
        let waiters = &inner.waiters;
        if waiters.on_readable.is_none() || waiters.looked_after || waiters.read_armed {
            return Ok(false);
        }
        if together || (!spin.is_zero() && inner.end.spin_is_worthwhile()) {
            inner.waiters.looked_after = true;
            drop(inner);
            Engine::poll(engine, slf.clone().unbind(), spin)?;
            return Ok(false);
        }
        inner.waiters.read_armed = inner.end.arm_read(1);
        let there = !inner.waiters.read_armed;
        drop(inner);
        Self::settle(slf)?;
        Ok(there)
    }

    /// A look for the protocol that waits, in a round of the loop.
    pub(in crate::python) fn look_in_passing(&self, py: Python<'_>) -> Look {
        let Ok(mut inner) = self.ours(py) else {
            return Look::Over;
        };
        let inner = &mut *inner;
        let Some(callback) = &inner.waiters.on_readable else {
            inner.waiters.looked_after = false;
            return Look::Over;
        };
        if inner.end.incoming(1) == Incoming::Empty {
            return Look::Nothing;
        }
        inner.waiters.looked_after = false;
        inner.end.spun(true);
        Look::Came(callback.clone_ref(py))
    }

    /// Nothing came for long enough; [`Self::wake`] must follow, and arms.
    pub(in crate::python) fn looked_in_vain(&self, py: Python<'_>) {
        if let Ok(mut inner) = self.ours(py) {
            inner.waiters.looked_after = false;
            inner.end.spun(false);
        }
    }

    /// Restores the rules of this module.
    pub(in crate::python) fn settle(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (this, py) = (slf.get(), slf.py());
        // A child that inherited the connection has nothing to settle.
        let Ok(mut inner) = this.ours(py) else {
            return Ok(());
        };
        let armed = inner.waiters.read_armed || inner.waiters.write_armed;
        let was_listed = std::mem::replace(&mut inner.waiters.listed, armed);
        let plan = inner.needs_flush();
        inner.waiters.flush_planned |= plan;
        drop(inner);
        let engine = this.engine.get();
        match (was_listed, armed) {
            (false, true) => engine.wait(py, this.group, slf.clone().unbind()),
            (true, false) => engine.forget(py, this.group, slf),
            _ => {}
        }
        if plan {
            engine.call_soon(py, slf.getattr(names::flush(py))?)
        } else {
            Ok(())
        }
    }

    /// The loop's round that was planned has come.
    pub(super) fn flush(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.get().ours(slf.py())?.waiters.flush_planned = false;
        Self::wake(slf)
    }

    /// Whether the bell of the group was rung for this endpoint: a word that it had armed was taken back.
    pub(in crate::python) fn is_meant(&self, py: Python<'_>) -> bool {
        let Ok(inner) = self.ours(py) else {
            return false;
        };
        let (reader, writer) = inner.end.claimed();
        (inner.waiters.read_armed && reader) || (inner.waiters.write_armed && writer)
    }

    /// The bell was rung, and the engine has taken this endpoint out of its list.
    pub(in crate::python) fn rung(slf: &Bound<'_, Self>) -> PyResult<()> {
        if let Ok(mut inner) = slf.get().ours(slf.py()) {
            inner.waiters.listed = false;
            inner.end.woken();
        }
        Self::wake(slf)
    }

    /// Something has changed: resolves who has what it waits for, arms again for the rest.
    pub(in crate::python) fn wake(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let Ok(mut inner) = slf.get().ours(py) else {
            return Ok(());
        };
        let Woken { futures, callbacks } = inner.look(py);
        drop(inner);
        // One that fails must not keep the others asleep; the first error is told when all have had their turn.
        let settled = Self::settle(slf);
        let resolved: Vec<_> = futures
            .iter()
            .map(|future| resolve(future.bind(py)))
            .collect();
        let called: Vec<_> = callbacks
            .iter()
            .map(|callback| calling(py, || callback.call0(py)).map(drop))
            .collect();
        std::iter::once(settled)
            .chain(resolved)
            .chain(called)
            .collect()
    }
}

/// Who is to be resolved, and who is to be called.
#[derive(Default)]
struct Woken {
    futures: Vec<Py<PyAny>>,
    callbacks: Vec<Py<PyAny>>,
}

impl Inner {
    /// Whether the loop has to look here in its next round: at a backlog that nobody looks after, or for news.
    #[inline]
    fn needs_flush(&self) -> bool {
        let waiters = &self.waiters;
        let looked_after = waiters.write_armed || waiters.polling_drains > 0;
        !waiters.flush_planned
            && ((self.end.backlog() > 0 && !looked_after) || self.news() != waiters.told)
    }

    fn news(&self) -> News {
        News {
            paused: self.paused,
            closed: self.end.is_closed(),
            faulty: self.end.write_fault().is_some(),
        }
    }

    /// Nobody waits for bytes.
    fn rest(&mut self) {
        if self.waiters.end_awaited {
            self.waiters.read_armed = self.end.arm_end();
        } else if std::mem::take(&mut self.waiters.read_armed) {
            self.end.disarm_read();
        }
    }

    /// TCP has ended.
    pub(super) fn tcp_ended(&mut self, is_reset: bool) {
        self.end.tcp_ended(is_reset);
        self.waiters.end_awaited = true;
    }

    /// Moves the backlog on, and arms for the rest.
    fn arm_write(&mut self) {
        // Each round that does not arm has moved at least one byte, or has found a fault and dropped the backlog: also one
        // that a read has met before. Were it kept, the loop would look after it in every round, for ever.
        let mut armed = false;
        while !armed && self.end.awaits_room() {
            armed = self.end.arm_write();
        }
        self.waiters.write_armed = armed;
        self.note_backlog();
    }

    /// Whether who waits for room in place still has to.
    fn awaits_place(&self) -> bool {
        self.end.awaits_room() && self.end.write_fault().is_none()
    }

    fn look(&mut self, py: Python<'_>) -> Woken {
        let mut woken = Woken::default();
        if self.waiters.read.is_some() {
            self.waiters.read_armed = self.end.arm_read(self.waiters.need);
            if !self.waiters.read_armed {
                woken.futures.extend(self.waiters.read.take());
            }
        } else if let Some(callback) = &self.waiters.on_readable {
            if !self.waiters.looked_after {
                self.waiters.read_armed = self.end.arm_read(1);
                if !self.waiters.read_armed {
                    woken.callbacks.push(callback.clone_ref(py));
                }
            } else if std::mem::take(&mut self.waiters.read_armed) {
                self.end.disarm_read();
            }
        } else {
            self.rest();
        }
        self.arm_write();
        let news = self.news();
        if !news.paused || news.faulty {
            woken.futures.append(&mut self.waiters.drains);
        }
        if !self.awaits_place() {
            woken.futures.extend(self.waiters.room.take());
        }
        if std::mem::replace(&mut self.waiters.told, news) != news {
            woken.callbacks.extend(
                self.waiters
                    .on_progress
                    .as_ref()
                    .map(|callback| callback.clone_ref(py)),
            );
        }
        woken
    }
}
