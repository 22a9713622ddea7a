//! libibverbs, loaded when it is needed for the first time.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::process::{Resource, geteuid, getrlimit};

use super::abi;
use super::error::Unavailable;

/// The name under which every distribution has had it since 2007.
const NAME: &CStr = c"libibverbs.so.1";
/// Where the kernel shows the devices that programs may use.
pub(super) const DEVICES: &str = "/sys/class/infiniband_verbs";
/// With so little, the library warns on standard error that nothing can be registered.
const MEMLOCK_MIN: u64 = 32768;

/// Names the functions of the library once: for the table, and for finding them.
macro_rules! functions {
    ($( $name:ident @ $version:literal = fn($($argument:ty),*) $(-> $result:ty)?; )*) => {
        /// The library's functions, as its header declares them.
        pub(super) struct Functions {
            $( pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?, )*
        }

        impl Functions {
            fn find(handle: &Handle) -> Result<Self, Unavailable> {
                Ok(Self {
                    $( $name: {
                        let found = handle.symbol(stringify!($name), $version)?;
                        // SAFETY: a function of this name and version has this type: it is a promise of the library's ABI.
                        unsafe { std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($argument),*) $(-> $result)?>(found) }
                    }, )*
                })
            }
        }
    };
}

functions! {
    ibv_fork_init @ "IBVERBS_1.1" = fn() -> c_int;
    ibv_get_device_list @ "IBVERBS_1.1" = fn(*mut c_int) -> *mut *mut abi::Device;
    ibv_free_device_list @ "IBVERBS_1.1" = fn(*mut *mut abi::Device);
    ibv_get_device_name @ "IBVERBS_1.1" = fn(*mut abi::Device) -> *const c_char;
    ibv_open_device @ "IBVERBS_1.1" = fn(*mut abi::Device) -> *mut abi::Context;
    ibv_close_device @ "IBVERBS_1.1" = fn(*mut abi::Context) -> c_int;
    ibv_query_device @ "IBVERBS_1.1" = fn(*mut abi::Context, *mut abi::DeviceState) -> c_int;
    ibv_query_port @ "IBVERBS_1.1" = fn(*mut abi::Context, u8, *mut abi::PortState) -> c_int;
    ibv_query_gid @ "IBVERBS_1.1" = fn(*mut abi::Context, u8, c_int, *mut [u8; 16]) -> c_int;
    ibv_get_async_event @ "IBVERBS_1.1" = fn(*mut abi::Context, *mut abi::Event) -> c_int;
    ibv_ack_async_event @ "IBVERBS_1.1" = fn(*mut abi::Event);
    ibv_create_comp_channel @ "IBVERBS_1.0" = fn(*mut abi::Context) -> *mut abi::Channel;
    ibv_destroy_comp_channel @ "IBVERBS_1.0" = fn(*mut abi::Channel) -> c_int;
    ibv_create_cq @ "IBVERBS_1.1" = fn(*mut abi::Context, c_int, *mut c_void, *mut abi::Channel, c_int) -> *mut abi::Queue;
    ibv_destroy_cq @ "IBVERBS_1.1" = fn(*mut abi::Queue) -> c_int;
    ibv_get_cq_event @ "IBVERBS_1.1" = fn(*mut abi::Channel, *mut *mut abi::Queue, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events @ "IBVERBS_1.1" = fn(*mut abi::Queue, c_uint);
    ibv_alloc_pd @ "IBVERBS_1.1" = fn(*mut abi::Context) -> *mut abi::Domain;
    ibv_dealloc_pd @ "IBVERBS_1.1" = fn(*mut abi::Domain) -> c_int;
    ibv_reg_mr @ "IBVERBS_1.1" = fn(*mut abi::Domain, *mut c_void, usize, c_int) -> *mut abi::Memory;
    ibv_dereg_mr @ "IBVERBS_1.1" = fn(*mut abi::Memory) -> c_int;
    ibv_create_qp @ "IBVERBS_1.1" = fn(*mut abi::Domain, *mut abi::PairOptions) -> *mut abi::Pair;
    ibv_modify_qp @ "IBVERBS_1.1" = fn(*mut abi::Pair, *mut abi::PairState, c_int) -> c_int;
    ibv_destroy_qp @ "IBVERBS_1.1" = fn(*mut abi::Pair) -> c_int;
}

/// The library, for the life of the process: its drivers do not bear being unloaded.
pub(super) struct Library {
    pub(super) functions: Functions,
    path: String,
}

impl Library {
    /// The library; loaded by the first call that finds a device.
    ///
    /// # Errors
    /// No device, or no library that fits; a later call tries again.
    pub(super) fn get() -> Result<&'static Self, Unavailable> {
        static LOADED: OnceLock<Library> = OnceLock::new();
        static LOADING: Mutex<()> = Mutex::new(());
        check_surroundings()?;
        let _one_at_a_time = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = LOADED.get() {
            return Ok(library);
        }
        let library = Self::load(NAME)?;
        Ok(LOADED.get_or_init(|| library))
    }

    /// Loads the library called `name`, and asks it to keep what devices use out of forked children.
    pub(super) fn load(name: &CStr) -> Result<Self, Unavailable> {
        let handle = Handle::open(name)?;
        let functions = Functions::find(&handle)?;
        // SAFETY: takes no arguments, and may be called at any time. Where it comes too late (the application has registered
        // memory before) it changes nothing and says so: then forking is as safe as the application has made it.
        let _ = unsafe { (functions.ibv_fork_init)() };
        Ok(Self {
            functions,
            path: handle.path(),
        })
    }

    /// The file that was loaded.
    pub(super) fn path(&self) -> &str {
        &self.path
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Library").field(&self.path).finish()
    }
}

