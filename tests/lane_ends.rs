//! How links and connections over RDMA end, and who gets to know why.

mod lane_support;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Weak};
use std::thread::spawn;
use std::time::Duration;

use lane_support::polling::is_ready;
use lane_support::*;
use rustix::event::PollFlags;
use smcfast::driver::rdma::*;
use smcfast::fabric::rdma::{Status, Trouble};
use smcfast::fabric::shm::signal;
use smcfast::proto::handshake;
use smcfast::proto::link::Misbehaviour;
use smcfast::proto::position::Position;
use smcfast::wire::SizeCode;
use smcfast::wire::cdc::StateFlags;
use smcfast::wire::clc::{Few, Mtu, SmcR, Version};
use smcfast::wire::llc::*;

/// What ends the server's group, and the cause that its connection hears of.
fn fails_with(break_it: impl FnOnce(&Net, u32)) -> Cause {
    let net = Net::new();
    let [_a, b] = net.connection();
    let pair = net.fabric.pairs("s")[0];
    net.fabric.heard("s", pair);
    net.until("quiet", || net.server.serve().is_empty());
    assert!(signal::arm(&b.header().mine().reader_armed, 9, || 0));
    break_it(&net, pair);
    net.until("the end", || b.is_dead());
    assert!(!signal::arm(&b.header().mine().reader_armed, 9, || 9));
    b.push(News::default());
    b.poll();
    b.arm();
    b.cause().expect("a cause")
}

#[test]
fn a_queue_pair_that_fails_says_why() {
    for (status, words) in [
        (
            12,
            "the queue pair has failed: transport retries exceeded: the peer does not answer",
        ),
        (
            13,
            "the queue pair has failed: receiver-not-ready retries exceeded: the peer posts no receives",
        ),
        (
            5,
            "the queue pair has failed: flushed after an error of the queue pair",
        ),
    ] {
        let cause = fails_with(|net, pair| net.fabric.fail("s", pair, Status(status)));
        assert_eq!(cause.to_string(), words);
    }
}

#[test]
fn a_device_in_trouble_ends_its_groups_with_the_reason() {
    let cause = fails_with(|net, _| net.fabric.trouble("s", Trouble::PortDown));
    assert_eq!(cause, Cause::PortDown);
    let cause = fails_with(|net, _| net.fabric.trouble("s", Trouble::Gone));
    assert_eq!(cause, Cause::DeviceGone);
    let cause = fails_with(|net, _| net.fabric.forget_gids("s"));
    assert_eq!(cause, Cause::AddressGone);
    let cause = fails_with(|net, pair| net.fabric.trouble("s", Trouble::Pair { pair }));
    assert!(matches!(cause, Cause::PairFailed(_)));
}

#[test]
fn sleepers_are_woken_by_an_end_and_others_go_on() {
    let net = Net::new();
    let [a, b] = net.connection();
    let [c, d] = net.connection();
    assert_ne!(b.number(), d.number(), "two groups");
    net.until("quiet", || net.server.serve().is_empty());
    assert!(signal::arm(&b.header().mine().reader_armed, 9, || 0));
    let pairs = net.fabric.pairs("s");
    net.fabric.fail("s", pairs[0], Status(12));
    assert_eq!(net.server.serve(), [b.number()]);
    assert!(b.is_dead() && !d.is_dead());
    write(&c, 0, b"x");
    net.until("news", || told(&d).producer == at(0, 1));
    drop(a);
}

/// Who removes one waits until nobody has anything of it, and some hold their connections for long.
#[test]
fn a_device_that_is_removed_is_let_go_of_with_all_that_was_made_on_it() {
    let net = Net::new();
    let [_a, b] = net.connection();
    let group = net.server.port.new_group(Side::Server, Version::V2, None);
    let place = group.expect("a group").place(SizeCode::MIN);
    let place = place.expect("memory").expect("room");
    net.fabric.trouble("s", Trouble::Gone);
    net.server.serve();
    assert_eq!(net.fabric.pairs("s"), [] as [u32; 0]);
    assert_eq!(net.fabric.registered("s"), 0);
    net.until("let go of", || !net.fabric.is_open("s"));
    assert_eq!(b.cause(), Some(Cause::DeviceGone));
    assert_eq!(place.link(), LinkState::Down(Cause::DeviceGone));
    // What they have of it does no harm.
    b.arm();
    b.poll();
    write(&b, 0, b"nowhere");
    net.server.port.mtu().expect_err("gone");
    assert!(net.fabric.is_open("c"));
}

