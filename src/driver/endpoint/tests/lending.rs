//! Bytes in their place.

use super::*;

const HALF: usize = SMALL as usize / 2;

/// `n` bytes through the ring of the client's writes, so that the next ones lie behind them.
fn pass(client: &mut Endpoint, server: &mut Endpoint, n: usize) {
    client.write(Source::from(&pattern(n)[..])).expect("write");
    assert_eq!(server.incoming(n as u32), Incoming::Bytes(n as u32));
    read(server, n);
}

pub(super) fn what_is_lent_ends_where_the_ring_does(kind: Kind) {
    let Pair { server, client, .. } = &mut pair(kind);
    pass(client, server, SMALL as usize - 4);
    client
        .write(Source::from(&b"0123456789"[..]))
        .expect("write");
    assert_eq!(server.incoming(10), Incoming::Bytes(10));
    assert_eq!(server.lend_readable(3).expect("lent").len(), 3);
    let first = server.lend_readable(10).expect("lent");
    assert_eq!(
        (first.len(), server.readable()),
        (4, 10),
        "nothing is taken"
    );
    server.consume(4);
    let second = server.lend_readable(10).expect("lent");
    assert_eq!(second.len(), 6);
    let apart = first.start().addr() - second.start().addr();
    assert_eq!(apart, SMALL as usize - 4);
    assert_eq!(read(server, 6), b"456789");
}

pub(super) fn what_is_committed_is_what_lay_there(kind: Kind) {
    let Pair { server, client, .. } = &mut pair(kind);
    // What once was written lies there still.
    let data = pattern(SMALL as usize);
    client.write(Source::from(&data[..])).expect("write");
    assert_eq!(client.lend_room(10).expect("lent").len(), 0, "it is full");
    assert_eq!(server.incoming(SMALL), Incoming::Bytes(SMALL));
    assert_eq!(read(server, SMALL as usize), data);
    assert!(client.free_room(100) >= 100);
    let room = client.lend_room(100).expect("lent");
    assert_eq!(room.len(), 100);
    client.commit(0).expect("nothing");
    assert_eq!(server.incoming(1), Incoming::Empty);
    client.commit(70).expect("committed");
    assert_eq!(server.incoming(100), Incoming::Bytes(70));
    assert_eq!(read(server, 70), data[..70]);
    let next = client.lend_room(100).expect("lent");
    assert_eq!(next.start().addr() - room.start().addr(), 70);
}

pub(super) fn there_is_no_room_before_a_backlog(kind: Kind) {
    let Pair { server, client, .. } = &mut pair(kind);
    client
        .write(Source::from(&pattern(SMALL as usize + 100)[..]))
        .expect("write");
    assert_eq!(server.incoming(SMALL), Incoming::Bytes(SMALL));
    read(server, SMALL as usize);
    client.refresh();
    assert_eq!(client.free_room(1), 0, "100 bytes come first");
    client.flush();
    assert!(client.free_room(1) > 0);
}

pub(super) fn who_waits_for_room_is_rung(kind: Kind) {
    let Pair {
        server,
        client,
        client_engine,
        ..
    } = &mut pair(kind);
    client
        .write(Source::from(&pattern(SMALL as usize)[..]))
        .expect("write");
    client.want_room(SMALL, 100);
    assert!(client.awaits_room() && client.arm_write());
    assert_eq!(server.incoming(SMALL), Incoming::Bytes(SMALL));
    read(server, HALF - 1);
    assert!(!rung(client_engine), "half of the ring is waited for");
    read(server, HALF + 1);
    assert!(rung(client_engine));
    client.refresh();
    assert!(!client.awaits_room() && !client.arm_write());
    client.want_no_room();
    assert!(!client.awaits_room());
    assert_eq!(client.lend_room(SMALL).expect("lent").len(), SMALL as usize);
}

/// A peer that is not told may keep the room to itself until half of its ring is free.
pub(super) fn a_peer_is_told_of_who_waits_for_room(kind: Kind) {
    let Pair { server, client, .. } = &mut pair(kind);
    client
        .write(Source::from(&pattern(SMALL as usize)[..]))
        .expect("write");
    client.want_room(HALF as u32, HALF as u32);
    assert!(client.arm_write());
    assert_eq!(server.incoming(SMALL), Incoming::Bytes(SMALL));
    assert!(server.connection.peer_write_blocked());
    read(server, SMALL as usize);
    client.refresh();
    client.want_no_room();
    client.commit(1).expect("committed");
    server.refresh();
    // In shared memory flags go along with the next announcement.
    assert!(kind == Kind::Shared || !server.connection.peer_write_blocked());
}

pub(super) fn room_ends_with_the_writing_side(kind: Kind) {
    let Pair { server, client, .. } = &mut pair(kind);
    client.want_room(100, 100);
    assert!(!client.awaits_room(), "it is there");
    client.write_eof();
    assert_eq!(client.room_fault(), Some(Fault::ClosedHere));
    assert_eq!(client.commit(1), Err(Fault::ClosedHere));
    server.close();
    client.refresh();
    assert_eq!(client.commit(1), Err(Fault::Closed));
    assert!(!client.awaits_room());
}
