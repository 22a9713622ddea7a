//! Set-ups over a loopback fabric: two engines, and talks over a pair of stream sockets.
#![allow(dead_code, reason = "not every test uses all of it")]
#![allow(unreachable_pub, reason = "a module of several test programs")]

#[path = "../polling/mod.rs"]
mod polling;
pub mod raw;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polling::{is_ready, wait};
use rustix::event::PollFlags;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use smcfast::driver::rdma::*;
use smcfast::driver::setup::{
    ClientSetup, Ended, Established, Far, Offer, Options, RdmaOffer, ServerSetup,
};
use smcfast::driver::talk::{ClientTalk, Ending, Event, ServerTalk, Wait};
use smcfast::driver::{Endpoint, Engine, clock};
use smcfast::fabric::Stream;
use smcfast::fabric::loopback::Fabric;
use smcfast::proto::handshake::Subnets;
use smcfast::wire::SizeCode;
use smcfast::wire::clc::{Diagnosis, Eid, Few, Gid, Ipv4Prefix, Mac};

/// Longer than anything takes that does not hang.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// What a set-up has as a whole, where nothing is late.
pub const TIMEOUT: Duration = Duration::from_secs(6);

pub const OPTIONS: Options = Options {
    size: SizeCode::MIN,
    preallocate: false,
};

/// An engine with one port.
#[derive(Debug)]
pub struct Host {
    pub name: &'static str,
    pub engine: Arc<Engine>,
    pub port: Arc<Port>,
}

/// Two hosts that reach each other.
#[derive(Debug)]
pub struct Net {
    pub fabric: Fabric,
    pub client: Host,
    pub server: Host,
}

pub fn gid(host: u8) -> Gid {
    Gid::from_ipv4([10, 9, 0, host].into())
}

pub fn eids(names: &[&str]) -> Few<Eid, 8> {
    let eids = names.iter().map(|name| Eid::new(name).expect("an id"));
    Few::new(eids.collect()).expect("at most 8")
}

pub fn subnets(host: u8) -> Subnets {
    Subnets {
        ipv4: vec![Ipv4Prefix::new([10, 9, 0, host].into(), 24).expect("a subnet")],
        ipv6: Vec::new(),
    }
}

impl Host {
    pub fn new(fabric: &Fabric, name: &'static str, host: u8) -> Self {
        let engine = Arc::new(Engine::new().expect("an engine"));
        engine.add_nic(fabric.nic(name, &[gid(host).0]).expect("a port"));
        let own = OwnPort {
            device: name.to_owned(),
            port: 1,
            gid_index: 0,
            gid: gid(host),
            mac: Mac([2, 0, 0, 0, 0, host]),
            test_after: None,
        };
        let port = engine.port(&own).expect("a port");
        Self { name, engine, port }
    }

    /// SMC-Rv2, and memory besides if that is wanted.
    pub fn offer(&self, memory: bool) -> Offer {
        Offer {
            memory,
            rdma: Some(self.rdma()),
        }
    }

    pub fn rdma(&self) -> RdmaOffer {
        RdmaOffer {
            v1: None,
            v2: Some(Arc::clone(&self.port)),
            eids: eids(&["COMMON"]),
            max_links: 1,
            subnets: subnets(1),
        }
    }
}

impl Net {
    pub fn new() -> Self {
        let fabric = Fabric::new();
        Self {
            client: Host::new(&fabric, "c", 1),
            server: Host::new(&fabric, "s", 2),
            fabric,
        }
    }

    pub fn hosts(&self) -> [&Host; 2] {
        [&self.client, &self.server]
    }

    /// Pairs that there are at either end.
    pub fn pairs(&self) -> [usize; 2] {
        self.hosts().map(|host| self.fabric.pairs(host.name).len())
    }

    /// Serves both engines once, and waits for a moment if nothing is to be done.
    pub fn serve(&self) {
        self.fabric.step();
        let fds = self.hosts().map(|host| host.engine.wake_fd());
        wait(&fds, Duration::from_millis(1));
        for host in self.hosts() {
            host.engine.take_wakes().expect("an epoll set");
        }
    }

