//! The awaitable of back-pressure.

use std::time::Instant;

use pyo3::exceptions::{PyConnectionResetError, PyStopIteration};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::awaitable::{self, Step};
use super::endpoint::Endpoint;
use super::errors::from_fault;

/// An awaitable that is done once the backlog is small enough; made by `Endpoint.drain`. A coroutine in all but its type.
#[pyclass(module = "smcfast._core", freelist = 32)]
pub(super) struct Drain {
    endpoint: Py<Endpoint>,
    stage: Stage,
    future: Option<Py<PyAny>>,
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
        }
    }

    /// Whether the drain is done now.
    fn attempt(&self, py: Python<'_>) -> PyResult<bool> {
        let mut inner = self.endpoint.get().ours(py)?;
        if inner.paused {
            inner.end.flush();
            inner.note_backlog();
        }
        let fault = inner.end.write_fault();
        if inner.end.is_closed() {
            return Err(PyConnectionResetError::new_err("Connection lost"));
        }
        match fault {
            Some(fault) => Err(from_fault(py, fault)),
            None => Ok(!inner.paused),
        }
    }

    fn step(&mut self, py: Python<'_>) -> PyResult<Step> {
        if self.stage == Stage::Done {
            return Err(awaitable::already_done());
        }
        if self.stage == Stage::Start {
            let closing = self.endpoint.get().ours(py)?.end.is_closed();
            // As asyncio's drain: a closed transport gets its turn first, to tell of its loss.
            if closing || self.endpoint.get().must_yield(py) {
                self.stage = Stage::Yielded;
                return Ok(Step::Yield);
            }
        }
        loop {
            if self.attempt(py)? {
                return Ok(Step::Return(py.None()));
            }
            match self.stage {
                Stage::Start | Stage::Yielded => self.begin_wait(py)?,
                Stage::Polling(until) if Instant::now() < until => return Ok(Step::Yield),
                Stage::Polling(_) => {
                    self.endpoint.get().poll_drain(py, false);
                    self.stage = Stage::Asleep;
                }
                Stage::Asleep => {
                    if let Some(future) = Endpoint::sleep_for_room(self.endpoint.bind(py))? {
                        self.future = Some(future.clone().unbind());
                        return Ok(Step::Wait(future.unbind()));
                    }
                }
                Stage::Done => unreachable!("checked before the loop"),
            }
        }
    }

    fn begin_wait(&mut self, py: Python<'_>) -> PyResult<()> {
        let endpoint = self.endpoint.get();
        self.stage = if endpoint.polls(py)? {
            endpoint.poll_drain(py, true);
            Stage::Polling(Instant::now() + endpoint.spin_times().poll)
        } else {
            Stage::Asleep
        };
        Ok(())
    }

    fn end(&mut self, py: Python<'_>) {
        let endpoint = self.endpoint.get();
        if matches!(self.stage, Stage::Polling(_)) {
            endpoint.poll_drain(py, false);
        }
        if let Some(future) = self.future.take() {
            endpoint.forget_drain(py, future.bind(py));
        }
        self.stage = Stage::Done;
    }
}

#[pymethods]
impl Drain {
    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// For the names of tasks.
    #[getter]
    fn __name__(&self) -> &'static str {
        "drain"
    }

    /// For the names of tasks.
    #[getter]
    fn __qualname__(&self) -> &'static str {
        "drain"
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match self.step(py) {
            Ok(Step::Yield) => Ok(Some(py.None())),
            Ok(Step::Wait(future)) => awaitable::wait_for(py, future).map(Some),
            Ok(Step::Return(_)) => {
                let polled = matches!(self.stage, Stage::Polling(_));
                self.end(py);
                if polled {
                    Endpoint::keep_flushing(self.endpoint.bind(py))?;
                }
                Ok(None)
            }
            Err(error) => {
                self.end(py);
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
        self.end(py);
        Endpoint::keep_flushing(self.endpoint.bind(py))
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
