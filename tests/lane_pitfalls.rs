//! The pitfalls of protocol, section 12 of the notes, that concern data and keys (22 to 28, 33 to 35), each by its number.

mod lane_support;

use lane_support::*;
use smcfast::driver::endpoint::{Endpoint, Incoming};
use smcfast::driver::rdma::*;
use smcfast::fabric::shm::signal;
use smcfast::proto::link::Misbehaviour;
use smcfast::proto::position::Position;
use smcfast::wire::SizeCode;
use smcfast::wire::cdc::{ProducerFlags, RdmaCdc, Sequence, StateFlags};
use smcfast::wire::clc::{Few, Gid, Mac, Mtu, U24, Version};
use smcfast::wire::llc::{AddLink, Extension, Message, NewLink};

#[test]
fn pitfall_22_a_key_is_good_for_its_own_link_alone() {
    let net = Net::new();
    let [a, b] = net.connection();
    let [mut c, d] = net.first_contact([SizeCode::MIN; 2]);
    let pairs = net.fabric.pairs("s");
    assert_eq!(pairs.len(), 2);
    // The second connection is told the buffer of the first.
    let mut wrong = d.end(Mtu::B1024);
    let first = b.number();
    wrong.rkey = rkey_of(&net, first);
    wrong.rmb_address = u64::from(wrong.rkey) << 32;
    c.prepare(&wrong, SizeCode::MIN).expect("prepare");
    let c = c.attach().expect("attach");
    write(&c, 0, b"theft");
    net.until("the end of the second link", || c.is_dead());
    assert!(
        matches!(c.cause(), Some(Cause::PairFailed(text)) if text.contains("does not know the key")),
        "{:?}",
        c.cause()
    );
    assert_eq!(read(&b, 0, 5), [0; 5]);
    write(&a, 0, b"hello");
    net.until("the first goes on", || told(&b).producer == at(0, 5));
}

/// The key of the only receive buffer of the server's group that was made first.
fn rkey_of(net: &Net, _group: u32) -> u32 {
    let place = net
        .server
        .port
        .find_for_client(
            Version::V2,
            net.client.engine.peer_id(),
            net.client.port.own().gid,
        )
        .expect("the second group");
    // Numbers are given out in order: pairs, then buffers; the first group's is before any of the second's.
    let second = place.place(SizeCode::MIN).expect("memory").expect("room");
    let first_pair = net.fabric.pairs("s")[0];
    (first_pair..second.end(Mtu::B1024).rkey)
        .find(|key| net.fabric.is_writable("s", *key))
        .expect("a receive buffer")
}

#[test]
fn pitfall_23_a_cdc_comes_behind_the_bytes_it_tells_of() {
    for seed in 0..8 {
        let net = Net::new();
        let [a, b] = net.connection();
        net.fabric.set_chaos(seed, 60);
        let mut position = 0u64;
        let mut seen = 0u64;
        while seen < 50_000 {
            let room = a.room().min(5_000);
            let bytes: Vec<u8> = (position..position + u64::from(room))
                .map(|at| (at % 251) as u8)
                .collect();
            if position - seen + u64::from(room) <= 16384 && room > 0 {
                write(&a, position, &bytes);
                position += u64::from(room);
            }
            net.fabric.step();
            for host in net.hosts() {
                host.serve();
            }
            let told = told(&b).producer;
            let size = b.rmb_size();
            let new = size
                .advance(Position::new(seen), told, 16384)
                .expect("a cursor that can be");
            let expected: Vec<u8> = (seen..seen + new).map(|at| (at % 251) as u8).collect();
            assert_eq!(read(&b, seen, new as usize), expected, "seed {seed}");
            seen += new;
        }
    }
}

#[test]
fn pitfalls_24_and_28_a_full_ring_has_one_more_wrap_and_no_count_of_its_size() {
    let net = Net::new();
    let [a, b] = net.connection();
    write(&a, 0, &[1; 16384]);
    net.until("news", || told(&b).producer == at(1, 0));
    net.until("a report", || a.room() == 16384);
    write(&a, 16384, &[2; 1]);
    net.until("news", || told(&b).producer == at(1, 1));
    assert_eq!(read(&b, 16384, 1), [2]);
}

