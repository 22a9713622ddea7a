//! What any RDMA fabric offers: queue pairs over which one end writes into memory of the other, and sends messages.
//!
//! `verbs` has real devices, `loopback` one that exists within a process, for tests. The types are those
//! that both need; numbers and addresses are plain, for nothing here knows what is said over a queue pair.
//!
//! ```text
//! Nic        a port of a device: one completion queue, and the descriptor that wakes for it
//!  `- Domain     memory and queue pairs that belong together; others cannot reach its memory
//!      |- Registered   memory that peers may write, if they know its key
//!      `- Pair         one end of a connected queue pair
//! ```

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::mem::Region;

/// Bytes of a message that are received in place; what is longer goes on in a buffer that all receives of a pair share.
pub const HEAD_LEN: usize = 44;
/// Bytes of the longest message that can be received.
pub const MESSAGE_MAX: usize = 8192;
/// Writes of one post at most.
pub const WRITES_MAX: usize = 2;
/// Completions that one [`Nic::poll`] takes at most.
pub const POLL_MAX: usize = 32;

/// An opened port of a device.
pub trait Nic: Debug + Send + Sync {
    /// The name of the device, for people.
    fn device(&self) -> &str;

    /// The number of the port, from 1 on.
    fn port(&self) -> u8;

    /// The active MTU as the verbs count it: 1 for 256 bytes, 5 for 4096.
    fn mtu(&self) -> io::Result<u8>;

    /// The GID at `index` of the port's table.
    ///
    /// # Errors
    /// There is none, or the device is gone.
    fn gid(&self, index: u8) -> io::Result<[u8; 16]>;

    /// A protection domain.
    ///
    /// # Errors
    /// ENOMEM; the device is gone.
    fn domain(&self) -> io::Result<Box<dyn Domain>>;

    /// Becomes readable when a completion has come after [`Self::arm`], and stays so until [`Self::take_events`].
    fn completion_fd(&self) -> BorrowedFd<'_>;

    /// Becomes readable when [`Self::take_troubles`] has something.
    fn trouble_fd(&self) -> BorrowedFd<'_>;

    /// Has the next completion make [`Self::completion_fd`] readable. Those that are there already do not count.
    ///
    /// # Errors
    /// The device is gone.
    fn arm(&self) -> io::Result<()>;

    /// Takes the event that has made [`Self::completion_fd`] readable; does not wait. Returns whether there was one.
    fn take_events(&self) -> io::Result<bool>;

    /// Appends completions of all pairs, at most [`POLL_MAX`], and returns how many.
    ///
    /// # Errors
    /// The completion queue has overrun, or the device is gone.
    fn poll(&self, found: &mut Vec<Completion>) -> io::Result<usize>;

    /// What the device has reported about itself and its pairs; does not wait.
    fn take_troubles(&self) -> Vec<Trouble>;
}

/// Memory and pairs of one peer. What was made in it keeps it alive.
pub trait Domain: Debug + Send + Sync {
    /// Registers `len` zeroed bytes, page-aligned, which no forked child inherits. Nothing but the pages that are registered is
    /// reachable by its keys.
    ///
    /// # Errors
    /// ENOMEM: the limit of locked memory (RLIMIT_MEMLOCK), or no memory is left.
    fn register(&self, len: usize, access: Access) -> io::Result<Arc<Registered>>;

    /// A new pair, not connected.
    ///
    /// # Errors
    /// ENOMEM, EMFILE; the device allows no more.
    fn pair(&self, options: PairOptions) -> io::Result<Box<dyn Pair>>;
}

/// What may be done with registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Pairs of this end send from it.
    Local,
    /// Peers write it.
    RemoteWrite,
}

/// Registered memory. It goes when nobody refers to it any more.
#[derive(Debug)]
pub struct Registered {
    region: Region,
    address: u64,
    local_key: u32,
    remote_key: u32,
    /// Takes back the registration when dropped; declared behind nothing that it needs, and before the region by [`Drop`].
    keeper: Option<Box<dyn Debug + Send + Sync>>,
}

impl Registered {
    /// `region`, which starts at `address` for the device, for as long as `keeper` is not dropped.
    pub fn new(
        region: Region,
        address: u64,
        (local_key, remote_key): (u32, u32),
        keeper: Box<dyn Debug + Send + Sync>,
    ) -> Self {
        Self {
            region,
            address,
            local_key,
            remote_key,
            keeper: Some(keeper),
        }
    }

    /// The bytes.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Where they start, for whoever names them by a key.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The key by which own pairs name them.
    pub fn local_key(&self) -> u32 {
        self.local_key
    }

    /// The key by which peers name them.
    pub fn remote_key(&self) -> u32 {
        self.remote_key
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // The device must forget the pages before they go.
        self.keeper = None;
    }
}

/// How a pair is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairOptions {
    /// The own address: its place in the port's GID table.
    pub gid_index: u8,
    /// Places for writes and messages that are under way.
    pub sends: u32,
    /// Receives that are posted.
    pub receives: u32,
}

