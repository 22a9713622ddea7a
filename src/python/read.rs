//! Awaitables of reads. Bytes leave the ring only in the step that returns them, so that a cancelled read loses nothing.

use std::time::Instant;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use super::awaitable::{self, Step};
use super::buffer::NewBytes;
use super::endpoint::Endpoint;
use super::errors::{from_fault, incomplete_read};
use crate::driver::endpoint::Incoming;

/// An awaitable of bytes, or of their number; made by `Endpoint.read`, `read_exactly` and `ready`. A coroutine in all but its
/// type.
#[pyclass(module = "smcfast._core")]
pub(super) struct Read {
    endpoint: Py<Endpoint>,
    n: usize,
    kind: Kind,
    stage: Stage,
    /// What a read_exactly has collected that cannot wait until all of it is in the ring.
    collected: Option<NewBytes>,
}

/// What is awaited.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// 1 to n bytes.
    Some,
    /// n bytes.
    Exact,
    /// That n bytes are there; none are taken.
    Ready,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Start,
    /// The loop had its turn; now really.
    Yielded,
    /// Looks again and again with the loop going on, until then.
    Polling(Instant),
    Asleep,
    Done,
}

impl Read {
    pub(super) fn some(endpoint: Py<Endpoint>, n: usize) -> Self {
        Self::new(endpoint, n, Kind::Some)
    }

    pub(super) fn exactly(endpoint: Py<Endpoint>, n: usize) -> Self {
        Self::new(endpoint, n, Kind::Exact)
    }

    pub(super) fn ready(endpoint: Py<Endpoint>, n: usize) -> Self {
        Self::new(endpoint, n.max(1), Kind::Ready)
    }

