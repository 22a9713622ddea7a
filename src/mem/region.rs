//! A range of shared bytes that is only ever copied in and out, with bounds checked.

use std::io;
use std::sync::Arc;

use super::copy::copy;
use super::lent::Lent;
use super::memfd::Memory;
use super::source::Source;
use super::target::Target;

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
    pub fn write(&self, offset: usize, bytes: Source<'_>) {
        let to = self.checked(offset, bytes.len());
        assert_apart(to, bytes.start(), bytes.len());
        // SAFETY: `checked` found the range mapped; the source is readable and lies elsewhere, by its type's promise.
        unsafe { copy(to, bytes.start(), bytes.len()) }
    }

    /// Copies `into.len()` bytes from `offset`; all of them are initialised then.
    ///
    /// # Panics
    /// The range does not lie in the region, or the memory was inherited by a fork.
    #[inline]
    pub fn read(&self, offset: usize, mut into: Target<'_>) {
        let from = self.checked(offset, into.len());
        assert_apart(into.start(), from, into.len());
        // SAFETY: as in `write`, the other way round; the target is exclusive and lies elsewhere by its type's promise.
        unsafe { copy(into.start(), from, into.len()) }
    }

    /// Lends `len` bytes from `offset` on.
    ///
    /// # Errors
    /// ENOMEM.
    ///
    /// # Panics
    /// The range does not lie in the region, or the memory was inherited by a fork.
    pub fn lend(&self, offset: usize, len: usize) -> io::Result<Lent> {
        self.checked(offset, len);
        Lent::new(Arc::clone(&self.memory), self.start + offset, len)
    }

    /// Whether any of the memory around is lent.
    pub fn is_lent(&self) -> bool {
        self.memory.is_lent()
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

/// The two sides of a copy do not overlap. That is the promise of `Source` and `Target`, which costs too much to be checked where
/// each instruction counts.
#[inline]
fn assert_apart(to: *mut u8, from: *const u8, len: usize) {
    debug_assert!(to.addr().abs_diff(from.addr()) >= len, "a copy onto itself");
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
        region.write(4000, (&b"hello"[..]).into());
        let mut out = [0u8; 5];
        region.read(4000, Target::from(&mut out[..]));
        assert_eq!(&out, b"hello");
    }

    #[test]
    #[should_panic(expected = "range 4092+5 in a region of 4096")]
    fn a_write_over_the_end_panics() {
        region(4096).write(4092, (&b"hello"[..]).into());
    }

    #[test]
    #[should_panic(expected = "in a region of 4096")]
    fn an_offset_that_would_overflow_panics() {
        region(4096).write(usize::MAX, Source::from(&b"h"[..]));
    }

    #[test]
    #[should_panic(expected = "region 4096+4097 in 8192 bytes")]
    fn a_region_over_the_end_panics() {
        region(4097);
    }
}
