//! Bytes to be copied to: a slice, or memory of an object that is just being made.

use std::marker::PhantomData;

/// Bytes that stay writable for `'a`, and that nothing else uses meanwhile. They need not be initialised.
#[derive(Debug)]
pub struct Target<'a> {
    start: *mut u8,
    len: usize,
    lives: PhantomData<&'a mut [u8]>,
}

// SAFETY: it stands for an exclusive borrow of bytes, which may move to another thread.
unsafe impl Send for Target<'_> {}

impl<'a> From<&'a mut [u8]> for Target<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self {
            start: bytes.as_mut_ptr(),
            len: bytes.len(),
            lives: PhantomData,
        }
    }
}

impl Target<'_> {
    /// `len` bytes from `start` on.
    ///
    /// # Safety
    /// They stay mapped and writable for the lifetime, and nothing else reads or writes them meanwhile, except in a
    /// buffer that its owner shares between threads on his own account. They are filled from no region of which they are a part.
    pub unsafe fn from_raw(start: *mut u8, len: usize) -> Self {
        Self {
            start,
            len,
            lives: PhantomData,
        }
    }

    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `at` bytes and the rest.
    ///
    /// # Panics
    /// There are fewer than `at`.
    #[inline]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len, "split at {at} of {}", self.len);
        let rest = Self {
            start: self.start.wrapping_add(at),
            len: self.len - at,
            lives: PhantomData,
        };
        (Self { len: at, ..self }, rest)
    }

    #[inline]
    pub(super) fn start(&mut self) -> *mut u8 {
        self.start
    }
}