#[test]
fn pitfall_25_flags_are_levels() {
    let net = Net::new();
    let places = net.first_contact([SizeCode::MIN; 2]);
    let end = places[1].end(Mtu::B1024);
    let [_a, b] = attach(places, SizeCode::MIN);
    let pair = net.fabric.pairs("s")[0];
    let mut closed = cdc(&end, 1, at(0, 0));
    closed.cdc.state_flags = StateFlags::CLOSED;
    let registered = net.fabric.registered("s");
    for sequence in 1..4 {
        closed.sequence = Sequence(sequence);
        net.fabric.say("s", pair, &closed.encode());
        net.server.serve();
    }
    drop(b);
    closed.sequence = Sequence(4);
    net.fabric.say("s", pair, &closed.encode());
    net.until("the buffer is free", || {
        net.server.serve();
        let group = group_of(&net);
        let place = group.place(SizeCode::MIN).expect("memory").expect("room");
        place.end(Mtu::B1024).rkey == end.rkey
    });
    assert!(net.fabric.registered("s") <= registered + 1);
}

fn group_of(net: &Net) -> std::sync::Arc<Group> {
    let (id, gid) = (net.client.engine.peer_id(), net.client.port.own().gid);
    let found = net.server.port.find_for_client(Version::V2, id, gid);
    found.expect("the group")
}

#[test]
fn pitfall_26_a_blocked_writer_says_so_and_is_woken() {
    let net = Net::new();
    let [a, b] = net.connection();
    let pair = net.fabric.pairs("c")[0];
    write(&a, 0, &[1; 16384]);
    net.until("news", || told(&b).producer == at(1, 0));
    assert!(signal::arm(&a.header().mine().writer_armed, 1, || 0));
    net.fabric.heard("c", pair);
    a.push(News {
        produced: Position::new(16384),
        producer_flags: ProducerFlags::WRITE_BLOCKED,
        ..News::default()
    });
    let sent = news(&net.fabric.heard("c", pair));
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].cdc.producer_flags, ProducerFlags::WRITE_BLOCKED);
    net.client.serve();
    b.push(News {
        consumer: at(0, 1),
        ..News::default()
    });
    net.until("the bell", || net.client.serve() == [a.number()]);
}

/// Kernel 6.12 announces an urgent byte once, and then sends nothing before it knows that it was read.
#[test]
fn a_reader_of_many_bytes_takes_those_before_urgent_data_ends() {
    let net = Net::new();
    let places = net.first_contact([SizeCode::MIN; 2]);
    let end = places[1].end(Mtu::B1024);
    let [a, b] = attach(places, SizeCode::MIN);
    let mut end_b = Endpoint::on_lane(b, Side::Server);
    write(&a, 0, b"before!");
    net.until("news", || end_b.incoming(7) == Incoming::Bytes(7));
    assert!(end_b.arm_read(13), "nothing is urgent");
    let pair = net.fabric.pairs("s")[0];
    let say = |sequence, flags| {
        let mut cdc = cdc(&end, sequence, at(0, 7));
        cdc.cdc.producer_flags = flags;
        net.fabric.say("s", pair, &cdc.encode());
    };
    say(
        2,
        ProducerFlags::URGENT_PENDING | ProducerFlags::URGENT_PRESENT,
    );
    assert_eq!(net.server.serve(), [end_b.group_number()]);
    assert!(!end_b.arm_read(13) && end_b.must_read_on(13));
    // It is announced once, and what it is about may be read later.
    say(3, ProducerFlags::empty());
    net.server.serve();
    assert!(!end_b.arm_read(13) && end_b.must_read_on(13));
    net.fabric.heard("s", pair);
    end_b.consume(7);
    let told = news(&net.fabric.heard("s", pair));
    assert_eq!(told.last().expect("told").cdc.consumer, at(0, 7));
    assert!(end_b.arm_read(13), "all of it was read");
    say(4, ProducerFlags::empty());
    assert!(net.server.serve().is_empty(), "nothing is left to read");
}

