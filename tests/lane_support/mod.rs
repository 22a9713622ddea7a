//! Two engines over a loopback fabric, for the tests of lanes.
#![allow(dead_code, reason = "not every test uses all of it")]
#![allow(unreachable_pub, reason = "a module of several test programs")]

#[path = "../polling/mod.rs"]
pub mod polling;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smcfast::driver::Engine;
use smcfast::driver::rdma::*;
use smcfast::fabric::loopback::Fabric;
use smcfast::fabric::shm::Wake;
use smcfast::mem::Target;
use smcfast::mem::sync::Ordering;
use smcfast::proto::handshake::Limits;
use smcfast::proto::position::Position;
use smcfast::wire::SizeCode;
use smcfast::wire::cdc::{Cdc, Cursor, Half, RdmaCdc, Sequence, StateFlags};
use smcfast::wire::clc::{Gid, Mac, Mtu, PeerId, SmcR, Version};
use smcfast::wire::llc::{Message, TestLink, Turn};

pub use polling::wait;

/// Longer than anything takes that does not hang.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub const LIMITS: Limits = Limits {
    max_connections: 16,
    max_links: 1,
};

/// An engine with one port.
pub struct Host {
    pub name: &'static str,
    pub engine: Engine,
    pub port: Arc<Port>,
}

/// Two hosts that reach each other.
pub struct Net {
    pub fabric: Fabric,
    pub client: Host,
    pub server: Host,
}

impl Host {
    pub fn new(
        fabric: &Fabric,
        name: &'static str,
        gid: [u8; 16],
        test_after: Option<Duration>,
    ) -> Self {
        let engine = Engine::new().expect("engine");
        engine.add_nic(fabric.nic(name, &[gid]).expect("nic"));
        let own = OwnPort {
            device: name.to_owned(),
            port: 1,
            gid_index: 0,
            gid: Gid(gid),
            mac: Mac([2, 0, 0, 0, 0, gid[0]]),
            test_after,
        };
        let port = engine.port(&own).expect("port");
        Self { name, engine, port }
    }

    /// Serves the engine once; the groups whose bells rang or whose links ended.
    pub fn serve(&self) -> Vec<u32> {
        let wakes = self.engine.take_wakes().expect("epoll");
        let bells = wakes.into_iter().filter_map(|wake| match wake {
            Wake::Bell(number) | Wake::Death(number) => Some(number),
            _ => None,
        });
        bells.collect()
    }
}

impl Net {
    pub fn new() -> Self {
        Self::testing_after(None)
    }

    pub fn testing_after(test_after: Option<Duration>) -> Self {
        let fabric = Fabric::new();
        Self {
            client: Host::new(&fabric, "c", [1; 16], test_after),
            server: Host::new(&fabric, "s", [2; 16], test_after),
            fabric,
        }
    }

    pub fn hosts(&self) -> [&Host; 2] {
        [&self.client, &self.server]
    }

    /// Serves both engines until `done`.
    pub fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !done() {
            self.fabric.step();
            let fds = self.hosts().map(|host| host.engine.wake_fd());
            wait(&fds, Duration::from_millis(2));
            for host in self.hosts() {
                host.serve();
            }
            assert!(begun.elapsed() < PATIENCE, "never: {what}");
        }
    }

    /// New groups, connected, and the first places in them.
    pub fn first_contact(&self, sizes: [SizeCode; 2]) -> [Place; 2] {
        let new = |host: &Host, side| {
            host.port
                .new_group(side, Version::V2, Some(LIMITS))
                .expect("group")
        };
        let groups = [
            new(&self.client, Side::Client),
            new(&self.server, Side::Server),
        ];
        let places = [0, 1].map(|i| {
            let place = groups[i].place(sizes[i]).expect("memory");
            place.expect("room")
        });
        let ends = [0, 1].map(|i| places[i].end(Mtu::B1024));
        for i in [0, 1] {
            let id = self.hosts()[1 - i].engine.peer_id();
            groups[i].connect(&ends[1 - i], id, true).expect("connect");
        }
        self.until("up", || {
            places.iter().all(|place| place.link() == LinkState::Up)
        });
        places
    }

    /// A connection on new groups.
    pub fn connection(&self) -> [Lane; 2] {
        attach(self.first_contact([SizeCode::MIN; 2]), SizeCode::MIN)
    }

    /// A connection on the groups of another, each with its key told.
    pub fn next(&self, sizes: [SizeCode; 2]) -> [Lane; 2] {
        let client = &self.client;
        let server_group = self
            .server
            .port
            .find_for_client(Version::V2, client.engine.peer_id(), client.port.own().gid)
            .expect("a group for the client");
        let server = server_group.place(sizes[1]).expect("memory").expect("room");
        let end = server.end(Mtu::B1024);
        let client_group = self
            .client
            .port
            .find_for_server(Version::V2, end.peer_id, end.gid, end.qp_number)
            .expect("the group of the server");
        let client = client_group.place(sizes[0]).expect("memory").expect("room");
        let places = [client, server];
        for place in &places {
            place.tell_key().expect("up");
        }
        self.until("keys", || {
            places
                .iter()
                .all(|place| place.key_state() == KeyState::Confirmed)
        });
        attach(places, SizeCode::MIN)
    }
}

