//! Two ends in two threads that sleep for each other, both directions at once.
//!
//! Both use one mapping of each ring, so that ThreadSanitizer sees one address for one byte: a byte that is read before the
//! cursor that announces it, or overwritten before the one that releases it, is a data race to it (docs/testing.md).

use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::engine::Engine;
use super::tests::pairs::{Kind, Pair, engine_pair, pair};
use super::*;
use crate::wire::SizeCode;

/// Hang guard, seconds.
const GUARD: i64 = 10;

fn byte(position: usize, seed: usize) -> u8 {
    (position ^ (position >> 8) ^ (position >> 16)) as u8 ^ seed as u8
}

/// Sleeps until the bell is rung.
fn sleep(engine: &Engine) {
    let fd = engine.wake_fd();
    let limit = Timespec {
        tv_sec: GUARD,
        tv_nsec: 0,
    };
    let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).expect("poll");
    assert_eq!(ready, 1, "nobody has rung");
    engine.take_wakes().expect("take");
}

/// Writes `total` bytes in pieces of changing sizes and reads as many, asleep whenever there is nothing to do.
fn exchange(mut end: Endpoint, engine: &Engine, total: usize, mine: usize, theirs: usize) {
    let (mut written, mut read) = (0, 0);
    while read < total || end.backlog() > 0 || written < total {
        let mut idle = true;
        if written < total && end.backlog() == 0 {
            let size = (1 + written * 7 % 9000).min(total - written);
            let piece: Vec<u8> = (written..written + size).map(|at| byte(at, mine)).collect();
            end.write(Source::from(&piece[..])).expect("write");
            written += size;
            idle = false;
        }
        if let Incoming::Bytes(n) = end.incoming(1) {
            let mut piece = vec![0; (n as usize).min(1 + read * 5 % 7000)];
            end.read(Target::from(&mut piece[..]));
            let wrong = (read..)
                .zip(&piece)
                .find(|(at, got)| byte(*at, theirs) != **got);
            assert_eq!(wrong, None);
            read += piece.len();
            idle = false;
        }
        if idle {
            let reads = read == total || end.arm_read(1);
            let writes = end.backlog() == 0 || end.arm_write();
            if reads && writes {
                sleep(engine);
            }
        }
    }
    end.close();
}

#[test]
fn two_threads_exchange_bytes() {
    let total = if cfg!(plain_copy) { 300_000 } else { 5_000_000 };
    let size = RingSize::from_code(SizeCode::MIN);
    let dmb = || Dmb::create(size.bytes() as usize, false).expect("a DMB").0;
    let (server_dmb, client_dmb) = (dmb(), dmb());
    server_dmb.header(Side::Server).initialise();
    let buffers = |side, own: &Dmb, peer: &Dmb| Buffers {
        side,
        own: own.share(),
        own_size: size,
        peer: peer.share(),
        peer_size: size,
    };
    let (server_engine, server_place, client_engine, client_place) = engine_pair();
    let server = Endpoint::new(
        buffers(Side::Server, &server_dmb, &client_dmb),
        server_place,
    );
    let client = Endpoint::new(
        buffers(Side::Client, &client_dmb, &server_dmb),
        client_place,
    );
    thread::scope(|scope| {
        scope.spawn(|| exchange(server, &server_engine, total, 1, 2));
        scope.spawn(|| exchange(client, &client_engine, total, 2, 1));
    });
}

#[test]
fn two_threads_exchange_bytes_over_a_link() {
    let total = if cfg!(plain_copy) { 300_000 } else { 5_000_000 };
    let Pair {
        server,
        client,
        server_engine,
        client_engine,
        fabric: _fabric,
    } = pair(Kind::Lane);
    thread::scope(|scope| {
        scope.spawn(|| exchange(server, &server_engine, total, 1, 2));
        scope.spawn(|| exchange(client, &client_engine, total, 2, 1));
    });
}
