//! Anonymous shared memory: made and sealed here, or received from a peer and checked before it is mapped; and private memory
//! that only devices share.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::{
    MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

use super::fork;

/// Without SEAL: [`keep_pages`] adds one more. WRITE cannot be added to a file that is mapped for writing.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Shared memory mapped into this process; unmapped when dropped, but only by the process that mapped it.
///
/// Invariants: `start` is the address of a mapping of `len` bytes, readable and writable, that lives as long as this
/// value; its file, if it has one, is sealed against shrinking, so no access inside it raises SIGBUS for want of a page behind
/// the end.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    len: usize,
    generation: u64,
    /// How many [`super::Lent`] there are of it.
    lent: Mutex<usize>,
}

// SAFETY: the mapping belongs to the process, not to a thread; all access is by atomics or by the checked copies of `Region`.
unsafe impl Send for Memory {}
// SAFETY: as above; `&Memory` gives out only an address and a length.
unsafe impl Sync for Memory {}

/// Makes anonymous memory of `len` bytes, zeroed, sealed, its fd close-on-exec. No page is touched unless `preallocate`.
///
/// # Errors
/// EMFILE, ENFILE, ENOMEM, and with `preallocate` ENOSPC; EFBIG beyond RLIMIT_FSIZE.
pub fn create(len: usize, preallocate: bool) -> io::Result<OwnedFd> {
    let fd = unsealed("smcfast", len)?;
    if preallocate {
        take_pages(fd.as_fd(), len)?;
    }
    fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

/// The same, called `name` and without a seal.
pub(super) fn unsealed(name: &str, len: usize) -> io::Result<OwnedFd> {
    // The kernel would send SIGXFSZ as well, which ends a process that does not ignore it.
    if getrlimit(Resource::Fsize)
        .current
        .is_some_and(|max| len as u64 > max)
    {
        return Err(Errno::FBIG.into());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Linux 6.3 knows NOEXEC_SEAL; older kernels refuse the flag.
    let fd = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, flags)?,
        other => other?,
    };
    ftruncate(&fd, len as u64)?;
    Ok(fd)
}

fn take_pages(fd: BorrowedFd<'_>, len: usize) -> rustix::io::Result<()> {
    fallocate(fd, rustix::fs::FallocateFlags::empty(), 0, len as u64)
}

/// Takes all pages of the memory behind `fd`, which both ends have mapped, for as long as it lives: nobody can punch holes
/// from here on. Needed where a page that is gone may not come back, see [`overcommit_is_strict`].
///
/// # Errors
/// ENOMEM, ENOSPC; EPERM when the peer has sealed the seals. Before Linux 5.1 only the pages are taken.
pub fn keep_pages(fd: impl AsFd, len: usize) -> Result<(), Refused> {
    let fd = fd.as_fd();
    match fcntl_add_seals(fd, SealFlags::FUTURE_WRITE) {
        // That kernel does not know it.
        Err(Errno::INVAL) => {}
        // Sealed by now, by a peer that was first.
        Err(Errno::PERM) if fcntl_get_seals(fd)?.contains(SealFlags::FUTURE_WRITE) => {}
        other => other?,
    }
    Ok(take_pages(fd, len)?)
}

/// Whether the kernel promises memory only if it has it (vm.overcommit_memory is 2). Then a page that is touched for the
/// first time may not be there, which is SIGBUS, so memory must be taken beforehand. Read once for each process.
pub fn overcommit_is_strict() -> bool {
    static STRICT: OnceLock<bool> = OnceLock::new();
    *STRICT.get_or_init(|| {
        let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory");
        mode.is_ok_and(|mode| mode.trim() == "2")
    })
}

/// Why received memory was refused.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The fd is not on tmpfs (a regular file could be truncated by others, hugetlbfs could fail at any touch).
    #[error("shared memory: file system: not a memfd on tmpfs")]
    FileSystem,
    /// A seal is missing: the peer could shrink the file under our feet.
    #[error("shared memory: seals: shrink and grow are required")]
    Seals,
    /// The size is not exactly what the peer announced.
    #[error("shared memory: size: {actual} bytes, expected {expected}")]
    Size {
        /// Bytes of the file.
        actual: u64,
        /// Bytes that were announced.
        expected: u64,
    },
    /// A system call failed.
    #[error("shared memory: {0}")]
    Os(#[from] io::Error),
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        Self::Os(errno.into())
    }
}

