//! A reliable connected queue pair.

use std::io;
use std::ptr::null_mut;
use std::sync::Arc;

use rustix::rand::{GetRandomFlags, getrandom};

use super::abi;
use super::context::{Context, Handle};
use super::domain::Protection;
use super::library::{done, made, released};
use super::queue::{self, Queue};
use super::receives::Places;
use crate::fabric::rdma::{
    Connecting, HEAD_LEN, Pair, PairOptions, Received, Remote, WRITES_MAX, Write,
};

/// Local ACK timeout: 4.096 us * 2^15 = 134 ms, as the kernel's SMC has it.
const TIMEOUT: u8 = 15;
/// Repetitions until a peer counts as gone, about a second. 7, which the kernel has, is for ever on soft-RoCE.
const RETRIES: u8 = 6;
/// 7 is for ever: a peer that has no receive posted at the moment is busy, not gone. Any other number would break the pair
/// after fractions of a millisecond, for the wait between two tries is the peer's choice. What bounds it is the link's test.
const RNR_RETRIES: u8 = 7;
/// What a peer waits when we have no receive posted: code 5 is 0.06 ms, as the kernel's SMC has it. 0 would be 655 ms.
const RNR_TIMER: u8 = 5;
/// Hops of packets that leave the subnet, and of those that do not. For RoCE v2 the kernel takes the route's instead.
const HOPS_FAR: u8 = 64;
const HOPS_NEAR: u8 = 1;
/// `enum ibv_mtu`.
const MTUS: std::ops::RangeInclusive<u8> = 1..=5;
/// Packet numbers and pair numbers have 24 bits.
const MASK_24: u32 = 0x00ff_ffff;

/// The library's object. Fields drop in order: it goes before what it refers to.
#[derive(Debug)]
struct Queues {
    handle: Handle<abi::Pair>,
    protection: Arc<Protection>,
    /// Its places in the completion queue, which this keeps alive.
    _reserved: queue::Places,
}

/// A pair and its own messages.
#[derive(Debug)]
pub(super) struct VerbsPair {
    queues: Arc<Queues>,
    /// Behind the pair: it receives into this memory until it is destroyed.
    places: Places,
    number: u32,
    first_packet: u32,
    port: u8,
    gid_index: u8,
    /// Bytes that a post may bring with it instead of naming them.
    inline: usize,
}

impl Queues {
    /// A pair in the state RESET, and how many bytes its posts may carry inline.
    fn new(
        protection: &Arc<Protection>,
        queue: &Arc<Queue>,
        options: PairOptions,
    ) -> io::Result<(Self, usize)> {
        let reserved = queue.reserve(options.sends + options.receives)?;
        // Drivers differ in what they say to more inline data than they have: less is granted, or all is refused.
        let (handle, capacity) = match Self::create(protection, queue, options, HEAD_LEN) {
            Err(error) if error.raw_os_error().is_some_and(is_refusal) => {
                Self::create(protection, queue, options, 0)?
            }
            other => other?,
        };
        let queues = Self {
            handle,
            protection: Arc::clone(protection),
            _reserved: reserved,
        };
        Ok((queues, capacity.max_inline_data as usize))
    }

    fn create(
        protection: &Protection,
        queue: &Queue,
        options: PairOptions,
        inline: usize,
    ) -> io::Result<(Handle<abi::Pair>, abi::Capacity)> {
        let mut attributes = abi::PairOptions {
            qp_context: null_mut(),
            send_cq: queue.get(),
            recv_cq: queue.get(),
            srq: null_mut(),
            cap: abi::Capacity {
                max_send_wr: options.sends,
                max_recv_wr: options.receives,
                max_send_sge: 1,
                max_recv_sge: 2,
                max_inline_data: inline as u32,
            },
            qp_type: abi::TYPE_RC,
            sq_sig_all: 0,
        };
        let functions = protection.context().functions()?;
        // SAFETY: a domain and a queue of one open device; the struct is read, and what was granted is written into it.
        let pair = unsafe { (functions.ibv_create_qp)(protection.get(), &raw mut attributes) };
        Ok((Handle::new(made(pair)?), attributes.cap))
    }

    fn context(&self) -> &Context {
        self.protection.context()
    }

    fn get(&self) -> *mut abi::Pair {
        self.handle.get()
    }

    fn number(&self) -> u32 {
        // SAFETY: the pair is not destroyed; its number does not change.
        unsafe { (*self.get()).qp_num }
    }

    fn modify(&self, mut state: abi::PairState, with: i32) -> io::Result<()> {
        let functions = self.context().functions()?;
        // SAFETY: the pair is not destroyed; the struct is read as far as `with` says.
        done(unsafe { (functions.ibv_modify_qp)(self.get(), &raw mut state, with) })
    }

