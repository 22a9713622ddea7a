//! Two ends in one process, each with an engine of its own.

use std::os::fd::OwnedFd;

use super::super::engine::{Engine, Parts};
use super::*;
use crate::fabric::shm::{Bell, Wake};
use crate::proto::error::Fault as Blame;
use crate::proto::position::CursorError;
use crate::wire::SizeCode;
use crate::wire::cdc::Cursor;

const SMALL: u32 = 16 << 10;

struct Pair {
    server: Endpoint,
    client: Endpoint,
    server_engine: Engine,
    client_engine: Engine,
}

fn engine_pair() -> (Engine, Membership, Engine, Membership) {
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
    // A new bell reports once by itself.
    server.take_wakes().expect("take");
    client.take_wakes().expect("take");
    (server, server_place, client, client_place)
}

fn pair_of(server_code: u8, client_code: u8) -> Pair {
    let size = |code| RingSize::from_code(SizeCode::new(code).expect("a size code"));
    let (server_size, client_size) = (size(server_code), size(client_code));
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
    }
}

fn pair() -> Pair {
    pair_of(0, 0)
}

fn read(end: &mut Endpoint, n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    end.read(Target::from(&mut bytes[..]));
    bytes
}

fn read_all(end: &mut Endpoint) -> Vec<u8> {
    match end.incoming(u32::MAX) {
        Incoming::Bytes(n) => read(end, n as usize),
        _ => Vec::new(),
    }
}

fn rung(engine: &Engine) -> bool {
    engine
        .take_wakes()
        .expect("take")
        .iter()
        .any(|wake| matches!(wake, Wake::Bell(_)))
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 15)) as u8).collect()
}

#[test]
fn bytes_arrive_in_both_directions() {
    let Pair {
        mut server,
        mut client,
        ..
    } = pair();
    client.write(Source::from(&b"hello"[..])).expect("write");
    assert_eq!(server.incoming(1), Incoming::Bytes(5));
    assert_eq!(read(&mut server, 2), b"he");
    assert_eq!(read(&mut server, 3), b"llo");
    server.write(Source::from(&b"world"[..])).expect("write");
    assert_eq!(read_all(&mut client), b"world");
    assert_eq!(client.incoming(1), Incoming::Empty);
}

#[test]
fn sizes_around_the_ring_and_different_rings_are_exact() {
    for (server_code, client_code) in [(0, 0), (0, 2), (2, 0)] {
        for extra in [-1i64, 0, 1, 4095, 100_000] {
            let Pair {
                mut server,
                mut client,
                ..
            } = pair_of(server_code, client_code);
            let data = pattern((i64::from(SMALL) + extra) as usize);
            client.write(Source::from(&data[..])).expect("write");
            let mut got = Vec::new();
            while got.len() < data.len() {
                let part = read_all(&mut server);
                assert!(!part.is_empty(), "{} of {} bytes", got.len(), data.len());
                got.extend(part);
                client.flush();
            }
            assert!(
                got == data,
                "codes {server_code} {client_code}, {extra} more than a small ring"
            );
            assert_eq!(client.backlog(), 0);
        }
    }
}

#[test]
fn a_full_ring_keeps_the_rest_in_the_backlog() {
    let Pair {
        mut server,
        mut client,
        ..
    } = pair();
    client
        .write(Source::from(&pattern(20_000)[..]))
        .expect("write");
    assert_eq!(client.backlog(), 20_000 - SMALL as usize);
    client.write(Source::from(&[1, 2, 3][..])).expect("write");
    assert_eq!(client.backlog(), 20_003 - SMALL as usize);
    assert_eq!(server.incoming(SMALL), Incoming::Bytes(SMALL));
}

#[test]
fn a_sleeping_reader_is_rung_once_it_has_what_it_waits_for() {
    let Pair {
        mut server,
        mut client,
        server_engine,
        ..
    } = pair();
    assert!(server.arm_read(100));
    client.write(Source::from(&[7; 99][..])).expect("write");
    assert!(!rung(&server_engine), "99 of 100 bytes are there");
    client.write(Source::from(&[7; 1][..])).expect("write");
    assert!(rung(&server_engine));
    client.write(Source::from(&[7; 1][..])).expect("write");
    assert!(!rung(&server_engine), "it is awake");
    assert!(!server.arm_read(100), "it has what it wants");
    assert_eq!(client.counters().wakeups_sent, 1);
}

