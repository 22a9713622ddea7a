//! Connections over RDMA, on a loopback fabric: what goes out, what comes in, and who is woken.

mod lane_support;

use std::time::{Duration, Instant};

use lane_support::polling::is_ready;
use lane_support::*;
use rustix::event::PollFlags;
use smcfast::driver::rdma::*;
use smcfast::fabric::shm::signal;
use smcfast::proto::position::Position;
use smcfast::wire::SizeCode;
use smcfast::wire::cdc::{Cdc, ProducerFlags, Sequence, StateFlags};
use smcfast::wire::clc::{Gid, Mtu, U24, Version};

#[test]
fn bytes_arrive_and_are_counted() {
    let net = Net::new();
    let [a, b] = net.connection();
    write(&a, 0, b"hello");
    net.until("news", || told(&b).producer == at(0, 5));
    assert_eq!(read(&b, 0, 5), b"hello");
    assert_eq!(a.room(), 16384 - 5, "nobody waits for a report");
    write(&a, 5, &[7; 10_000]);
    net.until("a report", || a.room() == 16384);
    assert_eq!(told(&a), Cdc::default());
}

#[test]
fn a_ring_that_is_smaller_than_the_peers_wraps_with_it() {
    let net = Net::new();
    let large = SizeCode::new(2).expect("64 KiB");
    let places = net.first_contact([SizeCode::MIN, large]);
    let [a, b] = attach(places, SizeCode::MIN);
    assert_eq!(
        (a.send_size().bytes(), a.peer_size().bytes()),
        (16384, 65536)
    );
    assert_eq!(
        (b.send_size().bytes(), b.peer_size().bytes()),
        (16384, 16384)
    );
    let mut position = 0;
    for round in 0..20u8 {
        let bytes: Vec<u8> = (0..11_000u32).map(|i| (i % 251) as u8 ^ round).collect();
        write(&a, position, &bytes);
        net.until("a report", || a.room() == 16384);
        assert_eq!(read(&b, position, bytes.len()), bytes, "round {round}");
        position += bytes.len() as u64;
    }
    let end = told(&b).producer;
    assert_eq!(end, b.rmb_size().cursor(Position::new(position)));
}

#[test]
fn everything_is_told_with_everything_else() {
    let net = Net::new();
    let [a, b] = net.connection();
    let news = News {
        consumer: at(3, 77),
        producer_flags: ProducerFlags::WRITE_BLOCKED,
        state_flags: StateFlags::SENDING_DONE,
        ..News::default()
    };
    b.push(news);
    b.push(news);
    let [pair] = net.fabric.pairs("s")[..] else {
        panic!("one pair")
    };
    let sent = lane_support::news(&net.fabric.heard("s", pair));
    assert_eq!(sent.len(), 1, "what was told is not told again");
    assert_eq!(sent[0].sequence, Sequence::FIRST);
    net.until("news", || told(&a).consumer == at(3, 77));
    let heard = told(&a);
    assert_eq!(heard.producer_flags, ProducerFlags::WRITE_BLOCKED);
    assert_eq!(heard.state_flags, StateFlags::SENDING_DONE);
}

#[test]
fn an_end_comes_behind_all_bytes_of_a_long_push() {
    let net = Net::new();
    let large = SizeCode::new(6).expect("1 MiB");
    let [a, b] = attach(net.first_contact([large; 2]), large);
    let pair = net.fabric.pairs("c")[0];
    net.fabric.heard("c", pair);
    a.send_ring().write(0, (&vec![9; 1 << 20][..]).into());
    a.push(News {
        produced: Position::new(1 << 20),
        state_flags: StateFlags::SENDING_DONE,
        ..News::default()
    });
    net.until("the end", || !told(&b).state_flags.is_empty());
    let sent = news(&net.fabric.heard("c", pair));
    let ends: Vec<u32> = sent.iter().map(|one| one.cdc.producer.count).collect();
    assert_eq!(ends, [256 << 10, 512 << 10, 768 << 10, 0]);
    assert!(sent[..3].iter().all(|one| one.cdc.state_flags.is_empty()));
    assert_eq!(told(&b).producer, at(1, 0));
    assert_eq!(read(&b, 0, 1 << 20), vec![9; 1 << 20]);
}