/// Whether the library would find a device, and would be silent. It prints what it thinks of its surroundings on standard
/// error, which is the application's.
fn check_surroundings() -> Result<(), Unavailable> {
    let is_one = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b"uverbs");
    let mut entries = std::fs::read_dir(DEVICES).map_err(|_| Unavailable::NoDevice)?;
    if !entries.any(|entry| entry.is_ok_and(|entry| is_one(&entry.file_name()))) {
        return Err(Unavailable::NoDevice);
    }
    match getrlimit(Resource::Memlock).current {
        Some(limit) if limit <= MEMLOCK_MIN && !geteuid().is_root() => {
            Err(Unavailable::MemoryLock { limit })
        }
        _ => Ok(()),
    }
}

/// What dlopen gave; never closed.
#[derive(Debug)]
struct Handle(NonNull<c_void>);

impl Handle {
    fn open(name: &CStr) -> Result<Self, Unavailable> {
        // SAFETY: a string with its zero. The constructors that this runs are those of the system's library and of what it links.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle)
            .map(Self)
            .ok_or_else(|| Unavailable::Library(loader_error()))
    }

    /// The address of a function in exactly this version.
    fn symbol(
        &self,
        symbol: &'static str,
        version: &'static str,
    ) -> Result<NonNull<c_void>, Unavailable> {
        let missing = || Unavailable::Symbol {
            path: self.path(),
            symbol,
            version,
        };
        let name = CString::new(symbol).map_err(|_| missing())?;
        NonNull::new(self.find(&name, version)).ok_or_else(missing)
    }

    #[cfg(target_env = "gnu")]
    fn find(&self, name: &CStr, version: &str) -> *mut c_void {
        let Ok(version) = CString::new(version) else {
            return null_mut();
        };
        // SAFETY: the handle is open, both strings have their zeros; asking changes nothing.
        unsafe { libc::dlvsym(self.0.as_ptr(), name.as_ptr(), version.as_ptr()) }
    }

    /// Loaders without versions find the default one, which is ours since 2007.
    #[cfg(not(target_env = "gnu"))]
    fn find(&self, name: &CStr, _version: &str) -> *mut c_void {
        // SAFETY: the handle is open, the string has its zero; asking changes nothing.
        unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) }
    }

    /// The file behind the handle.
    fn path(&self) -> String {
        let unknown = || NAME.to_string_lossy().into_owned();
        // SAFETY: as in `find`; any symbol tells the file, in any version.
        let symbol = unsafe { libc::dlsym(self.0.as_ptr(), c"ibv_get_device_list".as_ptr()) };
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: the address is only looked up, whatever it is; the struct is ours.
        let found = unsafe { libc::dladdr(symbol, info.as_mut_ptr()) };
        // SAFETY: zeroed, which is a valid value: null pointers.
        let file = unsafe { info.assume_init() }.dli_fname;
        if symbol.is_null() || found == 0 || file.is_null() {
            return unknown();
        }
        // SAFETY: the loader's own string, which lives as long as the library is loaded, which is for ever.
        let file = unsafe { CStr::from_ptr(file) };
        let file = Path::new(std::ffi::OsStr::from_bytes(file.to_bytes()));
        // Its real name has the version.
        let real = file.canonicalize();
        real.as_deref().unwrap_or(file).display().to_string()
    }
}

/// What the loader says about its last failure in this thread.
fn loader_error() -> String {
    // SAFETY: asks for this thread's last message.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: a string of the loader, valid until this thread calls it again.
    unsafe { CStr::from_ptr(message) }
        .to_string_lossy()
        .into_owned()
}

/// The result of a call that returns 0 or what went wrong.
pub(super) fn done(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        // Some old calls return -1 and leave the number in errno.
        ..0 => Err(io::Error::last_os_error()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// The result of a call that returns what it made, or nothing and errno.
pub(super) fn made<T>(result: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(result).ok_or_else(io::Error::last_os_error)
}

/// What the library has said when something was given back. When the device is gone, the kernel has taken everything back by
/// itself, and the library keeps a little memory; any other refusal means that something still stands on what was given back.
pub(super) fn released(result: c_int, call: &str) {
    debug_assert!(
        matches!(result, 0 | libc::EIO | libc::ENODEV),
        "{call}: {result}"
    );
}