/// Checks a received fd: tmpfs, sealed against any change of its size.
pub(super) fn check_kind(fd: BorrowedFd<'_>) -> Result<(), Refused> {
    // The magic number's type differs between machines; it is a 32-bit value in all of them.
    if fstatfs(fd)?.f_type as u64 != TMPFS_MAGIC {
        return Err(Refused::FileSystem);
    }
    let seals = fcntl_get_seals(fd).map_err(|_| Refused::Seals)?;
    if !seals.contains(SEALS) {
        return Err(Refused::Seals);
    }
    Ok(())
}

/// Checks a received fd: as above, and of exactly `len` bytes.
fn check(fd: BorrowedFd<'_>, len: usize) -> Result<(), Refused> {
    check_kind(fd)?;
    let actual = fstat(fd)?.st_size as u64;
    if actual != len as u64 {
        return Err(Refused::Size {
            actual,
            expected: len as u64,
        });
    }
    Ok(())
}

impl Memory {
    /// Checks the file behind `fd` and maps its `len` bytes.
    ///
    /// # Errors
    /// [`Refused`] names what is wrong with the file; EPERM from the kernel when it is sealed against writing.
    pub fn map(fd: impl AsFd, len: usize) -> Result<Self, Refused> {
        let fd = fd.as_fd();
        check(fd, len)?;
        let generation = fork::generation()?;
        // SAFETY: a new shared mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )?
        };
        Ok(Self::keep(start.cast(), len, generation)?)
    }

    /// Maps `len` zeroed bytes, page-aligned, that only this process has: for what a device, not another process, writes.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        let generation = fork::generation()?;
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        let memory = Self::keep(start.cast(), len, generation)?;
        // A device may be writing here while a child is forked: no page is shared with it or copied, not even if it is lent.
        memory.advise(Advice::LinuxWipeOnFork)?;
        Ok(memory)
    }

    /// Owns the mapping of `len` bytes at `start`, just made in this process, and keeps it from its children.
    fn keep(start: *mut u8, len: usize, generation: u64) -> rustix::io::Result<Self> {
        let memory = Self {
            start: NonNull::new(start).ok_or(Errno::NOMEM)?,
            len,
            generation,
            lent: Mutex::new(0),
        };
        memory.advise(Advice::LinuxDontFork)?;
        Ok(memory)
    }

    /// Advice for what children inherit of the mapping: `DontFork`, `DoFork` or `WipeOnFork`.
    fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        debug_assert!(self.is_ours());
        // SAFETY: exactly the mapping of this value; the advice changes what a child inherits, not its contents.
        unsafe { madvise(self.start.as_ptr().cast(), self.len, advice) }
    }

    /// One more part of it is lent: a child that is forked while any is inherits the mapping, so that an address that it
    /// inherits as well leads somewhere. [`Self::take_back`] must follow.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn lend(&self) -> io::Result<()> {
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        if *lent == 0 {
            self.advise(Advice::LinuxDoFork)?;
        }
        *lent += 1;
        Ok(())
    }

    /// One part less is lent. In a child nothing happens: whoever held the lock at the fork is not there to give it back.
    pub(super) fn take_back(&self) {
        if !self.is_ours() {
            return;
        }
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        *lent -= 1;
        if *lent == 0 {
            let result = self.advise(Advice::LinuxDontFork);
            debug_assert!(result.is_ok(), "madvise: {result:?}");
        }
    }

    /// Whether any part of it is lent: then it must not serve anybody else.
    pub fn is_lent(&self) -> bool {
        *self.lent.lock().unwrap_or_else(PoisonError::into_inner) > 0
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address of the first byte, for a device that is told of it.
    pub fn address(&self) -> usize {
        self.start.as_ptr().expose_provenance()
    }

    /// Whether nothing is mapped; never true.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte. Valid for [`Self::len`] bytes while `self` lives, in the process that made it.
    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Whether this process made the mapping; false in a forked child, where nothing is mapped at its address.
    #[inline]
    pub fn is_ours(&self) -> bool {
        fork::is_current(self.generation)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A child has nothing mapped here (MADV_DONTFORK), and may have something else at the address by now; what was lent at
        // the fork stays mapped in it, since it cannot know.
        if self.is_ours() {
            // SAFETY: the mapping of this value, made by this process, unmapped once; no reference outlives the value.
            let result = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
            debug_assert!(result.is_ok(), "munmap: {result:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_memory_is_sealed_zeroed_and_costs_nothing_untouched() {
        let fd = create(1 << 20, false).expect("memfd");
        assert!(fcntl_get_seals(&fd).expect("seals").contains(SEALS));
        assert_eq!(fstat(&fd).expect("fstat").st_blocks, 0);
        let memory = Memory::map(&fd, 1 << 20).expect("own memory is accepted");
        assert_eq!(memory.len(), 1 << 20);
        assert!(memory.is_ours());
    }

    #[test]
    fn anonymous_memory_is_zeroed_and_its_own() {
        use super::super::{Region, Target};
        let memory = std::sync::Arc::new(Memory::anonymous(1 << 16).expect("memory"));
        assert!(memory.is_ours());
        let region = Region::new(memory, 0, 1 << 16);
        region.write(65_532, (&b"tail"[..]).into());
        let mut out = [1u8; 8];
        region.read(65_528, Target::from(&mut out[..]));
        assert_eq!(&out, b"\0\0\0\0tail");
    }

    #[test]
    fn preallocated_memory_has_its_pages() {
        let fd = create(1 << 16, true).expect("memfd");
        assert_eq!(fstat(&fd).expect("fstat").st_blocks * 512, 1 << 16);
    }

    #[test]
    fn a_wrong_size_is_refused() {
        let fd = create(1 << 16, false).expect("memfd");
        let error = Memory::map(&fd, 1 << 17).expect_err("too small");
        assert_eq!(
            error.to_string(),
            "shared memory: size: 65536 bytes, expected 131072"
        );
    }

    #[test]
    fn unsealed_memory_is_refused() {
        for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW] {
            let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .expect("memfd");
            ftruncate(&fd, 4096).expect("ftruncate");
            fcntl_add_seals(&fd, seals).expect("seals");
            assert!(matches!(Memory::map(&fd, 4096), Err(Refused::Seals)));
        }
    }

    fn punch(fd: &OwnedFd) -> rustix::io::Result<()> {
        use rustix::fs::FallocateFlags;
        fallocate(
            fd,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            0,
            4096,
        )
    }

    #[test]
    fn pages_that_are_kept_cannot_be_taken_away() {
        let fd = create(1 << 16, false).expect("memfd");
        let memory = Memory::map(&fd, 1 << 16).expect("map");
        let blocks = || fstat(&fd).expect("fstat").st_blocks * 512;
        punch(&fd).expect("nothing stands against it yet");
        keep_pages(&fd, 1 << 16).expect("kept");
        assert_eq!(blocks(), 1 << 16);
        if !fcntl_get_seals(&fd)
            .expect("seals")
            .contains(SealFlags::FUTURE_WRITE)
        {
            return eprintln!("not checked: this kernel does not know F_SEAL_FUTURE_WRITE");
        }
        punch(&fd).expect_err("sealed");
        // SAFETY: exactly the mapping of `memory`; its first page is given back, which the seal forbids.
        let removed = unsafe { madvise(memory.start().cast(), 4096, Advice::LinuxRemove) };
        assert_eq!(removed, Err(Errno::PERM));
        assert_eq!(blocks(), 1 << 16);
        keep_pages(&fd, 1 << 16).expect("a second time changes nothing");
    }

    #[test]
    fn pages_of_a_peer_that_has_sealed_the_seals_are_not_kept() {
        let fd = create(1 << 16, false).expect("memfd");
        fcntl_add_seals(&fd, SealFlags::SEAL).expect("seals");
        assert!(matches!(keep_pages(&fd, 1 << 16), Err(Refused::Os(_))));
    }

    #[test]
    fn other_files_are_refused() {
        let file = std::fs::File::open("/proc/self/exe").expect("own executable");
        assert!(matches!(
            Memory::map(&file, 4096),
            Err(Refused::FileSystem | Refused::Seals)
        ));
        let null = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/null")
            .expect("/dev/null");
        assert!(Memory::map(&null, 4096).is_err());
    }

    #[test]
    fn memory_sealed_against_writing_is_refused() {
        let fd =
            memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
        ftruncate(&fd, 4096).expect("ftruncate");
        fcntl_add_seals(&fd, SEALS | SealFlags::WRITE).expect("seals");
        assert!(matches!(Memory::map(&fd, 4096), Err(Refused::Os(_))));
    }
}