#[test]
fn an_abort_does_not_wait_for_bytes_that_nobody_will_read() {
    let net = Net::new();
    let [a, b] = net.connection();
    net.fabric.hold("c", true);
    let mut position = 0;
    while net.fabric.heard("c", net.fabric.pairs("c")[0]).len() < 64 && position < 600 {
        write(&a, position, b"x");
        position += 1;
    }
    a.push(News {
        produced: Position::new(position),
        state_flags: StateFlags::ABNORMAL_CLOSE,
        ..News::default()
    });
    net.fabric.hold("c", false);
    net.until("the abort", || !told(&b).state_flags.is_empty());
    let count = u64::from(told(&b).producer.count);
    assert!(count > 0 && count < position, "{count} of {position} bytes");
}

#[test]
fn a_reader_is_woken_when_it_has_what_it_waits_for() {
    let net = Net::new();
    let [a, b] = net.connection();
    net.until("quiet", || net.server.serve().is_empty());
    let armed = &b.header().mine().reader_armed;
    assert!(signal::arm(armed, 100, || 0));
    write(&a, 0, &[1; 99]);
    assert!(net.server.serve().is_empty(), "99 are not enough");
    write(&a, 99, &[1; 1]);
    assert_eq!(net.server.serve(), [b.number()]);
    assert_eq!(
        half(0),
        half(armed.load(smcfast::mem::sync::Ordering::Acquire))
    );
    // What was read meanwhile does not count.
    let word = smcfast::wire::cdc::Half::new(at(0, 100)).to_word();
    b.header()
        .mine()
        .consumer
        .store(word, smcfast::mem::sync::Ordering::Release);
    assert!(signal::arm(armed, 100, || 0));
    write(&a, 100, &[1; 99]);
    assert!(net.server.serve().is_empty());
    // An end wakes whatever one waits for.
    a.push(News {
        produced: Position::new(199),
        state_flags: StateFlags::SENDING_DONE,
        ..News::default()
    });
    assert_eq!(net.server.serve(), [b.number()]);
}

#[test]
fn who_looks_rings_for_others() {
    let net = Net::new();
    let [a, b] = net.connection();
    let [_c, d] = net.next([SizeCode::MIN; 2]);
    net.until("quiet", || net.server.serve().is_empty());
    assert!(signal::arm(&b.header().mine().reader_armed, 1, || 0));
    write(&a, 0, b"x");
    d.poll();
    assert_eq!(told(&b).producer, at(0, 1), "d has drained the queue");
    assert_eq!(net.server.serve(), [b.number()]);
}

#[test]
fn a_writer_is_woken_for_room_at_both_ends() {
    let net = Net::new();
    let [a, b] = net.connection();
    net.fabric.hold("c", true);
    write(&a, 0, &[1; 16384]);
    assert_eq!(a.room(), 0);
    net.until("quiet", || net.client.serve().is_empty());
    let armed = &a.header().mine().writer_armed;
    assert!(signal::arm(armed, 8000, || 0));
    b.push(News {
        consumer: at(0, 8000),
        ..News::default()
    });
    assert!(net.client.serve().is_empty(), "the completion is held");
    net.fabric.hold("c", false);
    assert_eq!(net.client.serve(), [a.number()]);
    assert!(signal::arm(armed, 8001, || 0));
    b.push(News {
        consumer: at(0, 8000),
        producer_flags: ProducerFlags::WRITE_BLOCKED,
        ..News::default()
    });
    assert!(net.client.serve().is_empty());
    b.push(News {
        consumer: at(0, 8001),
        ..News::default()
    });
    assert_eq!(net.client.serve(), [a.number()]);
}

