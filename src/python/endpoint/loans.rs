//! What an endpoint has lent out: at most one view of received bytes, and one reservation of room.
//!
//! While a view is open nothing is read past it, and while a reservation is open nothing is written into it. An end of the
//! connection that this end declares ends both: the memory stays, but counts no more.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use super::super::errors::{from_fault, from_system};
use super::super::reservation::Reservation;
use super::super::view::View;
use super::{Endpoint, Inner};
use crate::driver::endpoint::{Fault, Incoming};

/// The numbers of what is lent.
#[derive(Default)]
pub(super) struct Loans {
    last: u64,
    pub(super) view: Option<u64>,
    pub(super) reservation: Option<u64>,
}

impl Loans {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// This end is closed.
    pub(super) fn end(&mut self) {
        (self.view, self.reservation) = (None, None);
    }
}

/// RuntimeError for who calls `name` while a view is open.
#[cold]
pub(super) fn viewed(name: &str) -> PyErr {
    let text =
        format!("{name}() called while a view of received bytes is open: consume or close it");
    PyRuntimeError::new_err(text)
}

/// RuntimeError for who calls `name` while a reservation is open.
#[cold]
pub(super) fn reserved(name: &str) -> PyErr {
    let text = format!("{name}() called while a reservation is open: commit or close it");
    PyRuntimeError::new_err(text)
}

impl Inner {
    /// # Errors
    /// RuntimeError: a view is open.
    pub(super) fn check_unviewed(&self, name: &str) -> PyResult<()> {
        match self.loans.view {
            None => Ok(()),
            Some(_) => Err(viewed(name)),
        }
    }
}

impl Endpoint {
    /// # Errors
    /// RuntimeError: not the process, or not the thread, of this end.
    pub(in crate::python) fn check_entry(&self, py: Python<'_>) -> PyResult<()> {
        self.entered(py).map(drop)
    }

    /// A view of up to `n` readable bytes in one piece; None if there are none.
    pub(super) fn lend_view(slf: &Bound<'_, Self>, n: usize) -> PyResult<Option<View>> {
        let mut inner = slf.get().entered(slf.py())?;
        inner.check_unviewed("view")?;
        if inner.is_reading() {
            let text = "view() called while another coroutine is already waiting for incoming data";
            return Err(PyRuntimeError::new_err(text));
        }
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        if n == 0 || !matches!(inner.end.incoming(n), Incoming::Bytes(_)) {
            return Ok(None);
        }
        let lent = inner
            .end
            .lend_readable(n)
            .map_err(|error| from_system(&error))?;
        let number = inner.loans.next();
        inner.loans.view = Some(number);
        Ok(Some(View::new(slf.clone().unbind(), number, lent)))
    }

    /// Takes the first `n` bytes of a view out of the stream.
    pub(in crate::python) fn end_view(
        &self,
        py: Python<'_>,
        number: u64,
        n: usize,
    ) -> PyResult<()> {
        let over = "the connection was closed: what was not read by then is the reader's";
        let mut inner = self.entered(py)?;
        if inner.loans.view != Some(number) {
            return Err(PyValueError::new_err(over));
        }
        inner.loans.view = None;
        let n = n as u32; // of at most a ring
        match inner.end.incoming(n) {
            _ if n == 0 => Ok(()),
            Incoming::Bytes(there) if there >= n => {
                inner.end.consume(n);
                Ok(())
            }
            Incoming::Fault(fault) => {
                drop(inner);
                Err(from_fault(py, fault))
            }
            _ => Err(PyValueError::new_err(over)),
        }
    }

    /// A view has gone, and has left all bytes where they are.
    pub(in crate::python) fn forget_view(&self, py: Python<'_>, number: u64) {
        if let Ok(mut inner) = self.ours(py)
            && inner.loans.view == Some(number)
        {
            inner.loans.view = None;
        }
    }

    /// A reservation of up to `n` bytes in one piece; None if there is no room.
    pub(super) fn lend_room(slf: &Bound<'_, Self>, n: usize) -> PyResult<Option<Reservation>> {
        let py = slf.py();
        let mut inner = slf.get().entered(py)?;
        if inner.loans.reservation.is_some() {
            return Err(reserved("reserve"));
        }
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        if let Some(fault) = inner.end.room_fault() {
            drop(inner);
            return Err(from_fault(py, fault));
        }
        if n == 0 || inner.end.free_room(n) == 0 {
            return Ok(None);
        }
        let lent = inner
            .end
            .lend_room(n)
            .map_err(|error| from_system(&error))?;
        let number = inner.loans.next();
        inner.loans.reservation = Some(number);
        Ok(Some(Reservation::new(slf.clone().unbind(), number, lent)))
    }

    /// Sends the first `n` bytes of a reservation.
    pub(in crate::python) fn commit(slf: &Bound<'_, Self>, number: u64, n: usize) -> PyResult<()> {
        let py = slf.py();
        let mut inner = slf.get().entered(py)?;
        let is_open = inner.loans.reservation == Some(number);
        if is_open {
            inner.loans.reservation = None;
        }
        let result = match inner.end.room_fault() {
            None if is_open => inner.end.commit(n as u32), // of at most a ring
            // A close that ran out of memory behind the end of the loans.
            None => Err(Fault::ClosedHere),
            Some(fault) => Err(fault),
        };
        drop(inner);
        Self::settle(slf)?;
        result.map_err(|fault| from_fault(py, fault))
    }

    /// A reservation has gone, and sends nothing.
    pub(in crate::python) fn forget_reservation(&self, py: Python<'_>, number: u64) {
        if let Ok(mut inner) = self.ours(py)
            && inner.loans.reservation == Some(number)
        {
            inner.loans.reservation = None;
        }
    }
}
