//! Bytes across the border: Python's buffers as sources and targets of copies. An unsafe part of this layer.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use pyo3::exceptions::{PyBufferError, PyMemoryError, PyOverflowError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3::{PyTypeInfo, ffi};

use crate::mem::{Source, Target};

/// A number of bytes; what is too large for a machine word is all that there is.
pub(super) struct Count(pub(super) usize);

impl<'py> FromPyObject<'_, 'py> for Count {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.extract::<usize>() {
            Ok(count) => Ok(Self(count)),
            Err(error)
                if error.is_instance_of::<PyOverflowError>(object.py()) && object.gt(0)? =>
            {
                Ok(Self(usize::MAX))
            }
            Err(error) => Err(error),
        }
    }
}

/// An exported buffer of a Python object; the object cannot move or resize its bytes while this lives.
struct Export(Box<ffi::Py_buffer>);

impl Export {
    fn new(object: &Bound<'_, PyAny>, flags: i32) -> PyResult<Self> {
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::uninit());
        // SAFETY: attached to the interpreter; `object` is alive; `view` has room for a Py_buffer, which the call fills in
        // when it returns 0.
        let result = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) };
        if result != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: the call succeeded and has filled in the view.
        Ok(Self(unsafe { view.assume_init() }))
    }

    fn len(&self) -> usize {
        self.0.len as usize
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        Python::attach(|_| {
            // SAFETY: attached; the view was filled in by PyObject_GetBuffer and is released once.
            unsafe { ffi::PyBuffer_Release(&mut *self.0) }
        });
    }
}

/// Calls `f` with the bytes of any object that exports a C-contiguous buffer, whatever its item type.
///
/// # Errors
/// TypeError for an object without a buffer, BufferError for one that is not contiguous; those of `f`.
#[inline]
pub(super) fn with_bytes<R>(
    object: &Bound<'_, PyAny>,
    f: impl FnOnce(Source<'_>) -> PyResult<R>,
) -> PyResult<R> {
    if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        return f(Source::from(bytes.as_bytes()));
    }
    let export = Export::new(object, ffi::PyBUF_SIMPLE)?;
    // SAFETY: the export keeps `len` bytes from `buf` mapped and readable until it is dropped, behind the call of `f`. Other
    // threads may write them (a bytearray, an array): `Source` allows for that. They may be a reservation's, of the ring that
    // they are to be written into: but a reservation that has buffers is open, and then nothing is written, or its end is closed.
    f(unsafe { Source::from_raw(export.0.buf.cast(), export.len()) })
}

/// Calls `f` with the writable bytes of an object that exports a C-contiguous buffer.
///
/// # Errors
/// BufferError for a read-only buffer, TypeError for none; those of `f`.
pub(super) fn with_target<R>(
    object: &Bound<'_, PyAny>,
    f: impl FnOnce(Target<'_>) -> PyResult<R>,
) -> PyResult<R> {
    let export = Export::new(object, ffi::PyBUF_WRITABLE)?;
    if export.0.readonly != 0 {
        return Err(PyBufferError::new_err("a writable buffer is required"));
    }
    // SAFETY: the export keeps `len` bytes from `buf` mapped and writable until it is dropped, behind the call of `f`; what
    // other threads do with a buffer that they share is the owner's account, as `Target` says. The ring that is read exports
    // read-only buffers alone, so the target is no part of it.
    f(unsafe { Target::from_raw(export.0.buf.cast(), export.len()) })
}

/// A bytes object that is being filled from its start: nobody else has seen it yet.
pub(super) struct NewBytes {
    object: Py<PyBytes>,
    start: *mut u8,
    len: usize,
    /// So many bytes are initialised.
    filled: usize,
}

// SAFETY: `start` points into `object`, which may be used from any attached thread; uninitialised bytes are reached by
// `&mut self` only.
unsafe impl Send for NewBytes {}
// SAFETY: `&NewBytes` reads only the first `filled` bytes, which are initialised and never written again.
unsafe impl Sync for NewBytes {}

impl NewBytes {
    /// `len` bytes, none of them initialised.
    ///
    /// # Errors
    /// MemoryError.
    pub(super) fn new(py: Python<'_>, len: usize) -> PyResult<Self> {
        let signed = isize::try_from(len).map_err(|_| PyMemoryError::new_err(()))?;
        // SAFETY: attached; a null pointer asks for an object with uninitialised contents.
        let pointer = unsafe { ffi::PyBytes_FromStringAndSize(std::ptr::null::<c_char>(), signed) };
        // SAFETY: the call returns a new reference, or null with an exception set.
        let object = unsafe { Bound::from_owned_ptr_or_err(py, pointer)? };
        debug_assert!(PyBytes::is_exact_type_of(&object));
        // SAFETY: `object` is a bytes object; the pointer to its contents is valid while it lives.
        let start = unsafe { ffi::PyBytes_AsString(object.as_ptr()) };
        // SAFETY: the call above made a bytes object.
        let object = unsafe { object.cast_into_unchecked::<PyBytes>() };
        Ok(Self {
            object: object.unbind(),
            start: start.cast(),
            len,
            filled: 0,
        })
    }

    /// Bytes that are still to be filled.
    pub(super) fn missing(&self) -> usize {
        self.len - self.filled
    }

    /// Has `fill` initialise the next `n` bytes; an error of it leaves them unfilled.
    ///
    /// # Panics
    /// Fewer are missing.
    #[inline]
    pub(super) fn fill(
        &mut self,
        n: usize,
        fill: impl FnOnce(Target<'_>) -> PyResult<()>,
    ) -> PyResult<()> {
        assert!(n <= self.missing(), "{n} bytes of {}", self.missing());
        // SAFETY: the range lies in the object, and nobody else has seen it, so nothing else uses its contents; it lives
        // as long as `self`, which is borrowed for the call.
        fill(unsafe { Target::from_raw(self.start.wrapping_add(self.filled), n) })?;
        self.filled += n;
        Ok(())
    }

    /// The finished object.
    ///
    /// # Panics
    /// Not all bytes were filled.
    pub(super) fn finish(self) -> Py<PyBytes> {
        assert_eq!(self.missing(), 0, "bytes that were not filled");
        self.object
    }

    /// A copy of what was filled so far.
    pub(super) fn head<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        // SAFETY: the first `filled` bytes are initialised, lie in the object that `self` keeps, and are not written again.
        PyBytes::new(py, unsafe {
            std::slice::from_raw_parts(self.start, self.filled)
        })
    }
}
