//! Connections of one client that come at once: the first one makes the link group, the others wait for it and use it.

mod seeds;
mod setup_support;

use std::time::Duration;

use seeds::{Rng, for_each_seed};
use setup_support::raw::*;
use setup_support::*;
use smcfast::driver::clock;
use smcfast::driver::endpoint::Incoming;
use smcfast::driver::rdma::Side as Role;
use smcfast::driver::setup::Ended;
use smcfast::driver::talk::{Ending, ServerTalk};
use smcfast::proto::handshake::{ClientHandshake, ServerHandshake};
use smcfast::wire::clc::{Diagnosis, Few, Mtu, PeerId};
use smcfast::wire::llc::{ConfirmRkey, Key, KeyTurn, OtherKeys};

/// So short that a test does not wait, and long enough for what is not late.
const SHORT: Duration = Duration::from_millis(700);

fn several(net: &Net, count: usize) -> Vec<Both> {
    let both = || net.both(net.client.offer(false), net.server.offer(false));
    (0..count).map(|_| both()).collect()
}

/// How many of them were first contacts. All of them live.
fn first_contacts(all: &mut [Both]) -> usize {
    let known = all.iter_mut().map(Both::established);
    known
        .filter_map(|[(mut near, client), (mut far, server)]| {
            assert_eq!(client.agreed, server.agreed);
            assert_eq!(near.incoming(1), Incoming::Empty);
            assert_eq!(far.incoming(1), Incoming::Empty);
            client.agreed.first_contact.then_some(())
        })
        .count()
}

/// A client of this engine that only speaks CLC, and has got the Accept of a first contact.
fn accepted(net: &Net, timeout: Duration) -> (Raw<ClientHandshake>, ServerTalk) {
    let (near, far) = tcp();
    let mut client = Raw::client(local(1, net.client.engine.peer_id()), near);
    let mut server = net.server_talk(far, net.server.offer(false), timeout);
    server.step(clock::now());
    let accepted = client.accepted().expect("an Accept");
    assert!(accepted.agreed.first_contact);
    (client, server)
}

/// Until all of them wait for what the first one makes.
fn queued(net: &Net, count: usize) -> Vec<Both> {
    let mut all = several(net, count);
    for _ in 0..4 {
        all.iter_mut().for_each(|both| assert!(both.step()));
        net.serve();
    }
    assert_eq!(net.pairs(), [0, 1], "nobody has begun one of its own");
    all
}

#[test]
fn fifty_at_once_make_one_group() {
    let net = Net::new();
    let mut all = several(&net, 50);
    net.finish_all(&mut all);
    assert_eq!(net.pairs(), [1, 1]);
    assert_eq!(first_contacts(&mut all), 1);
}

#[test]
fn who_finds_no_room_in_the_group_makes_the_next_one() {
    let net = Net::new();
    let kept: Vec<_> = (0..250).map(|_| net.connection()).collect();
    let mut all = several(&net, 20);
    net.finish_all(&mut all);
    assert_eq!(net.pairs(), [2, 2], "255 connections in the first one");
    assert_eq!(first_contacts(&mut all), 1);
    drop(kept);
}

/// Of those whose keys the client refuses, since it knows as many as it can, the first one makes the next group for all.
#[test]
fn who_cannot_use_the_group_again_waits_for_the_next_one() {
    let net = Net::new();
    let _kept = net.connection();
    let pair = net.fabric.pairs("c")[0];
    for rkey in 1000..1255 {
        let message = ConfirmRkey {
            turn: KeyTurn::Request,
            key: Key { rkey, address: 1 },
            others: OtherKeys::V2(Few::default()),
        };
        net.fabric.say("c", pair, &message.encode());
        net.serve();
    }
    let mut all = several(&net, 5);
    net.finish_all(&mut all);
    assert_eq!(net.pairs(), [2, 2]);
    assert_eq!(first_contacts(&mut all), 1);
}

#[test]
fn clients_do_not_wait_for_each_other() {
    let net = Net::new();
    let (_held, _talk) = accepted(&net, TIMEOUT);
    for (host, id) in [(3, net.client.engine.peer_id()), (1, PeerId([7; 8]))] {
        let (near, far) = tcp();
        let mut other = Raw::client(local(host, id), near);
        let mut server = net.server_talk(far, net.server.offer(false), TIMEOUT);
        server.step(clock::now());
        assert!(other.accepted().is_some(), "{host} {id:?}");
    }
}

#[test]
fn a_first_contact_that_is_declined_lets_the_next_one_begin() {
    let net = Net::new();
    let (mut client, mut talk) = accepted(&net, TIMEOUT);
    let mut all = queued(&net, 5);
    client
        .machine
        .decline(Diagnosis::OUT_OF_MEMORY)
        .expect("accepted");
    client.pump();
    net.run(|| talk.step(clock::now()));
    net.finish_all(&mut all);
    assert_eq!(first_contacts(&mut all), 1);
    net.until("one pair", || net.pairs() == [1, 1]);
}

