//! An opened device.

use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::abi;
use super::error::Unavailable;
use super::library::{Library, done, made, released};
use crate::fabric::rdma::Trouble;
use crate::mem::fork;

/// Something that the library has allocated. All its calls may be made from any thread, at the same time.
#[derive(Debug)]
pub(super) struct Handle<T>(NonNull<T>);

// SAFETY: the library promises that its calls are thread-safe; what it has allocated belongs to no thread, and is only reached
// through its calls and by reads of fields that do not change.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    pub(super) fn new(pointer: NonNull<T>) -> Self {
        Self(pointer)
    }

    pub(super) fn get(&self) -> *mut T {
        self.0.as_ptr()
    }
}

/// A device, opened; closed when the last thing that was made on it has gone.
///
/// Everything that is made on a device refers to it by an [`Arc`], and asks it first whether this process made it: in a forked
/// child nothing of the library is touched any more, only descriptors are closed.
#[derive(Debug)]
pub(super) struct Context {
    handle: Handle<abi::Context>,
    library: &'static Library,
    name: String,
    cmd_fd: RawFd,
    async_fd: RawFd,
    generation: u64,
}

/// The devices that the library knows, until dropped.
struct List {
    library: &'static Library,
    first: NonNull<*mut abi::Device>,
    len: usize,
}

impl List {
    fn get(library: &'static Library) -> Result<Self, Unavailable> {
        let mut len = 0;
        // SAFETY: writes one number to where it is told.
        let first = unsafe { (library.functions.ibv_get_device_list)(&raw mut len) };
        Ok(Self {
            library,
            first: made(first).map_err(Unavailable::List)?,
            len: usize::try_from(len).unwrap_or(0),
        })
    }

    /// The devices with their names.
    fn iter(&self) -> impl Iterator<Item = (*mut abi::Device, String)> {
        (0..self.len).map(|at| {
            // SAFETY: the library has said that so many entries are there; they stay until the list is freed.
            let device = unsafe { self.first.as_ptr().wrapping_add(at).read() };
            // SAFETY: a device of the list.
            let name = unsafe { (self.library.functions.ibv_get_device_name)(device) };
            // SAFETY: a string inside the device, which lives as long as the list.
            let name = unsafe { CStr::from_ptr(name) };
            (device, name.to_string_lossy().into_owned())
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list of `get`, freed once; opened devices hold themselves.
        unsafe { (self.library.functions.ibv_free_device_list)(self.first.as_ptr()) }
    }
}

/// The names of the devices that the library knows, sorted.
pub(super) fn names(library: &'static Library) -> Result<Vec<String>, Unavailable> {
    let mut names: Vec<String> = List::get(library)?.iter().map(|(_, name)| name).collect();
    names.sort_unstable();
    Ok(names)
}

impl Context {
    /// Opens the device called `name`.
    ///
    /// # Errors
    /// There is none; it may not be opened (EACCES: /dev/infiniband), EMFILE, ENOMEM.
    pub(super) fn open(library: &'static Library, name: &str) -> Result<Arc<Self>, Unavailable> {
        let generation = fork::generation()?;
        let list = List::get(library)?;
        let Some((device, _)) = list.iter().find(|(_, known)| known == name) else {
            let mut known: Vec<String> = list.iter().map(|(_, known)| known).collect();
            known.sort_unstable();
            return Err(Unavailable::NoSuchDevice {
                device: name.to_owned(),
                known,
            });
        };
        let failed = |call, source| Unavailable::Device {
            device: name.to_owned(),
            call,
            source,
        };
        // SAFETY: a device of a list that has not been freed yet.
        let opened = unsafe { (library.functions.ibv_open_device)(device) };
        let opened = made(opened).map_err(|source| failed("ibv_open_device", source))?;
        // SAFETY: it was opened just now; these numbers do not change.
        let fields = unsafe { opened.as_ref() };
        let (cmd_fd, async_fd) = (fields.cmd_fd, fields.async_fd);
        let context = Self {
            handle: Handle::new(opened),
            library,
            name: name.to_owned(),
            cmd_fd,
            async_fd,
            generation,
        };
        set_nonblocking(context.async_fd()).map_err(|source| failed("fcntl", source))?;
        Ok(Arc::new(context))
    }

    /// The device's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn get(&self) -> *mut abi::Context {
        self.handle.get()
    }

    /// The calls that do not enter the library.
    ///
    /// A pair and a queue name the same context as they were made on, so these are theirs too.
    pub(super) fn calls(&self) -> &abi::Calls {
        // SAFETY: the context is open for as long as `self` is borrowed; the table is set when it is opened.
        unsafe { &(*self.get()).calls }
    }

    /// The library's functions, if this process may call them.
    ///
    /// # Errors
    /// EPERM in a forked child.
    pub(super) fn functions(&self) -> io::Result<&'static super::library::Functions> {
        self.check()?;
        Ok(&self.library.functions)
    }