    /// Serves both engines until `done`.
    pub fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !done() {
            self.serve();
            assert!(begun.elapsed() < PATIENCE, "never: {what}");
        }
    }

    pub fn client_talk(&self, tcp: UnixStream, offer: Offer, timeout: Duration) -> ClientTalk {
        let engine = Arc::clone(&self.client.engine);
        let now = clock::now();
        let setup = ClientSetup::new(engine, OPTIONS, offer, now).expect("memory");
        ClientTalk::new(setup, stream(tcp), now + timeout)
    }

    pub fn server_talk(&self, tcp: UnixStream, offer: Offer, timeout: Duration) -> ServerTalk {
        let engine = Arc::clone(&self.server.engine);
        let now = clock::now();
        let setup = ServerSetup::new(engine, OPTIONS, offer, now);
        ServerTalk::new(setup, stream(tcp), now + timeout)
    }

    /// A set-up with both ends.
    pub fn both(&self, client: Offer, server: Offer) -> Both {
        self.both_within(client, server, TIMEOUT)
    }

    /// As a configuration has it: the client has less time.
    pub fn both_within(&self, client: Offer, server: Offer, timeout: Duration) -> Both {
        let (near, far) = tcp();
        let copies = [near.try_clone(), far.try_clone()].map(|copy| copy.expect("a descriptor"));
        Both {
            client: self.client_talk(near, client, timeout.mul_f64(0.875)),
            server: self.server_talk(far, server, timeout),
            tcp: copies,
        }
    }

    /// A connection over RDMA.
    pub fn connection(&self) -> [(Endpoint, Established); 2] {
        let mut both = self.both(self.client.offer(false), self.server.offer(false));
        self.finish(&mut both);
        both.established()
    }

    /// Drives both ends until they are over.
    pub fn finish(&self, both: &mut Both) {
        self.finish_all(std::slice::from_mut(both));
    }

    /// Drives both ends of all until they are over.
    pub fn finish_all(&self, all: &mut [Both]) {
        let begun = Instant::now();
        let mut waits: Vec<_> = all.iter_mut().map(Both::step_each).collect();
        while waits.iter().flatten().any(Option::is_some) {
            self.serve();
            for (both, [client, server]) in all.iter_mut().zip(&mut waits) {
                // As an event loop does it: a step only when there is what it waits for.
                if client.as_ref().is_some_and(is_due) {
                    *client = both.client.step(clock::now());
                }
                if server.as_ref().is_some_and(is_due) {
                    *server = both.server.step(clock::now());
                }
            }
            assert!(begun.elapsed() < PATIENCE, "never over: {all:?}");
        }
    }

    /// Drives one end until it is over.
    pub fn run(&self, mut step: impl FnMut() -> Option<Wait>) {
        let begun = Instant::now();
        while step().is_some() {
            self.serve();
            assert!(begun.elapsed() < PATIENCE, "never over");
        }
    }
}

/// Both ends of a set-up.
#[derive(Debug)]
pub struct Both {
    pub client: ClientTalk,
    pub server: ServerTalk,
    /// The client's socket and the server's.
    pub tcp: [UnixStream; 2],
}

impl Both {
    /// One step of each; false when both are over.
    pub fn step(&mut self) -> bool {
        self.step_each().iter().any(Option::is_some)
    }

    /// One step of each, but none of the server's behind the client's last one; whether that was it.
    pub fn step_client(&mut self) -> bool {
        let is_over = self.client.step(clock::now()).is_none();
        if !is_over {
            self.server.step(clock::now());
        }
        is_over
    }

    fn step_each(&mut self) -> [Option<Wait>; 2] {
        let now = clock::now();
        [self.client.step(now), self.server.step(now)]
    }

    pub fn established(&mut self) -> [(Endpoint, Established); 2] {
        let ends = [self.client.ending(), self.server.ending()];
        let established = Some(&Ending::Setup(Ended::Established));
        assert_eq!(ends, [established; 2]);
        [
            self.client.finish().expect("established"),
            self.server.finish().expect("established"),
        ]
    }

    /// Both were declined with this, and TCP works behind it.
    pub fn declined(&mut self, diagnosis: Diagnosis) {
        assert_eq!(
            [
                declined(self.client.ending()),
                declined(self.server.ending())
            ],
            [Some(diagnosis); 2],
            "{self:?}"
        );
        self.client.release();
        self.server.release();
        let [near, far] = &self.tcp;
        for (mut from, mut to, text) in [(near, far, *b"ping"), (far, near, *b"pong")] {
            from.write_all(&text).expect("a connection");
            let mut read = [0; 4];
            to.read_exact(&mut read).expect("what was written");
            assert_eq!(read, text);
        }
    }
}

pub fn declined(ending: Option<&Ending>) -> Option<Diagnosis> {
    match ending {
        Some(Ending::Setup(Ended::Declined { diagnosis, .. })) => Some(*diagnosis),
        _ => None,
    }
}

pub fn has_failed(ending: Option<&Ending>) -> bool {
    matches!(ending, Some(Ending::Setup(Ended::Failed { .. })))
}

pub fn tcp() -> (UnixStream, UnixStream) {
    UnixStream::pair().expect("a pair of sockets")
}

/// A TCP connection to this host from that address of its loopback network, which any of 127.0.0.0/8 is.
pub fn tcp_from(host: u8) -> (UnixStream, UnixStream) {
    let near = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    bind(&near, &SocketAddr::from(([127, 0, 0, host], 0))).expect("an address");
    connect(&near, &listener.local_addr().expect("an address")).expect("a listener");
    let (far, _) = listener.accept().expect("a client");
    // Neither end asks what kind of stream it has.
    (near.into(), OwnedFd::from(far).into())
}

pub fn stream(tcp: UnixStream) -> Stream {
    Stream::new(tcp.into())
}

pub fn is_link(established: &Established) -> bool {
    matches!(established.far, Far::Link { .. })
}

/// Whether there is what `wait` is for.
fn is_due(wait: &Wait) -> bool {
    clock::now() >= wait.until
        || wait.events.iter().any(|event| {
            let (fd, flags) = match *event {
                Event::Readable(fd) => (fd, PollFlags::IN),
                Event::Writable(fd) => (fd, PollFlags::OUT),
                Event::Meeting => return false,
            };
            // SAFETY: the talk that waits for the descriptor has it open, and is not touched before this returns.
            is_ready(unsafe { BorrowedFd::borrow_raw(fd) }, flags)
        })
}