#[test]
fn a_peer_that_asks_how_far_one_has_read_wakes_the_reader() {
    let net = Net::new();
    let [a, b] = net.connection();
    write(&a, 0, &[1; 50]);
    net.until("news", || told(&b).producer == at(0, 50));
    let word = smcfast::wire::cdc::Half::new(at(0, 50)).to_word();
    b.header()
        .mine()
        .consumer
        .store(word, smcfast::mem::sync::Ordering::Release);
    assert!(signal::arm(&b.header().mine().reader_armed, 100, || 0));
    a.push(News {
        produced: Position::new(50),
        producer_flags: ProducerFlags::WRITE_BLOCKED,
        ..News::default()
    });
    assert_eq!(net.server.serve(), [b.number()]);
}

#[test]
fn arming_loses_no_completion() {
    let net = Net::new();
    let [a, b] = net.connection();
    for byte in 0..100 {
        assert!(signal::arm(&b.header().mine().reader_armed, 1, || 0));
        b.arm();
        write(&a, byte, b"x");
        wait(&[net.server.engine.wake_fd()], PATIENCE);
        net.until("the bell", || net.server.serve() == [b.number()]);
        let word = smcfast::wire::cdc::Half::new(told(&b).producer).to_word();
        b.header()
            .mine()
            .consumer
            .store(word, smcfast::mem::sync::Ordering::Release);
        if byte % 3 == 0 {
            b.poll();
        }
    }
}

/// Each event costs the loop four system calls.
#[test]
fn who_looks_by_itself_is_not_woken_and_who_then_sleeps_is() {
    let net = Net::new();
    let [a, b] = net.connection();
    net.until("quiet", || net.server.serve().is_empty());
    let fd = net.server.engine.wake_fd();
    b.poll();
    write(&a, 0, b"x");
    assert!(is_ready(fd, PollFlags::IN), "the queue is armed still");
    b.poll();
    assert!(net.server.serve().is_empty());
    write(&a, 1, b"x");
    assert!(!is_ready(fd, PollFlags::IN), "nobody sleeps");
    b.poll();
    assert_eq!(told(&b).producer, at(0, 2));
    assert!(signal::arm(&b.header().mine().reader_armed, 3, || 2));
    b.arm();
    write(&a, 2, b"x");
    wait(&[fd], PATIENCE);
    assert_eq!(net.server.serve(), [b.number()]);
    // Who sleeps on has the queue armed for what comes next.
    assert!(signal::arm(&b.header().mine().reader_armed, 4, || 3));
    write(&a, 3, b"x");
    wait(&[fd], PATIENCE);
    assert_eq!(net.server.serve(), [b.number()]);
}

/// A loop may be blocked before it sleeps, and the peer has questions.
#[test]
fn a_queue_that_nobody_looks_at_any_more_is_armed_again() {
    let net = Net::new();
    let [a, b] = net.connection();
    net.until("quiet", || net.server.serve().is_empty());
    b.poll();
    write(&a, 0, b"x");
    assert!(net.server.serve().is_empty());
    write(&a, 1, b"x");
    // It has no bell to ring: that the guard has looked shows in what was told.
    let begun = Instant::now();
    while told(&b).producer != at(0, 2) {
        wait(&[], Duration::from_millis(5));
        assert!(begun.elapsed() < PATIENCE, "nobody has looked");
    }
    write(&a, 2, b"x");
    wait(&[net.server.engine.wake_fd()], PATIENCE);
    net.server.serve();
    assert_eq!(told(&b).producer, at(0, 3));
}

#[test]
fn a_full_queue_serves_connections_in_turn_and_tells_each_once() {
    let net = Net::new();
    let [a, b] = net.connection();
    let [c, d] = net.next([SizeCode::MIN; 2]);
    let pair = net.fabric.pairs("c")[0];
    net.fabric.hold("c", true);
    for position in 0..100 {
        write(&a, position, b"x");
        write(&c, position, b"y");
    }
    let sent = news(&net.fabric.heard("c", pair)).len();
    assert!(
        sent < 32,
        "{sent} posts in 64 places, of which 8 are the link's"
    );
    // The link has places even so.
    for _ in 0..8 {
        net.fabric.say("c", pair, &test_link());
    }
    net.client.serve();
    assert_eq!(links(&net.fabric.heard("c", pair)).len(), 8);
    net.fabric.hold("c", false);
    net.until("both", || {
        told(&b).producer == at(0, 100) && told(&d).producer == at(0, 100)
    });
    assert_eq!(news(&net.fabric.heard("c", pair)).len(), 2, "one for each");
    assert_eq!(
        (read(&b, 0, 100), read(&d, 0, 100)),
        (vec![b'x'; 100], vec![b'y'; 100])
    );
}