/// The writer knows only what the reader has announced: a sleeper announces first, so that a threshold is exact.
#[test]
fn a_threshold_counts_unread_bytes_only() {
    let Pair {
        mut server,
        mut client,
        server_engine,
        ..
    } = pair();
    client.write(Source::from(&[7; 50][..])).expect("write");
    assert_eq!(read_all(&mut server).len(), 50);
    assert!(server.arm_read(60));
    client.write(Source::from(&[7; 59][..])).expect("write");
    assert!(!rung(&server_engine));
    client.write(Source::from(&[7; 1][..])).expect("write");
    assert!(rung(&server_engine));
}

#[test]
fn a_blocked_writer_is_rung_when_half_the_ring_is_free() {
    let Pair {
        mut server,
        mut client,
        client_engine,
        ..
    } = pair();
    client
        .write(Source::from(&pattern(3 * SMALL as usize)[..]))
        .expect("write");
    assert!(client.arm_write());
    assert_eq!(server.incoming(SMALL), Incoming::Bytes(SMALL));
    read(&mut server, SMALL as usize / 2 - 1);
    assert!(!rung(&client_engine));
    let mut free = SMALL as usize / 2 - 1;
    while !rung(&client_engine) {
        free += read(&mut server, 512).len();
        assert!(free <= SMALL as usize, "never rung");
    }
    client.flush();
    assert!(client.backlog() < 2 * SMALL as usize);
}

#[test]
fn a_close_reaches_the_reader_behind_the_bytes() {
    let Pair {
        mut server,
        mut client,
        server_engine,
        ..
    } = pair();
    assert!(server.arm_read(1000));
    client.write(Source::from(&b"last"[..])).expect("write");
    client.close();
    assert!(client.is_closed());
    assert!(
        rung(&server_engine),
        "below the threshold, but no more will come"
    );
    assert_eq!(server.incoming(1000), Incoming::Bytes(4));
    assert_eq!(read(&mut server, 4), b"last");
    assert_eq!(server.incoming(1), Incoming::End);
    assert!(!server.arm_read(1));
    assert_eq!(server.write(Source::from(&b"x"[..])), Err(Fault::Closed));
}

#[test]
fn a_close_waits_for_the_backlog() {
    let Pair {
        mut server,
        mut client,
        ..
    } = pair();
    let data = pattern(50_000);
    client.write(Source::from(&data[..])).expect("write");
    client.close();
    assert!(!client.is_closed());
    let mut got = Vec::new();
    while server.incoming(u32::MAX) != Incoming::End {
        got.extend(read_all(&mut server));
        client.flush();
    }
    assert!(got == data && client.is_closed());
}

#[test]
fn half_close_leaves_the_other_direction_open() {
    let Pair {
        mut server,
        mut client,
        ..
    } = pair();
    client.write(Source::from(&b"request"[..])).expect("write");
    client.write_eof();
    assert_eq!(read_all(&mut server), b"request");
    assert_eq!(server.incoming(1), Incoming::End);
    server
        .write(Source::from(&b"reply"[..]))
        .expect("the other direction is open");
    server.close();
    assert_eq!(read_all(&mut client), b"reply");
    assert_eq!(client.incoming(1), Incoming::End);
}

#[test]
fn an_abort_is_a_reset_for_reader_and_writer() {
    let Pair {
        mut server,
        mut client,
        server_engine,
        ..
    } = pair();
    client.write(Source::from(&b"lost"[..])).expect("write");
    assert!(!server.arm_read(1), "there are bytes");
    assert_eq!(read_all(&mut server), b"lost");
    assert!(server.arm_read(1));
    client.abort();
    assert!(rung(&server_engine));
    assert_eq!(server.incoming(1), Incoming::Fault(Fault::Reset));
    assert_eq!(server.write(Source::from(&b"x"[..])), Err(Fault::Reset));
}

#[test]
fn what_was_written_before_an_abort_can_be_read() {
    let Pair {
        mut server,
        mut client,
        ..
    } = pair();
    client
        .write(Source::from(&b"last words"[..]))
        .expect("write");
    client.abort();
    assert_eq!(read_all(&mut server), b"last words");
    assert_eq!(server.incoming(1), Incoming::Fault(Fault::Reset));
}

#[test]
fn a_close_with_unread_bytes_is_a_reset() {
    let Pair {
        mut server,
        mut client,
        ..
    } = pair();
    client.write(Source::from(&b"unread"[..])).expect("write");
    server.close();
    assert_eq!(client.incoming(1), Incoming::Fault(Fault::Reset));
}

#[test]
fn a_dropped_end_is_a_reset() {
    let Pair {
        server,
        mut client,
        client_engine,
        ..
    } = pair();
    assert!(client.arm_read(1));
    drop(server);
    assert!(rung(&client_engine));
    assert_eq!(client.incoming(1), Incoming::Fault(Fault::Reset));
}