    fn new(endpoint: Py<Endpoint>, n: usize, kind: Kind) -> Self {
        Self {
            endpoint,
            n,
            kind,
            stage: Stage::Start,
            collected: None,
        }
    }

    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Some => "read",
            Kind::Exact => "readexactly",
            Kind::Ready => "view",
        }
    }

    /// The bytes that the read returns, if it can return now.
    #[inline]
    fn attempt(&mut self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let endpoint = self.endpoint.get();
        if self.kind == Kind::Ready {
            return self.attempt_ready(py);
        }
        let exact = self.kind == Kind::Exact;
        if self.n == 0 {
            drop(endpoint.ours(py)?);
            return Ok(Some(PyBytes::new(py, b"").unbind().into_any()));
        }
        match endpoint.incoming(py, if exact { self.missing() } else { 1 })? {
            Incoming::Bytes(there) if !exact => Ok(Some(
                endpoint
                    .take_bytes(py, (there as usize).min(self.n))?
                    .into_any(),
            )),
            Incoming::Bytes(there) => self.attempt_exact(py, there as usize),
            Incoming::Empty => Ok(None),
            Incoming::End if exact => Err(self.incomplete(py)),
            Incoming::End => Ok(Some(PyBytes::new(py, b"").unbind().into_any())),
            Incoming::Fault(fault) => Err(from_fault(py, fault)),
        }
    }

    /// How many bytes are there, if they are enough or no more will come.
    fn attempt_ready(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let endpoint = self.endpoint.get();
        let there = match endpoint.incoming(py, self.n)? {
            Incoming::Bytes(there) => there,
            Incoming::Empty => return Ok(None),
            Incoming::End => 0,
            Incoming::Fault(fault) => return Err(from_fault(py, fault)),
        };
        let end = &endpoint.ours(py)?.end;
        let enough = there == 0
            || there as usize >= self.n
            || end.must_read_on(self.need())
            || end.stream_end().is_some();
        let there = enough.then(|| there.into_pyobject(py));
        Ok(there.transpose()?.map(|there| there.unbind().into_any()))
    }

    /// Bytes that are still to come out of the ring.
    fn missing(&self) -> usize {
        self.collected.as_ref().map_or(self.n, NewBytes::missing)
    }

    fn attempt_exact(&mut self, py: Python<'_>, there: usize) -> PyResult<Option<Py<PyAny>>> {
        let endpoint = self.endpoint.get();
        if self.collected.is_none() && there >= self.n {
            return Ok(Some(endpoint.take_bytes(py, self.n)?.into_any()));
        }
        if !self.must_collect(py)? {
            let end = endpoint.ours(py)?.end.stream_end();
            return match end {
                None => Ok(None),
                Some(Ok(())) => Err(self.short(py, there)),
                Some(Err(fault)) => Err(from_fault(py, fault)),
            };
        }
        let mut collected = match self.collected.take() {
            Some(collected) => collected,
            None => NewBytes::new(py, self.n)?,
        };
        let part = there.min(collected.missing());
        let filled = collected.fill(part, |target| endpoint.read_into(py, target));
        let done = collected.missing() == 0;
        if !done || filled.is_err() {
            self.collected = Some(collected);
            return filled.map(|()| None);
        }
        Ok(Some(collected.finish().into_any()))
    }

    /// Whether the ring alone cannot be trusted to hold all bytes at once, or does not any more.
    fn must_collect(&self, py: Python<'_>) -> PyResult<bool> {
        if self.collected.is_some() {
            return Ok(true);
        }
        let n = u32::try_from(self.n).unwrap_or(u32::MAX);
        Ok(self.endpoint.get().ours(py)?.end.must_read_on(n))
    }

    /// The peer's stream ends before all bytes, with `there` of them in the ring.
    #[cold]
    fn short(&mut self, py: Python<'_>, there: usize) -> PyErr {
        match self.endpoint.get().take_bytes(py, there) {
            Ok(partial) => incomplete_read(py, partial.into_any(), self.n),
            Err(error) => error,
        }
    }

    /// The stream has ended before all bytes. If this end was closed, those that were in the ring lie in front of it now.
    #[cold]
    fn incomplete(&mut self, py: Python<'_>) -> PyErr {
        let collected = self.collected.take();
        let collected = collected.map_or_else(|| PyBytes::new(py, b""), |bytes| bytes.head(py));
        let partial = self
            .endpoint
            .get()
            .take_side(py)
            .and_then(|side| collected.add(side));
        match partial {
            Ok(partial) => incomplete_read(py, partial.unbind(), self.n),
            Err(error) => error,
        }
    }

    fn need(&self) -> u32 {
        match self.kind {
            Kind::Some => 1,
            Kind::Exact | Kind::Ready => u32::try_from(self.missing()).unwrap_or(u32::MAX),
        }
    }

    fn step(&mut self, py: Python<'_>) -> PyResult<Step> {
        if self.stage == Stage::Done {
            return Err(awaitable::already_done());
        }
        if matches!(self.stage, Stage::Start | Stage::Yielded) {
            let yields = self.endpoint.get().enter_read(py, self.name())?;
            if yields && self.stage == Stage::Start {
                self.stage = Stage::Yielded;
                return Ok(Step::Yield);
            }
        }
        loop {
            if let Some(bytes) = self.attempt(py)? {
                return Ok(Step::Return(bytes));
            }
            match self.stage {
                Stage::Start | Stage::Yielded => {
                    self.endpoint.get().begin_read(py)?;
                    self.begin_wait(py)?;
                }
                Stage::Polling(until) if Instant::now() < until => return Ok(Step::Yield),
                Stage::Polling(_) => {
                    self.endpoint.get().ours(py)?.end.spun(false);
                    self.stage = Stage::Asleep;
                }
                Stage::Asleep => {
                    if let Some(future) =
                        Endpoint::sleep_for_bytes(self.endpoint.bind(py), self.need())?
                    {
                        return Ok(Step::Wait(future.unbind()));
                    }
                }
                Stage::Done => unreachable!("checked before the loop"),
            }
        }
    }

    /// Polls for a while with the loop going on, or sleeps at once.
    fn begin_wait(&mut self, py: Python<'_>) -> PyResult<()> {
        let endpoint = self.endpoint.get();
        self.stage = if endpoint.polls(py)? {
            Stage::Polling(Instant::now() + endpoint.spin_times().poll)
        } else {
            Stage::Asleep
        };
        Ok(())
    }

    /// The wait has ended, by a result, an error, or from outside.
    fn end(&mut self, py: Python<'_>) -> PyResult<()> {
        let waited = matches!(self.stage, Stage::Polling(_) | Stage::Asleep);
        self.stage = Stage::Done;
        if waited {
            Endpoint::end_read(self.endpoint.bind(py))
        } else {
            Ok(())
        }
    }

    /// Ended without a result: what was collected goes back in front of the stream.
    fn cancel(&mut self, py: Python<'_>) -> PyResult<()> {
        let ended = self.end(py);
        let put_back = match self.collected.take() {
            Some(bytes) => self.endpoint.get().put_back(py, bytes.head(py)),
            None => Ok(()),
        };
        ended.and(put_back)
    }
}

#[pymethods]
impl Read {
    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.endpoint)
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

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let polled = matches!(self.stage, Stage::Polling(_));
        match self.step(py) {
            Ok(Step::Yield) => Ok(py.None()),
            Ok(Step::Wait(future)) => awaitable::wait_for(py, future),
            Ok(Step::Return(bytes)) => {
                if polled && let Ok(mut inner) = self.endpoint.get().ours(py) {
                    inner.end.spun(true);
                }
                self.end(py)?;
                Err(awaitable::returns(py, bytes))
            }
            Err(error) => {
                self.cancel(py)?;
                Err(error)
            }
        }
    }

    fn send(&mut self, py: Python<'_>, _value: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.__next__(py)
    }

    #[pyo3(signature = (*args))]
    fn throw(&mut self, py: Python<'_>, args: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
        self.cancel(py)?;
        Err(awaitable::thrown(args)?)
    }

    fn close(&mut self, py: Python<'_>) -> PyResult<()> {
        self.cancel(py)
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        if self.stage != Stage::Done && self.stage != Stage::Start {
            Python::attach(|py| {
                if let Err(error) = self.cancel(py) {
                    error.write_unraisable(py, None);
                }
            });
        }
    }
}