    /// Posts a linked list of sends.
    ///
    /// # Safety
    /// The list and the pieces it names are valid, and what it brings inline is readable.
    unsafe fn post_send(&self, first: *mut abi::Send) -> io::Result<()> {
        self.context().check()?;
        let post = self
            .context()
            .calls()
            .post_send
            .ok_or(io::ErrorKind::Unsupported)?;
        let mut bad = null_mut();
        // SAFETY: the pair is not destroyed; the list is valid by the caller's promise.
        let result = unsafe { post(self.get(), first, &raw mut bad) };
        match done(result) {
            // The first ones are on their way without the last: nobody can tell the peer what they were.
            Err(error) if bad != first => Err(io::Error::other(format!("posted in part: {error}"))),
            other => other,
        }
    }

    /// Posts a linked list of receives.
    ///
    /// # Safety
    /// The list and the pieces it names are valid.
    unsafe fn post_receives(&self, first: *mut abi::Receive) -> io::Result<()> {
        self.context().check()?;
        let post = self
            .context()
            .calls()
            .post_recv
            .ok_or(io::ErrorKind::Unsupported)?;
        let mut bad = null_mut();
        // SAFETY: the pair is not destroyed; the list is valid by the caller's promise.
        done(unsafe { post(self.get(), first, &raw mut bad) })
    }
}

fn is_refusal(errno: i32) -> bool {
    [libc::EINVAL, libc::EOPNOTSUPP, libc::ENOMEM].contains(&errno)
}

impl Drop for Queues {
    fn drop(&mut self) {
        // In a forked child nothing: the kernel's object is the parent's.
        if let Ok(functions) = self.context().functions() {
            // What is under way ends here: a device may not let go of a pair that still tries to send. Soft-RoCE waits for up to 50 s.
            let state = abi::PairState {
                qp_state: abi::STATE_ERROR,
                ..Default::default()
            };
            let _ = self.modify(state, abi::WITH_STATE); // fails where the device is gone, and nothing is under way
            // SAFETY: made by `create`, destroyed once. It waits until its events are acknowledged, which is done as they are taken.
            let result = unsafe { (functions.ibv_destroy_qp)(self.get()) };
            released(result, "ibv_destroy_qp");
        }
    }
}

impl VerbsPair {
    /// A pair that works over `port`, in the state INIT.
    ///
    /// # Errors
    /// Those of [`Domain::pair`](crate::fabric::rdma::Domain::pair).
    pub(super) fn new(
        protection: &Arc<Protection>,
        queue: &Arc<Queue>,
        port: u8,
        options: PairOptions,
    ) -> io::Result<Self> {
        if options.sends == 0 || options.receives == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (queues, inline) = Queues::new(protection, queue, options)?;
        let mut packet = [0; 4];
        getrandom(&mut packet, GetRandomFlags::empty())?;
        let state = abi::PairState {
            qp_state: abi::STATE_INIT,
            pkey_index: 0,
            port_num: port,
            qp_access_flags: (abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE) as u32,
            ..Default::default()
        };
        let with = abi::WITH_STATE | abi::WITH_PKEY_INDEX | abi::WITH_PORT | abi::WITH_ACCESS_FLAGS;
        queues.modify(state, with)?;
        Ok(Self {
            number: queues.number(),
            queues: Arc::new(queues),
            places: Places::new(protection, options.receives, options.sends)?,
            first_packet: u32::from_ne_bytes(packet) & MASK_24,
            port,
            gid_index: options.gid_index,
            inline,
        })
    }

    fn post_idle(&mut self) -> io::Result<()> {
        let queues = &self.queues;
        self.places.post_idle(|first| {
            // SAFETY: `post_idle` gives a valid list. The device writes into the pair's own memory, which is only read by copies that
            // bear concurrent writers, and is taken back after the pair.
            unsafe { queues.post_receives(first) }
        })
    }
}

impl Pair for VerbsPair {
    fn number(&self) -> u32 {
        self.number
    }

    fn first_packet(&self) -> u32 {
        self.first_packet
    }

