//! Connections over RDMA being made: both ends, over a loopback fabric.

mod setup_support;

use std::net::Shutdown;

use setup_support::raw::*;
use setup_support::*;
use smcfast::driver::endpoint::Incoming;
use smcfast::driver::setup::{Far, Offer};
use smcfast::driver::{Endpoint, clock};
use smcfast::mem::{Source, Target};
use smcfast::wire::clc::{Diagnosis, Mtu, PeerId};

fn carries_bytes(net: &Net, from: &mut Endpoint, to: &mut Endpoint) {
    from.write(Source::from(&b"over the link"[..]))
        .expect("open");
    net.until("bytes", || to.incoming(13) == Incoming::Bytes(13));
    let mut read = [0; 13];
    to.read(Target::from(&mut read[..]));
    assert_eq!(&read, b"over the link");
}

#[test]
fn two_ends_meet_and_bytes_flow_both_ways() {
    let net = Net::new();
    let [(mut client, known), (mut server, at_server)] = net.connection();
    assert!(known.agreed.first_contact && at_server.agreed.first_contact);
    assert_eq!(known.agreed, at_server.agreed);
    let Far::Link {
        device,
        port,
        gid: own,
        peer_gid,
        mtu,
        qp_number,
    } = known.far
    else {
        panic!("{known:?}")
    };
    assert_eq!((device.as_str(), port, mtu), ("c", 1, Mtu::B1024));
    assert_eq!((own, peer_gid), (gid(1), gid(2)));
    assert_eq!(vec![qp_number.get()], net.fabric.pairs("c"));
    carries_bytes(&net, &mut client, &mut server);
    carries_bytes(&net, &mut server, &mut client);
}

#[test]
fn the_next_connection_uses_the_group_again() {
    let net = Net::new();
    let [(client, _), _server] = net.connection();
    let [(mut near, at_client), (mut far, at_server)] = net.connection();
    assert!(!at_client.agreed.first_contact && !at_server.agreed.first_contact);
    assert_eq!(at_client.agreed.release, None, "that of the group");
    assert_eq!(client.group_number(), near.group_number());
    assert_eq!(net.pairs(), [1, 1]);
    carries_bytes(&net, &mut near, &mut far);
    carries_bytes(&net, &mut far, &mut near);
}

/// As a kernel does it whose program connects, writes, and shuts its side down: the FIN may come before what is on the link.
#[test]
fn a_client_may_end_its_stream_at_once() {
    let net = Net::new();
    for first in [true, false] {
        let mut both = net.both(net.client.offer(false), net.server.offer(false));
        net.until("the client's end", || both.step_client());
        both.tcp[0].shutdown(Shutdown::Write).expect("open");
        net.finish(&mut both);
        let [(mut near, known), (mut far, _)] = both.established();
        assert_eq!(known.agreed.first_contact, first);
        carries_bytes(&net, &mut near, &mut far);
        carries_bytes(&net, &mut far, &mut near);
    }
}

/// There is a moment for that, and no longer.
#[test]
fn the_end_of_tcp_may_overtake_the_word_that_brings_the_link_up() {
    for arrives in [true, false] {
        let net = Net::new();
        net.fabric.starve("s", true);
        let mut both = net.both(net.client.offer(false), net.server.offer(false));
        net.until("the client's end", || both.step_client());
        both.tcp[0].shutdown(Shutdown::Write).expect("open");
        let wait = both.server.step(clock::now()).expect("a moment");
        assert!(wait.until < clock::now() + TIMEOUT / 2);
        if arrives {
            net.fabric.starve("s", false);
            net.finish(&mut both);
            both.established();
        } else {
            net.run(|| both.server.step(clock::now()));
            assert!(has_failed(both.server.ending()), "{both:?}");
        }
    }
}

/// A group outlives its connections, so that the next one finds it.
#[test]
fn the_group_is_there_for_the_next_when_all_have_closed() {
    let net = Net::new();
    for first in [true, false, false] {
        let [(client, known), (server, _)] = net.connection();
        assert_eq!(known.agreed.first_contact, first);
        drop((client, server));
    }
    assert_eq!(net.pairs(), [1, 1]);
}

