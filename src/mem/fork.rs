//! Whether this process is still the one that made an object.
//!
//! A page marked `MADV_WIPEONFORK` holds the generation; the kernel zeroes it in every child, however it was forked
//! (`fork`, `vfork` with memory, raw `clone`), so the check is one load and needs no handler.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

const PAGE: usize = 4096;

/// Generations given out in this line of processes; copied, not wiped, by a fork.
static GENERATIONS: AtomicU64 = AtomicU64::new(0);
static PAGE_WORD: OnceLock<&'static AtomicU64> = OnceLock::new();

/// The generation of this process: equal for its whole life, different in each child.
///
/// # Errors
/// The page could not be had: out of memory, or a kernel older than 4.14 (`EINVAL`).
pub fn generation() -> io::Result<u64> {
    let word = match PAGE_WORD.get() {
        Some(word) => word,
        None => {
            let page = wiped_on_fork()?;
            PAGE_WORD.get_or_init(|| page)
        }
    };
    match word.load(Relaxed) {
        0 => {
            let fresh = GENERATIONS.fetch_add(1, Relaxed) + 1;
            // Two threads may be first at once: the one that stores decides for both.
            Ok(word
                .compare_exchange(0, fresh, Relaxed, Relaxed)
                .map_or_else(|winner| winner, |_| fresh))
        }
        current => Ok(current),
    }
}

/// Whether `made_in`, a value of [`generation`], is this process: false in a child that inherited it.
#[inline]
pub fn is_current(made_in: u64) -> bool {
    PAGE_WORD
        .get()
        .is_some_and(|word| word.load(Relaxed) == made_in)
}

fn wiped_on_fork() -> io::Result<&'static AtomicU64> {
    // SAFETY: a new private mapping at an address of the kernel's choice touches nothing that exists.
    let page = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            PAGE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )?
    };
    // SAFETY: the page was mapped just now, is ours alone and holds nothing yet.
    unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork)? };
    // SAFETY: page-aligned, mapped for the life of the process (never unmapped), zero is a valid value, only accessed as an atomic.
    Ok(unsafe { AtomicU64::from_ptr(page.cast()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generation_is_stable_in_one_process() {
        let first = generation().expect("a kernel with MADV_WIPEONFORK");
        assert_ne!(first, 0);
        assert_eq!(generation().expect("the page exists"), first);
        assert!(is_current(first));
        assert!(!is_current(first + 1));
    }
}
