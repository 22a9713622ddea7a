//! What takes ten minutes, with a clock that is moved.

use std::sync::Arc;
use std::time::Duration;

use super::body::{CLIENT_IDLE, SERVER_IDLE};
use super::port::IDLE_MAX;
use super::*;
use crate::fabric::loopback::Fabric;
use crate::wire::SizeCode;
use crate::wire::clc::{Mtu, Version};

struct Host {
    _engine: Engine,
    port: Arc<Port>,
}

impl Host {
    fn new(fabric: &Fabric, device: &str, gid: [u8; 16]) -> Self {
        let engine = Engine::new().expect("engine");
        engine.add_nic(fabric.nic(device, &[gid]).expect("nic"));
        let own = OwnPort {
            device: device.to_owned(),
            port: 1,
            gid_index: 0,
            gid: Gid(gid),
            mac: Mac([2; 6]),
            test_after: None,
        };
        let port = engine.port(&own).expect("port");
        Self {
            _engine: engine,
            port,
        }
    }
}

fn hosts(fabric: &Fabric) -> [Host; 2] {
    [
        Host::new(fabric, "c", [1; 16]),
        Host::new(fabric, "s", [2; 16]),
    ]
}

/// A link without a connection. Returns the groups' handles.
fn link(hosts: &[Host; 2]) -> [Arc<Group>; 2] {
    let sides = [Side::Client, Side::Server];
    let groups = [0, 1].map(|i: usize| {
        let group = hosts[i].port.new_group(sides[i], Version::V2, None);
        group.expect("group")
    });
    let places = [0, 1].map(|i: usize| {
        let place = groups[i].place(SizeCode::MIN).expect("memory");
        place.expect("room")
    });
    for i in [0, 1] {
        let end = places[1 - i].end(Mtu::B1024);
        groups[i].connect(&end, end.peer_id, true).expect("connect");
    }
    // The server asks when its delay is over.
    while groups.iter().any(|group| group.link() != LinkState::Up) {
        for host in hosts {
            host.port.handle_timeout(clock::now());
            host.port.poll();
        }
    }
    drop(places);
    groups
}

fn settle(hosts: &[Host; 2]) {
    for _ in 0..4 {
        hosts.iter().for_each(|host| host.port.poll());
    }
}

#[test]
fn a_group_without_a_connection_stays_for_ten_minutes() {
    for (by, time) in [(1, SERVER_IDLE), (0, CLIENT_IDLE)] {
        let fabric = Fabric::new();
        let hosts = hosts(&fabric);
        let [client, server] = link(&hosts);
        settle(&hosts);
        let begun = clock::now();
        let port = &hosts[by].port;
        let due = port.handle_timeout(begun).expect("something is due");
        assert!(due <= begun + time && due > begun + time - Duration::from_secs(5));
        port.handle_timeout(due - Duration::from_millis(1));
        assert_eq!(client.link(), LinkState::Up);
        port.handle_timeout(due);
        settle(&hosts);
        assert!(client.is_dead() && server.is_dead());
        assert!(hosts.iter().all(|host| host.port.is_empty()));
    }
}

#[test]
fn a_group_with_a_connection_stays() {
    let fabric = Fabric::new();
    let hosts = hosts(&fabric);
    let [client, server] = link(&hosts);
    let _place = server.place(SizeCode::MIN).expect("memory").expect("room");
    settle(&hosts);
    let later = clock::now() + 2 * SERVER_IDLE;
    assert_eq!(hosts[1].port.handle_timeout(later), None);
    assert!(!client.is_dead());
}

#[test]
fn few_groups_rest_and_the_oldest_goes_first() {
    let fabric = Fabric::new();
    let hosts = hosts(&fabric);
    let groups: Vec<_> = (0..IDLE_MAX).map(|_| link(&hosts)).collect();
    settle(&hosts);
    assert!(groups.iter().flatten().all(|group| !group.is_dead()));
    let last = link(&hosts);
    settle(&hosts);
    assert!(groups[0].iter().all(|group| group.is_dead()));
    assert!(groups[1..].iter().flatten().all(|group| !group.is_dead()));
    assert!(last.iter().all(|group| !group.is_dead()));
}

/// The group's last messages have had their time, so nobody has looked for what came meanwhile.
#[test]
fn what_a_pair_has_left_in_the_queue_is_not_for_the_next_with_its_number() {
    let fabric = Fabric::new();
    let hosts = hosts(&fabric);
    fabric.reuse_numbers("s");
    let [_client, server] = link(&hosts);
    settle(&hosts);
    let pair = fabric.pairs("s");
    fabric.hold("s", true);
    server.end();
    fabric.say("s", pair[0], b"late");
    let port = &hosts[1].port;
    port.handle_timeout(clock::now() + Duration::from_secs(2));
    assert!(fabric.pairs("s").is_empty());
    let next = port
        .new_group(Side::Server, Version::V2, None)
        .expect("group");
    assert_eq!(fabric.pairs("s"), pair);
    port.poll();
    assert_eq!(next.link(), LinkState::Coming);
}
