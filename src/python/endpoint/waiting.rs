//! Who waits at an endpoint, and how they are woken.

use std::sync::atomic::Ordering;

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

use super::{Endpoint, Inner};

#[derive(Default)]
pub(super) struct Waiters {
    /// The future of the read that sleeps.
    pub(super) read: Option<Py<PyAny>>,
    /// A read is spinning, polling or asleep.
    pub(super) reading: bool,
    pub(super) need: u32,
    pub(super) drains: Vec<Py<PyAny>>,
    /// Drains that poll; they look after the backlog themselves.
    pub(super) polling_drains: u32,
    /// Called when there is something to read, until it is taken away.
    pub(super) on_readable: Option<Py<PyAny>>,
    /// Called when the backlog has become smaller, or a fault has come.
    pub(super) on_progress: Option<Py<PyAny>>,
    /// Where a cancelled readexactly puts back what it has collected.
    pub(super) side: Option<Py<PyByteArray>>,
    /// In the engine's list, which the next bell takes.
    pub(super) listed: bool,
    /// The backlog is armed: the next bell looks after it.
    pub(super) write_armed: bool,
    pub(super) flush_planned: bool,
}

/// For the awaitables and the engine.
impl Endpoint {
    /// The place of the one read that may wait.
    ///
    /// # Errors
    /// RuntimeError in asyncio's words if it is taken.
    pub(in crate::python) fn begin_read(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let mut inner = self.ours(py)?;
        if inner.waiters.reading {
            let text = format!(
                "{name}() called while another coroutine is already waiting for incoming data"
            );
            return Err(PyRuntimeError::new_err(text));
        }
        inner.waiters.reading = true;
        drop(inner);
        self.engine.get().waits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The read waits no more, however it ended.
    pub(in crate::python) fn end_read(&self, py: Python<'_>) {
        let mut inner = self.inner(py);
        if !inner.waiters.reading {
            return;
        }
        inner.waiters.reading = false;
        if inner.end.is_ours() && inner.waiters.on_readable.is_none() {
            inner.end.disarm_read();
        }
        let future = inner.waiters.read.take();
        drop(inner);
        drop(future);
        self.engine.get().waits.fetch_sub(1, Ordering::Relaxed);
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
        if !inner.end.arm_read(need) {
            return Ok(None);
        }
        inner.fast = 0;
        inner.waiters.need = need;
        let old = inner.waiters.read.replace(future.clone().unbind());
        drop(inner);
        drop(old);
        this.list(slf);
        Ok(Some(future))
    }

    /// Puts what a cancelled read has collected in front of the stream.
    pub(in crate::python) fn put_back(
        &self,
        py: Python<'_>,
        bytes: Bound<'_, PyBytes>,
    ) -> PyResult<()> {
        let side = self
            .inner(py)
            .waiters
            .side
            .as_ref()
            .map(|side| side.clone_ref(py));
        match side {
            Some(side) => side
                .bind(py)
                .call_method1(intern!(py, "extend"), (bytes,))
                .map(drop),
            None => Err(PyRuntimeError::new_err(
                "no buffer to put back what a cancelled read has collected",
            )),
        }
    }

    /// A drain begins or ends to poll; meanwhile it looks after the backlog.
    pub(in crate::python) fn poll_drain(&self, py: Python<'_>, polls: bool) {
        let polling = &mut self.inner(py).waiters.polling_drains;
        *polling = if polls {
            *polling + 1
        } else {
            polling.saturating_sub(1)
        };
    }

    /// Puts a drain to sleep: the future to wait for, or None if the backlog is small enough by now.
    pub(in crate::python) fn sleep_for_room<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (this, py) = (slf.get(), slf.py());
        let future = this.engine.get().create_future(py)?;
        {
            let mut inner = this.ours(py)?;
            inner.arm_write();
            if !inner.paused || inner.end.write_fault().is_some() {
                return Ok(None);
            }
            inner.fast = 0;
            inner.waiters.drains.push(future.clone().unbind());
        }
        this.list(slf);
        Ok(Some(future))
    }

    /// A drain waits no more.
    pub(in crate::python) fn forget_drain(&self, py: Python<'_>, future: &Bound<'_, PyAny>) {
        let mut inner = self.inner(py);
        let place = inner
            .waiters
            .drains
            .iter()
            .position(|waiter| waiter.is(future));
        let old = place.map(|place| inner.waiters.drains.swap_remove(place));
        drop(inner);
        drop(old);
    }