/// Behind its Accept, or behind its Confirm, with its link coming.
#[test]
fn a_first_client_that_dies_lets_the_next_one_begin() {
    for confirms in [false, true] {
        let net = Net::new();
        let (mut client, mut talk) = accepted(&net, TIMEOUT);
        let mut all = queued(&net, 5);
        if confirms {
            client.machine.confirm(end(nowhere(1))).expect("accepted");
            client.pump();
            talk.step(clock::now());
        }
        drop(client);
        net.run(|| talk.step(clock::now()));
        assert!(has_failed(talk.ending()));
        net.finish_all(&mut all);
        assert_eq!(first_contacts(&mut all), 1);
        net.until("one pair", || net.pairs() == [1, 1]);
    }
}

/// As when the event loop's task is cancelled.
#[test]
fn a_set_up_that_is_let_go_of_lets_the_next_one_begin() {
    let net = Net::new();
    let (_client, talk) = accepted(&net, TIMEOUT);
    let mut all = queued(&net, 5);
    // One that waits may go as well.
    all.remove(0);
    drop(talk);
    net.finish_all(&mut all);
    assert_eq!(first_contacts(&mut all), 1);
}

/// Others may use the link before the client of the first contact has looked whether it is up.
#[test]
fn a_first_client_that_is_let_go_of_leaves_a_link_that_is_up() {
    let net = Net::new();
    let mut first = several(&net, 1).remove(0);
    (0..2).for_each(|_| assert!(first.step()));
    net.run(|| first.server.step(clock::now()));
    let [(mut near, _), (mut far, _)] = net.connection();
    first.client.release();
    (0..4).for_each(|_| net.serve());
    assert_eq!(near.incoming(1), Incoming::Empty);
    assert_eq!(far.incoming(1), Incoming::Empty);
}

/// A client that is stopped in the middle of its first contact: the others do without it.
#[test]
fn who_has_waited_long_enough_makes_a_group_of_its_own() {
    let net = Net::new();
    let (_client, _talk) = accepted(&net, TIMEOUT);
    let mut both = net.both_within(net.client.offer(false), net.server.offer(false), SHORT);
    net.finish(&mut both);
    assert!(both.established()[0].1.agreed.first_contact);
    assert_eq!(net.pairs(), [1, 2]);
}

/// A server may know that the link is up before the client does.
#[test]
fn a_client_waits_for_a_link_that_comes_up() {
    for comes_up in [true, false] {
        let net = Net::new();
        let id = net.server.engine.peer_id();
        let server = |tcp| Raw::<ServerHandshake>::server(local(2, id), tcp);
        let (near, far) = tcp();
        let mut first = net.client_talk(near, net.client.offer(false), TIMEOUT);
        let mut raw = server(far);
        first.step(clock::now());
        let proposed = raw.proposed().expect("a Proposal");
        let one = place(&net.server, Role::Server);
        raw.accept(one.end(Mtu::B1024), true);
        let mut confirmed = None;
        net.until("a Confirm", || {
            assert!(first.step(clock::now()).is_some());
            confirmed = raw.confirmed();
            confirmed.is_some()
        });
        let confirmed = confirmed.expect("there");

        let (near, far) = tcp();
        let mut second = net.client_talk(near, net.client.offer(false), TIMEOUT);
        let mut other = server(far);
        second.step(clock::now());
        other.proposed().expect("a Proposal");
        let two = one.group().place(smcfast::wire::SizeCode::MIN);
        let two = two.expect("memory").expect("room");
        other.accept(two.end(Mtu::B1024), false);
        for _ in 0..3 {
            assert!(second.step(clock::now()).is_some());
            net.serve();
        }
        assert!(other.confirmed().is_none() && other.outcome.is_none());
        if comes_up {
            let connected = one.group().connect(&confirmed, proposed.peer_id, true);
            connected.expect("a fabric");
            net.run(|| second.step(clock::now()));
            assert_eq!(second.ending(), Some(&Ending::Setup(Ended::Established)));
            assert!(other.confirmed().is_some());
        } else {
            drop(first);
            net.run(|| second.step(clock::now()));
            let code = Diagnosis::NO_ACTIVE_LINK;
            assert_eq!(declined(second.ending()), Some(code));
        }
        assert_eq!(net.pairs().first(), Some(&usize::from(comes_up)));
    }
}

#[test]
fn whatever_is_late_and_whoever_goes_the_others_meet() {
    for_each_seed("setup_contacts", 20, run);
}

fn run(rng: &mut Rng) {
    let net = Net::new();
    net.fabric.set_chaos(rng.next(), rng.range(0..=60));
    let mut all = several(&net, 12);
    let mut gone = Vec::new();
    for _ in 0..rng.range(0..=12) {
        let one = rng.range(0..=all.len() as u32 - 1) as usize;
        all[one].step();
        net.serve();
        if all.len() > 4 && rng.chance(30) {
            // At once with its server's end, or the server hears of it from TCP.
            let mut both = all.swap_remove(one);
            both.client.release();
            both.tcp = tcp().into();
            gone.extend(rng.chance(50).then_some(both));
        }
    }
    let left = all.len();
    all.append(&mut gone);
    net.finish_all(&mut all);
    assert!(first_contacts(&mut all[..left]) <= 1);
}
