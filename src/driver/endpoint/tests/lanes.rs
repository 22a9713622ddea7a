//! What only a link does: it has a send ring, it can be lost without its peer, and its end can come behind that of TCP.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::pairs::{DEVICES, Kind, Pair, SILENCE, pair, pair_of, rung};
use super::{SMALL, pattern, read, read_all};
use crate::driver::endpoint::{Endpoint, Fault, Incoming};
use crate::driver::engine::Engine;
use crate::driver::rdma::Cause;
use crate::fabric::shm::Wake;
use crate::mem::Source;
use crate::mem::sync::Ordering;
use crate::wire::cdc::{Half, ProducerFlags};

/// Hang guard, seconds.
const GUARD: i64 = 20;

/// Whether the peer of `end` has told that it is stuck.
fn is_told_blocked(end: &mut Endpoint) -> bool {
    end.refresh();
    let word = end.header.theirs().consumer.load(Ordering::Acquire);
    let flags = Half::from_word(word).producer_flags;
    flags.contains(ProducerFlags::WRITE_BLOCKED)
}

/// Waits until somebody is woken.
fn sleep(engine: &Engine) {
    while !rung(engine) {
        let limit = Timespec {
            tv_sec: GUARD,
            tv_nsec: 0,
        };
        let fd = engine.wake_fd();
        let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).expect("poll");
        assert_eq!(ready, 1, "nobody has rung");
    }
}

#[test]
fn what_does_not_fit_is_told_until_it_does() {
    let Pair { server, client, .. } = &mut pair(Kind::Lane);
    let fits = pattern(SMALL as usize);
    client.write(Source::from(&fits[..])).expect("write");
    assert!(!is_told_blocked(server), "all of it fits");
    client.write(Source::from(&[7][..])).expect("write");
    assert!(is_told_blocked(server), "one byte does not");
    assert!(read_all(server) == fits);
    client.flush();
    assert!(!is_told_blocked(server), "nothing waits any more");
    assert_eq!(read_all(server), [7]);
}

/// The peer's ring has room: it need not hear of what waits for the queue.
#[test]
fn a_writer_that_waits_for_the_queue_is_woken_by_it() {
    let Pair {
        server,
        client,
        client_engine,
        fabric,
        ..
    } = &mut pair_of(Kind::Lane, 2, 0);
    let fabric = fabric.as_ref().expect("a fabric");
    let data = pattern(SMALL as usize + 5000);
    fabric.hold(DEVICES[1], true);
    client.write(Source::from(&data[..])).expect("write");
    assert_eq!(client.backlog(), 5000);
    assert!(!is_told_blocked(server));
    assert!(client.arm_write());
    assert!(!rung(client_engine));
    fabric.hold(DEVICES[1], false);
    assert!(rung(client_engine));
    assert!(!client.arm_write());
    assert_eq!(client.backlog(), 0);
    assert!(read_all(server) == data);
}

#[test]
fn a_reader_does_not_announce_before_it_sleeps() {
    let Pair {
        server,
        client,
        server_engine,
        ..
    } = &mut pair(Kind::Lane);
    client.write(Source::from(&[7; 50][..])).expect("write");
    assert_eq!(read_all(server).len(), 50);
    assert!(server.arm_read(1));
    client.refresh();
    assert_eq!(client.counters().stats.bytes_acknowledged, 0);
    assert_eq!(server.counters().stats.updates, 0);
    client.write(Source::from(&[7; 1][..])).expect("write");
    assert!(rung(server_engine));
}

/// What is too little to be announced is enough for a peer that is stuck, also if it says so later.
#[test]
fn a_peer_that_is_stuck_later_hears_of_what_was_read() {
    let Pair {
        server,
        client,
        client_engine,
        ..
    } = &mut pair(Kind::Lane);
    client.write(Source::from(&[7; 3000][..])).expect("write");
    assert_eq!(read_all(server).len(), 3000);
    let data = pattern(SMALL as usize);
    client.write(Source::from(&data[..])).expect("write");
    assert_eq!(client.backlog(), 3000);
    assert!(client.arm_write());
    server.refresh();
    assert!(rung(client_engine));
    client.flush();
    assert_eq!(client.backlog(), 0);
    assert_eq!(server.incoming(SMALL), Incoming::Bytes(SMALL));
    assert!(read(server, SMALL as usize) == data);
}

