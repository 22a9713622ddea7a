//! Each message in each state of a link, in both roles and both versions; what waits for what, and for how long.

mod link_support;

use std::time::Duration;

use link_support::*;
use smcfast::proto::handshake::Side;
use smcfast::proto::link::{
    CONFIRM_DELAY, CONFIRM_REPEAT, CONFIRM_WAIT, Cause, KeyAnswer, Link, LinkEvent, MAX_KEYS,
    MAX_PENDING, Misbehaviour, RESPONSE_TIMEOUT,
};
use smcfast::wire::clc::{Diagnosis, Few, Mtu, Version};
use smcfast::wire::llc::*;

const VERSIONS: [Version; 2] = [Version::V1, Version::V2];

/// The states of both roles, each with a link in it and the moment.
fn states(version: Version) -> Vec<(&'static str, Link, Duration)> {
    let client = || Link::client(own(version), secs(0));
    let server = || Link::server(own(version), number(1), secs(0));
    let hear = |mut link: Link, message: &Message, now| {
        link.handle_message(message, now);
        quiet(&mut link);
        link
    };
    let wait = |mut link: Link, now| {
        link.handle_timeout(now);
        quiet(&mut link);
        link
    };
    let end = |mut link: Link| {
        link.end(DeleteReason::PROGRAM, true);
        quiet(&mut link);
        link
    };
    let request = confirm(version, Turn::Request);
    let response = confirm(version, Turn::Response);
    let confirmable = || hear(client(), &request, secs(0));
    let client_up = || {
        let mut link = confirmable();
        link.confirm(secs(0)).unwrap();
        quiet(&mut link);
        link
    };
    let asked = || wait(server(), secs(1));
    let server_up = || hear(asked(), &response, secs(1));
    let telling = |mut link: Link| {
        link.confirm_key(key(7), secs(1)).unwrap();
        quiet(&mut link);
        link
    };
    let taking_back = |mut link: Link| {
        link.delete_key(7, secs(1)).unwrap();
        quiet(&mut link);
        link
    };
    let please = delete(version, Turn::Request, Doomed::Link(number(1)));
    vec![
        ("client asked", client(), secs(0)),
        ("client confirmable", confirmable(), secs(0)),
        ("client up", client_up(), secs(1)),
        ("client telling", telling(client_up()), secs(1)),
        ("client taking back", taking_back(client_up()), secs(1)),
        ("client down", end(client_up()), secs(1)),
        ("server new", server(), secs(0)),
        ("server asking", asked(), secs(1)),
        ("server waiting", wait(asked(), secs(2)), secs(2)),
        ("server up", server_up(), secs(1)),
        ("server telling", telling(server_up()), secs(1)),
        ("server taking back", taking_back(server_up()), secs(1)),
        (
            "server ending",
            hear(server_up(), &please, secs(1)),
            secs(1),
        ),
        ("server down", end(server_up()), secs(1)),
    ]
}

