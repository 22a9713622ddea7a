//! Two ends in one process, each with an engine of its own: on shared memory, or over a fabric for tests.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::driver::endpoint::{Buffers, Endpoint};
use crate::driver::engine::{Engine, Parts};
use crate::driver::group::Membership;
use crate::driver::rdma::{Lane, LinkState, OwnPort, Place, Port};
use crate::fabric::loopback::Fabric;
use crate::fabric::rdma::Status;
use crate::fabric::shm::{Bell, Dmb, Wake};
use crate::mem::header::Side;
use crate::mem::sync::Ordering;
use crate::proto::handshake::Limits;
use crate::proto::position::RingSize;
use crate::wire::SizeCode;
use crate::wire::clc::{Gid, Mac, Mtu, SmcR, Version};

/// What carries a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Shared,
    Lane,
}

/// The devices of the two ends.
pub(crate) const DEVICES: [&str; 2] = ["server", "client"];
/// The device does not get an answer.
pub(crate) const SILENCE: Status = Status(12);
/// Hang guard.
const PATIENCE: Duration = Duration::from_secs(20);

/// Declared so that the ends go before what they need.
pub(crate) struct Pair {
    pub(crate) server: Endpoint,
    pub(crate) client: Endpoint,
    pub(crate) server_engine: Engine,
    pub(crate) client_engine: Engine,
    pub(crate) fabric: Option<Fabric>,
}

impl Pair {
    /// The link between the ends is gone, or what tells of a peer's death has told.
    pub(crate) fn lose(&mut self) {
        match &self.fabric {
            None => {
                self.server.lost();
                self.client.lost();
            }
            Some(fabric) => {
                for device in DEVICES {
                    for pair in fabric.pairs(device) {
                        fabric.fail(device, pair, SILENCE);
                    }
                }
            }
        }
    }

    /// Lets what is under way arrive.
    pub(crate) fn step(&self) {
        if let Some(fabric) = &self.fabric {
            fabric.step();
        }
    }
}

pub(crate) fn pair(kind: Kind) -> Pair {
    pair_of(kind, 0, 0)
}

/// Two ends with rings of these sizes.
pub(crate) fn pair_of(kind: Kind, server_code: u8, client_code: u8) -> Pair {
    let codes = [server_code, client_code].map(|code| SizeCode::new(code).expect("a size code"));
    match kind {
        Kind::Shared => on_shared_memory(codes),
        Kind::Lane => on_lanes(codes),
    }
}

/// Whether somebody was woken.
pub(crate) fn rung(engine: &Engine) -> bool {
    engine
        .take_wakes()
        .expect("take")
        .iter()
        .any(|wake| matches!(wake, Wake::Bell(_) | Wake::Death(_)))
}

pub(crate) fn engine_pair() -> (Engine, Membership, Engine, Membership) {
    let (server, client) = (
        Engine::new().expect("an engine"),
        Engine::new().expect("an engine"),
    );
    let (server_bell, client_bell) = (
        Bell::create().expect("a bell"),
        Bell::create().expect("a bell"),
    );
    let dup = |fd: &OwnedFd| Bell::check(fd.try_clone().expect("dup")).expect("a bell");
    let (to_server, to_client) = (dup(&server_bell), dup(&client_bell));
    let parts = Parts {
        own_bell: server_bell,
        peer_bell: to_client,
        witness: None,
    };
    let server_place = server
        .first_contact(client.id(), Side::Server, None, parts)
        .expect("a group");
    let parts = Parts {
        own_bell: client_bell,
        peer_bell: to_server,
        witness: None,
    };
    let link = Some(server_place.key().link_id);
    let client_place = client
        .first_contact(server.id(), Side::Client, link, parts)
        .expect("a group");
    (server, server_place, client, client_place)
}