#[test]
fn a_lost_link_wakes_and_names_its_cause() {
    let mut pair = pair(Kind::Lane);
    assert!(pair.server.arm_read(1));
    pair.lose();
    assert!(rung(&pair.server_engine));
    let lost = Fault::Link(Cause::PairFailed(SILENCE.text()));
    assert_eq!(pair.server.incoming(1), Incoming::Fault(lost));
    assert!(!pair.server.arm_read(1));
    assert!(!pair.server.arm_end());
    let text = "the RDMA link is lost: the queue pair has failed: transport retries exceeded: the peer does not answer";
    assert_eq!(lost.to_string(), text);
}

/// Nobody waits in either end, and both loops hear of it.
#[test]
fn the_end_of_a_link_is_a_death() {
    let mut pair = pair(Kind::Lane);
    pair.lose();
    let ends = [
        (&pair.server, &pair.server_engine),
        (&pair.client, &pair.client_engine),
    ];
    for (end, engine) in ends {
        let mut deaths = Vec::new();
        // The device tells of the loss, and that of the death.
        for _ in 0..2 {
            let wakes = engine.take_wakes().expect("take");
            deaths.extend(wakes.into_iter().filter_map(|wake| match wake {
                Wake::Death(number) => Some(number),
                _ => None,
            }));
        }
        assert_eq!(deaths, [end.group_number()]);
    }
}

#[test]
fn the_end_of_tcp_may_come_before_that_of_the_connection() {
    let Pair {
        server,
        client,
        server_engine,
        ..
    } = &mut pair(Kind::Lane);
    client.write(Source::from(&b"bye"[..])).expect("write");
    server.tcp_ended(false);
    assert_eq!(server.write_fault(), None);
    assert!(server.arm_end());
    client.close();
    assert!(rung(server_engine));
    assert_eq!(read_all(server), b"bye");
    assert_eq!(server.incoming(1), Incoming::End);
    assert!(!server.arm_end());
}

#[test]
fn a_peer_that_aborts_behind_the_end_of_tcp_is_a_reset() {
    let Pair {
        server,
        client,
        server_engine,
        ..
    } = &mut pair(Kind::Lane);
    server.tcp_ended(true);
    assert!(server.arm_end());
    client.write(Source::from(&b"x"[..])).expect("write");
    client.abort();
    assert!(rung(server_engine));
    assert_eq!(read_all(server), b"x");
    assert_eq!(server.incoming(1), Incoming::Fault(Fault::Reset));
}

#[test]
fn a_peer_whose_tcp_has_ended_is_lost_if_nothing_follows() {
    let Pair {
        server,
        client,
        server_engine,
        ..
    } = &mut pair(Kind::Lane);
    client
        .write(Source::from(&b"last words"[..]))
        .expect("write");
    server.tcp_ended(false);
    assert!(server.arm_end());
    sleep(server_engine);
    assert_eq!(read_all(server), b"last words");
    assert_eq!(server.incoming(1), Incoming::Fault(Fault::Lost));
}

/// The kernel shuts TCP down with its half of the connection; its FIN may come before or behind the news of that.
#[test]
fn the_end_of_tcp_with_a_half_close_is_no_loss() {
    for fin_first in [false, true] {
        let Pair {
            server,
            client,
            server_engine,
            ..
        } = &mut pair(Kind::Lane);
        if fin_first {
            server.tcp_ended(false);
        }
        client.write_eof();
        server.tcp_ended(false);
        assert!(server.arm_end());
        let limit = Timespec {
            tv_sec: 1,
            tv_nsec: 500_000_000,
        };
        // Longer than the end of a connection may come behind that of TCP.
        poll(&mut [], Some(&limit)).expect("poll");
        rung(server_engine);
        assert_eq!(server.write_fault(), None);
        assert_eq!(server.incoming(1), Incoming::End);
        server.write(Source::from(&b"answer"[..])).expect("write");
        server.close();
        assert_eq!(read_all(client), b"answer");
    }
}

#[test]
fn the_end_of_tcp_behind_a_close_is_no_news() {
    let Pair { server, client, .. } = &mut pair(Kind::Lane);
    client.close();
    server.tcp_ended(false);
    assert_eq!(server.write_fault(), Some(Fault::Closed));
    assert_eq!(server.incoming(1), Incoming::End);
}
