//! Faults as Python exceptions.

use pyo3::exceptions::{PyConnectionResetError, PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::driver::endpoint::Fault;

const ECONNRESET: i32 = 104;

/// The exception that tells of `fault`.
#[cold]
pub(super) fn from_fault(py: Python<'_>, fault: Fault) -> PyErr {
    let text = fault.to_string();
    match fault {
        Fault::Misbehaved(_) | Fault::Bypassed => match misbehaved_type(py) {
            Ok(class) => PyErr::from_type(class.clone(), text),
            Err(error) => error,
        },
        Fault::NoMemory => PyMemoryError::new_err(text),
        // As asyncio: whatever ended the connection, writers hear of it as a reset.
        Fault::Lost | Fault::Reset | Fault::Closed | Fault::ClosedHere => {
            PyConnectionResetError::new_err((ECONNRESET, text))
        }
    }
}

/// What a forked child gets that touches something of its parent.
#[cold]
pub(super) fn inherited() -> PyErr {
    PyRuntimeError::new_err(
        "this connection belongs to the process that forked; a child must open its own",
    )
}

fn misbehaved_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    CLASS.import(py, "smcfast.errors", "PeerMisbehaved")
}

/// asyncio.IncompleteReadError(partial, expected).
#[cold]
pub(super) fn incomplete_read(py: Python<'_>, partial: Py<PyAny>, expected: usize) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    match CLASS.import(py, "asyncio", "IncompleteReadError") {
        Ok(class) => PyErr::from_type(class.clone(), (partial, expected)),
        Err(error) => error,
    }
}