#[test]
fn pitfall_27_numbers_do_not_go_backwards_and_a_validation_takes_none() {
    let net = Net::new();
    let places = net.first_contact([SizeCode::MIN; 2]);
    let end = places[1].end(Mtu::B1024);
    let [a, b] = attach(places, SizeCode::MIN);
    let pair = net.fabric.pairs("s")[0];
    let say = |cdc: RdmaCdc| {
        net.fabric.say("s", pair, &cdc.encode());
        net.server.serve();
        told(&b).producer
    };
    assert_eq!(say(cdc(&end, 5, at(0, 5))), at(0, 5));
    assert_eq!(say(cdc(&end, 4, at(0, 4))), at(0, 5), "older");
    assert_eq!(say(cdc(&end, 5, at(0, 6))), at(0, 6), "equal is not behind");
    let validation = |number| RdmaCdc::failover_validation(Sequence(number), end.alert_token);
    assert_eq!(say(validation(5)), at(0, 6));
    assert_eq!(say(cdc(&end, 6, at(0, 7))), at(0, 7));
    assert!(!b.is_dead());
    say(validation(7));
    assert_eq!(
        b.cause(),
        Some(Cause::Misbehaved(Misbehaviour::LostInFailover))
    );
    assert!(b.is_dead() && !a.is_dead(), "the connection, not the group");
    assert!(group_of(&net).cause().is_none());
    let pair = net.fabric.pairs("c")[0];
    net.fabric.heard("c", pair);
    for count in 1..4 {
        write(&a, count - 1, b"x");
    }
    let sent = news(&net.fabric.heard("c", pair));
    let numbers: Vec<u16> = sent.iter().map(|one| one.sequence.0).collect();
    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn pitfall_33_a_buffer_is_used_again_when_the_peer_has_ended_and_not_before() {
    let net = Net::new();
    let places = net.first_contact([SizeCode::MIN; 2]);
    let first = places[0].end(Mtu::B1024).rkey;
    let [a, b] = attach(places, SizeCode::MIN);
    drop(a);
    net.until("the abort", || !told(&b).state_flags.is_empty());
    let [c, d] = net.next([SizeCode::MIN; 2]);
    // b does not know yet that a is gone, and writes where it may.
    write(&b, 0, b"late");
    write(&d, 0, b"own");
    net.until("news", || told(&c).producer == at(0, 3));
    assert_eq!(read(&c, 0, 3), b"own");
    assert!(!b.is_dead() && !c.is_dead());
    drop(b);
    let group = net.client.port.find_for_server(
        Version::V2,
        net.server.engine.peer_id(),
        net.server.port.own().gid,
        U24::new(net.fabric.pairs("s")[0]).expect("24 bits"),
    );
    let group = group.expect("the group");
    net.until("the buffer is free", || {
        let place = group.place(SizeCode::MIN).expect("memory").expect("room");
        place.end(Mtu::B1024).rkey == first
    });
}

#[test]
fn pitfall_34_a_longer_message_of_the_link_is_received() {
    let net = Net::new();
    let [a, b] = net.connection();
    let pair = net.fabric.pairs("c")[0];
    net.fabric.heard("c", pair);
    let offer = Message::AddLink(AddLink::Offer {
        link: NewLink {
            mac: Mac([2; 6]),
            gid: Gid([2; 16]),
            qp_number: U24::new(99).expect("24 bits"),
            number: std::num::NonZeroU8::new(2).expect("not 0"),
            psn: U24::new(5).expect("24 bits"),
            extension: Some(Extension {
                direct: true,
                target_gid: Gid([2; 16]),
                keys: Few::default(),
            }),
        },
        mtu: Some(Mtu::B1024),
    })
    .encode();
    assert!(offer.len() > 44);
    net.fabric.say("c", pair, &offer);
    net.client.serve();
    let answers = links(&net.fabric.heard("c", pair));
    assert!(
        matches!(answers[..], [Message::AddLink(AddLink::Reject(_))]),
        "{answers:?}"
    );
    write(&a, 0, b"x");
    net.until("it goes on", || told(&b).producer == at(0, 1));
}

#[test]
fn pitfall_35_nothing_is_written_before_the_link_is_confirmed() {
    let net = Net::new();
    let new = |host: &Host, side| host.port.new_group(side, Version::V2, Some(LIMITS));
    let client = new(&net.client, Side::Client).expect("group");
    let server = new(&net.server, Side::Server).expect("group");
    let place = |group: &std::sync::Arc<Group>| group.place(SizeCode::MIN);
    let mut a = place(&client).expect("memory").expect("room");
    let mut b = place(&server).expect("memory").expect("room");
    let (a_end, b_end) = (a.end(Mtu::B1024), b.end(Mtu::B1024));
    client
        .connect(&b_end, b_end.peer_id, true)
        .expect("connect");
    a.prepare(&b_end, SizeCode::MIN).expect("prepare");
    let a = a.attach().expect("attach");
    write(&a, 0, b"early");
    let pair = net.fabric.pairs("c")[0];
    assert_eq!(net.fabric.heard("c", pair), [] as [Vec<u8>; 0]);
    server
        .connect(&a_end, a_end.peer_id, true)
        .expect("connect");
    b.prepare(&a_end, SizeCode::MIN).expect("prepare");
    let b = b.attach().expect("attach");
    net.until("news", || told(&b).producer == at(0, 5));
    assert_eq!(read(&b, 0, 5), b"early");
    let sent = net.fabric.heard("c", pair);
    assert_eq!(
        (links(&sent[..1]).len(), news(&sent[1..]).len()),
        (1, 1),
        "the answer first"
    );
}