#[test]
fn a_lost_peer_is_a_fault_behind_its_bytes() {
    let Pair {
        mut server,
        mut client,
        ..
    } = pair();
    client
        .write(Source::from(&b"last words"[..]))
        .expect("write");
    server.lost();
    assert_eq!(read_all(&mut server), b"last words");
    assert_eq!(server.incoming(1), Incoming::Fault(Fault::Lost));
    assert_eq!(server.write(Source::from(&b"x"[..])), Err(Fault::Lost));
}

#[test]
fn a_peer_that_closed_and_went_is_no_fault() {
    let Pair {
        mut server,
        mut client,
        ..
    } = pair();
    client.write(Source::from(&b"bye"[..])).expect("write");
    client.close();
    server.lost();
    assert_eq!(read_all(&mut server), b"bye");
    assert_eq!(server.incoming(1), Incoming::End);
}

#[test]
fn a_cursor_beyond_the_window_is_named_and_aborts() {
    let Pair {
        mut server, client, ..
    } = pair();
    let beyond = Half::new(Cursor { wrap: 1, count: 1 }).to_word();
    client
        .header
        .mine()
        .producer
        .store(beyond, Ordering::Release);
    let misbehaved = PeerMisbehaved {
        field: "producer cursor",
        fault: Blame::Cursor(CursorError::BeyondWindow),
    };
    assert_eq!(
        server.incoming(1),
        Incoming::Fault(Fault::Misbehaved(misbehaved))
    );
    assert_eq!(
        server.write(Source::from(&b"x"[..])),
        Err(Fault::Misbehaved(misbehaved))
    );
    assert!(server.is_closed());
}

#[test]
fn bytes_beside_the_shared_memory_are_a_fault_and_no_end() {
    let Pair {
        mut server,
        mut client,
        ..
    } = pair();
    client
        .write(Source::from(&b"never trusted"[..]))
        .expect("write");
    server.bypassed();
    assert_eq!(server.incoming(1), Incoming::Fault(Fault::Bypassed));
    assert_eq!(client.incoming(1), Incoming::Fault(Fault::Reset));
}

#[test]
fn nothing_is_taken_behind_the_own_end() {
    let Pair {
        server: _server,
        mut client,
        ..
    } = pair();
    client.write_eof();
    assert_eq!(
        client.write(Source::from(&b"x"[..])),
        Err(Fault::ClosedHere)
    );
    assert_eq!(client.backlog(), 0);
}

/// Every word of the peer's half, with values that an honest peer would never store: a fault or nothing, never a panic.
#[test]
fn no_word_of_the_peer_can_do_harm() {
    let values = [
        0,
        1,
        u64::MAX,
        u64::MAX >> 8,
        u64::from(SMALL) << 16,
        u64::from(SMALL - 1) << 16,
        1 << 62,
        0x2000 << 48,
    ];
    for word in 0..5 {
        for value in values {
            let Pair {
                mut server,
                mut client,
                ..
            } = pair();
            client
                .write(Source::from(&pattern(1000)[..]))
                .expect("write");
            let half = client.header.mine();
            let words = [
                &half.producer,
                &half.consumer,
                &half.cpu,
                &half.reader_armed,
                &half.writer_armed,
            ];
            words[word].store(value, Ordering::SeqCst);
            for _ in 0..3 {
                let _ = server.write(Source::from(&pattern(9000)[..]));
                if let Incoming::Bytes(n) = server.incoming(u32::MAX) {
                    assert!(n <= SMALL);
                    read(&mut server, n as usize);
                }
                server.spin_is_worthwhile();
                server.arm_read(1);
                server.arm_write();
            }
            server.close();
        }
    }
}

#[test]
fn a_group_takes_255_connections_and_not_one_more() {
    let (server, place, _client, _) = engine_pair();
    let key = place.key();
    let places: Vec<_> = (1..255)
        .map(|_| server.join(key).expect("a place"))
        .collect();
    assert!(server.join(key).is_none());
    assert!(server.join_any(key.peer, Side::Server).is_none());
    assert!(
        server.join_any(key.peer, Side::Client).is_none(),
        "roles are not mixed"
    );
    drop(places);
    assert!(server.join_any(key.peer, Side::Server).is_some());
}

#[test]
fn a_group_ends_with_its_last_connection() {
    let Pair {
        server,
        server_engine,
        ..
    } = pair();
    let key = server.group().key();
    assert!(server_engine.join(key).is_some());
    drop(server);
    assert!(server_engine.join(key).is_none());
}