#[test]
fn a_device_that_was_lost_is_opened_anew() {
    let net = Net::new();
    let [_a, _b] = net.connection();
    let own = net.server.port.own().clone();
    let again = net.server.engine.port(&own).expect("it is open");
    assert!(std::sync::Arc::ptr_eq(&again, &net.server.port));
    net.fabric.trouble("s", Trouble::Gone);
    net.server.serve();
    net.server
        .engine
        .port(&own)
        .expect_err("no device is called s");
    let nic = net.fabric.nic("s", &[own.gid.0]).expect("nic");
    net.server.engine.add_nic(nic);
    let fresh = net.server.engine.port(&own).expect("it is back");
    assert!(!std::sync::Arc::ptr_eq(&fresh, &net.server.port));
}

#[test]
fn bytes_that_are_no_message_end_the_group_and_the_peer_hears_of_it() {
    let mut no_token = [0; 44];
    no_token[..2].copy_from_slice(&[0xfe, 44]);
    let mut no_link = vec![0x21, 44, 0, 0x03];
    no_link.resize(44, 0);
    for (bytes, words) in [
        (
            &no_token[..],
            "the peer misbehaved: SMC-R CDC: alert token: must not be zero",
        ),
        (
            &no_token[..43],
            "the peer misbehaved: SMC-R CDC: length: 43, expected 44",
        ),
        (
            &no_link[..],
            "the peer misbehaved: LLC CONFIRM_LINK: link number: must not be zero",
        ),
    ] {
        let net = Net::new();
        let [a, b] = net.connection();
        let pair = net.fabric.pairs("s")[0];
        net.fabric.heard("s", pair);
        net.fabric.say("s", pair, bytes);
        net.server.serve();
        assert_eq!(b.cause().expect("dead").to_string(), words);
        let reason = DeleteReason::PROTOCOL_VIOLATION;
        net.until("the peer knows", || a.is_dead());
        let by = handshake::Side::Peer;
        assert_eq!(a.cause(), Some(Cause::Ended { by, reason }));
    }
}

#[test]
fn what_nobody_knows_is_passed_over() {
    let net = Net::new();
    let places = net.first_contact([SizeCode::MIN; 2]);
    let mut end = places[1].end(Mtu::B1024);
    let [a, b] = attach(places, SizeCode::MIN);
    let pair = net.fabric.pairs("s")[0];
    end.alert_token = token(end.alert_token.get().wrapping_add(1000).max(1));
    net.fabric.say("s", pair, &cdc(&end, 1, at(0, 9)).encode());
    net.fabric.say("s", pair, &[0x5a; 44]);
    net.server.serve();
    assert!(!b.is_dead());
    assert_eq!(told(&b).producer, at(0, 0));
    drop(a);
}

#[test]
fn what_comes_before_the_peers_end_is_known_is_kept() {
    let net = Net::new();
    let mut places = net.first_contact([SizeCode::MIN; 2]).into_iter();
    let (mut a, mut b) = (places.next().expect("a"), places.next().expect("b"));
    let (a_end, b_end) = (a.end(Mtu::B1024), b.end(Mtu::B1024));
    a.prepare(&b_end, SizeCode::MIN).expect("prepare");
    let a = a.attach().expect("attach");
    write(&a, 0, b"early");
    net.server.serve();
    b.prepare(&a_end, SizeCode::MIN).expect("prepare");
    let b = b.attach().expect("attach");
    assert_eq!(told(&b).producer, at(0, 5));
    assert_eq!(read(&b, 0, 5), b"early");
}

