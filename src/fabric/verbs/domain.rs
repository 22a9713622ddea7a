//! A protection domain, and memory that is registered in it.

use std::io;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use super::abi;
use super::context::{Context, Handle};
use super::library::{made, released};
use super::pair::VerbsPair;
use super::queue::Queue;
use crate::fabric::rdma::{Access, Domain, Pair, PairOptions, Registered};
use crate::mem::{Memory, Region};

/// What memory and pairs must share to reach each other.
#[derive(Debug)]
pub(super) struct Protection {
    handle: Handle<abi::Domain>,
    context: Arc<Context>,
}

/// The domain of one peer.
#[derive(Debug)]
pub(super) struct VerbsDomain {
    protection: Arc<Protection>,
    queue: Arc<Queue>,
    port: u8,
}

/// A registration.
#[derive(Debug)]
struct Registration {
    handle: Handle<abi::Memory>,
    protection: Arc<Protection>,
}

impl Protection {
    fn new(context: Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: an open device.
        let domain = made(unsafe { (context.functions()?.ibv_alloc_pd)(context.get()) })?;
        Ok(Arc::new(Self {
            handle: Handle::new(domain),
            context,
        }))
    }

    pub(super) fn get(&self) -> *mut abi::Domain {
        self.handle.get()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Registers `len` bytes of new memory.
    ///
    /// # Errors
    /// ENOMEM, with a text that names the limit where there is one.
    pub(super) fn register(
        self: &Arc<Self>,
        len: usize,
        access: Access,
    ) -> io::Result<Arc<Registered>> {
        let functions = self.context.functions()?;
        let memory = Arc::new(Memory::anonymous(len)?);
        let address = memory.address();
        let access = match access {
            Access::Local => abi::ACCESS_LOCAL_WRITE,
            Access::RemoteWrite => abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE,
        };
        // SAFETY: the device may access exactly the `len` bytes of a mapping that nobody else has. They are only ever accessed by
        // copies that bear concurrent writers (`Region`), and stay mapped until the registration is taken back.
        let registered = unsafe {
            (functions.ibv_reg_mr)(
                self.get(),
                std::ptr::with_exposed_provenance_mut(address),
                len,
                access,
            )
        };
        let handle = made(registered).map_err(|error| refused(error, len))?;
        // SAFETY: made just now; the keys do not change.
        let fields = unsafe { handle.as_ref() };
        let keys = (fields.lkey, fields.rkey);
        let registration = Registration {
            handle: Handle::new(handle),
            protection: Arc::clone(self),
        };
        Ok(Arc::new(Registered::new(
            Region::new(memory, 0, len),
            address as u64,
            keys,
            Box::new(registration),
        )))
    }
}

/// Why memory was not registered. ENOMEM says too little where a limit stands behind it.
fn refused(error: io::Error, len: usize) -> io::Error {
    let limit = getrlimit(Resource::Memlock).current;
    match (error.kind(), limit) {
        (io::ErrorKind::OutOfMemory, Some(limit)) => io::Error::new(
            io::ErrorKind::OutOfMemory,
            format!(
                "{len} bytes cannot be registered: RLIMIT_MEMLOCK of this process is {limit} bytes, for all that it has registered"
            ),
        ),
        _ => error,
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        // In a forked child nothing: the kernel's object is the parent's.
        if let Ok(functions) = self.context.functions() {
            // SAFETY: made by `new`, freed once; pairs and registrations refer to it, and have gone.
            let result = unsafe { (functions.ibv_dealloc_pd)(self.get()) };
            released(result, "ibv_dealloc_pd");
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Ok(functions) = self.protection.context.functions() {
            // SAFETY: made by `register`, taken back once. From here on the device does not access the memory.
            let result = unsafe { (functions.ibv_dereg_mr)(self.handle.get()) };
            released(result, "ibv_dereg_mr");
        }
    }
}

impl VerbsDomain {
    /// A new domain for pairs that work over `port` and report to `queue`.
    pub(super) fn new(context: &Arc<Context>, queue: &Arc<Queue>, port: u8) -> io::Result<Self> {
        Ok(Self {
            protection: Protection::new(Arc::clone(context))?,
            queue: Arc::clone(queue),
            port,
        })
    }
}

impl Domain for VerbsDomain {
    fn register(&self, len: usize, access: Access) -> io::Result<Arc<Registered>> {
        self.protection.register(len, access)
    }

    fn pair(&self, options: PairOptions) -> io::Result<Box<dyn Pair>> {
        let pair = VerbsPair::new(&self.protection, &self.queue, self.port, options)?;
        Ok(Box::new(pair))
    }
}
