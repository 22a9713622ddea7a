//! Bytes in their place for Python: the buffers that an object exports, and whether it may export more. An unsafe part of
//! this layer.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::mem::Lent;

const CLOSED: usize = 1 << (usize::BITS - 1);

/// Counts the buffers (memoryview, numpy array) through which an object's bytes are reached. One word and no lock: a buffer is
/// given back in whatever thread drops it last, and in a forked child too.
#[derive(Debug, Default)]
pub(super) struct Exports(AtomicUsize);

impl Exports {
    /// One more. False: closed.
    pub(super) fn add(&self) -> bool {
        let more = |state: usize| (state & CLOSED == 0).then_some(state + 1);
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .is_ok()
    }

    /// One less.
    pub(super) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire) & !CLOSED
    }

    /// Whether there will be no more.
    pub(super) fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) & CLOSED != 0
    }

    /// From here on there are none. False: there are some, and nothing has changed.
    pub(super) fn close(&self) -> bool {
        self.0
            .compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
            || self.is_closed()
    }
}

/// Fills in `view` with the bytes of `lent`, which `owner` keeps, and counts it in `exports`.
///
/// # Errors
/// BufferError: the owner is closed, or `flags` ask for writing and `readonly` forbids it.
///
/// # Safety
/// `view` has room for a Py_buffer, as Python's protocol promises. `lent` lives as long as `owner`, which calls
/// [`Exports::remove`] when the buffer is given back.
pub(super) unsafe fn export(
    owner: &Bound<'_, PyAny>,
    lent: &Lent,
    exports: &Exports,
    readonly: bool,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    // SAFETY: by contract `view` can be written; the protocol wants null there if this fails.
    unsafe { (*view).obj = null_mut() };
    if !exports.add() {
        return Err(PyBufferError::new_err(
            "it is closed: its bytes are not to be had any more",
        ));
    }
    let (start, len) = (lent.start().cast(), lent.len() as isize);
    // SAFETY: attached to the interpreter. `start` is mapped for `len` bytes, readable and writable, while `owner` lives, to
    // which the call takes a reference that the buffer keeps.
    let result =
        unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), start, len, readonly.into(), flags) };
    if result != 0 {
        exports.remove();
        return Err(PyErr::fetch(owner.py()));
    }
    Ok(())
}

/// The BufferError of one that cannot be closed.
#[cold]
pub(super) fn still_exported(exports: &Exports) -> PyErr {
    let count = exports.count();
    PyBufferError::new_err(format!(
        "{count} buffers of it (memoryview, array) are still in use: release or delete them first"
    ))
}