    fn connecting(&mut self, remote: &Remote) -> io::Result<Connecting> {
        if !MTUS.contains(&remote.mtu) {
            let text = format!("MTU code {}, which does not exist", remote.mtu);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        // Before the pair can receive, so that no message finds it without.
        self.post_idle()?;
        let route = abi::Route {
            grh: abi::GlobalRoute {
                dgid: remote.gid,
                flow_label: 0,
                sgid_index: self.gid_index,
                hop_limit: if remote.direct { HOPS_NEAR } else { HOPS_FAR },
                traffic_class: 0,
            },
            is_global: 1,
            port_num: self.port,
            ..Default::default()
        };
        let state = abi::PairState {
            qp_state: abi::STATE_RTR,
            path_mtu: remote.mtu.into(),
            dest_qp_num: remote.number & MASK_24,
            rq_psn: remote.first_packet & MASK_24,
            max_dest_rd_atomic: 1,
            min_rnr_timer: RNR_TIMER,
            ah_attr: route,
            ..Default::default()
        };
        let with = abi::WITH_STATE
            | abi::WITH_ROUTE
            | abi::WITH_PATH_MTU
            | abi::WITH_DEST_QPN
            | abi::WITH_RQ_PSN
            | abi::WITH_MAX_DEST_RD_ATOMIC
            | abi::WITH_MIN_RNR_TIMER;
        // Should they be the last, the memory goes behind the queue pair, called or not: a tuple drops in its order.
        let held = (Arc::clone(&self.queues), self.places.memory());
        Ok(Box::new(move || {
            let held = held;
            held.0.modify(state, with)
        }))
    }

    fn ready_to_send(&mut self) -> io::Result<()> {
        let state = abi::PairState {
            qp_state: abi::STATE_RTS,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: RNR_RETRIES,
            sq_psn: self.first_packet,
            max_rd_atomic: 1,
            ..Default::default()
        };
        let with = abi::WITH_STATE
            | abi::WITH_TIMEOUT
            | abi::WITH_RETRY_CNT
            | abi::WITH_RNR_RETRY
            | abi::WITH_SQ_PSN
            | abi::WITH_MAX_RD_ATOMIC;
        self.queues.modify(state, with)
    }

    fn post(
        &mut self,
        writes: &[Write<'_>],
        message: &[u8],
        id: u64,
        report: bool,
    ) -> io::Result<()> {
        // Also before any memory is touched, which a forked child does not have.
        self.queues.context().check()?;
        assert!(
            writes.len() <= WRITES_MAX,
            "{} writes in a post",
            writes.len()
        );
        assert!(
            message.len() <= HEAD_LEN,
            "a message of {} bytes",
            message.len()
        );
        let mut copies = [[0; HEAD_LEN]; WRITES_MAX];
        let mut pieces = [abi::Piece::NONE; WRITES_MAX + 1];
        let mut sends = [abi::Send::NONE; WRITES_MAX + 1];
        for (at, write) in writes.iter().enumerate() {
            let (piece, flags) = self.piece(write, &mut copies[at]);
            pieces[at] = piece;
            sends[at] = abi::Send {
                wr_id: id,
                num_sge: 1,
                opcode: abi::SEND_WRITE,
                send_flags: flags,
                remote_addr: write.address,
                rkey: write.key,
                ..abi::Send::NONE
            };
        }
        let (piece, flags) = self.message_piece(message);
        pieces[writes.len()] = piece;
        sends[writes.len()] = abi::Send {
            wr_id: id,
            num_sge: 1,
            opcode: abi::SEND_MESSAGE,
            send_flags: flags | abi::FLAG_SOLICITED | if report { abi::FLAG_SIGNALED } else { 0 },
            ..abi::Send::NONE
        };
        let first = chain(&mut sends[..=writes.len()], &mut pieces);
        // SAFETY: `chain` has linked sends and pieces that live until the call returns, and so does what they bring inline: the
        // message and `copies`. Other pieces the device reads through their keys, from memory that it knows to be registered.
        unsafe { self.queues.post_send(first) }
    }

    fn received(&mut self, slot: u32, len: u32) -> Received {
        if self.queues.context().is_ours() {
            return self.places.take(slot, len);
        }
        Received {
            head: [0; HEAD_LEN],
            head_len: 0,
            tail: Vec::new(),
        }
    }

    fn replenish(&mut self) -> io::Result<()> {
        self.post_idle()
    }
}

impl VerbsPair {
    /// Where the bytes of a write are. Few enough go along inline, from `copy`: that spares the device a read, and the address of
    /// memory of another kind is never followed here.
    fn piece(&self, write: &Write<'_>, copy: &mut [u8; HEAD_LEN]) -> (abi::Piece, u32) {
        let region = write.from.region();
        let len = write.len as usize;
        assert!(
            len > 0 && write.offset <= region.len() && len <= region.len() - write.offset,
            "write {}+{len} of {} bytes",
            write.offset,
            region.len()
        );
        if len > self.inline.min(HEAD_LEN) {
            let piece = abi::Piece {
                addr: write.from.address() + write.offset as u64,
                length: write.len,
                lkey: write.from.local_key(),
            };
            return (piece, 0);
        }
        region.read(write.offset, copy[..len].as_mut().into());
        (inline_piece(&copy[..len]), abi::FLAG_INLINE)
    }

    /// Where the message is: with its sender, if it goes along inline, else copied to a place of ours.
    fn message_piece(&mut self, message: &[u8]) -> (abi::Piece, u32) {
        if message.len() <= self.inline {
            (inline_piece(message), abi::FLAG_INLINE)
        } else {
            (self.places.keep(message), 0)
        }
    }
}

fn inline_piece(bytes: &[u8]) -> abi::Piece {
    abi::Piece {
        addr: bytes.as_ptr().expose_provenance() as u64,
        length: bytes.len() as u32,
        lkey: 0,
    }
}

/// Links `sends` to a list, each with its piece, and returns the first.
fn chain(sends: &mut [abi::Send], pieces: &mut [abi::Piece]) -> *mut abi::Send {
    assert!(sends.len() <= pieces.len(), "a piece for each send");
    let (count, first, pieces) = (sends.len(), sends.as_mut_ptr(), pieces.as_mut_ptr());
    for at in 0..count {
        let send = first.wrapping_add(at);
        // SAFETY: within the slice, which nothing else refers to for as long as the caller lends it.
        let send = unsafe { &mut *send };
        send.sg_list = pieces.wrapping_add(at);
        if at + 1 < count {
            send.next = first.wrapping_add(at + 1);
        }
    }
    first
}