fn on_shared_memory(codes: [SizeCode; 2]) -> Pair {
    let [server_size, client_size] = codes.map(RingSize::from_code);
    let (server_dmb, server_fd) = Dmb::create(server_size.bytes() as usize, false).expect("a DMB");
    let (client_dmb, client_fd) = Dmb::create(client_size.bytes() as usize, false).expect("a DMB");
    server_dmb.header(Side::Server).initialise();
    let attach = |fd: &OwnedFd, size: RingSize| {
        Dmb::attach(fd, size.bytes() as usize).expect("the peer's DMB")
    };
    let (to_client, to_server) = (
        attach(&client_fd, client_size),
        attach(&server_fd, server_size),
    );
    let (server_engine, server_place, client_engine, client_place) = engine_pair();
    let server = Buffers {
        side: Side::Server,
        own: server_dmb,
        own_size: server_size,
        peer: to_client,
        peer_size: client_size,
    };
    let client = Buffers {
        side: Side::Client,
        own: client_dmb,
        own_size: client_size,
        peer: to_server,
        peer_size: server_size,
    };
    Pair {
        server: Endpoint::new(server, server_place),
        client: Endpoint::new(client, client_place),
        server_engine,
        client_engine,
        fabric: None,
    }
}

fn on_lanes(codes: [SizeCode; 2]) -> Pair {
    let fabric = Fabric::new();
    let [server_engine, client_engine] = [(); 2].map(|()| Engine::new().expect("an engine"));
    let [server, client] = lanes(&fabric, [&server_engine, &client_engine], codes);
    Pair {
        server: Endpoint::on_lane(server, Side::Server),
        client: Endpoint::on_lane(client, Side::Client),
        server_engine,
        client_engine,
        fabric: Some(fabric),
    }
}

fn lanes(fabric: &Fabric, engines: [&Engine; 2], codes: [SizeCode; 2]) -> [Lane; 2] {
    const LIMITS: Limits = Limits {
        max_connections: 16,
        max_links: 1,
    };
    let ports = [0, 1].map(|end| port(fabric, engines[end], DEVICES[end], [end as u8 + 1; 16]));
    let sides = [Side::Server, Side::Client];
    let groups = [0, 1].map(|end| {
        let group = ports[end].new_group(sides[end], Version::V2, Some(LIMITS));
        group.expect("a group")
    });
    let places = [0, 1].map(|end| {
        let place = groups[end].place(codes[end]).expect("memory");
        place.expect("room")
    });
    let ends = [0, 1].map(|end| places[end].end(Mtu::B1024));
    for end in [1, 0] {
        let id = engines[1 - end].peer_id();
        groups[end]
            .connect(&ends[1 - end], id, true)
            .expect("connect");
    }
    let begun = Instant::now();
    while places.iter().any(|place| place.link() != LinkState::Up) {
        assert!(begun.elapsed() < PATIENCE, "the link does not come up");
        for engine in engines {
            engine.take_wakes().expect("take");
        }
        thread::yield_now();
    }
    let [server, client] = places;
    let [server_end, client_end] = ends;
    [
        attach(server, &client_end, codes[0]),
        attach(client, &server_end, codes[1]),
    ]
}

fn attach(mut place: Place, peer: &SmcR, send: SizeCode) -> Lane {
    place.prepare(peer, send).expect("memory");
    place.attach().expect("a lane")
}

fn port(fabric: &Fabric, engine: &Engine, device: &str, gid: [u8; 16]) -> Arc<Port> {
    engine.add_nic(fabric.nic(device, &[gid]).expect("a nic"));
    let own = OwnPort {
        device: device.to_owned(),
        port: 1,
        gid_index: 0,
        gid: Gid(gid),
        mac: Mac([2, 0, 0, 0, 0, gid[0]]),
        test_after: None,
    };
    engine.port(&own).expect("a port")
}

/// Has `end` find this word of its peer.
pub(crate) fn tell(end: &Endpoint, word: usize, value: u64) {
    let theirs = end.header.theirs();
    let words = [
        &theirs.producer,
        &theirs.consumer,
        &theirs.cpu,
        &theirs.reader_armed,
        &theirs.writer_armed,
    ];
    words[word].store(value, Ordering::SeqCst);
}
