//! Room for bytes to be sent, in their place, to be committed later.

use std::ffi::c_int;

use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use super::endpoint::Endpoint;
use super::exports::Exports;
use crate::mem::Lent;

/// Room where the next bytes are sent from, writable, by the buffer protocol; made by `Endpoint.reserve`. Nothing else is
/// written until it is closed. What lies in it at first is left over from before.
#[pyclass(frozen, weakref, module = "smcfast._core")]
pub(super) struct Reservation {
    endpoint: Py<Endpoint>,
    /// By which the endpoint knows it.
    number: u64,
    exports: Exports,
}

impl Reservation {
    pub(super) fn new(endpoint: Py<Endpoint>, number: u64, lent: Lent) -> Self {
        Self {
            endpoint,
            number,
            exports: Exports::new(lent),
        }
    }
}

#[pymethods]
impl Reservation {
    fn __len__(&self) -> usize {
        self.exports.len()
    }

    /// As with a memoryview: an item, or a slice of the same length as `value`.
    fn __setitem__(
        slf: &Bound<'_, Self>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        PyMemoryView::from(slf.as_any())?.set_item(key, value)
    }

    /// Whether it was committed or closed.
    #[getter]
    fn closed(&self) -> bool {
        self.exports.is_closed()
    }

    /// Sends the first `n` bytes (all without `n`), and closes the reservation.
    ///
    /// BufferError while a buffer of it is in use; ValueError if it is closed, or shorter; a ConnectionError if the connection
    /// cannot carry them.
    #[pyo3(signature = (n = None))]
    fn commit(&self, py: Python<'_>, n: Option<isize>) -> PyResult<()> {
        let endpoint = self.endpoint.bind(py);
        endpoint.get().check_entry(py)?;
        let n = self.exports.close_with(n, "reservation")?;
        Endpoint::commit(endpoint, self.number, n)
    }

    /// Sends nothing. BufferError while a buffer of it is in use.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.endpoint.get().check_entry(py)?;
        self.exports.close()?;
        self.endpoint.get().forget_reservation(py, self.number);
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Closes it. If an exception comes along while a buffer of it is in use, it closes when that is gone.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let result = self.close(py);
        if kind.is_none() { result } else { Ok(()) }
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let owner = slf.as_any();
        // SAFETY: `view` comes from Python; `exports` is a part of this object, and `__releasebuffer__` counts down.
        unsafe { slf.get().exports.export(owner, false, view, flags) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.exports.remove();
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.endpoint)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.exports.is_closed() {
            Python::attach(|py| self.endpoint.get().forget_reservation(py, self.number));
        }
    }
}
