//! Pairs between two real devices in one process: writes and messages in order, and each way to fail.
//!
//! Runs where two RoCE devices are laid out as two hosts (tests/vm does that), when SMCFAST_RDMA=1 says so. The devices are
//! named by SMCFAST_RDMA_DEVICES ("rxe0 rxe1"), their network devices, one of which is taken down and up again, by
//! SMCFAST_RDMA_NETDEVS ("v0 v1"). One test at a time: --test-threads=1.

#[path = "verbs_support/mod.rs"]
mod support;

use std::io::ErrorKind;

use serde_json::json;
use smcfast::fabric::rdma::{
    Access, Completion, HEAD_LEN, MESSAGE_MAX, PairOptions, Remote, Status, Trouble,
};
use smcfast::fabric::verbs;
use support::peer::{Peer, bytes, hex};
use support::{End, OPTIONS, Two, limits, link, message, names, wait};

/// The standard has 1 for it, soft-RoCE says 2.
const TOO_LONG: [u32; 2] = [1, 2];
const FLUSHED: u32 = 5;
const REMOTE_ACCESS: u32 = 10;
const RETRIES_EXCEEDED: u32 = 12;

#[test]
fn writes_arrive_before_the_message_that_follows_them() {
    let Some(mut two) = Two::connected() else {
        return;
    };
    let sent: Vec<u8> = (0..20_000u32).map(|n| (n * 7) as u8).collect();
    two.a.memory.region().write(100, sent.as_slice().into());
    two.a.post(&[(100, 20_000, 4096)], &message(1), 1, true);
    assert_eq!(two.b.next_message().short(), Some(&message(1)[..]));
    assert_eq!(two.b.bytes(4096, 20_000), sent);
    let pair = two.a.pair.number();
    assert_eq!(two.a.next(), Completion::Sent { pair, id: 1 });
}

#[test]
fn two_writes_and_a_message_go_in_one_post() {
    let Some(mut two) = Two::connected() else {
        return;
    };
    // As at the wrap of a ring: the end of it, then its beginning. One is short enough to go along inline.
    let end = two.a.memory.region().len();
    let region = two.a.memory.region();
    region.write(end - 5000, [1; 5000].as_slice().into());
    region.write(0, [2; 3].as_slice().into());
    two.a.post(
        &[(end - 5000, 5000, end - 5000), (0, 3, 0)],
        &message(2),
        2,
        true,
    );
    assert_eq!(two.b.next_message().short(), Some(&message(2)[..]));
    assert_eq!(two.b.bytes(end - 5000, 5000), [1; 5000]);
    assert_eq!(two.b.bytes(0, 4), [2, 2, 2, 0]);
}

#[test]
fn only_what_was_asked_for_is_reported() {
    let Some(mut two) = Two::connected() else {
        return;
    };
    let pair = two.a.pair.number();
    // So many that each place is used over and over again, and each message's own place if it does not go inline.
    for round in 0..20u8 {
        for number in 0..7 {
            two.a.post(&[], &message(round * 8 + number), 0, false);
        }
        two.a.post(&[], &message(round * 8 + 7), round.into(), true);
        for number in 0..8 {
            let came = two.b.next_message();
            assert_eq!(came.short(), Some(&message(round * 8 + number)[..]));
        }
        assert_eq!(
            two.a.next(),
            Completion::Sent {
                pair,
                id: round.into()
            }
        );
    }
}

