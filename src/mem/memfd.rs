//! Anonymous shared memory: made and sealed here, or received from a peer and checked before it is mapped.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;

use rustix::fs::{
    MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::fork;

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Shared memory mapped into this process; unmapped when dropped, but only by the process that mapped it.
///
/// Invariants: `start` is the address of a mapping of `len` bytes, readable and writable, that lives as long as this
/// value; its file is sealed against shrinking, so no access inside it raises SIGBUS for want of a page behind the end.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    len: usize,
    generation: u64,
}

// SAFETY: the mapping belongs to the process, not to a thread; all access is by atomics or by the checked copies of `Region`.
unsafe impl Send for Memory {}
// SAFETY: as above; `&Memory` gives out only an address and a length.
unsafe impl Sync for Memory {}

/// Makes anonymous memory of `len` bytes, zeroed, sealed, its fd close-on-exec. No page is touched unless `preallocate`.
///
/// # Errors
/// EMFILE, ENFILE, ENOMEM, and with `preallocate` ENOSPC.
pub fn create(len: usize, preallocate: bool) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Linux 6.3 knows NOEXEC_SEAL; older kernels refuse the flag.
    let fd = match memfd_create("smcfast", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create("smcfast", flags)?,
        other => other?,
    };
    ftruncate(&fd, len as u64)?;
    if preallocate {
        fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, len as u64)?;
    }
    fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
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
    #[error("shared memory: seals: shrink, grow and seal are required")]
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

/// Checks a received fd: tmpfs, sealed, of exactly `len` bytes.
fn check(fd: BorrowedFd<'_>, len: usize) -> Result<(), Refused> {
    // The magic number's type differs between machines; it is a 32-bit value in all of them.
    if fstatfs(fd)?.f_type as u64 != TMPFS_MAGIC {
        return Err(Refused::FileSystem);
    }
    let seals = fcntl_get_seals(fd).map_err(|_| Refused::Seals)?;
    if !seals.contains(SEALS) {
        return Err(Refused::Seals);
    }
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
        let memory = Self {
            start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?,
            len,
            generation,
        };
        // SAFETY: exactly the mapping made above; the advice changes what a child inherits, not its contents.
        unsafe { madvise(start, len, Advice::LinuxDontFork)? };
        Ok(memory)
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.len
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
        // A child has nothing mapped here (MADV_DONTFORK), and may have something else at the address by now.
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
        let fd =
            memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
        ftruncate(&fd, 4096).expect("ftruncate");
        assert!(matches!(Memory::map(&fd, 4096), Err(Refused::Seals)));
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).expect("seals");
        assert!(
            matches!(Memory::map(&fd, 4096), Err(Refused::Seals)),
            "without SEAL the peer could add WRITE later"
        );
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
