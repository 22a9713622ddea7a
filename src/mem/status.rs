//! Memory that one process writes and others read: words for tools. The writer's side, and the reader's.
//!
//! What these rest on: the file is sealed against every later writing, and the only mapping that may write is that of the
//! process that made it; the reader maps only files that cannot shrink. Nothing but single atomic words is accessed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    FallocateFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals, fstat, open,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::memfd::{self, Refused};

/// Memory is taken from the system in steps of so many bytes.
const PAGE: usize = 4096;

/// The words that this process shows. They stay mapped until its end, and in its forked children, which must not write
/// them: who owns the words looks after that.
#[derive(Debug)]
pub struct Shown {
    words: &'static [AtomicU64],
    fd: Option<OwnedFd>,
}

impl Shown {
    /// `len` bytes, zeroed, in a memfd called `name` that nobody else will be able to write.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM, EFBIG (RLIMIT_FSIZE); EINVAL before Linux 5.1, which has no such seal.
    pub fn create(name: &str, len: usize) -> io::Result<Self> {
        let fd = memfd::unsealed(name, len)?;
        // SAFETY: a new shared mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )?
        };
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        if let Err(errno) = fcntl_add_seals(&fd, seals) {
            // SAFETY: the mapping made above, to which nothing refers yet.
            unsafe { munmap(start, len)? };
            return Err(errno.into());
        }
        // SAFETY: mapped above for reading and writing, `len` bytes, zeroed, and never unmapped from here on.
        let words = unsafe { words(start.cast(), len) };
        Ok(Self {
            words,
            fd: Some(fd),
        })
    }

    /// `len` bytes, zeroed, that nobody else sees.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn private(len: usize) -> io::Result<Self> {
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        // SAFETY: as above.
        let words = unsafe { words(start.cast(), len) };
        Ok(Self { words, fd: None })
    }

    /// The words.
    pub fn words(&self) -> &'static [AtomicU64] {
        self.words
    }

    /// Whether others can be given the words.
    pub fn is_shared(&self) -> bool {
        self.fd.is_some()
    }

    /// Takes from the system what is missing of the memory up to word `end`; `taken` words were taken before. Returns how
    /// many are now. Without this a store may raise SIGBUS where the kernel promises only memory that it has.
    ///
    /// # Errors
    /// ENOMEM, ENOSPC.
    pub fn take(&self, taken: usize, end: usize) -> io::Result<usize> {
        let goal = (end * 8).next_multiple_of(PAGE).min(self.words.len() * 8);
        if let Some(fd) = &self.fd
            && goal > taken * 8
        {
            let (from, len) = (taken * 8, goal - taken * 8);
            fallocate(fd, FallocateFlags::empty(), from as u64, len as u64)?;
        }
        Ok(goal / 8)
    }

    /// A new descriptor of the file, for reading only.
    ///
    /// # Errors
    /// ENOENT for words that are private; EMFILE, and whatever keeps this process from its own /proc.
    pub fn reopen(&self) -> io::Result<OwnedFd> {
        use std::os::fd::AsRawFd;
        let fd = self.fd.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }
}

/// # Safety
/// `start` begins a page-aligned mapping of `len` bytes for reading and writing, zeroed, that nobody unmaps.
unsafe fn words(start: *mut u8, len: usize) -> &'static [AtomicU64] {
    // SAFETY: the caller's mapping, valid for the life of the process; every word of it is a valid atomic and never accessed
    // but as one. Other processes only read.
    unsafe { std::slice::from_raw_parts(start.cast(), len / 8) }
}

/// The words of a file that another process writes, or may.
#[derive(Debug)]
pub struct View {
    start: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; all access is by atomic loads.
unsafe impl Send for View {}

impl View {
    /// Maps the first `len` bytes of the file behind `fd` for reading.
    ///
    /// # Errors
    /// [`Refused`] names what is wrong with the file: it is not on tmpfs, may shrink, or is shorter.
    pub fn map(fd: impl AsFd, len: usize) -> Result<Self, Refused> {
        let fd = fd.as_fd();
        memfd::check_kind(fd)?;
        let actual = fstat(fd)?.st_size as u64;
        if actual < len as u64 {
            return Err(Refused::Size {
                actual,
                expected: len as u64,
            });
        }
        // SAFETY: a new shared mapping at an address of the kernel's choice touches nothing that exists. The file is sealed
        // against shrinking and has `len` bytes.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ,
                MapFlags::SHARED,
                fd,
                0,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { start, len })
    }