#[test]
fn a_full_group_is_followed_by_another() {
    let net = Net::new();
    let mut kept = Vec::new();
    for n in 0..=255 {
        let [client, server] = net.connection();
        assert_eq!(client.1.agreed.first_contact, n % 255 == 0, "the {n}th");
        kept.push((client, server));
    }
    assert_eq!(net.pairs(), [2, 2]);
}

#[test]
fn roles_are_not_mixed() {
    let net = Net::new();
    let _one = net.connection();
    let other = Net {
        fabric: net.fabric.clone(),
        client: net.server,
        server: net.client,
    };
    let [(_, known), _] = other.connection();
    assert!(known.agreed.first_contact);
    assert_eq!(other.pairs(), [2, 2]);
}

/// Both are on one host as far as the client knows, and the server cannot call it.
#[test]
fn a_client_out_of_reach_of_memory_gets_a_link() {
    let net = Net::new();
    let mut both = net.both(net.client.offer(true), net.server.offer(true));
    both.client.step(clock::now());
    both.server.step(clock::now());
    assert_eq!(
        both.server.wants_meeting(),
        Some(net.client.engine.id()),
        "memory comes first"
    );
    both.server
        .pass_over_memory(Diagnosis::NO_SMC_D_V2_DEVICE, clock::now());
    net.finish(&mut both);
    assert!(both.established().iter().all(|(_, known)| is_link(known)));
}

#[test]
fn a_client_out_of_reach_without_a_device_is_declined() {
    let net = Net::new();
    let mut both = net.both(Offer::memory(), net.server.offer(true));
    both.client.step(clock::now());
    both.server.step(clock::now());
    both.server
        .pass_over_memory(Diagnosis::NO_SMC_D_V2_DEVICE, clock::now());
    net.finish(&mut both);
    both.declined(Diagnosis::NO_SMC_D_V2_DEVICE);
}

#[test]
fn a_server_without_memory_takes_the_link() {
    let net = Net::new();
    let mut both = net.both(net.client.offer(true), net.server.offer(false));
    net.finish(&mut both);
    assert!(both.established().iter().all(|(_, known)| is_link(known)));
}

#[test]
fn who_has_nothing_to_offer_declines() {
    let net = Net::new();
    for (client, server, diagnosis) in [
        (
            Offer::default(),
            net.server.offer(true),
            Diagnosis::NO_SMC_DEVICE,
        ),
        (
            net.client.offer(false),
            Offer::default(),
            Diagnosis::NO_SMC_R_DEVICE,
        ),
        (
            net.client.offer(false),
            Offer::memory(),
            Diagnosis::NO_SMC_R_DEVICE,
        ),
        (
            Offer::memory(),
            net.server.offer(false),
            Diagnosis::NO_ISM_V2,
        ),
    ] {
        let mut both = net.both(client, server);
        net.finish(&mut both);
        both.declined(diagnosis);
    }
    assert_eq!(net.pairs(), [0, 0]);
}

#[test]
fn links_need_an_enterprise_id_of_both_and_memory_does_not() {
    let net = Net::new();
    let mut client = net.client.offer(false);
    client.rdma.as_mut().expect("a device").eids = eids(&["OTHER"]);
    let mut both = net.both(client, net.server.offer(false));
    net.finish(&mut both);
    both.declined(Diagnosis::NO_SMC_DEVICE);
}

/// A client that is granted two waits for the second one, the kernel's for up to three seconds.
#[test]
fn a_server_grants_one_link_to_who_asks_for_two() {
    let net = Net::new();
    let mut offer = net.server.offer(false);
    offer.rdma.as_mut().expect("a device").max_links = 2;
    let (near, far) = tcp();
    let mut asks = local(1, PeerId([1; 8]));
    asks.smc_r.as_mut().expect("a device").limits.max_links = 2;
    let mut client = Raw::client(asks, near);
    let mut server = net.server_talk(far, offer, TIMEOUT);
    server.step(clock::now());
    let limits = client.accepted().expect("an Accept").agreed.limits;
    assert_eq!(limits.map(|limits| limits.max_links), Some(1));
}
