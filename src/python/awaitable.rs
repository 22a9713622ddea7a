//! What the awaitables have in common: they are coroutines for asyncio (`send`, `throw`, `close`), and wait for futures.

use std::time::Instant;

use pyo3::exceptions::{PyRuntimeError, PyStopIteration, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use super::gate::calling;
use super::names;

/// What one step of an awaitable came to.
pub(super) enum Step {
    /// Let the loop have its turn.
    Yield,
    /// Sleep until the future is resolved.
    Wait(Py<PyAny>),
    /// Done.
    Return(Py<PyAny>),
}

/// The StopIteration that ends an awaitable with `value`. Made at once: what pyo3 makes later, when it is raised, takes
/// more than twice as long, and a busy stream raises one for each read.
#[inline]
pub(super) fn returns(py: Python<'_>, value: Py<PyAny>) -> PyErr {
    match py.get_type::<PyStopIteration>().call1((value,)) {
        Ok(stop) => PyErr::from_value(stop),
        Err(error) => error,
    }
}

/// Yields a future the way that `await future` does: the task that drives us sees it marked and waits for it.
pub(super) fn wait_for(py: Python<'_>, future: Py<PyAny>) -> PyResult<Py<PyAny>> {
    future.setattr(py, names::future_blocking(py), true)?;
    Ok(future)
}

/// Wakes who waits for `future`. A wake-up resolves with nothing: whoever waits looks by itself, and takes bytes only in
/// the step that returns them.
pub(super) fn resolve(future: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = future.py();
    calling(py, || {
        if !future.call_method0(names::done(py))?.is_truthy()? {
            future.call_method1(names::set_result(py), (py.None(),))?;
        }
        Ok(())
    })
}

/// The exception that `throw(value)` or the older `throw(type[, value[, traceback]])` stands for.
pub(super) fn thrown(args: &Bound<'_, PyTuple>) -> PyResult<PyErr> {
    let first = args.get_item(0)?;
    let Ok(class) = first.cast::<PyType>() else {
        return Ok(PyErr::from_value(first));
    };
    match args.get_item(1) {
        Ok(value) if value.is_instance(class)? => Ok(PyErr::from_value(value)),
        Ok(value) if !value.is_none() => Ok(PyErr::from_value(class.call1((value,))?)),
        _ if class.is_subclass_of::<pyo3::exceptions::PyBaseException>()? => {
            Ok(PyErr::from_value(class.call0()?))
        }
        _ => Err(PyTypeError::new_err(
            "exceptions must derive from BaseException",
        )),
    }
}

#[cold]
pub(super) fn already_done() -> PyErr {
    PyRuntimeError::new_err("cannot reuse already awaited coroutine")
}

/// Spins until `done` or `until`; whether it was `done`.
pub(super) fn spin(until: Instant, mut done: impl FnMut() -> bool) -> bool {
    loop {
        for _ in 0..32 {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if Instant::now() >= until {
            return false;
        }
    }
}