    /// The word at `index`, with Acquire.
    ///
    /// # Panics
    /// There is none.
    pub fn load(&self, index: usize) -> u64 {
        assert!(index < self.len / 8, "word {index} of {} bytes", self.len);
        // SAFETY: `index` lies in the mapping, as was just checked.
        let word = unsafe { self.start.add(index) };
        // SAFETY: the mapping lives as long as `self` (in a forked child too) and is aligned to pages; every bit pattern is
        // valid. An atomic load of a word writes nothing, so memory that is read-only will do.
        unsafe { word.as_ref() }.load(Ordering::Acquire)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the mapping of this value, unmapped once; a child has a copy of the mapping and unmaps its own.
        let result = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok(), "munmap: {result:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{SealFlags, fcntl_get_seals, ftruncate};

    #[test]
    fn what_is_shown_is_seen_and_cannot_be_written_by_others() {
        let shown = Shown::create("test", 2 * PAGE).expect("a kernel with F_SEAL_FUTURE_WRITE");
        assert_eq!(shown.take(0, 1).expect("memory"), PAGE / 8);
        shown.words()[3].store(7, Ordering::Release);
        let fd = shown.reopen().expect("/proc");
        let view = View::map(&fd, 2 * PAGE).expect("the own file is accepted");
        assert_eq!(view.load(3), 7);
        shown.words()[3].store(8, Ordering::Release);
        assert_eq!(view.load(3), 8, "it is one memory");

        let seals = fcntl_get_seals(&fd).expect("seals");
        assert!(seals.contains(SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::SEAL));
        rustix::io::write(&fd, b"x").expect_err("opened for reading");
        let original = shown.fd.as_ref().expect("shared");
        rustix::io::pwrite(original, b"x", 0).expect_err("sealed");
        ftruncate(original, 0).expect_err("sealed");
        // SAFETY: a new mapping touches nothing that exists; it must fail.
        let writable = unsafe {
            mmap(
                std::ptr::null_mut(),
                PAGE,
                ProtFlags::WRITE,
                MapFlags::SHARED,
                original,
                0,
            )
        };
        assert!(writable.is_err(), "sealed against new writers");
    }

    #[test]
    fn memory_is_taken_in_pages_and_only_once() {
        let shown = Shown::create("test", 4 * PAGE).expect("memfd");
        let blocks = || {
            fstat(shown.fd.as_ref().expect("shared"))
                .expect("fstat")
                .st_blocks
        };
        let taken = shown.take(0, PAGE / 8 + 1).expect("memory");
        assert_eq!((taken, blocks() as usize * 512), (2 * PAGE / 8, 2 * PAGE));
        assert_eq!(shown.take(taken, 5).expect("nothing to do"), PAGE / 8);
        assert_eq!(blocks() as usize * 512, 2 * PAGE);
    }

    #[test]
    fn private_words_are_not_given_away() {
        let shown = Shown::private(PAGE).expect("memory");
        shown.words()[0].store(1, Ordering::Relaxed);
        assert!(!shown.is_shared());
        assert_eq!(
            shown.reopen().expect_err("private").kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn wrong_files_are_not_mapped() {
        let unsealed = memfd::unsealed("test", PAGE).expect("memfd");
        assert!(matches!(View::map(&unsealed, PAGE), Err(Refused::Seals)));
        let short = memfd::create(PAGE, false).expect("memfd");
        assert!(matches!(
            View::map(&short, 2 * PAGE),
            Err(Refused::Size { .. })
        ));
        let file = std::fs::File::open("/proc/self/exe").expect("own executable");
        assert!(View::map(&file, PAGE).is_err());
    }

    #[test]
    #[should_panic(expected = "word 512 of 4096 bytes")]
    fn a_word_behind_the_end_panics() {
        let fd = memfd::create(PAGE, false).expect("memfd");
        View::map(&fd, PAGE).expect("map").load(PAGE / 8);
    }
}