#[test]
fn questions_of_the_peer_are_answered() {
    let net = Net::new();
    let [_a, _b] = net.connection();
    let pair = net.fabric.pairs("s")[0];
    let key = Key {
        rkey: 77,
        address: 0x7000,
    };
    let ask = |message: Message| {
        net.fabric.heard("s", pair);
        net.fabric.say("s", pair, &message.encode());
        net.server.serve();
        links(&net.fabric.heard("s", pair))
    };
    let confirm = |turn| {
        Message::ConfirmRkey(ConfirmRkey {
            turn,
            key,
            others: OtherKeys::V2(Few::default()),
        })
    };
    assert_eq!(
        ask(confirm(KeyTurn::Request)),
        [confirm(KeyTurn::Confirmed)]
    );
    let delete = DeleteRkey::RequestV2(Few::one(77));
    let result = DeletedV2::All;
    let deleted = DeleteRkey::ResponseV2 { count: 1, result };
    assert_eq!(
        ask(Message::DeleteRkey(delete)),
        [Message::DeleteRkey(deleted)]
    );
    let answers = ask(Message::decode(&test_link()).expect("LLC"));
    assert!(
        matches!(&answers[..], [Message::TestLink(one)] if one.turn == Turn::Response && one.user_data == [42; 16])
    );
}

#[test]
fn a_peer_has_255_keys() {
    let net = Net::new();
    let places = net.first_contact([SizeCode::MIN; 2]);
    let pair = net.fabric.pairs("s")[0];
    for rkey in 10_000..10_300 {
        let key = Key {
            rkey,
            address: 0x1000,
        };
        let request = Message::ConfirmRkey(ConfirmRkey {
            turn: KeyTurn::Request,
            key,
            others: OtherKeys::V2(Few::default()),
        });
        net.fabric.say("s", pair, &request.encode());
        net.server.serve();
        net.client.serve();
    }
    let end = places[0].end(Mtu::B1024);
    let [_, mut b] = places;
    let error = b.prepare(&end, SizeCode::MIN).expect_err("too many");
    assert_eq!(error.kind(), std::io::ErrorKind::QuotaExceeded);
}

/// The peer may have left a set-up that this end believes in: the others of the group go on.
#[test]
fn a_key_that_was_taken_back_is_the_end_of_one_connection() {
    let net = Net::new();
    let places = net.first_contact([SizeCode::MIN; 2]);
    let key = places[1].end(Mtu::B1024).rkey;
    let [a, b] = attach(places, SizeCode::MIN);
    let [c, d] = net.next([SizeCode::MIN; 2]);
    let pair = net.fabric.pairs("c")[0];
    let delete = DeleteRkey::RequestV2(Few::one(key));
    net.fabric
        .say("c", pair, &Message::DeleteRkey(delete).encode());
    net.client.serve();
    a.push(News {
        consumer: at(0, 0),
        state_flags: StateFlags::SENDING_DONE,
        ..News::default()
    });
    assert!(!a.is_dead(), "news may go");
    assert!(signal::arm(&a.header().mine().reader_armed, 9, || 0));
    write(&a, 0, b"x");
    let cause = Cause::Misbehaved(Misbehaviour::KeyTakenBack);
    assert_eq!(a.cause(), Some(cause));
    assert_eq!(net.client.serve(), [a.number()], "the reader was rung for");
    assert!(!c.is_dead());
    write(&c, 0, b"y");
    net.until("the others go on", || told(&d).producer == at(0, 1));
    // The peer hears of it, whatever is pushed behind, and not one byte was written.
    a.push(News {
        produced: Position::new(1),
        ..News::default()
    });
    net.until("quiet", || net.server.serve().is_empty());
    assert_eq!(told(&b).state_flags, StateFlags::ABNORMAL_CLOSE);
    assert_eq!((told(&b).producer, read(&b, 0, 1)), (at(0, 0), vec![0]));
    // Nothing more comes of that peer: what it had is for the next.
    let registered = net.fabric.registered("c");
    drop(a);
    let [e, _f] = net.next([SizeCode::MIN; 2]);
    assert_eq!(net.fabric.registered("c"), registered);
    assert_eq!(e.number(), c.number());
}

#[test]
fn an_engine_that_ends_says_so() {
    let net = Net::new();
    let [a, b] = net.connection();
    let Net {
        fabric,
        client,
        server,
    } = net;
    let news = write(&a, 0, b"last words");
    drop(client);
    server.serve();
    assert_eq!(read(&b, 0, 10), b"last words");
    let (by, reason) = (handshake::Side::Peer, DeleteReason::PROGRAM);
    assert_eq!(b.cause(), Some(Cause::Ended { by, reason }));
    let by = handshake::Side::Us;
    assert_eq!(a.cause(), Some(Cause::Ended { by, reason }));
    assert_eq!(fabric.pairs("c"), [] as [u32; 0]);
    a.push(news);
    drop((a, b, server));
    assert_eq!((fabric.registered("c"), fabric.registered("s")), (0, 0));
}

