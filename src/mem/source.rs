//! Bytes to be copied from: a slice, or memory that other threads of this process may write meanwhile.

use std::collections::TryReserveError;
use std::marker::PhantomData;

use super::copy::copy;

/// Bytes that stay readable for `'a`. Unlike a slice it does not promise that they stay the same.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    start: *const u8,
    len: usize,
    lives: PhantomData<&'a [u8]>,
}

// SAFETY: it only reads, by `copy`, which is defined whatever other threads do to the bytes.
unsafe impl Send for Source<'_> {}
// SAFETY: as above; several threads may read the same bytes.
unsafe impl Sync for Source<'_> {}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self {
            start: bytes.as_ptr(),
            len: bytes.len(),
            lives: PhantomData,
        }
    }
}

impl<'a> Source<'a> {
    /// `len` bytes from `start` on.
    ///
    /// # Safety
    /// They stay mapped and readable for `'a`. Others may write them meanwhile. They are copied into no region of which they are
    /// a part.
    pub unsafe fn from_raw(start: *const u8, len: usize) -> Self {
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

    /// Appends the bytes to `buffer`.
    ///
    /// # Errors
    /// There is no memory for them; nothing was appended.
    pub fn append_to(self, buffer: &mut Vec<u8>) -> Result<(), TryReserveError> {
        buffer.try_reserve(self.len)?;
        let end = buffer.len();
        // SAFETY: `try_reserve` made room for `len` bytes behind `end`; the vector's memory is private and cannot overlap; the
        // source is readable by the type's promise.
        unsafe { copy(buffer.as_mut_ptr().wrapping_add(end), self.start, self.len) };
        // SAFETY: the capacity is there and all bytes up to the new length are initialised now.
        unsafe { buffer.set_len(end + self.len) };
        Ok(())
    }

    #[inline]
    pub(super) fn start(&self) -> *const u8 {
        self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_appended_in_order() {
        let (head, tail) = Source::from(&b"hello world"[..]).split_at(5);
        let mut buffer = b">".to_vec();
        tail.append_to(&mut buffer).expect("memory");
        head.append_to(&mut buffer).expect("memory");
        assert_eq!(buffer, b"> worldhello");
        assert_eq!((head.len(), tail.is_empty()), (5, false));
    }

    #[test]
    #[should_panic(expected = "split at 3 of 2")]
    fn a_split_behind_the_end_panics() {
        let _ = Source::from(&b"ab"[..]).split_at(3);
    }
}
