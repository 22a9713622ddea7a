//! A range of shared bytes that is only ever copied in and out, with bounds checked.

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::copy::copy;
use super::memfd::Memory;

/// Bytes `[start, start + len)` of a [`Memory`].
#[derive(Debug, Clone)]
pub struct Region {
    memory: Arc<Memory>,
    start: usize,
    len: usize,
}

impl Region {
    /// The part of `memory` from `start` on, `len` bytes long.
    ///
    /// # Panics
    /// The range does not lie in the mapping.
    pub fn new(memory: Arc<Memory>, start: usize, len: usize) -> Self {
        let end = start
            .checked_add(len)
            .expect("a range that does not overflow");
        assert!(
            end <= memory.len(),
            "region {start}+{len} in {} bytes",
            memory.len()
        );
        Self { memory, start, len }
    }

    /// Bytes in the region.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// The range does not lie in the region, or the memory was inherited by a fork.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.checked(offset, bytes.len());
        // SAFETY: `checked` found the range mapped; `bytes` is private and cannot overlap a mapping that nobody has a slice of.
        unsafe { copy(to, bytes.as_ptr(), bytes.len()) }
    }

    /// Copies `into.len()` bytes from `offset`, and so initialises all of `into`.
    ///
    /// # Panics
    /// The range does not lie in the region, or the memory was inherited by a fork.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [MaybeUninit<u8>]) {
        let from = self.checked(offset, into.len());
        // SAFETY: as in `write`, the other way round.
        unsafe { copy(into.as_mut_ptr().cast(), from, into.len()) }
    }

    #[inline]
    fn checked(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "range {offset}+{len} in a region of {}",
            self.len
        );
        assert!(self.memory.is_ours(), "shared memory inherited by a fork");
        self.memory.start().wrapping_add(self.start + offset)
    }
}

#[cfg(test)]
mod tests {
    use super::super::memfd::create;
    use super::*;

    fn region(len: usize) -> Region {
        let fd = create(8192, false).expect("memfd");
        Region::new(Arc::new(Memory::map(&fd, 8192).expect("map")), 4096, len)
    }

    #[test]
    fn what_is_written_is_read() {
        let region = region(4096);
        region.write(4000, b"hello");
        let mut out = [MaybeUninit::new(0u8); 5];
        region.read(4000, &mut out);
        // SAFETY: `read` initialised all five bytes.
        assert_eq!(out.map(|b| unsafe { b.assume_init() }), *b"hello");
    }

    #[test]
    #[should_panic(expected = "range 4092+5 in a region of 4096")]
    fn a_write_over_the_end_panics() {
        region(4096).write(4092, b"hello");
    }

    #[test]
    #[should_panic(expected = "in a region of 4096")]
    fn an_offset_that_would_overflow_panics() {
        region(4096).write(usize::MAX, b"h");
    }

    #[test]
    #[should_panic(expected = "region 4096+4097 in 8192 bytes")]
    fn a_region_over_the_end_panics() {
        region(4097);
    }
}