#[test]
fn a_first_contact_that_came_to_nothing_leaves_nothing() {
    let net = Net::new();
    let new = || net.server.port.new_group(Side::Server, Version::V2, None);
    let group = new().expect("group");
    let place = group.place(SizeCode::MIN).expect("memory").expect("room");
    place.end(Mtu::B1024);
    drop((place, group));
    assert_eq!(net.fabric.pairs("s"), [] as [u32; 0]);
    assert_eq!(net.fabric.registered("s"), 0);
    let group = new().expect("group");
    assert!(matches!(
        group.give_up(),
        LinkState::Down(Cause::Unconfirmed)
    ));
    assert!(group.place(SizeCode::MIN).expect("no error").is_none());
    assert_eq!(net.fabric.pairs("s"), [] as [u32; 0]);
}

#[test]
fn an_engine_that_ends_tells_the_peers_of_its_groups() {
    let (by, reason) = (handshake::Side::Peer, DeleteReason::PROGRAM);
    for is_open in [true, false] {
        let net = Net::new();
        let lanes = net.connection();
        if !is_open {
            close(&lanes);
        }
        let [a, b] = lanes;
        let kept = is_open.then_some(b);
        net.until("told", || {
            is_open || told(&a).state_flags.contains(StateFlags::CLOSED)
        });
        net.server.engine.close_links();
        net.until("the end", || a.is_dead());
        assert_eq!(a.cause(), Some(Cause::Ended { by, reason }));
        assert!(kept.is_none_or(|b| b.is_dead()));
    }
}

/// A DELETE_LINK would take it from a reader of the kernel's, who finds no error but the end of the stream.
#[test]
fn what_a_peer_has_yet_to_read_is_left_to_it_when_the_engine_ends() {
    let net = Net::new();
    let [a, b] = net.connection();
    let pair = net.fabric.pairs("s")[0];
    net.fabric.heard("s", pair);
    let news = write(&b, 0, b"unread");
    b.push(News {
        state_flags: StateFlags::CLOSED,
        ..news
    });
    drop(b);
    net.server.engine.close_links();
    net.until("the end of the stream", || {
        told(&a).state_flags.contains(StateFlags::CLOSED)
    });
    assert_eq!(read(&a, 0, 6), b"unread");
    assert!(!a.is_dead());
    assert_eq!(
        links(&net.fabric.heard("s", pair)).len(),
        0,
        "no DELETE_LINK"
    );
}

/// A client's second set-up waits for the link of the first one.
#[test]
fn the_end_of_a_group_without_a_link_wakes_who_waits_for_it() {
    let net = Net::new();
    let group = net.client.port.new_group(Side::Client, Version::V2, None);
    let group = group.expect("group");
    let place = group.place(SizeCode::MIN).expect("memory").expect("room");
    assert_eq!(place.link(), LinkState::Coming);
    assert!(!is_ready(place.news_fd(), PollFlags::IN));
    group.end();
    assert!(is_ready(place.news_fd(), PollFlags::IN));
    let (by, reason) = (handshake::Side::Us, DeleteReason::PROGRAM);
    assert_eq!(place.link(), LinkState::Down(Cause::Ended { by, reason }));
    assert_eq!(net.fabric.pairs("c"), [] as [u32; 0]);
}

/// A device gives the number of a pair that is gone to the next one.
#[test]
fn what_is_left_of_a_group_does_nothing_to_the_next_with_its_number() {
    let net = Net::new();
    net.fabric.reuse_numbers("s");
    let [_a, b] = net.connection();
    let (id, gid) = (net.client.engine.peer_id(), net.client.port.own().gid);
    let find = || net.server.port.find_for_client(Version::V2, id, gid);
    let group = find().expect("the group");
    let place = group.place(SizeCode::MIN).expect("memory").expect("room");
    let pairs = net.fabric.pairs("s");
    net.fabric.fail("s", pairs[0], Status(12));
    net.until("it is gone", || net.fabric.pairs("s").is_empty());
    let [c, d] = net.connection();
    assert_eq!(net.fabric.pairs("s"), pairs);

    assert!(matches!(group.link(), LinkState::Down(_)));
    assert!(group.place(SizeCode::MIN).expect("no error").is_none());
    assert!(place.tell_key().is_err());
    b.push(News::default());
    group.retire();
    group.give_up();
    group.end();
    drop((b, place, group));
    write(&c, 0, b"x");
    net.until("the next goes on", || told(&d).producer == at(0, 1));
    assert!(find().is_some(), "nor has it retired");
}

