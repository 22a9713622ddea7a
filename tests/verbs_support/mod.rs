//! Two devices with memory and a pair each, and patience.

pub(crate) mod limits;
pub(crate) mod link;
pub(crate) mod peer;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smcfast::fabric::rdma::{
    Access, Completion, Domain, HEAD_LEN, Nic, Pair, PairOptions, Received, Registered, Remote,
    Trouble, Write,
};
use smcfast::fabric::verbs;

/// The place of a port's first IPv4-mapped address is looked up; the table begins with the link-local one.
const GIDS: u8 = 8;
/// Bytes of each end's memory.
const MEMORY: usize = 1 << 16;
/// The queues of a pair, if a test does not care.
pub(crate) const OPTIONS: PairOptions = PairOptions {
    gid_index: 0,
    sends: 16,
    receives: 16,
};
/// Whatever is waited for comes sooner, or never: seconds.
const PATIENCE: i64 = 30;

/// Whether real devices are to be used. Says so where not.
pub(crate) fn is_wanted() -> bool {
    let wanted = std::env::var_os("SMCFAST_RDMA").is_some_and(|value| value == "1");
    if !wanted {
        eprintln!(
            "not run: SMCFAST_RDMA=1 is not set, which says that two RoCE devices are laid out"
        );
    }
    wanted
}

/// One end: a device with its domain, memory that the other end may write, and a pair.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) pair: Box<dyn Pair>,
    pub(crate) memory: Arc<Registered>,
    pub(crate) domain: Box<dyn Domain>,
    pub(crate) nic: Arc<dyn Nic>,
    pub(crate) gid: [u8; 16],
    /// What the other end has, once connected: address and key.
    pub(crate) far: (u64, u32),
    found: Vec<Completion>,
}

/// Both ends.
#[derive(Debug)]
pub(crate) struct Two {
    pub(crate) a: End,
    pub(crate) b: End,
}

/// The index and the GID that begins ::ffff:.
pub(crate) fn ipv4_gid(nic: &dyn Nic) -> (u8, [u8; 16]) {
    let mapped = |gid: &[u8; 16]| gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    loop {
        let found = (0..GIDS)
            .filter_map(|index| Some((index, nic.gid(index).ok()?)))
            .find(|(_, gid)| mapped(gid));
        if let Some(found) = found {
            return found;
        }
        // A device that is new gets its addresses a moment later, and says so.
        wait(nic.trouble_fd());
        nic.take_troubles();
    }
}

/// The names of the two devices.
pub(crate) fn names() -> [String; 2] {
    let names = std::env::var("SMCFAST_RDMA_DEVICES").unwrap_or_else(|_| "rxe0 rxe1".to_owned());
    let names: Vec<String> = names.split_whitespace().map(str::to_owned).collect();
    names.try_into().expect("two devices")
}

impl End {
    /// Opens the device, and makes what an end has.
    pub(crate) fn open(device: &str, options: PairOptions) -> Self {
        let nic = verbs::open(device, 1).unwrap_or_else(|error| panic!("{error}"));
        let (gid_index, gid) = ipv4_gid(&*nic);
        let domain = nic.domain().expect("domain");
        let memory = domain
            .register(MEMORY, Access::RemoteWrite)
            .expect("memory");
        let pair = domain
            .pair(PairOptions {
                gid_index,
                ..options
            })
            .expect("pair");
        Self {
            pair,
            memory,
            domain,
            nic,
            gid,
            far: (0, 0),
            found: Vec::new(),
        }
    }

    /// What the other end needs to know.
    pub(crate) fn remote(&self) -> Remote {
        Remote {
            gid: self.gid,
            number: self.pair.number(),
            first_packet: self.pair.first_packet(),
            mtu: self.nic.mtu().expect("MTU"),
            direct: true,
        }
    }

    /// Writes parts of the own memory to the same one of the other end, (from, bytes, to), and sends `message`.
    pub(crate) fn post(
        &mut self,
        writes: &[(usize, u32, usize)],
        message: &[u8],
        id: u64,
        report: bool,
    ) {
        self.try_post(writes, message, id, report).expect("post");
    }

