//! What the loopback is strict about.

use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Fabric;
use crate::fabric::rdma::*;
use crate::mem::Target;

const A: [u8; 16] = [1; 16];
const B: [u8; 16] = [2; 16];

struct End {
    nic: Arc<dyn Nic>,
    domain: Box<dyn Domain>,
    pair: Box<dyn Pair>,
}

impl End {
    fn new(fabric: &Fabric, device: &str, gid: [u8; 16]) -> Self {
        let nic = fabric.nic(device, &[gid]).expect("nic");
        let domain = nic.domain().expect("domain");
        let pair = domain
            .pair(PairOptions {
                gid_index: 0,
                sends: 8,
                receives: 2,
            })
            .expect("pair");
        Self { nic, domain, pair }
    }

    fn meet(&mut self, gid: [u8; 16], other: &End) {
        self.pair
            .ready_to_receive(&Remote {
                gid,
                number: other.pair.number(),
                first_packet: other.pair.first_packet(),
                mtu: 3,
                direct: true,
            })
            .expect("RTR");
        self.pair.ready_to_send().expect("RTS");
    }

    fn poll(&self) -> Vec<Completion> {
        let mut found = Vec::new();
        self.nic.poll(&mut found).expect("poll");
        found
    }

    fn is_woken(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(
            self.nic.completion_fd(),
            PollFlags::IN,
        )];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&now)).expect("poll") == 1
    }
}

fn ends() -> (Fabric, End, End) {
    let fabric = Fabric::new();
    let mut a = End::new(&fabric, "a", A);
    let mut b = End::new(&fabric, "b", B);
    a.meet(B, &b);
    b.meet(A, &a);
    (fabric, a, b)
}

fn write<'a>(from: &'a Registered, to: &Registered, offset: u64, len: u32) -> Write<'a> {
    Write {
        from,
        offset: 0,
        len,
        address: to.address() + offset,
        key: to.remote_key(),
    }
}

fn status(found: &[Completion]) -> Option<u32> {
    found.iter().find_map(|one| match one {
        Completion::Failed { status, .. } => Some(status.0),
        _ => None,
    })
}

#[test]
fn writes_arrive_before_the_message_and_are_reported_when_asked() {
    let (_fabric, mut a, mut b) = ends();
    let from = a.domain.register(4096, Access::Local).expect("memory");
    let to = b
        .domain
        .register(4096, Access::RemoteWrite)
        .expect("memory");
    from.region().write(0, (&b"hello"[..]).into());
    b.nic.arm().expect("arm");
    a.pair
        .post(&[write(&from, &to, 100, 5)], b"news", 7, false)
        .expect("room");
    assert!(b.is_woken());
    assert!(b.nic.take_events().expect("events") && !b.is_woken());
    let mut out = [0; 5];
    to.region().read(100, Target::from(&mut out[..]));
    assert_eq!(&out, b"hello");
    let [Completion::Received { slot, len, .. }] = b.poll()[..] else {
        panic!("one message")
    };
    assert_eq!(b.pair.received(slot, len).short(), Some(&b"news"[..]));
    assert_eq!(a.poll(), []);
    a.pair.post(&[], b"more", 8, true).expect("room");
    let pair = a.pair.number();
    assert_eq!(a.poll(), [Completion::Sent { pair, id: 8 }]);
}

#[test]
fn what_may_not_be_written_breaks_both_pairs() {
    for (access, offset, known) in [
        (Access::Local, 0, true),
        (Access::RemoteWrite, 4092, true),
        (Access::RemoteWrite, 0, false),
    ] {
        let (_fabric, mut a, b) = ends();
        let from = a.domain.register(4096, Access::Local).expect("memory");
        let to = b.domain.register(4096, access).expect("memory");
        let bad = write(&from, &to, offset, 5);
        if !known {
            drop(to);
        }
        a.pair.post(&[bad], b"news", 1, false).expect("room");
        assert_eq!((status(&a.poll()), status(&b.poll())), (Some(10), Some(5)));
        assert_eq!(b.nic.take_troubles().len(), 1);
        a.pair.post(&[], b"more", 2, true).expect_err("broken");
    }
}

#[test]
fn memory_of_another_domain_is_out_of_reach() {
    let (_fabric, mut a, b) = ends();
    let from = a.domain.register(4096, Access::Local).expect("memory");
    let other = b.nic.domain().expect("domain");
    let to = other.register(4096, Access::RemoteWrite).expect("memory");
    a.pair
        .post(&[write(&from, &to, 0, 1)], b"", 1, false)
        .expect("room");
    assert_eq!(status(&a.poll()), Some(10));
}

#[test]
fn a_sender_waits_for_receives_and_for_places() {
    let (_fabric, mut a, mut b) = ends();
    for id in 0..8 {
        a.pair.post(&[], &[id as u8], id, true).expect("room");
    }
    a.pair.post(&[], b"x", 8, true).expect_err("no place");
    assert_eq!(a.poll().len(), 2, "two receives");
    let found = b.poll();
    for one in &found {
        let Completion::Received { slot, len, .. } = one else {
            panic!("{one:?}")
        };
        b.pair.received(*slot, *len);
    }
    b.pair.replenish().expect("alive");
    assert_eq!((found.len(), a.poll().len(), b.poll().len()), (2, 2, 2));
    a.pair.post(&[], b"x", 8, true).expect("four are free");
}

#[test]
fn what_is_held_or_cut_comes_later_and_a_pair_that_is_gone_never() {
    let (fabric, mut a, b) = ends();
    fabric.hold("a", true);
    fabric.cut("b", true);
    a.nic.arm().expect("arm");
    a.pair.post(&[], b"x", 1, true).expect("room");
    assert_eq!((a.poll().len(), b.poll().len()), (0, 0));
    fabric.cut("b", false);
    assert_eq!((a.poll().len(), b.poll().len()), (0, 1));
    assert!(!a.is_woken());
    fabric.hold("a", false);
    assert!(a.is_woken());
    assert_eq!(a.poll().len(), 1);
    drop(b);
    a.pair.post(&[], b"x", 2, false).expect("room");
    assert_eq!(status(&a.poll()), Some(12));
}

#[test]
fn chaos_keeps_the_order_and_ends() {
    let (fabric, mut a, mut b) = ends();
    fabric.set_chaos(1, 80);
    let mut came = Vec::new();
    let mut next = 0;
    while came.len() < 100 {
        if next < 100 && a.pair.post(&[], &[next], next.into(), true).is_ok() {
            next += 1;
        }
        fabric.step();
        a.poll();
        for one in b.poll() {
            let Completion::Received { slot, len, .. } = one else {
                panic!("{one:?}")
            };
            came.push(b.pair.received(slot, len).head[0]);
        }
        b.pair.replenish().expect("alive");
    }
    assert_eq!(came, (0..100).collect::<Vec<u8>>());
}