/// The kernel pins the pages of a buffer, and lets go of those of a group, while others use the port.
#[test]
fn nobody_waits_for_memory_that_is_registered_or_let_go_of() {
    let net = Net::new();
    let [_a, b] = net.connection();
    let (id, gid) = (net.client.engine.peer_id(), net.client.port.own().gid);
    let group = net.server.port.find_for_client(Version::V2, id, gid);
    let group = group.expect("the group");
    let end = group.place(SizeCode::MIN).expect("memory").expect("room");
    let end = end.end(Mtu::B1024);
    let pinned = Arc::new(AtomicU32::new(0));
    let (ports, count) = (
        net.hosts().map(|host| Arc::downgrade(&host.port)),
        Arc::clone(&pinned),
    );
    net.fabric.while_pinning(move || {
        let ports: Vec<_> = ports.iter().filter_map(Weak::upgrade).collect();
        let (tell, told) = sync_channel(1);
        // It takes the lock.
        spawn(move || tell.send(ports.iter().all(|port| port.mtu().is_ok())));
        told.recv_timeout(PATIENCE).expect("nobody has the lock");
        count.fetch_add(1, Ordering::Relaxed);
    });
    let pinned = || pinned.swap(0, Ordering::Relaxed);
    let size = SizeCode::new(1).expect("a size");
    let mut place = group.place(size).expect("memory").expect("room");
    assert_eq!(pinned(), 1);
    place.prepare(&SmcR { size, ..end }, size).expect("prepare");
    assert_eq!(pinned(), 1);
    drop(place);
    assert_eq!(pinned(), 0, "kept for the next");
    let places = net.first_contact([SizeCode::MIN; 2]);
    assert_eq!(pinned(), 2);
    group.end();
    net.until("the end", || {
        b.is_dead() && net.fabric.pairs("s").len() == 1
    });
    assert!(pinned() >= 4, "two buffers of either kind");
    net.fabric.trouble("s", Trouble::Gone);
    net.until("all is gone", || net.fabric.registered("s") == 0);
    assert!(pinned() >= 1);
    drop(places);
    net.fabric.while_pinning(|| ());
}

#[test]
fn a_place_that_the_peer_may_know_is_taken_back_from_it() {
    let net = Net::new();
    let [_a, _b] = net.connection();
    let id = net.client.engine.peer_id();
    let gid = net.client.port.own().gid;
    let find = || net.server.port.find_for_client(Version::V2, id, gid);
    let group = find().expect("the group");
    let pair = net.fabric.pairs("s")[0];
    net.fabric.heard("s", pair);
    let registered = net.fabric.registered("s");
    drop(group.place(SizeCode::MIN).expect("memory").expect("room"));
    assert_eq!(links(&net.fabric.heard("s", pair)), [], "nobody knew it");
    assert_eq!(
        net.fabric.registered("s"),
        registered + 1,
        "kept for the next"
    );
    let place = group.place(SizeCode::MIN).expect("memory").expect("room");
    place.end(Mtu::B1024);
    drop(place);
    assert_eq!(links(&net.fabric.heard("s", pair)).len(), 1, "DELETE_RKEY");
    assert_eq!(
        net.fabric.registered("s"),
        registered + 1,
        "until the answer"
    );
    net.until("it is gone", || net.fabric.registered("s") == registered);
}

/// The receive buffer stays: the peer may write it until it says that it has ended.
#[test]
fn a_send_ring_is_free_for_the_next_when_all_has_gone() {
    let net = Net::new();
    let [_a, b] = net.connection();
    let registered = net.fabric.registered("s");
    net.fabric.hold("s", true);
    let news = write(&b, 0, b"last words");
    b.push(News {
        state_flags: StateFlags::CLOSED,
        ..news
    });
    drop(b);
    let [_c, _d] = net.next([SizeCode::MIN; 2]);
    assert_eq!(net.fabric.registered("s"), registered + 2, "in use");
    net.fabric.hold("s", false);
    net.until("the reports", || net.server.serve().is_empty());
    let [_e, _f] = net.next([SizeCode::MIN; 2]);
    assert_eq!(net.fabric.registered("s"), registered + 3, "used again");
}

