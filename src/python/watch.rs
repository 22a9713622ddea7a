//! Futures and callbacks that wait for sockets, by way of the engine's one fd.

use std::collections::HashMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::Mutex;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use super::awaitable::resolve;
use super::fds;
use super::gate::{calling, locked};
use crate::driver;
use crate::fabric::shm::Interest;

/// Who waits for which descriptors.
#[derive(Default)]
pub(super) struct Watches(Mutex<Table>);

#[derive(Default)]
struct Table {
    last: u32,
    waiting: HashMap<u32, Watch>,
}

struct Watch {
    who: Waiter,
    fds: Vec<RawFd>,
}

/// Who is told.
pub(super) enum Waiter {
    /// It is resolved with None.
    Future(Py<PyAny>),
    /// It is called without arguments.
    Callback(Py<PyAny>),
}

impl Waiter {
    fn object(&self) -> &Py<PyAny> {
        let (Self::Future(object) | Self::Callback(object)) = self;
        object
    }

    fn clone_ref(&self, py: Python<'_>) -> Self {
        match self {
            Self::Future(future) => Self::Future(future.clone_ref(py)),
            Self::Callback(callback) => Self::Callback(callback.clone_ref(py)),
        }
    }

    fn wake(&self, py: Python<'_>) -> PyResult<()> {
        match self {
            Self::Future(future) => resolve(future.bind(py)),
            Self::Callback(callback) => calling(py, || callback.call0(py)).map(drop),
        }
    }
}

impl Watches {
    /// Tells `who`, once, that one of the descriptors is ready: the number to [`Self::remove`] the watch by.
    ///
    /// # Errors
    /// Those of [`driver::Engine::watch`]; then nothing is watched.
    pub(super) fn add(
        &self,
        py: Python<'_>,
        engine: &driver::Engine,
        who: Waiter,
        readable: &[RawFd],
        writable: &[RawFd],
    ) -> io::Result<u32> {
        let mut table = locked(py, &self.0);
        let number = table.last.wrapping_add(1);
        table.last = number;
        let mut watch = Watch {
            who,
            fds: Vec::with_capacity(readable.len() + writable.len()),
        };
        let reads = readable.iter().map(|fd| (*fd, Interest::Readable));
        let writes = writable.iter().map(|fd| (*fd, Interest::Writable));
        for (fd, interest) in reads.chain(writes) {
            if let Err(error) = fds::with(fd, |fd| engine.watch(fd, interest, number)) {
                drop(table);
                watch.end(engine);
                return Err(error);
            }
            watch.fds.push(fd);
        }
        table.waiting.insert(number, watch);
        Ok(number)
    }

    /// Watches no longer; the descriptors are still open.
    pub(super) fn remove(&self, py: Python<'_>, engine: &driver::Engine, number: u32) {
        let mut table = locked(py, &self.0);
        let watch = table.waiting.remove(&number);
        drop(table);
        if let Some(watch) = watch {
            watch.end(engine);
        }
    }

    /// A descriptor of the watch `number` is ready.
    pub(super) fn resolve(&self, py: Python<'_>, number: u32) -> PyResult<()> {
        let table = locked(py, &self.0);
        let who = table
            .waiting
            .get(&number)
            .map(|watch| watch.who.clone_ref(py));
        drop(table);
        who.map_or(Ok(()), |who| who.wake(py))
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Ok(table) = self.0.try_lock() {
            for watch in table.waiting.values() {
                visit.call(watch.who.object())?;
            }
        }
        Ok(())
    }

    pub(super) fn clear(&self) {
        // A lock that is taken here was taken by a thread that did not come along into this child.
        let old = self
            .0
            .try_lock()
            .ok()
            .map(|mut table| std::mem::take(&mut table.waiting));
        drop(old);
    }
}

impl Watch {
    fn end(&self, engine: &driver::Engine) {
        for fd in &self.fds {
            let out = fds::with(*fd, |fd| {
                engine.unwatch(fd);
                Ok(())
            });
            debug_assert!(out.is_ok(), "a watched descriptor is not negative");
        }
    }
}