    /// The same, if there is room.
    pub(crate) fn try_post(
        &mut self,
        writes: &[(usize, u32, usize)],
        message: &[u8],
        id: u64,
        report: bool,
    ) -> std::io::Result<()> {
        let (address, key) = self.far;
        let writes: Vec<Write<'_>> = writes
            .iter()
            .map(|&(offset, len, to)| Write {
                from: &self.memory,
                offset,
                len,
                address: address + to as u64,
                key,
            })
            .collect();
        self.pair.post(&writes, message, id, report)
    }

    /// The next completion. Sleeps until it is there.
    pub(crate) fn next(&mut self) -> Completion {
        while self.found.is_empty() {
            self.nic.arm().expect("arm");
            if self.nic.poll(&mut self.found).expect("poll") == 0 {
                wait(self.nic.completion_fd());
                self.nic.take_events().expect("events");
            }
        }
        self.found.remove(0)
    }

    /// The next completion, which is a message. Its receive is posted again.
    pub(crate) fn next_message(&mut self) -> Received {
        let message = self.take_message();
        self.pair.replenish().expect("replenish");
        message
    }

    /// The same without posting its receive.
    pub(crate) fn take_message(&mut self) -> Received {
        match self.next() {
            Completion::Received { pair, slot, len } => {
                assert_eq!(pair, self.pair.number());
                self.pair.received(slot, len)
            }
            other => panic!("{other:?} instead of a message"),
        }
    }

    /// The next message, past reports of what was sent.
    pub(crate) fn next_received(&mut self) -> [u8; HEAD_LEN] {
        loop {
            if let Completion::Received { slot, len, .. } = self.next() {
                return self.pair.received(slot, len).head;
            }
        }
    }

    /// The failure of the pair that comes next; what else was done before is passed over.
    pub(crate) fn next_failure(&mut self) -> u32 {
        loop {
            if let Completion::Failed { pair, status } = self.next() {
                assert_eq!(pair, self.pair.number());
                return status.0;
            }
        }
    }

    /// Bytes of the own memory.
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory
            .region()
            .read(offset, bytes.as_mut_slice().into());
        bytes
    }
}

impl Two {
    /// Both, with queues of `options`. None where no devices are to be used.
    pub(crate) fn with(options: PairOptions) -> Option<Self> {
        is_wanted().then(|| {
            let [a, b] = names();
            Self {
                a: End::open(&a, options),
                b: End::open(&b, options),
            }
        })
    }

    /// Both, connected, with the usual queues.
    pub(crate) fn connected() -> Option<Self> {
        Self::connected_with(OPTIONS)
    }

    /// Both, connected, with queues of `options`.
    pub(crate) fn connected_with(options: PairOptions) -> Option<Self> {
        let mut two = Self::with(options)?;
        two.connect();
        Some(two)
    }

    fn connect(&mut self) {
        let (to_a, to_b) = (self.a.remote(), self.b.remote());
        self.a.pair.ready_to_receive(&to_b).expect("RTR");
        self.b.pair.ready_to_receive(&to_a).expect("RTR");
        self.a.pair.ready_to_send().expect("RTS");
        self.b.pair.ready_to_send().expect("RTS");
        self.a.far = (self.b.memory.address(), self.b.memory.remote_key());
        self.b.far = (self.a.memory.address(), self.a.memory.remote_key());
    }
}

/// Sleeps until `fd` is readable.
pub(crate) fn wait(fd: BorrowedFd<'_>) {
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    let patience = Timespec {
        tv_sec: PATIENCE,
        tv_nsec: 0,
    };
    let ready = poll(&mut fds, Some(&patience)).expect("poll");
    assert_eq!(ready, 1, "nothing came");
}

/// Collects what `nic` reports about itself until `wanted` is there.
pub(crate) fn until(seen: &mut Vec<Trouble>, nic: &dyn Nic, wanted: Trouble) {
    while !seen.contains(&wanted) {
        wait(nic.trouble_fd());
        seen.extend(nic.take_troubles());
    }
}

/// A message of the usual length.
pub(crate) fn message(number: u8) -> [u8; HEAD_LEN] {
    let mut message = [number; HEAD_LEN];
    message[HEAD_LEN - 1] = !number;
    message
}