#[test]
fn a_full_send_queue_refuses() {
    let Some(mut two) = Two::connected() else {
        return;
    };
    // The other end has few receives and posts none again, so nothing is done beyond them.
    let mut posted = 0u8;
    let refused = loop {
        match two.a.try_post(&[], &message(9), posted.into(), false) {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
        assert!(posted < 200, "no end");
    };
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{refused}");
    assert!(u32::from(posted) >= OPTIONS.sends);
    // A device may take more than was asked for. Only the places that were asked for have a message each, so all are alike here.
    for _ in 0..posted {
        assert_eq!(two.b.next_message().short(), Some(&message(9)[..]));
    }
}

#[test]
fn a_peer_without_receives_is_waited_for() {
    let few = PairOptions {
        receives: 2,
        ..OPTIONS
    };
    let Some(mut two) = Two::connected_with(few) else {
        return;
    };
    for number in 0..6 {
        two.a.post(&[], &message(number), number.into(), true);
    }
    // Two have come, the third finds no receive. It comes when there are some, however much later: a second pair of messages
    // goes the other way first.
    for number in 0..2 {
        assert_eq!(two.b.take_message().short(), Some(&message(number)[..]));
    }
    two.b.post(&[], &message(77), 9, false);
    assert_eq!(two.a.next_received(), message(77));
    two.b.pair.replenish().expect("replenish");
    for number in 2..6 {
        assert_eq!(two.b.next_message().short(), Some(&message(number)[..]));
    }
}

#[test]
fn a_wrong_key_breaks_the_pair_and_nothing_else() {
    let Some(mut two) = Two::connected() else {
        return;
    };
    let Some(mut other) = Two::connected() else {
        return;
    };
    two.a.far.1 ^= 0x0055_0000;
    two.a.post(&[(0, 1000, 0)], &message(1), 1, false);
    let status = two.a.next_failure();
    assert_eq!(status, REMOTE_ACCESS, "{}", Status(status).text());
    assert_eq!(two.b.bytes(0, 1000), [0; 1000]);
    // What is posted later is flushed, or refused at once.
    if two.a.try_post(&[], &message(2), 2, true).is_ok() {
        assert_eq!(two.a.next_failure(), FLUSHED);
    }
    other.a.post(&[], &message(3), 3, true);
    assert_eq!(other.b.next_message().short(), Some(&message(3)[..]));
}

#[test]
fn memory_of_another_domain_stays_shut() {
    let Some(mut two) = Two::connected() else {
        return;
    };
    let domain = two.b.nic.domain().expect("domain");
    let theirs = domain.register(4096, Access::RemoteWrite).expect("memory");
    two.a.far = (theirs.address(), theirs.remote_key());
    two.a.post(&[(0, 100, 0)], &message(1), 1, false);
    assert_eq!(two.a.next_failure(), REMOTE_ACCESS);
}

#[test]
fn memory_that_is_not_for_peers_stays_shut() {
    let Some(mut two) = Two::connected() else {
        return;
    };
    let own = two.b.domain.register(4096, Access::Local).expect("memory");
    two.a.far = (own.address(), own.remote_key());
    two.a.post(&[(0, 100, 0)], &message(1), 1, false);
    assert_eq!(two.a.next_failure(), REMOTE_ACCESS);
}

#[test]
fn a_write_over_the_end_of_the_memory_is_refused() {
    let Some(mut two) = Two::connected() else {
        return;
    };
    let end = two.b.memory.region().len();
    two.a.post(&[(0, 100, end - 99)], &message(1), 1, false);
    assert_eq!(two.a.next_failure(), REMOTE_ACCESS);
    assert_eq!(two.b.bytes(end - 99, 99), [0; 99]);
}

#[test]
fn a_peer_that_has_gone_is_noticed() {
    let Some(two) = Two::connected() else { return };
    let Two { mut a, b } = two;
    drop(b);
    a.post(&[], &message(1), 1, false);
    let status = a.next_failure();
    assert_eq!(status, RETRIES_EXCEEDED, "{}", Status(status).text());
}

#[test]
fn short_messages_keep_their_length() {
    let Some(mut two) = Two::connected() else {
        return;
    };
    for len in [1usize, 43, HEAD_LEN] {
        let text: Vec<u8> = (0..len).map(|n| n as u8).collect();
        two.a.post(&[], &text, 1, false);
        let came = two.b.next_message();
        assert_eq!((came.head_len, came.to_vec()), (len, text));
    }
}

#[test]
fn memory_that_has_gone_cannot_be_written() {
    let Some(mut two) = Two::connected() else {
        return;
    };
    let memory = two
        .b
        .domain
        .register(4096, Access::RemoteWrite)
        .expect("memory");
    two.a.far = (memory.address(), memory.remote_key());
    drop(memory);
    two.a.post(&[(0, 100, 0)], &message(1), 1, false);
    assert_eq!(two.a.next_failure(), REMOTE_ACCESS);
}

#[test]
fn a_limit_of_locked_memory_has_a_name() {
    if !support::is_wanted() {
        return;
    }
    let [name, _] = names();
    let nic = verbs::open(&name, 1).expect("device");
    let domain = nic.domain().expect("domain");
    let refused = limits::without_the_right_to_lock(256 * 1024, move || {
        let fits = domain
            .register(65536, Access::Local)
            .expect("there is room");
        let refused = domain
            .register(1 << 20, Access::Local)
            .expect_err("more than the limit");
        drop(fits);
        refused
    });
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    let text = refused.to_string();
    assert!(
        text.contains("RLIMIT_MEMLOCK of this process is 262144 bytes"),
        "{text}"
    );
}

#[test]
fn a_link_that_goes_down_and_comes_back_is_reported() {
    if !support::is_wanted() {
        return;
    }
    let [name, _] = names();
    let nic = verbs::open(&name, 1).expect("device");
    let link = link::Down::new(0);
    let mut seen = Vec::new();
    support::until(&mut seen, &*nic, Trouble::PortDown);
    drop(link);
    support::until(&mut seen, &*nic, Trouble::PortUp);
    assert!(!seen.contains(&Trouble::Gone), "{seen:?}");
}

#[test]
fn a_link_that_is_down_breaks_the_pair() {
    let Some(mut two) = Two::connected() else {
        return;
    };
    let link = link::Down::new(0);
    two.a.post(&[(0, 100, 0)], &message(1), 1, false);
    // What the device makes of it is its own affair: soft-RoCE cannot send at all, others try until they have tried enough.
    assert_ne!(two.a.next_failure(), 0);
    drop(link);
    let Some(mut again) = Two::connected() else {
        return;
    };
    again.a.post(&[], &message(2), 2, false);
    assert_eq!(again.b.next_message().short(), Some(&message(2)[..]));
}

#[test]
fn what_cannot_be_connected_says_why() {
    let Some(mut two) = Two::with(OPTIONS) else {
        return;
    };
    let remote = two.b.remote();
    for mtu in [0, 6, 255] {
        let refused = two.a.pair.ready_to_receive(&Remote { mtu, ..remote });
        assert_eq!(
            refused.expect_err("no such MTU").kind(),
            ErrorKind::InvalidInput
        );
    }
    two.a
        .pair
        .ready_to_receive(&remote)
        .expect("still possible");
    let refused = verbs::open(&names()[0], 2).expect_err("one port");
    assert_eq!(
        refused.to_string(),
        format!("RDMA: {} has no port 2; it has 1", names()[0])
    );
    let refused = verbs::open("nosuch0", 1).expect_err("no such device");
    assert!(
        refused.to_string().starts_with("RDMA: no device nosuch0"),
        "{refused}"
    );
    let refused = two.a.nic.gid(200).expect_err("no such address");
    assert_eq!(refused.kind(), ErrorKind::NotFound);
}

#[test]
fn completions_wake_only_who_has_asked() {
    let Some(mut two) = Two::connected() else {
        return;
    };
    two.b.nic.arm().expect("arm");
    two.a.post(&[], &message(1), 1, true);
    wait(two.b.nic.completion_fd());
    assert!(two.b.nic.take_events().expect("events"));
    assert!(!two.b.nic.take_events().expect("no more"));
    assert_eq!(two.b.next_message().short(), Some(&message(1)[..]));
    let mut found = Vec::new();
    assert_eq!(two.b.nic.poll(&mut found).expect("poll"), 0);
    assert_eq!(two.b.nic.take_troubles(), []);
}

#[test]
fn a_completion_queue_never_promises_more_than_it_has() {
    if !support::is_wanted() {
        return;
    }
    let [name, _] = names();
    let nic = verbs::open(&name, 1).expect("device");
    let domain = nic.domain().expect("domain");
    let large = PairOptions {
        gid_index: 0,
        sends: 8000,
        receives: 8000,
    };
    // A device may grant more places than were asked for.
    let mut pairs = Vec::new();
    let refused = loop {
        match domain.pair(large) {
            Ok(pair) => pairs.push(pair),
            Err(error) => break error,
        }
        assert!(pairs.len() < 100, "no end");
    };
    assert_eq!(refused.kind(), ErrorKind::QuotaExceeded, "{refused}");
    pairs.pop();
    domain.pair(large).expect("room again");
}

#[test]
fn devices_are_listed_with_their_addresses() {
    if !support::is_wanted() {
        return;
    }
    let listed = verbs::devices().expect("devices");
    for name in names() {
        let device = listed
            .iter()
            .find(|device| device.name == name)
            .expect("listed");
        let ports = device.ports.as_ref().expect("opened");
        let nic = verbs::open(&name, 1).expect("device");
        let (index, gid) = support::ipv4_gid(&*nic);
        let found = ports[0]
            .gids
            .iter()
            .find(|one| one.gid == gid)
            .expect("its address");
        assert_eq!(
            (found.index, found.kind.as_str()),
            (index.into(), "RoCE v2")
        );
        assert_eq!((ports[0].number, ports[0].state), (1, "active"));
        assert_eq!(ports[0].mtu, 128 << nic.mtu().expect("MTU"));
    }
    assert!(
        verbs::library_path()
            .expect("loaded")
            .contains("libibverbs.so.1")
    );
}

#[test]
fn ends_may_be_dropped_in_any_order() {
    for order in 0..3 {
        let Some(two) = Two::connected() else { return };
        let End {
            pair,
            memory,
            domain,
            nic,
            ..
        } = two.a;
        match order {
            0 => {
                drop(nic);
                drop(domain);
                drop(memory);
                drop(pair);
            }
            1 => {
                drop(memory);
                drop(nic);
                drop(pair);
                drop(domain);
            }
            _ => {
                drop(domain);
                drop(pair);
                drop(nic);
                drop(memory);
            }
        }
    }
}

/// An end on the first device and a peer by pyverbs on the second one, connected.
fn with_pyverbs() -> Option<(End, Peer)> {
    if !support::is_wanted() {
        return None;
    }
    let [own, other] = names();
    let nic = verbs::open(&other, 1).expect("device");
    let mut peer = Peer::start(&other, support::ipv4_gid(&*nic).0)?;
    let mut end = End::open(&own, OPTIONS);
    peer.connect(&mut end);
    Some((end, peer))
}

#[test]
fn pyverbs_sees_the_same_devices_and_addresses() {
    let Some((_, mut peer)) = with_pyverbs() else {
        return;
    };
    let listed = verbs::devices().expect("devices");
    let ours = listed.iter().map(|device| {
        let ports = device.ports.as_ref().expect("opened");
        let gids = ports[0]
            .gids
            .iter()
            .map(|one| json!([one.index, hex(&one.gid)]));
        json!([device.name, gids.collect::<Vec<_>>()])
    });
    let theirs = peer.order(&json!({"order": "devices"}));
    assert_eq!(json!(ours.collect::<Vec<_>>()), theirs);
}

#[test]
fn a_peer_by_pyverbs_writes_and_sends_to_us() {
    let Some((mut end, mut peer)) = with_pyverbs() else {
        return;
    };
    let sent: Vec<u8> = (0..9000u32).map(|n| (n * 13) as u8).collect();
    let mut cdc = message(7);
    cdc[0] = 0xfe;
    let done = peer.send(&cdc, &sent, 1234);
    assert_eq!(end.next_message().short(), Some(&cdc[..]));
    assert_eq!(end.bytes(1234, 9000), sent);
    assert_eq!(done["status"], 0);
}

#[test]
fn a_peer_by_pyverbs_gets_what_we_write_and_send() {
    let Some((mut end, mut peer)) = with_pyverbs() else {
        return;
    };
    let sent: Vec<u8> = (0..5000u32).map(|n| (n * 11) as u8).collect();
    end.memory.region().write(60_000, sent.as_slice().into());
    end.post(
        &[(60_000, 5000, 100), (64_999, 1, 5100)],
        &message(8),
        5,
        true,
    );
    let took = peer.order(&json!({"order": "take", "offset": 100, "count": 5001}));
    assert_eq!(bytes(took["message"].as_str().expect("text")), message(8));
    let mut expected = sent;
    expected.push(expected[4999]);
    assert_eq!(bytes(took["bytes"].as_str().expect("text")), expected);
    let pair = end.pair.number();
    assert_eq!(end.next(), Completion::Sent { pair, id: 5 });
}

#[test]
fn long_messages_go_on_behind_their_head() {
    let Some((mut end, mut peer)) = with_pyverbs() else {
        return;
    };
    for len in [HEAD_LEN + 1, 88, MESSAGE_MAX] {
        let text: Vec<u8> = (0..len).map(|n| (n * 3) as u8).collect();
        peer.send(&text, &[], 0);
        let came = end.next_message();
        assert_eq!((came.short(), came.to_vec()), (None, text));
    }
    // One byte more breaks the pair.
    peer.send(&[1; MESSAGE_MAX + 1], &[], 0);
    let status = end.next_failure();
    assert!(TOO_LONG.contains(&status), "{}", Status(status).text());
}

#[test]
fn a_device_that_is_removed_is_reported() {
    if !support::is_wanted() {
        return;
    }
    let [_, name] = names();
    let mut two = Two::connected().expect("devices");
    let removal = link::Removal::begin(&name, 1);
    let mut seen = Vec::new();
    support::until(&mut seen, &*two.b.nic, Trouble::Gone);
    // Whatever is still asked of it is answered or refused, and does no harm.
    let _ = two.b.nic.mtu();
    let _ = two.b.try_post(&[], &message(1), 1, true);
    let _ = two.b.nic.arm();
    let _ = two.b.nic.poll(&mut Vec::new());
    let _ = two.b.nic.take_events();
    assert_eq!(two.b.nic.take_troubles(), [], "told once");
    // The kernel waits until we have let go. The other device goes on.
    drop(two.b);
    removal.end();
    assert_eq!(two.a.nic.take_troubles(), []);
    drop(two.a);
    let mut again = Two::connected().expect("devices");
    again.a.post(&[], &message(2), 2, false);
    assert_eq!(again.b.next_message().short(), Some(&message(2)[..]));
}
