//! Bytes of a region that are lent out by their address, to code that no rule of this language binds.

use std::io;
use std::sync::Arc;

use super::memfd::Memory;

/// A range of a [`Memory`] whose address is known outside. While it lives the range stays mapped, also in a child that is
/// forked meanwhile: there, shared memory is shared still, and private memory is zeroes.
#[derive(Debug)]
pub struct Lent {
    memory: Arc<Memory>,
    start: usize,
    len: usize,
}

impl Lent {
    /// # Errors
    /// As [`Memory::lend`].
    pub(super) fn new(memory: Arc<Memory>, start: usize, len: usize) -> io::Result<Self> {
        debug_assert!(start + len <= memory.len());
        memory.lend()?;
        Ok(Self { memory, start, len })
    }

    /// The address of the first byte. Valid for [`Self::len`] bytes while `self` lives, readable and writable; others, the
    /// peer among them, may write them at any time.
    pub fn start(&self) -> *mut u8 {
        self.memory.start().wrapping_add(self.start)
    }

    /// Bytes that are lent.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.memory.take_back();
    }
}

#[cfg(test)]
mod tests {
    use super::super::memfd::create;
    use super::super::{Memory, Region, Target};
    use super::*;

    const LEN: usize = 1 << 16;

    fn shared() -> Arc<Memory> {
        let fd = create(LEN, false).expect("memfd");
        Arc::new(Memory::map(&fd, LEN).expect("map"))
    }

    /// The line of /proc/self/smaps that tells how the mapping at the address is.
    fn flags(memory: &Memory) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        let start = memory.address();
        let holds = |line: &str| {
            let (from, rest) = line.split_once('-')?;
            let to = rest.split_once(' ')?.0;
            let number = |text| usize::from_str_radix(text, 16).ok();
            (number(from)?..number(to)?).contains(&start).then_some(())
        };
        let mut lines = maps.lines().skip_while(|line| holds(line).is_none());
        let flags = lines.find(|line| line.starts_with("VmFlags:"));
        flags.expect("flags of the mapping").to_owned()
    }

    #[test]
    fn what_is_lent_is_what_was_written() {
        let region = Region::new(shared(), 4096, 8192);
        region.write(100, (&b"hello"[..]).into());
        let lent = region.lend(100, 5).expect("lent");
        assert_eq!((lent.len(), lent.is_empty()), (5, false));
        let mut out = [0u8; 5];
        // SAFETY: five bytes of a mapping that `lent` keeps, which nobody else writes in this test.
        unsafe { std::ptr::copy_nonoverlapping(lent.start(), out.as_mut_ptr(), 5) };
        assert_eq!(&out, b"hello");
    }

    #[test]
    fn it_stays_mapped_when_all_others_have_let_go() {
        let region = Region::new(shared(), 0, LEN);
        region.write(LEN - 1, (&b"x"[..]).into());
        let lent = region.lend(LEN - 1, 1).expect("lent");
        drop(region);
        // SAFETY: one byte of a mapping that `lent` keeps.
        assert_eq!(unsafe { lent.start().read_volatile() }, b'x');
    }

    #[test]
    fn children_have_the_mapping_only_while_it_is_lent() {
        for memory in [shared(), Arc::new(Memory::anonymous(LEN).expect("memory"))] {
            let region = Region::new(Arc::clone(&memory), 0, LEN);
            assert!(flags(&memory).contains(" dc"), "{}", flags(&memory));
            let (first, second) = (region.lend(0, 1), region.lend(4096, 1));
            assert!(!flags(&memory).contains(" dc") && memory.is_lent());
            drop(first);
            assert!(!flags(&memory).contains(" dc") && memory.is_lent());
            drop(second);
            assert!(flags(&memory).contains(" dc") && !memory.is_lent());
        }
    }

    #[test]
    fn a_child_finds_private_memory_wiped() {
        let memory = Arc::new(Memory::anonymous(LEN).expect("memory"));
        assert!(flags(&memory).contains(" wf"), "{}", flags(&memory));
    }

    #[test]
    #[should_panic(expected = "range 8192+1 in a region of 8192")]
    fn nothing_behind_the_region_is_lent() {
        let _ = Region::new(shared(), 4096, 8192).lend(8192, 1);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a copy onto itself")]
    fn what_is_lent_is_not_copied_onto_itself() {
        let region = Region::new(shared(), 0, LEN);
        let lent = region.lend(0, 100).expect("lent");
        // SAFETY: 100 bytes of a mapping that `lent` keeps.
        region.write(50, unsafe {
            super::super::Source::from_raw(lent.start(), 100)
        });
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a copy onto itself")]
    fn nor_read_into_itself() {
        let region = Region::new(shared(), 0, LEN);
        let lent = region.lend(0, 100).expect("lent");
        // SAFETY: 100 bytes of a mapping that `lent` keeps.
        region.read(99, unsafe { Target::from_raw(lent.start(), 100) });
    }
}
