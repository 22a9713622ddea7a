//! What both ends of a connection see, whatever carries it.

mod groups;
mod lanes;
mod lending;
pub(in crate::driver) mod pairs;
mod twins;

use super::*;
use crate::proto::error::Fault as Blame;
use crate::proto::position::CursorError;
use crate::wire::cdc::Cursor;
use lending::*;
use pairs::{Kind, Pair, SILENCE, pair, pair_of, rung, tell};

const SMALL: u32 = 16 << 10;

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

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 15)) as u8).collect()
}

/// Runs each case on both media.
macro_rules! on_both {
    ($($name:ident,)+) => {
        mod shared {
            $(#[test] fn $name() { super::$name(super::Kind::Shared); })+
        }
        mod lane {
            $(#[test] fn $name() { super::$name(super::Kind::Lane); })+
        }
    };
}

on_both! {
    bytes_arrive_in_both_directions,
    sizes_around_the_ring_and_different_rings_are_exact,
    a_full_ring_keeps_the_rest_in_the_backlog,
    a_sleeping_reader_is_rung_once_it_has_what_it_waits_for,
    a_threshold_counts_unread_bytes_only,
    a_blocked_writer_is_rung_when_half_the_ring_is_free,
    a_close_reaches_the_reader_behind_the_bytes,
    a_close_waits_for_the_backlog,
    half_close_leaves_the_other_direction_open,
    an_abort_is_a_reset_for_reader_and_writer,
    what_was_written_before_an_abort_can_be_read,
    a_close_with_unread_bytes_is_a_reset,
    a_dropped_end_is_a_reset,
    a_lost_peer_is_a_fault_behind_its_bytes,
    a_peer_that_closed_and_went_is_no_fault,
    a_cursor_beyond_the_window_is_named_and_aborts,
    bytes_beside_the_connection_are_a_fault_and_no_end,
    nothing_is_taken_behind_the_own_end,
    no_word_of_the_peer_can_do_harm,
    what_is_lent_ends_where_the_ring_does,
    what_is_committed_is_what_lay_there,
    there_is_no_room_before_a_backlog,
    who_waits_for_room_is_rung,
    a_peer_is_told_of_who_waits_for_room,
    room_ends_with_the_writing_side,
}

fn bytes_arrive_in_both_directions(kind: Kind) {
    let Pair { server, client, .. } = &mut pair(kind);
    client.write(Source::from(&b"hello"[..])).expect("write");
    assert_eq!(server.incoming(1), Incoming::Bytes(5));
    assert_eq!(read(server, 2), b"he");
    assert_eq!(read(server, 3), b"llo");
    server.write(Source::from(&b"world"[..])).expect("write");
    assert_eq!(read_all(client), b"world");
    assert_eq!(client.incoming(1), Incoming::Empty);
}

fn sizes_around_the_ring_and_different_rings_are_exact(kind: Kind) {
    for (server_code, client_code) in [(0, 0), (0, 2), (2, 0)] {
        for extra in [-1i64, 0, 1, 4095, 100_000] {
            let Pair { server, client, .. } = &mut pair_of(kind, server_code, client_code);
            let data = pattern((i64::from(SMALL) + extra) as usize);
            client.write(Source::from(&data[..])).expect("write");
            let mut got = Vec::new();
            while got.len() < data.len() {
                let part = read_all(server);
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

fn a_full_ring_keeps_the_rest_in_the_backlog(kind: Kind) {
    let Pair { server, client, .. } = &mut pair(kind);
    client
        .write(Source::from(&pattern(20_000)[..]))
        .expect("write");
    assert_eq!(client.backlog(), 20_000 - SMALL as usize);
    client.write(Source::from(&[1, 2, 3][..])).expect("write");
    assert_eq!(client.backlog(), 20_003 - SMALL as usize);
    assert_eq!(server.incoming(SMALL), Incoming::Bytes(SMALL));
}

fn a_sleeping_reader_is_rung_once_it_has_what_it_waits_for(kind: Kind) {
    let Pair {
        server,
        client,
        server_engine,
        ..
    } = &mut pair(kind);
    assert!(server.arm_read(100));
    client.write(Source::from(&[7; 99][..])).expect("write");
    assert!(!rung(server_engine), "99 of 100 bytes are there");
    client.write(Source::from(&[7; 1][..])).expect("write");
    assert!(rung(server_engine));
    client.write(Source::from(&[7; 1][..])).expect("write");
    assert!(!rung(server_engine), "it is awake");
    assert!(!server.arm_read(100), "it has what it wants");
    let rang = u64::from(kind == Kind::Shared);
    assert_eq!(client.counters().wakeups_sent, rang);
}

/// The writer knows only what the reader has announced: a sleeper announces first, so that a threshold is exact.
fn a_threshold_counts_unread_bytes_only(kind: Kind) {
    let Pair {
        server,
        client,
        server_engine,
        ..
    } = &mut pair(kind);
    client.write(Source::from(&[7; 50][..])).expect("write");
    assert_eq!(read_all(server).len(), 50);
    assert!(server.arm_read(60));
    client.write(Source::from(&[7; 59][..])).expect("write");
    assert!(!rung(server_engine));
    client.write(Source::from(&[7; 1][..])).expect("write");
    assert!(rung(server_engine));
}

fn a_blocked_writer_is_rung_when_half_the_ring_is_free(kind: Kind) {
    let Pair {
        server,
        client,
        client_engine,
        ..
    } = &mut pair(kind);
    client
        .write(Source::from(&pattern(3 * SMALL as usize)[..]))
        .expect("write");
    assert!(client.arm_write());
    assert_eq!(server.incoming(SMALL), Incoming::Bytes(SMALL));
    read(server, SMALL as usize / 2 - 1);
    assert!(!rung(client_engine));
    let mut free = SMALL as usize / 2 - 1;
    while !rung(client_engine) {
        free += read(server, 512).len();
        assert!(free <= SMALL as usize, "never rung");
    }
    client.flush();
    assert!(client.backlog() < 2 * SMALL as usize);
}

fn a_close_reaches_the_reader_behind_the_bytes(kind: Kind) {
    let Pair {
        server,
        client,
        server_engine,
        ..
    } = &mut pair(kind);
    assert!(server.arm_read(1000));
    client.write(Source::from(&b"last"[..])).expect("write");
    client.close();
    assert!(client.is_closed());
    assert!(
        rung(server_engine),
        "below the threshold, but no more will come"
    );
    assert_eq!(server.incoming(1000), Incoming::Bytes(4));
    assert_eq!(read(server, 4), b"last");
    assert_eq!(server.incoming(1), Incoming::End);
    assert!(!server.arm_read(1));
    assert_eq!(server.write(Source::from(&b"x"[..])), Err(Fault::Closed));
}

fn a_close_waits_for_the_backlog(kind: Kind) {
    let Pair { server, client, .. } = &mut pair(kind);
    let data = pattern(50_000);
    client.write(Source::from(&data[..])).expect("write");
    client.close();
    assert!(!client.is_closed());
    let mut got = Vec::new();
    while server.incoming(u32::MAX) != Incoming::End {
        got.extend(read_all(server));
        client.flush();
    }
    assert!(got == data && client.is_closed());
}

fn half_close_leaves_the_other_direction_open(kind: Kind) {
    let Pair { server, client, .. } = &mut pair(kind);
    client.write(Source::from(&b"request"[..])).expect("write");
    client.write_eof();
    assert_eq!(read_all(server), b"request");
    assert_eq!(server.incoming(1), Incoming::End);
    server
        .write(Source::from(&b"reply"[..]))
        .expect("the other direction is open");
    server.close();
    assert_eq!(read_all(client), b"reply");
    assert_eq!(client.incoming(1), Incoming::End);
}

fn an_abort_is_a_reset_for_reader_and_writer(kind: Kind) {
    let Pair {
        server,
        client,
        server_engine,
        ..
    } = &mut pair(kind);
    client.write(Source::from(&b"lost"[..])).expect("write");
    assert!(!server.arm_read(1), "there are bytes");
    assert_eq!(read_all(server), b"lost");
    assert!(server.arm_read(1));
    client.abort();
    assert!(rung(server_engine));
    assert_eq!(server.incoming(1), Incoming::Fault(Fault::Reset));
    assert_eq!(server.write(Source::from(&b"x"[..])), Err(Fault::Reset));
}

fn what_was_written_before_an_abort_can_be_read(kind: Kind) {
    let Pair { server, client, .. } = &mut pair(kind);
    client
        .write(Source::from(&b"last words"[..]))
        .expect("write");
    client.abort();
    assert_eq!(read_all(server), b"last words");
    assert_eq!(server.incoming(1), Incoming::Fault(Fault::Reset));
}

fn a_close_with_unread_bytes_is_a_reset(kind: Kind) {
    let Pair { server, client, .. } = &mut pair(kind);
    client.write(Source::from(&b"unread"[..])).expect("write");
    server.close();
    assert_eq!(client.incoming(1), Incoming::Fault(Fault::Reset));
}

fn a_dropped_end_is_a_reset(kind: Kind) {
    let Pair {
        server,
        mut client,
        server_engine: _server_engine,
        client_engine,
        fabric: _fabric,
    } = pair(kind);
    assert!(client.arm_read(1));
    drop(server);
    assert!(rung(&client_engine));
    assert_eq!(client.incoming(1), Incoming::Fault(Fault::Reset));
}

fn a_lost_peer_is_a_fault_behind_its_bytes(kind: Kind) {
    let mut pair = pair(kind);
    pair.client
        .write(Source::from(&b"last words"[..]))
        .expect("write");
    pair.lose();
    let fault = match kind {
        Kind::Shared => Fault::Lost,
        Kind::Lane => Fault::Link(Cause::PairFailed(SILENCE.text())),
    };
    assert_eq!(read_all(&mut pair.server), b"last words");
    assert_eq!(pair.server.incoming(1), Incoming::Fault(fault));
    assert_eq!(pair.server.write(Source::from(&b"x"[..])), Err(fault));
}

fn a_peer_that_closed_and_went_is_no_fault(kind: Kind) {
    let mut pair = pair(kind);
    pair.client.write(Source::from(&b"bye"[..])).expect("write");
    pair.client.close();
    pair.lose();
    assert_eq!(read_all(&mut pair.server), b"bye");
    assert_eq!(pair.server.incoming(1), Incoming::End);
}

fn a_cursor_beyond_the_window_is_named_and_aborts(kind: Kind) {
    let Pair { server, .. } = &mut pair(kind);
    tell(server, 0, Half::new(Cursor { wrap: 1, count: 1 }).to_word());
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

/// The look between publishing and ringing finds it; by the next one the peer might have put it back.
#[test]
fn a_fault_that_is_seen_in_passing_counts() {
    let Pair { server, client, .. } = &mut pair(Kind::Shared);
    client.header.mine().reader_armed.store(1, Ordering::SeqCst);
    let good = client.header.mine().consumer.load(Ordering::SeqCst);
    tell(server, 1, u64::MAX);
    server
        .write(Source::from(&b"x"[..]))
        .expect("room is known, nobody has looked yet");
    tell(server, 1, good);
    assert!(matches!(server.write_fault(), Some(Fault::Misbehaved(_))));
}

fn bytes_beside_the_connection_are_a_fault_and_no_end(kind: Kind) {
    let Pair { server, client, .. } = &mut pair(kind);
    client
        .write(Source::from(&b"never trusted"[..]))
        .expect("write");
    server.bypassed();
    assert_eq!(server.incoming(1), Incoming::Fault(Fault::Bypassed));
    assert_eq!(client.incoming(1), Incoming::Fault(Fault::Reset));
}

fn nothing_is_taken_behind_the_own_end(kind: Kind) {
    let Pair {
        server: _server,
        client,
        ..
    } = &mut pair(kind);
    client.write_eof();
    assert_eq!(
        client.write(Source::from(&b"x"[..])),
        Err(Fault::ClosedHere)
    );
    assert_eq!(client.backlog(), 0);
}

/// Every word of the peer's half, with values that an honest peer would never store: a fault or nothing, never a panic.
fn no_word_of_the_peer_can_do_harm(kind: Kind) {
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
            let Pair { server, client, .. } = &mut pair(kind);
            client
                .write(Source::from(&pattern(1000)[..]))
                .expect("write");
            tell(server, word, value);
            for _ in 0..3 {
                let _ = server.write(Source::from(&pattern(9000)[..]));
                if let Incoming::Bytes(n) = server.incoming(u32::MAX) {
                    assert!(n <= SMALL);
                    read(server, n as usize);
                }
                server.spin_is_worthwhile();
                server.arm_read(1);
                server.arm_write();
            }
            server.close();
        }
    }
}
