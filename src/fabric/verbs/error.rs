//! Why there is no RDMA here.

use std::io;

/// Why a device cannot be used; its text is the reason that users see.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// The kernel has none, or none that programs may use.
    #[error("RDMA: this host has no device (/sys/class/infiniband_verbs is empty)")]
    NoDevice,
    /// The library asks for more locked memory when it starts, and says so on standard error.
    #[error(
        "RDMA: RLIMIT_MEMLOCK of this process is {limit} bytes, too little to register any memory"
    )]
    MemoryLock {
        /// The limit.
        limit: u64,
    },
    /// The dynamic loader does not find the library, or cannot load it.
    #[error("RDMA: libibverbs cannot be loaded: {0}")]
    Library(String),
    /// It is not the library that we know.
    #[error("RDMA: {path} has no {symbol} of version {version}")]
    Symbol {
        /// The file that was loaded.
        path: String,
        /// What it lacks.
        symbol: &'static str,
        /// In which version.
        version: &'static str,
    },
    /// The library cannot tell what devices there are.
    #[error("RDMA: ibv_get_device_list: {0}")]
    List(io::Error),
    /// There are devices, but not this one; or the library has no driver for it.
    #[error("RDMA: no device {device}; the library knows {known:?}")]
    NoSuchDevice {
        /// What was asked for.
        device: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The device has fewer ports.
    #[error("RDMA: {device} has no port {port}; it has {ports}")]
    NoSuchPort {
        /// The device.
        device: String,
        /// What was asked for.
        port: u8,
        /// How many there are.
        ports: u8,
    },
    /// A call has failed.
    #[error("RDMA: {device}: {call}: {source}")]
    Device {
        /// The device.
        device: String,
        /// The call.
        call: &'static str,
        /// What it says.
        source: io::Error,
    },
    /// The fork generation is not to be had.
    #[error("RDMA: {0}")]
    Os(#[from] io::Error),
}

impl Unavailable {
    /// The number that tells of it best.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoDevice | Self::NoSuchDevice { .. } | Self::NoSuchPort { .. } => libc::ENODEV,
            Self::MemoryLock { .. } => libc::ENOMEM,
            Self::Library(_) | Self::Symbol { .. } => libc::ELIBACC,
            Self::List(source) | Self::Device { source, .. } | Self::Os(source) => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
        }
    }
}

impl From<Unavailable> for io::Error {
    fn from(unavailable: Unavailable) -> Self {
        let kind = match &unavailable {
            Unavailable::List(source)
            | Unavailable::Device { source, .. }
            | Unavailable::Os(source) => source.kind(),
            Unavailable::MemoryLock { .. } => io::ErrorKind::OutOfMemory,
            Unavailable::NoSuchPort { .. } => io::ErrorKind::InvalidInput,
            Unavailable::NoDevice | Unavailable::NoSuchDevice { .. } => io::ErrorKind::NotFound,
            Unavailable::Library(_) | Unavailable::Symbol { .. } => io::ErrorKind::Unsupported,
        };
        Self::new(kind, unavailable)
    }
}
