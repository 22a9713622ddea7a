//! Received bytes in their place, to be consumed later.

use std::ffi::c_int;

use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use super::endpoint::Endpoint;
use super::exports::Exports;
use crate::mem::Lent;

/// Received bytes where they lie, read-only, by the buffer protocol; made by `Endpoint.view`. Nothing else is read until it
/// is closed. The peer can still write there, if it breaks the rules: who must not see a byte change copies first.
#[pyclass(frozen, weakref, module = "smcfast._core")]
pub(super) struct View {
    endpoint: Py<Endpoint>,
    /// By which the endpoint knows it.
    number: u64,
    exports: Exports,
}

impl View {
    pub(super) fn new(endpoint: Py<Endpoint>, number: u64, lent: Lent) -> Self {
        Self {
            endpoint,
            number,
            exports: Exports::new(lent),
        }
    }
}

#[pymethods]
impl View {
    fn __len__(&self) -> usize {
        self.exports.len()
    }

    /// Whether it was consumed or closed.
    #[getter]
    fn closed(&self) -> bool {
        self.exports.is_closed()
    }

    /// Takes the first `n` bytes (all without `n`) out of the stream, whose space the peer gets back, and closes the view.
    ///
    /// BufferError while a buffer of it is in use; ValueError if it is closed, the connection was, or it is shorter.
    #[pyo3(signature = (n = None))]
    fn consume(&self, py: Python<'_>, n: Option<isize>) -> PyResult<()> {
        let endpoint = self.endpoint.get();
        endpoint.check_entry(py)?;
        let n = self.exports.close_with(n, "view")?;
        endpoint.end_view(py, self.number, n)
    }

    /// Leaves all bytes in the stream. BufferError while a buffer of it is in use.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.endpoint.get().check_entry(py)?;
        self.exports.close()?;
        self.endpoint.get().forget_view(py, self.number);
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
        unsafe { slf.get().exports.export(owner, true, view, flags) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.exports.remove();
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.endpoint)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if !self.exports.is_closed() {
            Python::attach(|py| self.endpoint.get().forget_view(py, self.number));
        }
    }
}
