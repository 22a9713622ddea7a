//! A library without devices, for tests: built by the C compiler, with the versions of the real one.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder that goes with its contents.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("smcfast-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for temporary files");
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A library that was built and can be loaded.
pub(super) struct Built {
    _folder: Folder,
    path: PathBuf,
}

impl Built {
    /// Builds it with all functions but `left_out`, all of version 1.1 (the channel's: 1.0) except `older`, which have 1.0.
    /// None where there is no C compiler.
    pub(super) fn new(name: &str, left_out: &[&str], older: &[&str]) -> Option<Self> {
        let folder = Folder::new(name);
        let source = folder.path().join("fake.c");
        let map = folder.path().join("fake.map");
        let path = folder.path().join("libfake.so");
        std::fs::write(&source, include_str!("fake.c")).expect("a file");
        std::fs::write(&map, versions(left_out, older)).expect("a file");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(&path)
            .arg(&source)
            .arg(format!("-Wl,--version-script={}", map.display()))
            .output();
        let built = match built {
            Ok(built) => built,
            Err(error) => {
                eprintln!("not checked: cc: {error}");
                return None;
            }
        };
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        Some(Self {
            _folder: folder,
            path,
        })
    }

    pub(super) fn path(&self) -> CString {
        CString::new(self.path.as_os_str().as_encoded_bytes()).expect("a path without zeros")
    }

    /// The library's own functions for tests.
    pub(super) fn controls(&self) -> Controls {
        // SAFETY: a path with its zero; the library has no constructors.
        let handle = unsafe { libc::dlopen(self.path().as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "the library was loaded before");
        Controls(handle)
    }
}

fn versions(left_out: &[&str], older: &[&str]) -> String {
    let channel = ["ibv_create_comp_channel", "ibv_destroy_comp_channel"];
    let (mut old, mut new) = (String::new(), String::new());
    for name in include_str!("fake.c").split(|c: char| !c.is_alphanumeric() && c != '_') {
        if name.starts_with("ibv_") && !left_out.contains(&name) {
            let is_old = channel.contains(&name) || older.contains(&name);
            let _ = write!(if is_old { &mut old } else { &mut new }, "{name}; ");
        }
    }
    format!(
        "IBVERBS_1.0 {{ global: {old} local: *; }};\nIBVERBS_1.1 {{ global: {new} fake_*; }} IBVERBS_1.0;\n"
    )
}

/// Steers the library, and tells what it was asked to do.
pub(super) struct Controls(*mut c_void);

impl Controls {
    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: an open handle and a name with its zero.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?}");
        symbol
    }

    /// What has gone, in this order.
    pub(super) fn journal(&self) -> Vec<String> {
        let symbol = self.symbol(c"fake_journal");
        // SAFETY: the function has this type in `fake.c`.
        let journal = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const c_char>(symbol)
        };
        // SAFETY: takes nothing.
        let text = unsafe { journal() };
        // SAFETY: a string that lives as long as the library, which is never unloaded.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_string_lossy()
            .split_whitespace()
            .map(str::to_owned)
            .collect()
    }

    pub(super) fn forget(&self) {
        let symbol = self.symbol(c"fake_forget");
        // SAFETY: the function has this type in `fake.c`.
        let forget = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(symbol) };
        // SAFETY: takes nothing.
        unsafe { forget() }
    }

    fn set(&self, name: &CStr, value: c_int) {
        let symbol = self.symbol(name);
        // SAFETY: the functions that are named here have this type in `fake.c`.
        let set =
            unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int)>(symbol) };
        // SAFETY: takes any number.
        unsafe { set(value) }
    }

    /// Has the list of devices fail.
    pub(super) fn fail_list(&self, errno: c_int) {
        self.set(c"fake_fail_list", errno);
    }

    /// Lets pairs have so many bytes inline, and refuses those that ask for more.
    pub(super) fn inline(&self, most: c_int) {
        self.set(c"fake_inline", most);
    }

    /// Has the device report an event about a port.
    pub(super) fn event(&self, port: usize, kind: u32) {
        let symbol = self.symbol(c"fake_event");
        // SAFETY: the function has this type in `fake.c`.
        let event =
            unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize, u32)>(symbol) };
        // SAFETY: it writes both down for `ibv_get_async_event`; a port's number takes the place of a pointer.
        unsafe { event(port, kind) }
    }
}