/// What a message does in the states that are named, and in all that begin so; elsewhere it does nothing. The last
/// that fits counts.
type Row = (&'static str, Message, Vec<(&'static str, &'static str)>);

fn rows(version: Version) -> Vec<Row> {
    let one = |turn| delete(version, turn, Doomed::Link(number(1)));
    let other = delete(version, Turn::Request, Doomed::Link(number(9)));
    let offer = |mtu| {
        Message::AddLink(AddLink::Offer {
            link: new_link(version),
            mtu,
        })
    };
    let link = new_link(version);
    let (mtu, reason) = (Mtu::B1024, RejectReason::NO_ALTERNATE_PATH);
    let reject = link.reject(Some(mtu), reason);
    let told = |turn, key| confirm_rkey(version, turn, key);
    let known = |rows: &[(&'static str, &'static str)]| rows.to_vec();
    let up = "Up";
    let mut rows = vec![
        (
            "CONFIRM_LINK request",
            confirm(version, Turn::Request),
            known(&[
                ("client asked", "Confirmable"),
                ("client up", "send ConfirmLink Response 1"),
                ("client t", "send ConfirmLink Response 1"),
            ]),
        ),
        (
            "CONFIRM_LINK response",
            confirm(version, Turn::Response),
            known(&[("server asking", up), ("server waiting", up)]),
        ),
        (
            "ADD_LINK offer",
            offer(Some(mtu)),
            known(&[("client", "send AddLink reject 1")]),
        ),
        (
            "ADD_LINK offer without MTU",
            offer(None),
            known(&[("client", "send AddLink reject 2")]),
        ),
        (
            "ADD_LINK accept",
            Message::AddLink(AddLink::Accept { link, mtu }),
            vec![],
        ),
        ("ADD_LINK reject", Message::AddLink(reject), vec![]),
        (
            "DELETE_LINK request",
            one(Turn::Request),
            known(&[
                (
                    "client",
                    "send DeleteLink Response 1 0x0; ended by peer 0x10000",
                ),
                ("client asked", "send DeleteLink Response 1 0x100000"),
                ("server", "send DeleteLink Request 1 0x10000"),
                ("server ending", "nothing"),
            ]),
        ),
        (
            "DELETE_LINK request, another link",
            other,
            known(&[("client", "send DeleteLink Response 9 0x100000")]),
        ),
        (
            "DELETE_LINK request, all",
            delete(version, Turn::Request, Doomed::All),
            known(&[
                ("client", "ended by peer 0x10000"),
                (
                    "server",
                    "send DeleteLink Request all 0x10000; ended by peer 0x10000",
                ),
            ]),
        ),
        (
            "DELETE_LINK response",
            one(Turn::Response),
            known(&[("server ending", "ended by peer 0x10000")]),
        ),
        (
            "CONFIRM_RKEY request",
            told(KeyTurn::Request, key(5)),
            known(&[("", "send ConfirmRkey Confirmed 5")]),
        ),
        (
            "CONFIRM_RKEY confirmed",
            told(KeyTurn::Confirmed, key(7)),
            known(&[
                ("client telling", "key 7 Confirmed"),
                ("server telling", "key 7 Confirmed"),
            ]),
        ),
        (
            "CONFIRM_RKEY refused",
            told(KeyTurn::Refused { retry: true }, key(7)),
            known(&[
                ("client telling", "key 7 Refused { retry: true }"),
                ("server telling", "key 7 Refused { retry: true }"),
            ]),
        ),
        (
            "CONFIRM_RKEY confirmed, another",
            told(KeyTurn::Confirmed, key(8)),
            vec![],
        ),
        (
            "DELETE_RKEY request",
            delete_rkey(version, &[6]),
            known(&[("", "send DeleteRkey Response, unknown")]),
        ),
        (
            "DELETE_RKEY response",
            deleted(version),
            known(&[
                ("client taking", "deleted 7"),
                ("server taking", "deleted 7"),
            ]),
        ),
        (
            "TEST_LINK request",
            test(version, Turn::Request),
            known(&[("", "send TestLink Response 42")]),
        ),
        ("TEST_LINK response", test(version, Turn::Response), vec![]),
    ];
    match version {
        Version::V1 => rows.extend([
            ("ADD_LINK wish", Message::AddLink(wish()), vec![]),
            ("ADD_LINK_CONT", add_link_cont(), vec![]),
            ("CONFIRM_RKEY_CONT", confirm_rkey_cont(), vec![]),
        ]),
        Version::V2 => rows.extend([
            (
                "REQ_ADD_LINK request",
                Message::ReqAddLink(ReqAddLink::Request(Few::default())),
                known(&[("server", "send ReqAddLink Response")]),
            ),
            (
                "REQ_ADD_LINK response",
                Message::ReqAddLink(ReqAddLink::Response),
                vec![],
            ),
        ]),
    }
    rows
}

#[test]
fn each_message_in_each_state() {
    for version in VERSIONS {
        for (name, message, expected) in rows(version) {
            for (state, mut link, now) in states(version) {
                link.handle_message(&message, now);
                let fits = |(prefix, _): &&(&str, &'static str)| state.starts_with(prefix);
                let expected = expected
                    .iter()
                    .rfind(fits)
                    .map_or("nothing", |(_, does)| does);
                let expected = match (version, state.ends_with("down")) {
                    (_, true) => "nothing".to_owned(),
                    // Version 2 has no room for the reason.
                    (Version::V2, _) if expected.starts_with("send AddLink") => {
                        "send AddLink reject".to_owned()
                    }
                    (_, false) => expected.to_owned(),
                };
                assert_eq!(outcome(&mut link), expected, "{version:?}: {name}, {state}");
            }
        }
    }
}

#[test]
fn a_message_of_the_other_version_ends_the_group() {
    for (version, other) in [(Version::V1, Version::V2), (Version::V2, Version::V1)] {
        for (state, mut link, now) in states(version) {
            link.handle_message(&test(other, Turn::Request), now);
            let expected = if state.ends_with("down") {
                "nothing"
            } else {
                "send DeleteLink Request all 0x40000; Misbehaved(OtherVersion)"
            };
            assert_eq!(outcome(&mut link), expected, "{state}");
        }
    }
}

#[test]
fn eyecatchers_are_refused_by_both_roles() {
    for version in VERSIONS {
        for (state, mut link, now) in states(version) {
            let (turn, due) = match state {
                "client asked" => (Turn::Request, true),
                "server asking" | "server waiting" => (Turn::Response, true),
                _ => continue,
            };
            let Message::ConfirmLink(mut message) = confirm(version, turn) else {
                unreachable!()
            };
            message.no_eyecatcher = NoEyecatcher::empty();
            link.handle_message(&Message::ConfirmLink(message), now);
            assert!(due && outcome(&mut link) == "Eyecatcher", "{state}");
        }
    }
    assert_eq!(Cause::Eyecatcher.diagnosis(), Diagnosis::RMBE_EYECATCHER);
    assert_eq!(
        Cause::Unconfirmed.diagnosis(),
        Diagnosis::TIMEOUT_CONFIRM_LINK
    );
}

#[test]
fn a_client_that_confirms_another_number_misbehaves() {
    let mut link = state("server asking");
    let Message::ConfirmLink(mut message) = confirm(Version::V2, Turn::Response) else {
        unreachable!()
    };
    message.link = number(2);
    link.handle_message(&Message::ConfirmLink(message), secs(1));
    let expected = "send DeleteLink Request all 0x40000; Misbehaved(OtherNumber)";
    assert_eq!(outcome(&mut link), expected);
}

fn state(name: &str) -> Link {
    let found = states(Version::V2)
        .into_iter()
        .find(|(other, ..)| *other == name);
    found.unwrap().1
}

#[test]
fn a_client_waits_4_s_to_be_asked() {
    let mut link = state("client asked");
    assert_eq!(link.poll_timeout(), Some(CONFIRM_WAIT));
    link.handle_timeout(CONFIRM_WAIT - Duration::from_nanos(1));
    assert_eq!(outcome(&mut link), "nothing");
    link.handle_timeout(CONFIRM_WAIT);
    assert_eq!(outcome(&mut link), "Unconfirmed");
    assert_eq!(link.poll_timeout(), None);
}

#[test]
fn a_server_asks_late_and_twice_and_waits_2_s() {
    let mut link = state("server new");
    let mut moments = vec![];
    let mut outcomes = vec![];
    while let Some(due) = link.poll_timeout() {
        link.handle_timeout(due - Duration::from_nanos(1));
        assert_eq!(outcome(&mut link), "nothing");
        link.handle_timeout(due);
        moments.push(due);
        outcomes.push(outcome(&mut link));
    }
    let again = CONFIRM_DELAY + CONFIRM_REPEAT;
    assert_eq!(moments, [CONFIRM_DELAY, again, again + RESPONSE_TIMEOUT]);
    let ask = "send ConfirmLink Request 1";
    assert_eq!(outcomes, [ask, ask, "Unconfirmed"]);
}

#[test]
fn nothing_happens_before_its_time() {
    for (name, mut link, _) in states(Version::V2) {
        let due = link.poll_timeout();
        link.handle_timeout(
            due.unwrap_or(secs(99))
                .saturating_sub(Duration::from_nanos(1)),
        );
        assert_eq!(
            (outcome(&mut link).as_str(), link.poll_timeout()),
            ("nothing", due),
            "{name}"
        );
    }
}

#[test]
fn a_client_confirms_once_and_only_when_asked() {
    for name in [
        "client asked",
        "client up",
        "client down",
        "server new",
        "server up",
    ] {
        assert!(state(name).confirm(secs(1)).is_err(), "{name}");
    }
    let mut link = state("client confirmable");
    assert_eq!((link.poll_timeout(), link.is_up()), (None, false));
    link.confirm(secs(9)).unwrap();
    assert_eq!(outcome(&mut link), "send ConfirmLink Response 1; Up");
    assert_eq!((link.number(), link.is_up()), (Some(number(1)), true));
    assert!(link.confirm(secs(9)).is_err());
}

#[test]
fn a_silent_peer_is_asked_and_given_up_after_2_s() {
    for name in ["client up", "server up"] {
        let mut link = state(name);
        link.handle_heard(secs(20));
        let asks = secs(20) + TEST_AFTER;
        assert_eq!(link.poll_timeout(), Some(asks), "{name}");
        link.handle_timeout(asks - Duration::from_nanos(1));
        assert_eq!(outcome(&mut link), "nothing");
        link.handle_timeout(asks);
        assert_eq!(outcome(&mut link), "send TestLink Request 0");
        let gives_up = asks + RESPONSE_TIMEOUT;
        assert_eq!(link.poll_timeout(), Some(gives_up));
        link.handle_timeout(gives_up - Duration::from_nanos(1));
        assert_eq!(outcome(&mut link), "nothing");
        link.handle_timeout(gives_up);
        assert_eq!(
            (outcome(&mut link).as_str(), link.is_up()),
            ("Silent", false)
        );
    }
}

#[test]
fn whatever_is_heard_shows_that_the_peer_lives() {
    let hear: [fn(&mut Link, Duration); 3] = [
        |link, now| link.handle_heard(now),
        |link, now| link.handle_message(&test(Version::V2, Turn::Response), now),
        |link, now| link.handle_message(&confirm_rkey(Version::V2, KeyTurn::Request, key(1)), now),
    ];
    for hear in hear {
        let mut link = state("server up");
        let asks = secs(1) + TEST_AFTER;
        link.handle_timeout(asks);
        hear(&mut link, asks + secs(1));
        assert_eq!(link.poll_timeout(), Some(asks + secs(1) + TEST_AFTER));
        link.handle_timeout(asks + RESPONSE_TIMEOUT);
        assert!(link.is_up());
    }
}

#[test]
fn a_link_may_never_be_tested() {
    let mut own = own(Version::V2);
    own.test_after = None;
    let mut link = Link::client(own, secs(0));
    link.handle_message(&confirm(Version::V2, Turn::Request), secs(0));
    link.confirm(secs(0)).unwrap();
    assert_eq!(link.poll_timeout(), None);
    link.handle_timeout(secs(1_000_000));
    assert!(link.is_up());
}

#[test]
fn keys_are_told_one_after_the_other() {
    for version in VERSIONS {
        let (_, mut link, now) = states(version).remove(9);
        link.confirm_key(key(1), now).unwrap();
        link.confirm_key(key(2), now).unwrap();
        link.delete_key(1, now).unwrap();
        link.confirm_key(key(3), now).unwrap();
        assert_eq!(outcome(&mut link), "send ConfirmRkey Request 1");
        link.handle_message(&confirm_rkey(version, KeyTurn::Confirmed, key(1)), now);
        assert_eq!(
            outcome(&mut link),
            "send ConfirmRkey Request 2; key 1 Confirmed"
        );
        assert_eq!(link.poll_timeout(), Some(now + RESPONSE_TIMEOUT));
        link.handle_timeout(now + RESPONSE_TIMEOUT);
        assert_eq!(
            outcome(&mut link),
            "send DeleteRkey Request 1; key 2 Silent; key 3 Silent"
        );
        // Too late, and about another key.
        link.handle_message(&confirm_rkey(version, KeyTurn::Confirmed, key(2)), now);
        assert_eq!(outcome(&mut link), "nothing");
        link.handle_timeout(now + 2 * RESPONSE_TIMEOUT);
        assert_eq!(outcome(&mut link), "deleted 1");
        link.confirm_key(key(3), now).unwrap();
        assert_eq!(outcome(&mut link), "send ConfirmRkey Request 3");
        let refused = KeyTurn::Refused { retry: false };
        link.handle_message(&confirm_rkey(version, refused, key(3)), now);
        assert_eq!(outcome(&mut link), "key 3 Refused { retry: false }");
        assert_eq!(link.poll_timeout(), Some(now + TEST_AFTER));
    }
}

#[test]
fn a_late_answer_to_a_deletion_is_not_that_to_the_next_one() {
    for version in VERSIONS {
        let (_, mut link, now) = states(version).remove(9);
        for key in 1..=4 {
            link.delete_key(key, now).unwrap();
        }
        quiet(&mut link);
        let answers = |link: &mut Link, what: &str| {
            link.handle_message(&deleted(version), now);
            assert_eq!(outcome(link), what);
        };
        link.handle_timeout(now + RESPONSE_TIMEOUT);
        assert_eq!(outcome(&mut link), "send DeleteRkey Request 2; deleted 1");
        answers(&mut link, "nothing");
        answers(&mut link, "send DeleteRkey Request 3; deleted 2");
        // Key 3 is answered once: what seems to be late may as well be its answer, and key 4 need not wait for another.
        link.handle_timeout(now + RESPONSE_TIMEOUT);
        assert_eq!(outcome(&mut link), "send DeleteRkey Request 4; deleted 3");
        answers(&mut link, "nothing");
        link.handle_timeout(now + 2 * RESPONSE_TIMEOUT);
        assert_eq!(outcome(&mut link), "deleted 4");
        link.delete_key(5, now).unwrap();
        assert_eq!(outcome(&mut link), "send DeleteRkey Request 5");
        answers(&mut link, "deleted 5");
    }
}

#[test]
fn keys_need_a_link_that_is_up() {
    for (name, mut link, now) in states(Version::V2) {
        let up = link.is_up();
        assert_eq!(link.confirm_key(key(1), now).is_ok(), up, "{name}");
        assert_eq!(link.delete_key(1, now).is_ok(), up, "{name}");
    }
}

#[test]
fn the_peers_keys_are_known_until_they_are_deleted() {
    for version in VERSIONS {
        let (_, mut link, now) = states(version).remove(9);
        assert!(link.learn_key(key(1)));
        link.handle_message(&confirm_rkey(version, KeyTurn::Request, key(2)), now);
        assert_eq!(link.peer_address(1), Some(key(1).address));
        assert_eq!(link.peer_address(2), Some(key(2).address));
        let moved = Key {
            rkey: 2,
            address: 99,
        };
        link.handle_message(&confirm_rkey(version, KeyTurn::Request, moved), now);
        assert_eq!((link.peer_address(2), link.peer_keys()), (Some(99), 2));
        quiet(&mut link);
        link.handle_message(&delete_rkey(version, &[3, 1, 4]), now);
        let answer = link.poll_transmit().unwrap();
        let expected = match version {
            Version::V1 => DeleteRkey::ResponseV1 {
                keys: Few::new(vec![3, 1, 4]).unwrap(),
                result: DeletedV1::Unknown(0b1010_0000),
            },
            Version::V2 => DeleteRkey::ResponseV2 {
                count: 3,
                result: DeletedV2::Unknown(2),
            },
        };
        assert_eq!(answer, Message::DeleteRkey(expected));
        assert_eq!((link.peer_address(1), link.peer_keys()), (None, 1));
        link.handle_message(&delete_rkey(version, &[2]), now);
        assert_eq!(outcome(&mut link), "send DeleteRkey Response");
    }
}

#[test]
fn no_more_keys_are_learned_than_a_group_can_have() {
    let mut link = state("client up");
    for rkey in 0..MAX_KEYS as u32 {
        assert!(link.learn_key(key(rkey)));
    }
    assert!(!link.learn_key(key(1000)));
    assert!(link.learn_key(key(3)));
    let tell = |rkey| confirm_rkey(Version::V2, KeyTurn::Request, key(rkey));
    link.handle_message(&tell(1000), secs(1));
    assert_eq!(
        outcome(&mut link),
        "send ConfirmRkey Refused { retry: true } 1000"
    );
    link.handle_message(&delete_rkey(Version::V2, &[3]), secs(1));
    quiet(&mut link);
    link.handle_message(&tell(1000), secs(1));
    assert_eq!(outcome(&mut link), "send ConfirmRkey Confirmed 1000");
    assert_eq!(link.peer_keys(), MAX_KEYS);
}

#[test]
fn a_peer_that_asks_without_end_is_cut_off() {
    let mut link = state("client up");
    for _ in 0..MAX_PENDING {
        link.handle_message(&test(Version::V2, Turn::Request), secs(1));
    }
    assert!(link.is_up());
    link.handle_message(&test(Version::V2, Turn::Request), secs(1));
    let expected = "send DeleteLink Request all 0x40000; Misbehaved(TooManyQuestions)";
    assert_eq!(outcome(&mut link), expected);
    assert_eq!(
        Cause::from(Misbehaviour::TooManyQuestions).diagnosis(),
        Diagnosis::INTERNAL_ERROR
    );
}

#[test]
fn a_server_performs_what_a_client_asks_even_without_an_answer() {
    let mut link = state("server ending");
    assert_eq!(link.poll_timeout(), Some(secs(1) + RESPONSE_TIMEOUT));
    link.handle_timeout(secs(1) + RESPONSE_TIMEOUT);
    assert_eq!(outcome(&mut link), "ended by peer 0x10000");
}

#[test]
fn the_end_says_its_reason_once() {
    for (name, mut link, _) in states(Version::V2) {
        if name.ends_with("down") {
            continue;
        }
        link.end(DeleteReason::OPERATOR, false);
        link.end(DeleteReason::PROGRAM, false);
        link.handle_path_lost();
        assert_eq!(link.poll_transmit(), None, "{name}: the path is lost");
        let ended = Cause::Ended {
            by: Side::Us,
            reason: DeleteReason::OPERATOR,
        };
        assert_eq!(link.poll_event(), Some(LinkEvent::Down(ended)), "{name}");
        assert_eq!(
            (link.poll_event(), link.poll_timeout()),
            (None, None),
            "{name}"
        );
    }
    let mut link = state("server up");
    link.end(DeleteReason::PROGRAM, true);
    assert_eq!(
        outcome(&mut link),
        "send DeleteLink Request all 0x30000; ended by us 0x30000"
    );
}

#[test]
fn a_lost_path_is_the_end() {
    for (name, mut link, _) in states(Version::V2) {
        link.handle_path_lost();
        let expected = if name.ends_with("down") {
            "nothing"
        } else {
            "PathLost"
        };
        assert_eq!(outcome(&mut link), expected, "{name}");
    }
    assert_eq!(Cause::PathLost.diagnosis(), Diagnosis::NO_ACTIVE_LINK);
    assert_ne!(KeyAnswer::Silent, KeyAnswer::Confirmed);
}
