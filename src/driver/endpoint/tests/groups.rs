//! Link groups on shared memory, and the places in them.

use super::pairs::{Kind, Pair, engine_pair, pair};
use crate::driver::engine::{Engine, GROUPS_MAX, Parts, RESTING_MAX};
use crate::driver::group::Membership;
use crate::fabric::shm::Bell;
use crate::mem::header::Side;
use crate::wire::EngineId;

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
fn a_peer_has_256_groups_and_not_one_more() {
    let engine = Engine::new().expect("an engine");
    let peer = Engine::new().expect("another").id();
    let mut places: Vec<_> = (0..GROUPS_MAX)
        .map(|_| contact(&engine, peer).expect("a group"))
        .collect();
    let error = contact(&engine, peer).expect_err("one too many");
    assert_eq!(error.kind(), std::io::ErrorKind::QuotaExceeded);
    places.pop();
    contact(&engine, peer).expect("one has gone");
}

fn contact(engine: &Engine, peer: EngineId) -> std::io::Result<Membership> {
    let bell = Bell::create().expect("a bell");
    let parts = Parts {
        peer_bell: Bell::check(bell.try_clone().expect("dup")).expect("a timer"),
        own_bell: bell,
        witness: None,
    };
    engine.first_contact(peer, Side::Server, None, parts)
}

#[test]
fn a_group_outlives_its_last_connection_until_there_are_enough_younger_ones() {
    let Pair {
        server,
        server_engine,
        ..
    } = pair(Kind::Shared);
    let key = server.group();
    drop(server);
    assert!(server_engine.join(key).is_some());
    for _ in 0..RESTING_MAX {
        assert!(server_engine.join(key).is_some());
        let stranger = Engine::new().expect("another").id();
        contact(&server_engine, stranger).expect("a group");
    }
    assert!(server_engine.join(key).is_none());
}

#[test]
fn a_group_whose_peer_has_died_is_not_kept() {
    let engine = Engine::new().expect("an engine");
    let mut child = std::process::Command::new("true").spawn().expect("true");
    let pid = rustix::process::Pid::from_child(&child);
    let witness = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
    let bell = Bell::create().expect("a bell");
    let parts = Parts {
        peer_bell: Bell::check(bell.try_clone().expect("dup")).expect("a timer"),
        own_bell: bell,
        witness: Some(witness.expect("pidfd")),
    };
    let group = engine
        .first_contact(
            Engine::new().expect("another").id(),
            Side::Server,
            None,
            parts,
        )
        .expect("a group");
    let kept = std::sync::Arc::downgrade(&group);
    drop(group);
    assert!(kept.upgrade().is_some());
    child.wait().expect("an end");
    while kept.upgrade().is_some() {
        engine.take_wakes().expect("wakes");
    }
}
