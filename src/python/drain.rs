//! The awaitables of back-pressure: until little enough waits, or until there is room in place.

use std::time::Instant;

use pyo3::exceptions::{PyConnectionResetError, PyStopIteration, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::awaitable::{self, Step};
use super::endpoint::Endpoint;
use super::errors::from_fault;

/// An awaitable that is done once the backlog is small enough, or once there is room; made by `Endpoint.drain` and
/// `Endpoint.room`. A coroutine in all but its type.
#[pyclass(module = "smcfast._core")]
pub(super) struct Drain {
    endpoint: Py<Endpoint>,
    stage: Stage,
    future: Option<Py<PyAny>>,
    room: Option<Room>,
    /// It has the place of the one that waits for room.
    rooming: bool,
}

/// Room that is waited for, in bytes.
#[derive(Clone, Copy)]
struct Room {
    n: u32,
    least: u32,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Start,
    Yielded,
    Polling(Instant),
    Asleep,
    Done,
}

impl Drain {
    pub(super) fn new(endpoint: Py<Endpoint>) -> Self {
        Self {
            endpoint,
            stage: Stage::Start,
            future: None,
            room: None,
            rooming: false,
        }
    }

    /// Until there is room for `n` bytes, or at least for `least`, or for half of the ring.
    ///
    /// # Errors
    /// ValueError: 0 < least <= n does not hold.
    pub(super) fn of_room(endpoint: Py<Endpoint>, n: usize, least: usize) -> PyResult<Self> {
        if least == 0 || least > n {
            let text = format!("at_least ({least}) must be at least 1 and at most n ({n})");
            return Err(PyValueError::new_err(text));
        }
        let clamp = |bytes| u32::try_from(bytes).unwrap_or(u32::MAX);
        let (n, least) = (clamp(n), clamp(least));
        let mut drain = Self::new(endpoint);
        drain.room = Some(Room { n, least });
        Ok(drain)
    }

    /// Whether the room is there now.
    fn attempt_room(&mut self, py: Python<'_>) -> PyResult<bool> {
        let mut inner = self.endpoint.get().ours(py)?;
        inner.end.flush();
        inner.note_backlog();
        let max = inner.end.room_need_max();
        let fault = inner.end.room_fault();
        let Some(room) = &mut self.room else {
            return Ok(true);
        };
        room.least = room.least.min(max);
        let done = inner.end.free_room(room.n) >= room.least;
        drop(inner);
        match fault {
            Some(fault) => Err(from_fault(py, fault)),
            None => Ok(done),
        }
    }

    /// Whether the drain is done now.
    fn attempt(&mut self, py: Python<'_>) -> PyResult<bool> {
        if self.room.is_some() {
            return self.attempt_room(py);
        }
        let mut inner = self.endpoint.get().ours(py)?;
        if inner.paused {
            inner.end.flush();
            inner.note_backlog();
        }
        let (closed, fault, done) = (
            inner.end.is_closed(),
            inner.end.write_fault(),
            !inner.paused,
        );
        drop(inner);
        match fault {
            // An application that only writes is told as well.
            Some(fault) if fault.blames_peer() => Err(from_fault(py, fault)),
            _ if closed => Err(PyConnectionResetError::new_err("Connection lost")),
            Some(fault) => Err(from_fault(py, fault)),
            None => Ok(done),
        }
    }

    fn step(&mut self, py: Python<'_>) -> PyResult<Step> {
        match self.stage {
            Stage::Done => return Err(awaitable::already_done()),
            // As asyncio's drain: a closed transport gets its turn first, to tell of its loss.
            Stage::Start if self.enter(py)? => {
                self.stage = Stage::Yielded;
                return Ok(Step::Yield);
            }
            _ => {}
        }
        loop {
            if self.attempt(py)? {
                return Ok(Step::Return(py.None()));
            }
            match self.stage {
                Stage::Start | Stage::Yielded => self.begin_wait(py)?,
                Stage::Polling(until) if Instant::now() < until => return Ok(Step::Yield),
                Stage::Polling(_) => {
                    self.stage = Stage::Asleep;
                    Endpoint::end_polling(self.endpoint.bind(py))?;
                }
                Stage::Asleep => {
                    if let Some(future) = self.sleep(py)? {
                        self.future = Some(future.clone().unbind());
                        return Ok(Step::Wait(future.unbind()));
                    }
                }
                Stage::Done => unreachable!("checked before the loop"),
            }
        }
    }

    fn name(&self) -> &'static str {
        if self.room.is_some() {
            "reserve"
        } else {
            "drain"
        }
    }

    fn enter(&self, py: Python<'_>) -> PyResult<bool> {
        match self.room {
            None => self.endpoint.get().enter_drain(py),
            Some(_) => self.endpoint.get().enter_room(py),
        }
    }

    fn sleep<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.room {
            None => Endpoint::sleep_for_room(self.endpoint.bind(py)),
            Some(_) => Endpoint::sleep_for_place(self.endpoint.bind(py)),
        }
    }

    fn begin_wait(&mut self, py: Python<'_>) -> PyResult<()> {
        let endpoint = self.endpoint.get();
        if let Some(Room { n, least }) = self.room {
            endpoint.begin_room(py, n, least)?;
            self.rooming = true;
        }
        self.stage = if endpoint.polls(py)? {
            endpoint.begin_polling(py)?;
            Stage::Polling(Instant::now() + endpoint.spin_times().poll)
        } else {
            Stage::Asleep
        };
        Ok(())
    }

    /// The wait has ended, by a result, an error, or from outside.
    fn end(&mut self, py: Python<'_>) -> PyResult<()> {
        let endpoint = self.endpoint.bind(py);
        if let Some(future) = self.future.take() {
            endpoint.get().forget_drain(py, future.bind(py));
        }
        if std::mem::take(&mut self.rooming) {
            Endpoint::end_room(endpoint)?;
        }
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Polling(_) => Endpoint::end_polling(endpoint),
            // It may have moved the backlog on.
            _ => Endpoint::settle(endpoint),
        }
    }
}

#[pymethods]
impl Drain {
    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.endpoint)?;
        visit.call(&self.future)
    }

    /// For the names of tasks.
    #[getter]
    fn __name__(&self) -> &'static str {
        self.name()
    }

    /// For the names of tasks.
    #[getter]
    fn __qualname__(&self) -> &'static str {
        self.name()
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match self.step(py) {
            Ok(Step::Yield) => Ok(Some(py.None())),
            Ok(Step::Wait(future)) => awaitable::wait_for(py, future).map(Some),
            Ok(Step::Return(_)) => self.end(py).map(|()| None),
            Err(error) => {
                self.end(py)?;
                Err(error)
            }
        }
    }

    fn send(&mut self, py: Python<'_>, _value: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.__next__(py)?
            .ok_or_else(|| PyStopIteration::new_err(()))
    }

    #[pyo3(signature = (*args))]
    fn throw(&mut self, py: Python<'_>, args: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
        self.close(py)?;
        Err(awaitable::thrown(args)?)
    }

    fn close(&mut self, py: Python<'_>) -> PyResult<()> {
        self.end(py)
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        if self.stage != Stage::Done && self.stage != Stage::Start {
            Python::attach(|py| {
                if let Err(error) = self.close(py) {
                    error.write_unraisable(py, None);
                }
            });
        }
    }
}