/// The two ends get to know each other.
pub fn attach(places: [Place; 2], send: SizeCode) -> [Lane; 2] {
    let ends = [0, 1].map(|i: usize| places[1 - i].end(Mtu::B1024));
    let mut ends = ends.into_iter();
    places.map(|mut place| {
        let end = ends.next().expect("two");
        place.prepare(&end, send).expect("prepare");
        place.attach().expect("attach")
    })
}

/// Writes `bytes` behind `position` and pushes.
pub fn write(lane: &Lane, position: u64, bytes: &[u8]) -> News {
    let spans = lane
        .send_size()
        .spans(Position::new(position), bytes.len() as u32);
    let (head, tail) = bytes.split_at(spans[0].len as usize);
    lane.send_ring()
        .write(spans[0].offset as usize, head.into());
    lane.send_ring()
        .write(spans[1].offset as usize, tail.into());
    let news = News {
        produced: Position::new(position + bytes.len() as u64),
        ..News::default()
    };
    lane.push(news);
    news
}

/// The bytes of the receive buffer from `position` on.
pub fn read(lane: &Lane, position: u64, len: usize) -> Vec<u8> {
    let spans = lane.rmb_size().spans(Position::new(position), len as u32);
    let mut bytes = vec![0; len];
    let (head, tail) = bytes.split_at_mut(spans[0].len as usize);
    lane.rmb()
        .read(spans[0].offset as usize, Target::from(head));
    lane.rmb()
        .read(spans[1].offset as usize, Target::from(tail));
    bytes
}

/// What the peer has told.
pub fn told(lane: &Lane) -> Cdc {
    let theirs = lane.header().theirs();
    let consumer = theirs.consumer.load(Ordering::Acquire);
    Cdc::from_words(theirs.producer.load(Ordering::Acquire), consumer)
}

pub fn at(wrap: u16, count: u32) -> Cursor {
    Cursor { wrap, count }
}

/// A CDC with this number, for the connection of `end`.
pub fn cdc(end: &SmcR, sequence: u16, producer: Cursor) -> RdmaCdc {
    RdmaCdc {
        sequence: Sequence(sequence),
        token: end.alert_token,
        cdc: Cdc {
            producer,
            ..Cdc::default()
        },
    }
}

/// The messages of the link that a pair has sent.
pub fn links(messages: &[Vec<u8>]) -> Vec<Message> {
    let messages = messages.iter().filter(|message| message[0] != Cdc::TYPE);
    messages
        .map(|message| Message::decode(message).expect("LLC"))
        .collect()
}

/// The news of connections that a pair has sent.
pub fn news(messages: &[Vec<u8>]) -> Vec<RdmaCdc> {
    let messages = messages.iter().filter(|message| message[0] == Cdc::TYPE);
    messages
        .map(|message| RdmaCdc::decode(message).expect("CDC"))
        .collect()
}

pub fn token(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).expect("not 0")
}

pub fn unknown_peer() -> PeerId {
    PeerId([9; 8])
}

pub fn half(word: u64) -> Half {
    Half::from_word(word)
}

/// Both ends close.
pub fn close(lanes: &[Lane; 2]) {
    for lane in lanes {
        lane.push(News {
            state_flags: StateFlags::CLOSED,
            ..News::default()
        });
    }
}

/// A TEST_LINK of version 2.
pub fn test_link() -> Vec<u8> {
    let message = Message::TestLink(TestLink {
        version: Version::V2,
        turn: Turn::Request,
        user_data: [42; 16],
    });
    message.encode()
}
