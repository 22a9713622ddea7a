//! Which of the process's interpreters this is.

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// The types of this module, and all that Rust remembers of Python, exist once in a process. Objects of one interpreter
/// must not come to another one that way.
///
/// # Errors
/// ImportError in a subinterpreter.
pub(super) fn require_main(_py: Python<'_>) -> PyResult<()> {
    // SAFETY: attached to an interpreter, as `_py` shows: the call returns its state, which is never null.
    let state = unsafe { ffi::PyInterpreterState_Get() };
    // SAFETY: the state of an interpreter that lives, since this thread is attached to it.
    let id = unsafe { ffi::PyInterpreterState_GetID(state) };
    if id == 0 {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "the core of smcfast has one state for the whole process and cannot be used in a subinterpreter",
    ))
}
