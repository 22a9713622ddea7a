//! Faults as Python exceptions.

use std::io;

use pyo3::exceptions::{
    PyBrokenPipeError, PyConnectionResetError, PyMemoryError, PyOSError, PyRuntimeError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use super::gate::calling;
use crate::driver::endpoint::Fault;

const EPIPE: i32 = 32;
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
        Fault::Link(_) => match link_type(py) {
            Ok(class) => PyErr::from_type(class.clone(), (ECONNRESET, text)),
            Err(error) => error,
        },
        Fault::NoMemory => PyMemoryError::new_err(text),
        // As asyncio: whatever ended the connection, writers hear of it as a reset.
        Fault::Lost | Fault::Reset | Fault::Closed | Fault::ClosedHere => {
            PyConnectionResetError::new_err((ECONNRESET, text))
        }
    }
}

/// OSError with the number of the system's error. The conversion of the library would make a MemoryError of ENOMEM, which
/// nobody who is ready for a lack of descriptors expects.
#[cold]
pub(super) fn from_system(error: &io::Error) -> PyErr {
    let text = error.to_string();
    // The number has a place of its own.
    let text = text.split(" (os error").next().unwrap_or_default();
    PyOSError::new_err((error.raw_os_error(), text.to_owned()))
}

/// What a forked child gets that touches something of its parent.
#[cold]
pub(super) fn inherited() -> PyErr {
    PyRuntimeError::new_err(
        "this connection belongs to the process that forked; a child must open its own",
    )
}

/// What a [`Fault`] is to one who waits in a blocking call: who writes to a peer that has closed in good order has a broken pipe.
#[cold]
pub(super) fn from_fault_of_socket(py: Python<'_>, fault: Fault) -> PyErr {
    match fault {
        Fault::Closed | Fault::ClosedHere => PyBrokenPipeError::new_err((EPIPE, "Broken pipe")),
        _ => from_fault(py, fault),
    }
}

fn misbehaved_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    calling(py, || CLASS.import(py, "smcfast.errors", "PeerMisbehaved"))
}

fn link_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    calling(py, || CLASS.import(py, "smcfast.errors", "SmcLinkError"))
}

/// asyncio.IncompleteReadError(partial, expected).
#[cold]
pub(super) fn incomplete_read(py: Python<'_>, partial: Py<PyAny>, expected: usize) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    match calling(py, || CLASS.import(py, "asyncio", "IncompleteReadError")) {
        Ok(class) => PyErr::from_type(class.clone(), (partial, expected)),
        Err(error) => error,
    }
}