#[test]
fn a_group_that_retires_ends_with_its_last_connection() {
    let net = Net::new();
    let [a, b] = net.connection();
    let id = net.client.engine.peer_id();
    let gid = net.client.port.own().gid;
    let find = || net.server.port.find_for_client(Version::V2, id, gid);
    find().expect("the group").retire();
    assert!(find().is_none());
    write(&a, 0, b"x");
    net.until("it goes on", || told(&b).producer == at(0, 1));
    drop(b);
    drop(a);
    net.until("it is gone", || net.fabric.pairs("s").is_empty());
}

#[test]
fn a_connection_whose_tcp_ends_has_a_second() {
    let net = Net::new();
    let [a, b] = net.connection();
    let [c, d] = net.next([SizeCode::MIN; 2]);
    b.tcp_ended(false);
    d.tcp_ended(true);
    write(&a, 0, b"late");
    a.push(News {
        produced: Position::new(4),
        state_flags: StateFlags::CLOSED,
        ..News::default()
    });
    net.until("the second is over", || d.is_dead());
    assert_eq!(d.cause(), Some(Cause::TcpEnded { reset: true }));
    assert!(!b.is_dead() && told(&b).state_flags == StateFlags::CLOSED);
    assert!(!c.is_dead());
}

/// A kernel's FIN beside a half-close is no end; its reset is one.
#[test]
fn a_reset_beside_a_half_close_is_the_end() {
    let net = Net::new();
    let [a, b] = net.connection();
    let [c, d] = net.next([SizeCode::MIN; 2]);
    b.tcp_ended(true);
    for lane in [&a, &c] {
        lane.push(News {
            state_flags: StateFlags::SENDING_DONE,
            ..News::default()
        });
    }
    net.until("half-closes", || {
        [&b, &d].map(|lane| told(lane).state_flags) == [StateFlags::SENDING_DONE; 2]
    });
    d.tcp_ended(true);
    for lane in [&b, &d] {
        net.until("the end", || lane.is_dead());
        assert_eq!(lane.cause(), Some(Cause::TcpEnded { reset: true }));
    }
}

/// Keys are told one after the other, and nobody waits for the silence that others meet. One that is to be forgotten is.
#[test]
fn a_peer_that_is_silent_about_a_key_is_waited_for_once() {
    let net = Net::new();
    let [_a, _b] = net.connection();
    let id = net.client.engine.peer_id();
    let gid = net.client.port.own().gid;
    let group = net.server.port.find_for_client(Version::V2, id, gid);
    let group = group.expect("the group");
    let place = || group.place(SizeCode::MIN).expect("memory").expect("room");
    let places = [place(), place(), place()];
    let gone = place();
    let pair = net.fabric.pairs("s")[0];
    net.fabric.heard("s", pair);
    net.fabric.cut("c", true);
    for place in &places[..2] {
        place.tell_key().expect("up");
    }
    gone.end(Mtu::B1024);
    drop(gone);
    places[2].tell_key().expect("up");
    net.until("silence", || places[0].key_state() == KeyState::Silent);
    let others = [places[1].key_state(), places[2].key_state()];
    assert_eq!(others, [KeyState::Silent; 2]);
    // From then on there is an answer again.
    net.fabric.cut("c", false);
    let [c, _d] = net.next([SizeCode::MIN; 2]);
    let asked = links(&net.fabric.heard("s", pair));
    let asked = asked.iter().filter_map(|message| match message {
        Message::ConfirmRkey(one) if one.turn == KeyTurn::Request => Some("learn"),
        Message::DeleteRkey(DeleteRkey::RequestV2(_)) => Some("forget"),
        _ => None,
    });
    assert_eq!(Vec::from_iter(asked), ["learn", "forget", "learn"]);
    assert!(!c.is_dead());
}

#[test]
fn a_peer_that_answers_nothing_is_lost() {
    let net = Net::testing_after(Some(Duration::from_millis(50)));
    let [_a, b] = net.connection();
    net.fabric.cut("c", true);
    net.until("the end", || b.is_dead());
    assert_eq!(b.cause(), Some(Cause::Silent));
}
