//! One engine for each event loop, and who waits in it.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::endpoint::Endpoint;
use super::errors::from_system;
use super::gate::{calling, detached, locked};
use super::names;
use super::polling::Polling;
use super::watch::{Waiter, Watches};
use crate::driver;
use crate::fabric::shm::Wake;
use crate::mem::thread::here;

/// Engine(create_future, call_soon, on_death, check_thread)
/// --
///
/// An event loop's share of smcfast: its link groups and the one fd that wakes it.
///
/// The loop calls `progress` whenever `fileno()` is readable. `on_death(group)` is called when the process at the other
/// end of a link group has ended. `check_thread()` is called when a stream is used in a thread from which the last use did
/// not come, and raises if the thread is not the loop's.
#[pyclass(frozen, weakref, module = "smcfast._core")]
pub(super) struct Engine {
    pub(super) driver: Arc<driver::Engine>,
    /// None once cleared by the garbage collector.
    callbacks: Mutex<Option<Callbacks>>,
    waiting: Mutex<HashMap<u32, Vec<Py<Endpoint>>>>,
    watches: Watches,
    polling: Polling,
    /// Reads that are not finished: spinning, polling or asleep.
    pub(super) waits: AtomicUsize,
    /// The thread that has passed `check_thread` last; 0 for none.
    thread: AtomicUsize,
}

struct Callbacks {
    create_future: Py<PyAny>,
    call_soon: Py<PyAny>,
    on_death: Py<PyAny>,
    check_thread: Py<PyAny>,
}

/// Whether one of the open descriptors has something to read, or has room, now.
#[pyfunction]
pub(super) fn is_ready(readable: Vec<RawFd>, writable: Vec<RawFd>) -> PyResult<bool> {
    Ok(super::fds::is_ready(&readable, &writable)?)
}

#[pymethods]
impl Engine {
    #[new]
    fn new(
        create_future: Py<PyAny>,
        call_soon: Py<PyAny>,
        on_death: Py<PyAny>,
        check_thread: Py<PyAny>,
    ) -> PyResult<Self> {
        Ok(Self {
            driver: Arc::new(driver::Engine::new().map_err(|error| from_system(&error))?),
            callbacks: Mutex::new(Some(Callbacks {
                create_future,
                call_soon,
                on_death,
                check_thread,
            })),
            waiting: Mutex::default(),
            watches: Watches::default(),
            polling: Polling::default(),
            waits: AtomicUsize::new(0),
            thread: AtomicUsize::new(0),
        })
    }

