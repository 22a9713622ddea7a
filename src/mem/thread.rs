//! Which thread this is, for a single instruction: each write and read asks.

/// A number of this thread, never 0. A new thread may have that of one that has ended.
#[inline]
pub fn here() -> usize {
    arch::here()
}

#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
mod arch {
    use std::arch::asm;

    #[inline]
    pub(super) fn here() -> usize {
        let pointer;
        // SAFETY: on Linux the word at fs:0 is the thread pointer itself (the ABI of thread-local storage), mapped for the
        // life of the thread and never written again; the instruction reads it and changes nothing else.
        unsafe {
            asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, preserves_flags, pure, readonly));
        }
        pointer
    }
}

#[cfg(all(target_arch = "aarch64", not(any(miri, loom))))]
mod arch {
    use std::arch::asm;

    #[inline]
    pub(super) fn here() -> usize {
        let pointer;
        // SAFETY: the register holds the thread pointer, which is set before any code of the thread runs; reading it
        // changes nothing.
        unsafe {
            asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags, pure, nomem));
        }
        pointer
    }
}

#[cfg(any(miri, loom, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod arch {
    thread_local! {
        static MARK: u8 = const { 0 };
    }

    pub(super) fn here() -> usize {
        MARK.with(|mark| std::ptr::from_ref(mark).addr())
    }
}

#[cfg(test)]
mod tests {
    use super::here;

    #[test]
    fn threads_that_live_at_the_same_time_differ() {
        let mine = here();
        assert_ne!(mine, 0);
        assert_eq!(here(), mine);
        let other = std::thread::spawn(here).join().expect("no panic");
        assert_ne!(mine, other);
    }
}