    fn list(&self, slf: &Bound<'_, Self>) {
        let listed = std::mem::replace(&mut self.inner(slf.py()).waiters.listed, true);
        if !listed {
            self.engine
                .get()
                .wait(slf.py(), self.group, slf.clone().unbind());
        }
    }

    /// Has the loop look after the backlog in its next round, unless somebody does already.
    pub(super) fn plan_flush(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (this, py) = (slf.get(), slf.py());
        {
            let waiters = &mut this.ours(py)?.waiters;
            if waiters.flush_planned || waiters.write_armed || waiters.polling_drains > 0 {
                return Ok(());
            }
            waiters.flush_planned = true;
        }
        this.engine
            .get()
            .call_soon(py, slf.getattr(intern!(py, "_flush"))?)
    }

    /// Has the loop look after the backlog if there is one.
    pub(in crate::python) fn keep_flushing(slf: &Bound<'_, Self>) -> PyResult<()> {
        let waiting = slf.get().ours(slf.py())?.end.backlog();
        if waiting > 0 {
            Self::plan_flush(slf)
        } else {
            Ok(())
        }
    }

    /// The bell was rung.
    pub(in crate::python) fn rung(slf: &Py<Self>, py: Python<'_>) -> PyResult<()> {
        if let Ok(mut inner) = slf.get().ours(py) {
            inner.waiters.listed = false;
            inner.waiters.write_armed = false;
            inner.end.woken();
        }
        Self::wake(slf, py)
    }

    /// Something has changed: resolves who has what it waits for, arms again for the rest.
    pub(in crate::python) fn wake(slf: &Py<Self>, py: Python<'_>) -> PyResult<()> {
        let (this, bound) = (slf.get(), slf.bind(py));
        let Ok(mut inner) = this.ours(py) else {
            return Ok(());
        };
        let Woken {
            reader,
            drains,
            on_readable,
            on_progress,
            again,
        } = inner.look(py);
        drop(inner);
        if again {
            this.list(bound);
        }
        for future in reader.into_iter().chain(drains) {
            let future = future.into_bound(py);
            if !future.call_method0(intern!(py, "done"))?.is_truthy()? {
                future.call_method1(intern!(py, "set_result"), (py.None(),))?;
            }
        }
        for callback in [on_readable, on_progress].into_iter().flatten() {
            callback.call0(py)?;
        }
        Ok(())
    }
}

/// Who is to be resolved or called, and whether somebody still waits.
struct Woken {
    reader: Option<Py<PyAny>>,
    drains: Vec<Py<PyAny>>,
    on_readable: Option<Py<PyAny>>,
    on_progress: Option<Py<PyAny>>,
    again: bool,
}

impl Inner {
    /// Moves the backlog on, and arms for the rest. True if armed.
    fn arm_write(&mut self) -> bool {
        // Each round that does not arm has moved at least one byte, or has found the end.
        let mut armed = false;
        while !armed && self.end.backlog() > 0 && self.end.write_fault().is_none() {
            armed = self.end.arm_write();
        }
        self.waiters.write_armed = armed;
        self.note_backlog();
        armed
    }

    fn look(&mut self, py: Python<'_>) -> Woken {
        let (mut reader, mut on_readable, mut again) = (None, None, false);
        if self.waiters.read.is_some() {
            if self.end.arm_read(self.waiters.need) {
                again = true
            } else {
                reader = self.waiters.read.take()
            }
        } else if let Some(callback) = &self.waiters.on_readable {
            if self.end.arm_read(1) {
                again = true
            } else {
                on_readable = Some(callback.clone_ref(py))
            }
        }
        let before = self.end.backlog();
        again |= self.arm_write();
        let progress = self.end.backlog() < before || self.end.write_fault().is_some();
        let on_progress = if progress {
            self.waiters
                .on_progress
                .as_ref()
                .map(|callback| callback.clone_ref(py))
        } else {
            None
        };
        let resolve = !self.paused || self.end.write_fault().is_some();
        let drains = if resolve {
            std::mem::take(&mut self.waiters.drains)
        } else {
            Vec::new()
        };
        Woken {
            reader,
            drains,
            on_readable,
            on_progress,
            again,
        }
    }
}