    /// The engine's 128-bit id: its SMC-D GID and GID extension, big-endian.
    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.driver.id().0)
    }

    /// Whether this process made the engine; false in a forked child.
    #[getter]
    fn is_ours(&self) -> bool {
        self.driver.is_ours()
    }

    /// The fd to poll for reading.
    fn fileno(&self) -> RawFd {
        self.driver.wake_fd().as_raw_fd()
    }

    /// Serves the wake-ups that are there.
    fn progress(&self, py: Python<'_>) -> PyResult<()> {
        if !self.driver.is_ours() {
            return Ok(());
        }
        let wakes = self
            .driver
            .take_wakes()
            .map_err(|error| from_system(&error))?;
        let results: Vec<PyResult<()>> = wakes.iter().map(|wake| self.serve(py, *wake)).collect();
        results.into_iter().collect()
    }

    /// (number, future): the future resolves with None once one of the open descriptors has something to read, or has room.
    ///
    /// `unwatch(number)` must follow before the descriptors are closed. OSError: EEXIST when one is watched already; ENOSPC,
    /// ENOMEM.
    fn watch<'py>(
        &self,
        py: Python<'py>,
        readable: Vec<RawFd>,
        writable: Vec<RawFd>,
    ) -> PyResult<(u32, Bound<'py, PyAny>)> {
        let future = self.create_future(py)?;
        let kept = Waiter::Future(future.clone().unbind());
        let number = self
            .watches
            .add(py, &self.driver, kept, &readable, &writable)?;
        Ok((number, future))
    }

    /// Calls `callback()` once, when the open descriptor has something to read or an end; errors and `unwatch` as for `watch`.
    fn call_when_readable(&self, py: Python<'_>, fd: RawFd, callback: Py<PyAny>) -> PyResult<u32> {
        let who = Waiter::Callback(callback);
        Ok(self.watches.add(py, &self.driver, who, &[fd], &[])?)
    }

    /// Whether a handshake that waits now should look for a little while before it sleeps; `spun` must follow then.
    fn spin_is_worthwhile(&self) -> bool {
        self.driver.spin_is_worthwhile()
    }

    /// Reports whether what was looked for came in that time.
    fn spun(&self, found: bool) {
        self.driver.spun(found);
    }

    /// Ends all link groups over RDMA, with a word to their peers, which takes a moment of bounded length.
    fn close_links(&self, py: Python<'_>) {
        detached(py, || self.driver.close_links());
    }

    /// Looks after the protocols that wait so. The loop calls it in each round, while there are any.
    fn _poll(slf: &Bound<'_, Self>) -> PyResult<()> {
        let this = slf.get();
        if !this.driver.is_ours() {
            return Ok(());
        }
        this.polling.round(slf.py(), || Self::plan_round(slf))
    }

    /// Ends the watch `number`.
    fn unwatch(&self, py: Python<'_>, number: u32) {
        self.watches.remove(py, &self.driver, number);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Ok(callbacks) = self.callbacks.try_lock()
            && let Some(callbacks) = &*callbacks
        {
            visit.call(&callbacks.create_future)?;
            visit.call(&callbacks.call_soon)?;
            visit.call(&callbacks.on_death)?;
            visit.call(&callbacks.check_thread)?;
        }
        self.watches.traverse(&visit)?;
        self.polling.traverse(&visit)?;
        if let Ok(waiting) = self.waiting.try_lock() {
            for endpoint in waiting.values().flatten() {
                visit.call(endpoint)?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        // A lock that is taken here was taken by a thread that did not come along into this child.
        let callbacks = self
            .callbacks
            .try_lock()
            .ok()
            .and_then(|mut callbacks| callbacks.take());
        let waiting = self
            .waiting
            .try_lock()
            .ok()
            .map(|mut waiting| std::mem::take(&mut *waiting));
        self.watches.clear();
        self.polling.clear();
        drop((callbacks, waiting));
    }
}

impl Engine {
    /// Remembers that `endpoint` has armed something and wants to hear of its group's bell.
    pub(super) fn wait(&self, py: Python<'_>, group: u32, endpoint: Py<Endpoint>) {
        let mut waiting = locked(py, &self.waiting);
        waiting.entry(group).or_default().push(endpoint);
    }

    /// Whether protocols are looked after in the loop's rounds.
    pub(super) fn polls(&self, py: Python<'_>) -> bool {
        self.polling.is_on(py)
    }

    /// Looks after `endpoint` in the loop's rounds, for `spin` at least.
    pub(super) fn poll(
        slf: &Bound<'_, Self>,
        endpoint: Py<Endpoint>,
        spin: Duration,
    ) -> PyResult<()> {
        if slf.get().polling.add(slf.py(), endpoint, spin) {
            Self::plan_round(slf)
        } else {
            Ok(())
        }
    }

    fn plan_round(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        slf.get().call_soon(py, slf.getattr(names::poll(py))?)
    }

    fn serve(&self, py: Python<'_>, wake: Wake) -> PyResult<()> {
        match wake {
            Wake::Bell(group) => self.wake_group(py, group, false),
            Wake::Ready(number) => self.watches.resolve(py, number),
            // The engine has served it.
            Wake::Device(_) => Ok(()),
            Wake::Death(group) => {
                let woken = self.wake_group(py, group, true);
                match self.callback(py, |callbacks| &callbacks.on_death) {
                    Some(on_death) => calling(py, || on_death.call1((group,)))
                        .map(drop)
                        .and(woken),
                    None => woken,
                }
            }
        }
    }

    /// Nothing of `endpoint` is armed any more.
    pub(super) fn forget(&self, py: Python<'_>, group: u32, endpoint: &Bound<'_, Endpoint>) {
        let mut waiting = locked(py, &self.waiting);
        let Some(members) = waiting.get_mut(&group) else {
            return;
        };
        let place = members.iter().position(|member| member.is(endpoint));
        let old = place.map(|place| members.swap_remove(place));
        if members.is_empty() {
            waiting.remove(&group);
        }
        drop(waiting);
        drop(old);
    }

    /// A new future of the loop.
    pub(super) fn create_future<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.callback(py, |callbacks| &callbacks.create_future) {
            Some(create_future) => calling(py, || create_future.call0()),
            None => Err(pyo3::exceptions::PyRuntimeError::new_err(
                "the engine was cleared",
            )),
        }
    }

    /// Has the loop call `callback` in its next round.
    pub(super) fn call_soon(&self, py: Python<'_>, callback: Bound<'_, PyAny>) -> PyResult<()> {
        if let Some(call_soon) = self.callback(py, |callbacks| &callbacks.call_soon) {
            calling(py, || call_soon.call1((callback,)))?;
        }
        Ok(())
    }

    /// Whether the loop's streams were last used in this thread.
    #[inline]
    pub(super) fn is_here(&self) -> bool {
        self.thread.load(Ordering::Relaxed) == here()
    }

    /// Asks the loop whether its streams may be used in this thread.
    ///
    /// # Errors
    /// RuntimeError: another thread runs the loop, or this one runs another loop.
    pub(super) fn check_thread(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(check) = self.callback(py, |callbacks| &callbacks.check_thread) {
            calling(py, || check.call0())?;
        }
        self.thread.store(here(), Ordering::Relaxed);
        Ok(())
    }

    /// Whether no read of this loop is waiting.
    pub(super) fn has_no_wait(&self) -> bool {
        self.waits.load(Ordering::Relaxed) == 0
    }

    fn callback<'py>(
        &self,
        py: Python<'py>,
        which: fn(&Callbacks) -> &Py<PyAny>,
    ) -> Option<Bound<'py, PyAny>> {
        let callbacks = locked(py, &self.callbacks);
        callbacks
            .as_ref()
            .map(|callbacks| which(callbacks).bind(py).clone())
    }

    /// Looks after those who wait in `group` and were rung for, or after all of them.
    fn wake_group(&self, py: Python<'_>, group: u32, all: bool) -> PyResult<()> {
        let woken = {
            let mut waiting = locked(py, &self.waiting);
            let members = waiting.remove(&group).unwrap_or_default();
            let (woken, asleep): (Vec<_>, Vec<_>) = members
                .into_iter()
                .partition(|member| all || member.get().is_meant(py));
            if !asleep.is_empty() {
                waiting.insert(group, asleep);
            }
            woken
        };
        // One that fails must not keep the others from waking; its error is told when all have had their turn.
        let results: Vec<PyResult<()>> = woken
            .iter()
            .map(|endpoint| Endpoint::rung(endpoint.bind(py)))
            .collect();
        results.into_iter().collect()
    }
}