#[test]
fn groups_are_found_by_who_the_peer_is() {
    let net = Net::new();
    let [a, _b] = net.connection();
    let (port, engine) = (&net.server.port, &net.client.engine);
    let gid = net.client.port.own().gid;
    let found = port.find_for_client(Version::V2, engine.peer_id(), gid);
    assert_eq!(found.expect("it").number(), _b.number());
    for (version, id, gid) in [
        (Version::V1, engine.peer_id(), gid),
        (Version::V2, unknown_peer(), gid),
        (Version::V2, engine.peer_id(), Gid([3; 16])),
    ] {
        assert!(port.find_for_client(version, id, gid).is_none());
    }
    // The client's own group is none for clients, and has another pair than any.
    let id = net.server.engine.peer_id();
    let gid = net.server.port.own().gid;
    let client = &net.client.port;
    assert!(client.find_for_client(Version::V2, id, gid).is_none());
    let pair = U24::new(net.fabric.pairs("s")[0]).expect("24 bits");
    let found = client.find_for_server(Version::V2, id, gid, pair);
    assert_eq!(found.expect("it").number(), a.number());
    let other = U24::new(77).expect("24 bits");
    assert!(
        client
            .find_for_server(Version::V2, id, gid, other)
            .is_none()
    );
}

#[test]
fn a_group_has_as_many_connections_as_were_agreed_on() {
    let net = Net::new();
    let places = net.first_contact([SizeCode::MIN; 2]);
    let group = places[1].group();
    let others: Vec<Place> = (1..16)
        .map(|_| group.place(SizeCode::MIN).expect("memory").expect("room"))
        .collect();
    let mut tokens: Vec<u32> = others
        .iter()
        .chain([&places[1]])
        .map(|place| place.end(Mtu::B1024).alert_token.get())
        .collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 16, "each has its own token");
    assert!(group.place(SizeCode::MIN).expect("memory").is_none());
    let (port, id) = (&net.server.port, net.client.engine.peer_id());
    let gid = net.client.port.own().gid;
    assert!(port.find_for_client(Version::V2, id, gid).is_none());
    drop(others);
    assert!(port.find_for_client(Version::V2, id, gid).is_some());
}

#[test]
fn memory_that_cannot_be_registered_is_an_error_and_no_more() {
    let net = Net::new();
    let places = net.first_contact([SizeCode::MIN; 2]);
    net.fabric.exhaust("s", true);
    let error = places[1]
        .group()
        .place(SizeCode::MIN)
        .expect_err("no memory");
    assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory);
    net.fabric.exhaust("s", false);
    let [a, b] = attach(places, SizeCode::MIN);
    write(&a, 0, b"x");
    net.until("news", || told(&b).producer == at(0, 1));
}

#[test]
fn a_key_that_is_known_is_not_told_again() {
    let net = Net::new();
    let [_a, _b] = net.connection();
    let pair = net.fabric.pairs("c")[0];
    net.fabric.heard("c", pair);
    let lanes = net.next([SizeCode::MIN; 2]);
    assert_eq!(
        links(&net.fabric.heard("c", pair)).len(),
        2,
        "a question and an answer"
    );
    close(&lanes);
    let [c, d] = lanes;
    net.until("both ends", || {
        !told(&c).state_flags.is_empty() && !told(&d).state_flags.is_empty()
    });
    let registered = net.fabric.registered("c");
    drop([c, d]);
    let [c, d] = net.next([SizeCode::MIN; 2]);
    assert_eq!(links(&net.fabric.heard("c", pair)), []);
    assert_eq!(net.fabric.registered("c"), registered, "from the pool");
    write(&c, 0, b"again");
    net.until("news", || told(&d).producer == at(0, 5));
    assert_eq!(read(&d, 0, 5), b"again");
}