/// The other end of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// The address of its port.
    pub gid: [u8; 16],
    /// Its number there.
    pub number: u32,
    /// The number of its first packet, 24 bits.
    pub first_packet: u32,
    /// The MTU that both ends use.
    pub mtu: u8,
    /// Whether both are in one subnet; otherwise packets live for 64 hops instead of 1.
    pub direct: bool,
}

/// Bytes to write into a peer's memory.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// Where they are.
    pub from: &'a Registered,
    /// Where in it they begin.
    pub offset: usize,
    /// How many they are; not 0.
    pub len: u32,
    /// Where they go, in the peer's terms.
    pub address: u64,
    /// The peer's key.
    pub key: u32,
}

/// The rest of the way to a connected pair, see [`Pair::connecting`].
pub type Connecting = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// One end of a queue pair.
pub trait Pair: Debug + Send {
    /// Its number on the device, 24 bits.
    fn number(&self) -> u32;

    /// The number of the first packet that it sends, 24 bits, random.
    fn first_packet(&self) -> u32;

    /// Posts the receives, and returns the call that connects the pair: from there on messages arrive. The call takes up to a second,
    /// while the host asks for the address behind a GID; it may be made in any thread, whatever becomes of the pair meanwhile.
    /// Its errors: no route to the peer, a wrong MTU; the device is gone.
    ///
    /// # Errors
    /// The device is gone.
    fn connecting(&mut self, remote: &Remote) -> io::Result<Connecting>;

    /// Connects it, at once.
    ///
    /// # Errors
    /// Those of [`Self::connecting`] and of its call.
    fn ready_to_receive(&mut self, remote: &Remote) -> io::Result<()> {
        self.connecting(remote)?()
    }

    /// From here on [`Self::post`] may be called.
    ///
    /// # Errors
    /// The device is gone.
    fn ready_to_send(&mut self) -> io::Result<()>;

    /// Writes, and then sends `message` (at most [`HEAD_LEN`] bytes, copied now), in one post and in this order. Takes a place
    /// for each, which are free again when a later or equal `id` was reported as sent; the caller counts them.
    ///
    /// Only what is posted with `report` is reported when it was done; failures always are.
    ///
    /// # Errors
    /// ENOMEM: no place is free, nothing was posted; the pair is broken.
    ///
    /// # Panics
    /// A write is not within its memory or has no bytes, there are more than [`WRITES_MAX`], or the message is too long.
    fn post(
        &mut self,
        writes: &[Write<'_>],
        message: &[u8],
        id: u64,
        report: bool,
    ) -> io::Result<()>;

    /// The message that a [`Completion::Received`] tells of, copied out.
    fn received(&mut self, slot: u32, len: u32) -> Received;

    /// Posts the receives again whose messages were taken out; once for a batch of completions.
    ///
    /// # Errors
    /// The pair is broken.
    fn replenish(&mut self) -> io::Result<()>;
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The first bytes.
    pub head: [u8; HEAD_LEN],
    /// How many of them there are.
    pub head_len: usize,
    /// The others; of two long messages in one batch the first may have those of the second.
    pub tail: Vec<u8>,
}

impl Received {
    /// All bytes, if they fit into the head.
    pub fn short(&self) -> Option<&[u8]> {
        self.tail.is_empty().then_some(&self.head[..self.head_len])
    }

    /// All bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        [&self.head[..self.head_len], &self.tail].concat()
    }
}

/// What has become of something posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    /// A message has come.
    Received {
        /// The number of the pair.
        pair: u32,
        /// For [`Pair::received`].
        slot: u32,
        /// Bytes of the message.
        len: u32,
    },
    /// This post and all before are done: their bytes are in the peer's memory.
    Sent {
        /// The number of the pair.
        pair: u32,
        /// That of the post.
        id: u64,
    },
    /// The pair is broken; more of these may follow, nothing else.
    Failed {
        /// The number of the pair.
        pair: u32,
        /// What the device says.
        status: Status,
    },
}

/// Why a pair has failed, as the verbs number it (`enum ibv_wc_status`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// What it means.
    pub const fn text(self) -> &'static str {
        match self.0 {
            0 => "success",
            1 => "local length error: the peer has sent a message longer than any",
            2 => "local queue pair operation error",
            4 => "local protection error",
            5 => "flushed after an error of the queue pair",
            6 => "memory window bind error",
            7 => "bad response",
            8 => "local access error",
            9 => "remote invalid request",
            10 => "remote access error: the peer does not know the key",
            11 => "remote operation error",
            12 => "transport retries exceeded: the peer does not answer",
            13 => "receiver-not-ready retries exceeded: the peer posts no receives",
            19 => "fatal error of the device",
            20 => "response timeout",
            21 => "general error",
            _ => "unknown error",
        }
    }

    /// Whether it only tells that something before has failed.
    pub const fn is_flush(self) -> bool {
        self.0 == 5
    }
}

/// What a device reports by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// A pair is broken.
    Pair {
        /// Its number.
        pair: u32,
    },
    /// The port does not work any more: all its pairs fail.
    PortDown,
    /// The port works again.
    PortUp,
    /// The table of GIDs has changed.
    GidChange,
    /// The device, or its completion queue, is gone for good.
    Gone,
}
