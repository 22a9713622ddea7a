//! Bytes in their place for Python: the buffers that an object exports, and whether it may export more. An unsafe part of
//! this layer.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::mem::Lent;

const CLOSED: usize = 1 << (usize::BITS - 1);

/// What is lent to an object, which exports it, and the number of buffers (memoryview, numpy array) through which it is reached.
///
/// The number is one word and no lock: a buffer is given back in whatever thread drops it last, and in a forked child too. It
/// closes only at 0, and grows no more then; so what is lent stays at least as long as a buffer of it.
pub(super) struct Exports {
    /// With a bit that says that there will be no more.
    count: AtomicUsize,
    start: AtomicPtr<u8>,
    len: usize,
    /// None once it is closed.
    lent: Mutex<Option<Lent>>,
}

impl Exports {
    pub(super) fn new(lent: Lent) -> Self {
        Self {
            count: AtomicUsize::new(0),
            start: AtomicPtr::new(lent.start()),
            len: lent.len(),
            lent: Mutex::new(Some(lent)),
        }
    }

    /// Bytes, also when it is closed.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is exported any more.
    pub(super) fn is_closed(&self) -> bool {
        self.count.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Exports nothing from here on, and gives back what was lent.
    ///
    /// # Errors
    /// BufferError: there are buffers still; nothing has changed.
    pub(super) fn close(&self) -> PyResult<()> {
        match self
            .count
            .compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => {
                let lent = self
                    .lent
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take();
                drop(lent);
                Ok(())
            }
            Err(CLOSED) => Ok(()),
            Err(count) => Err(PyBufferError::new_err(format!(
                "{count} buffers of it (memoryview, array) are still in use: release or delete them first"
            ))),
        }
    }

    /// `n` of its bytes, or all; closes it.
    ///
    /// # Errors
    /// ValueError: it is closed, or has fewer; BufferError as [`Self::close`]. `name` is what it is called.
    pub(super) fn close_with(&self, n: Option<isize>, name: &str) -> PyResult<usize> {
        if self.is_closed() {
            return Err(PyValueError::new_err(format!("the {name} is closed")));
        }
        let len = self.len;
        match n.map_or(Ok(len), usize::try_from) {
            Ok(n) if n <= len => self.close().map(|()| n),
            _ => {
                let text = format!("{} bytes of a {name} of {len}", n.unwrap_or_default());
                Err(PyValueError::new_err(text))
            }
        }
    }

    /// Fills in `view` with the bytes, for `owner`, which this is a part of.
    ///
    /// # Errors
    /// BufferError: it is closed, or `flags` ask for writing and `readonly` forbids it.
    ///
    /// # Safety
    /// `view` has room for a Py_buffer, as Python's protocol promises; `owner` holds this until it is dropped, and calls
    /// [`Self::remove`] when the buffer is given back.
    pub(super) unsafe fn export(
        &self,
        owner: &Bound<'_, PyAny>,
        readonly: bool,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: by contract `view` can be written; the protocol wants null there if this fails.
        unsafe { (*view).obj = null_mut() };
        let more = |count: usize| (count & CLOSED == 0).then_some(count + 1);
        if self
            .count
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .is_err()
        {
            let text = "it is closed: its bytes are not to be had any more";
            return Err(PyBufferError::new_err(text));
        }
        let start = self.start.load(Ordering::Relaxed);
        // SAFETY: attached to the interpreter. `start` is the address of `len` bytes that are lent, mapped, readable and
        // writable, until this is closed, which does not happen before `remove`, or dropped with `owner`, to which the
        // buffer gets a reference here.
        let result = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                owner.as_ptr(),
                start.cast(),
                self.len as isize, // of at most a ring
                readonly.into(),
                flags,
            )
        };
        if result != 0 {
            self.remove();
            return Err(PyErr::fetch(owner.py()));
        }
        Ok(())
    }

    /// A buffer was given back.
    pub(super) fn remove(&self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}