    /// Whether this process opened the device; false in a forked child.
    pub(super) fn is_ours(&self) -> bool {
        fork::is_current(self.generation)
    }

    /// # Errors
    /// EPERM in a forked child.
    #[inline]
    pub(super) fn check(&self) -> io::Result<()> {
        if self.is_ours() {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::EPERM))
        }
    }

    /// What the device can do.
    pub(super) fn device_state(&self) -> io::Result<abi::DeviceState> {
        let mut state = abi::DeviceState::NONE;
        // SAFETY: an open device; the struct has the size that the call fills (`abi`).
        done(unsafe { (self.functions()?.ibv_query_device)(self.get(), &raw mut state) })?;
        Ok(state)
    }

    /// How a port is.
    pub(super) fn port_state(&self, port: u8) -> io::Result<abi::PortState> {
        let mut state = abi::PortState::default();
        // SAFETY: as above; the call fills no more than the header's whole struct.
        done(unsafe { (self.functions()?.ibv_query_port)(self.get(), port, &raw mut state) })?;
        Ok(state)
    }

    /// The GID at `index`; `None` where the table has none.
    pub(super) fn gid(&self, port: u8, index: u32) -> io::Result<Option<[u8; 16]>> {
        let mut gid = [0; 16];
        let index = i32::try_from(index).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: an open device; the call writes 16 bytes. Nothing reads the array as anything but bytes here.
        done(unsafe { (self.functions()?.ibv_query_gid)(self.get(), port, index, &raw mut gid) })?;
        Ok((gid != [0; 16]).then_some(gid))
    }

    /// Becomes readable when [`Self::take_troubles`] has something.
    pub(super) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as the context is, which outlives the borrow.
        unsafe { BorrowedFd::borrow_raw(self.async_fd) }
    }

    /// What the device has reported about itself, `port` and its pairs. Nothing in a forked child.
    pub(super) fn take_troubles(&self, port: u8) -> Vec<Trouble> {
        let mut troubles = Vec::new();
        loop {
            match self.next_trouble(port) {
                Ok(trouble) => troubles.extend(trouble),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return troubles,
                Err(error)
                    if error.kind() == io::ErrorKind::PermissionDenied && !self.is_ours() =>
                {
                    return troubles;
                }
                Err(_) => {
                    troubles.push(Trouble::Gone);
                    return troubles;
                }
            }
        }
    }

    fn next_trouble(&self, port: u8) -> io::Result<Option<Trouble>> {
        let functions = self.functions()?;
        let mut event = abi::Event {
            element: abi::Element { port_num: 0 },
            event_type: 0,
        };
        // SAFETY: an open device; the call fills the struct or fails. Its descriptor does not block.
        if unsafe { (functions.ibv_get_async_event)(self.get(), &raw mut event) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let trouble = trouble(&event, port);
        // SAFETY: the event of just now, acknowledged once; from here on what it names may be destroyed.
        unsafe { (functions.ibv_ack_async_event)(&raw mut event) };
        Ok(trouble)
    }
}

/// What an event that is not acknowledged yet means for `port`.
fn trouble(event: &abi::Event, port: u8) -> Option<Trouble> {
    let this_port = |trouble| {
        // SAFETY: events of these types have a port's number; any bytes are a number.
        let number = unsafe { event.element.port_num };
        (number == i32::from(port)).then_some(trouble)
    };
    match event.event_type {
        abi::EVENT_PAIR_FATAL | abi::EVENT_PAIR_REQUEST | abi::EVENT_PAIR_ACCESS => {
            // SAFETY: events of these types name a pair of this context.
            let pair = unsafe { event.element.pair };
            // SAFETY: a pair cannot be destroyed before its events are acknowledged: ibv_destroy_qp waits for that.
            let pair = unsafe { (*pair).qp_num };
            Some(Trouble::Pair { pair })
        }
        abi::EVENT_QUEUE | abi::EVENT_DEVICE_FATAL => Some(Trouble::Gone),
        abi::EVENT_PORT_ACTIVE => this_port(Trouble::PortUp),
        abi::EVENT_PORT_ERROR => this_port(Trouble::PortDown),
        abi::EVENT_GID_CHANGE => this_port(Trouble::GidChange),
        _ => None,
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: opened by `open`, closed once; whatever was made on it refers to it, and has gone.
            let result = unsafe { (self.library.functions.ibv_close_device)(self.get()) };
            released(result, "ibv_close_device");
        } else {
            close(self.cmd_fd);
            close(self.async_fd);
        }
    }
}

/// Closes a descriptor that a forked child has inherited with an object of the library.
pub(super) fn close(fd: RawFd) {
    // SAFETY: this process's copy of a descriptor that only the object refers to, whose Drop this is.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}

pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?)
}
